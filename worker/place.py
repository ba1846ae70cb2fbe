"""A place runs programs, by one rule for all that name a place: a queue's workers, or a sandbox.

    place_of("redis://…")   the workers of a queue on that Redis, who take the permits
    place_of("local")       the embedded sandbox of this process
    place_of("http://…")    a Sandbox Fusion; several addresses, separated by spaces, share the load
    place_of(None)          the queue on PENSTOCK_REDIS_URL; without that, `local`
    place_of(queue)         a `CodeQueue`, or a sandbox of the caller's own event loop

Whose fault an end is, is decided here, once for all callers: see `Place`.
"""

import asyncio
import math
import re
from abc import ABC, abstractmethod
from functools import cache
from typing import Any, Protocol, cast

from ground import SettingError
from ground.numbers import check_whole
from ground.process import on_process_loop
from ground.redis.url import RedisTarget
from ground.settings import GroundSettings
from jail.errors import RequestRefused, SandboxFailure
from jail.judge.asking import JudgeOptions, request_here
from jail.judge.formats import Cases, check_cases
from jail.judge.models import JudgeRequest, JudgeResult
from jail.models import CodeRequest, CodeResult
from jail.protocol import Sandbox
from worker.errors import QueueError, TrainingPaused
from worker.judging.job import judge, judge_job
from worker.queue.code_queue import CodeQueue
from worker.run.choice import sandbox_here
from worker.run.execution import SPARE, RetryPolicy, execute
from worker.run.turn import JobAtHand, Room, Unlimited
from worker.settings import WhenPaused, WorkerSettings, worker_settings

HERE = "local"
AT_ONCE = 16  # cases of one program side by side, in a sandbox that only runs programs
_REDIS = re.compile(r"(rediss?(\+\w+)?|unix)://", re.IGNORECASE)


class Runner(Protocol):
    """A runner runs programs: a `CodeQueue`, or a `Sandbox`."""

    async def run(self, request: CodeRequest, /) -> CodeResult: ...


class Place(ABC):
    """A place for programs. Three outcomes are distinguished here, and nowhere above.

    The program  a result, or a verdict: also if no sandbox takes its text, or its language
    The data     raises `RequestRefused`: nobody can be asked for such cases, whatever the program
    Us           an `infrastructure` result, or masked cases, with the failure's reason and message

    A queue that is to raise while its breaker is open raises `TrainingPaused`.
    """

    takes_permits = False  # whether its workers take the permits, so that a caller takes none
    server = ""  # the addresses of a server, whose own answers verl's functions read

    async def run(
        self,
        request: CodeRequest,
        timeout: float | None = None,  # noqa: ASYNC109 - until it is given up, and is our failure
    ) -> CodeResult:
        """How the program ended."""
        try:
            return await self._ran(request, timeout)
        except TrainingPaused:
            raise
        except QueueError as failure:
            return CodeResult(
                status="SandboxError", message=str(failure), error_kind="infrastructure",
                error_reason=type(failure).__name__,
            )  # fmt: skip

    async def judge(
        self,
        code: str,
        cases: Cases,
        options: JudgeOptions,
        of_model: JudgeOptions | None = None,
    ) -> JudgeResult:
        """A verdict for each case. `of_model` are options that the model has chosen, as its code.

        What would be refused without the model's part of it too is the data's fault, and raises.
        """
        cases, chosen = check_cases(cases), of_model or {}
        count = len(cases.cases)
        try:
            result = await self._judged(code, cases, cast(JudgeOptions, {**options, **chosen}))
        except RequestRefused as refusal:
            request_here("", cases, options)
            return _not_compiled("compile_error", str(refusal), count)
        except SandboxFailure as failure:
            return JudgeResult.of_failure(failure, count)
        except TrainingPaused:
            raise
        except QueueError as failure:
            why = f"{type(failure).__name__}: {failure}"
            return JudgeResult(verdicts="M" * count, error_reason=why, message=str(failure))
        if "language" in chosen and result.masked_because == "language":
            return _not_compiled("language", result.message, count)  # one that nobody runs
        return result

    @abstractmethod
    async def _ran(self, request: CodeRequest, timeout: float | None) -> CodeResult: ...  # noqa: ASYNC109

    @abstractmethod
    async def _judged(self, code: str, cases: Cases, options: JudgeOptions) -> JudgeResult: ...


def _not_compiled(reason: str, message: str, count: int) -> JudgeResult:
    reasons = dict.fromkeys(range(count), reason)
    return JudgeResult(verdicts="C" * count, reasons=reasons, message=message)


