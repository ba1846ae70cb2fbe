"""An OpenEnv server: `run_code`, then `submit` for the reward. `penstock openenv` serves it.

Consumers of OpenEnv turn a reward of None into 0. So a step that our side failed raises, as
`infrastructure: reason`, and the client gets an error in its place. TRL's takes None:
`on_failure="none"`.
"""

from functools import partial
from typing import Any, Literal

from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

from jail.errors import RequestRefused
from jail.models import CodeRequest
from worker.hosts.grading import Grader, cases_of
from worker.hosts.session import CodeSession
from worker.place import HERE, Place, place_of
from worker.queue.code_queue import CodeQueue
from worker.tool.call import Answer

OnFailure = Literal["raise", "none"]
_LONGEST = 8192  # characters of an output that the model reads


class InfrastructureFailed(Exception):
    """A step has no result, for no fault of the program."""


class CodeAction(Action):
    """A program: to be run, or to be judged on the cases of the episode."""

    kind: Literal["run_code", "submit"] = "run_code"
    code: str


class CodeObservation(Observation):
    """The output of the program; after `submit`, the reward. `metadata` says why."""

    output: str = ""


class CodeState(State):
    """`masked`: why the episode has no true reward."""

    masked: str = ""


class CodeEnvironment(Environment[CodeAction, CodeObservation, CodeState]):
    """An environment with one episode at a time, which begins with `reset(ground_truth=cases)`.

    sessions    whether programs of an episode share a session sandbox; else each has its own
    on_failure  `raise`, or `none` for a reward of None
    timeout     seconds for a program
    patience    seconds beyond that until a program on a queue is given up
    queue       where programs without a session run; None: the embedded sandbox of this process
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(
        self,
        grader: Grader | None = None,
        *,
        queue: CodeQueue | None = None,
        sessions: bool = False,
        timeout: float = 30.0,
        patience: float = 120.0,
        on_failure: OnFailure = "raise",
    ) -> None:
        super().__init__()
        self._grader = grader or Grader()
        self._place = place_of(queue or HERE)
        self._timeout, self._patience = timeout, patience
        self._sessions, self._on_failure = sessions, on_failure
        self._session: CodeSession | None = None
        self._cases: Any = None
        self._state = CodeState()

    def reset(self, seed: int | None = None, episode_id: str | None = None, **row: Any) -> Any:
        raise NotImplementedError("this environment is asynchronous: reset_async")

    def step(self, action: Any, timeout_s: float | None = None, **_: Any) -> Any:
        raise NotImplementedError("this environment is asynchronous: step_async")

    async def reset_async(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        ground_truth: Any = None,
        **_: Any,
    ) -> CodeObservation:
        try:
            self._cases = None if ground_truth is None else cases_of(ground_truth)
        except RequestRefused as refusal:
            raise ValueError(f"ground_truth: {refusal}") from None
        if self._session is not None:
            await self._session.end()
        self._session = CodeSession(timeout=self._timeout) if self._sessions else None
        self._state = CodeState(episode_id=episode_id)
        return CodeObservation()

    async def step_async(
        self, action: CodeAction, timeout_s: float | None = None, **_: Any
    ) -> CodeObservation:
        self._state.step_count += 1
        if action.kind == "submit":
            return await self._submitted(action.code)
        if self._session is not None:
            answer = await self._session.run(action.code)
        else:
            seconds = timeout_s or self._timeout
            answer = await _ran(self._place, action.code, seconds, seconds + self._patience)
        if answer.masked:
            return self._failed(answer.reason, answer.text)
        return CodeObservation(output=answer.text, metadata=answer.metrics)

    async def _submitted(self, code: str) -> CodeObservation:
        if self._cases is None:
            raise ValueError("submit: the episode has no cases; reset(ground_truth=cases)")
        if self._state.masked:
            return self._failed(self._state.masked, "the sandbox failed earlier in this episode")
        grade = await self._grader.grade_code(code, self._cases)
        if grade.value is None:
            return self._failed(grade.reason, grade.message)
        return CodeObservation(done=True, reward=grade.value, metadata={"reason": grade.reason})

    def _failed(self, reason: str, message: str) -> CodeObservation:
        if self._session is not None:  # with what earlier programs left in it
            self._state.masked = self._state.masked or reason
        if self._on_failure == "raise":
            raise InfrastructureFailed(f"infrastructure: {reason}: {message}")
        about = {"traj_masked": 1, "traj_exit_reason": f"infrastructure: {reason}"}
        return CodeObservation(output=message, done=True, reward=None, metadata=about)

    @property
    def state(self) -> CodeState:
        return self._state

    def close(self) -> None:
        """The client has gone: the session's sandbox ends."""
        if self._session is not None:
            self._session.end_soon()


async def _ran(
    place: Place,
    code: str,
    timeout: float,  # noqa: ASYNC109 - the program's
    deadline: float,
) -> Answer:
    try:
        request = CodeRequest(code=code, run_timeout=timeout)
    except RequestRefused as refusal:
        return Answer.of_refusal(str(refusal), _LONGEST)
    try:
        result = await place.run(request, timeout=deadline)
        return Answer.of_result(result, timeout, _LONGEST)
    except Exception as failure:  # noqa: BLE001 - `of_failure` sorts the kinds
        return Answer.of_failure(failure, _LONGEST)


def app(*, most: int = 64, **settings: Any) -> Any:
    """The FastAPI application, for at most this many clients at once; `settings` are those of
    `CodeEnvironment`."""
    environment = partial(CodeEnvironment, **settings)
    return create_fastapi_app(
        environment, CodeAction, CodeObservation,
        max_concurrent_envs=most, env_name="penstock", state_cls=CodeState,
    )  # fmt: skip