class OnQueue(Place):
    """The workers of a queue. All cases of a program are one job."""

    takes_permits = True

    def __init__(self, queue: CodeQueue) -> None:
        self._queue = queue

    async def _ran(self, request: CodeRequest, timeout: float | None) -> CodeResult:  # noqa: ASYNC109
        return await self._queue.run(request, timeout=timeout)

    async def _judged(self, code: str, cases: Cases, options: JudgeOptions) -> JudgeResult:
        return await self._queue.judge(code, cases, **options)


class InSandbox(Place):
    """A sandbox of the caller's event loop. One that only runs programs is asked case by case."""

    def __init__(self, sandbox: Any, at_once: int = AT_ONCE) -> None:
        self._sandbox: Sandbox = sandbox
        self._at_once = at_once

    async def _ran(self, request: CodeRequest, timeout: float | None) -> CodeResult:  # noqa: ASYNC109
        at_hand = JobAtHand(seconds=math.inf if timeout is None else timeout + SPARE)
        return await execute(request, at_hand, self._sandbox, _policy())

    async def _judged(self, code: str, cases: Cases, options: JudgeOptions) -> JudgeResult:
        request, suite = request_here(code, cases, options)
        itself = (asyncio.current_task(),)  # one job, and its cases beside it
        at_hand = JobAtHand(Unlimited(Room(self._at_once, itself)))
        return await judge(request, suite, at_hand, self._sandbox, _policy())


class InProcess(Place):
    """A sandbox that this process keeps for all callers, on its own event loop."""

    def __init__(self, server: str = "", at_once: int = AT_ONCE) -> None:
        self.server = server
        self._at_once = at_once

    def sandbox(self) -> Sandbox:
        """The sandbox, on the process's loop."""
        settings = {"sandbox": HERE}
        if self.server:
            settings = {"sandbox": "fusion", "sandbox_fusion_url": self.server}
        return sandbox_here(WorkerSettings.load(**settings))

    async def judge_again(
        self, request: CodeRequest | JudgeRequest, target: RedisTarget
    ) -> CodeResult | JudgeResult:
        """Run or judge here and now what a job of that Redis asked for, on the same cases."""

        async def there() -> CodeResult | JudgeResult:
            at_hand, sandbox = JobAtHand(target=target), self.sandbox()
            if isinstance(request, JudgeRequest):
                return await judge_job(request, at_hand, sandbox, _policy())
            return await execute(request, at_hand, sandbox, _policy())

        return await on_process_loop(there())

    async def _ran(self, request: CodeRequest, timeout: float | None) -> CodeResult:  # noqa: ASYNC109
        async def there() -> CodeResult:
            return await InSandbox(self.sandbox(), self._at_once)._ran(request, timeout)

        return await on_process_loop(there())

    async def _judged(self, code: str, cases: Cases, options: JudgeOptions) -> JudgeResult:
        async def there() -> JudgeResult:
            return await InSandbox(self.sandbox(), self._at_once)._judged(code, cases, options)

        return await on_process_loop(there())


def place_of(
    on: str | CodeQueue | Runner | None,
    *,
    queue: str = "code",
    share: str | None = None,
    patience: float = 60.0,
    at_once: int = AT_ONCE,
    when_paused: WhenPaused = "wait",
    setting: str = "on",
) -> Place:
    """Read a place, without connecting to it. Raises `SettingError`, which names the `setting`, for
    what is no place.

    `queue`, `share`, `patience` and `when_paused` are those of `CodeQueue`, if a Redis is named.
    """
    check_whole("at_once", at_once)
    if on is None:
        url = GroundSettings.load().redis_url
        on = HERE if url is None else url.get_secret_value()
    if isinstance(on, CodeQueue):
        return OnQueue(on)
    if not isinstance(on, str):
        if not callable(getattr(on, "run", None)):
            raise TypeError(f"`{setting}` is a CodeQueue, a sandbox or its address, not {on!r:.60}")
        return InSandbox(on, at_once)
    if _REDIS.match(on):
        return OnQueue(_queue(on, queue, share, patience, when_paused))
    if on == HERE:
        return InProcess(at_once=at_once)
    from jail.fusion.endpoints import run_code_url  # brings an HTTP client

    try:
        for address in on.split() or [""]:
            run_code_url(address)
    except SettingError:
        raise SettingError(
            setting,
            "names no place for programs: a sandbox is http://host:8080, a queue's Redis "
            "redis://host:6379, and the embedded sandbox local",
        ) from None
    return InProcess(on, at_once)


@cache  # a process has one queue for all callers; it may be used after a fork
def _queue(
    redis: str, name: str, share: str | None, patience: float, when_paused: WhenPaused
) -> CodeQueue:
    return CodeQueue(redis, name, share=share, patience=patience, when_paused=when_paused)


def _policy() -> RetryPolicy:
    return RetryPolicy(attempts=worker_settings().sandbox_attempts)
