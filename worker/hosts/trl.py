"""TRL's adapter, for GRPO: a reward that is None if our side failed, and an environment with a
sandbox.

    from worker.hosts.trl import CodeEnvironment, CodeReward

    GRPOTrainer(reward_funcs=CodeReward("ground_truth"), …)
    GRPOTrainer(reward_funcs=None, environment_factory=CodeEnvironment, …)

TRL leaves a row out of its group's mean only if every reward of that row is None. Beside another
reward function, None counts as 0. So `CodeReward(also=[…])` adds the others up itself.
"""

import asyncio
import inspect
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from ground import SettingError
from worker.hosts.grading import Grade, Grader
from worker.hosts.session import CodeSession

Reward = Callable[..., Any]
TRUTH = "ground_truth"
_TRLS_OWN = {"completion_ids", "trainer_state", "log_extra", "log_metric", "environments"}


class CodeReward:
    """A reward function of TRL: one grade per completion, None if it is masked.

    truth     the data set's column with the cases
    also      reward functions to be added, each alone or as (function, weight). A row of which one
              reward is None is None as a whole
    settings  those of `worker.hosts.Grader`
    """

    def __init__(
        self,
        truth: str = TRUTH,
        *,
        also: Sequence[Reward | tuple[Reward, float]] = (),
        grader: Grader | None = None,
        **settings: Any,
    ) -> None:
        if grader is not None and settings:
            raise SettingError(next(iter(settings)), "is a setting of the grader that is given")
        self._truth = truth
        self._grader = grader or Grader(**settings)
        self._also = [one if isinstance(one, tuple) else (one, 1.0) for one in also]

    async def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any
    ) -> list[float | None]:
        """TRL calls it with the data set's columns."""
        if self._truth not in columns:
            its = ", ".join(sorted(set(columns) - _TRLS_OWN)) or "none"
            raise SettingError(
                "truth", f"the data set has no column {self._truth!r}; its columns are: {its}"
            )
        given = {"prompts": prompts, "completions": completions, **columns}
        grades, others = await asyncio.gather(
            self._grades(completions, columns[self._truth], columns.get("environments")),
            asyncio.gather(*(_asked(function, given) for function, _ in self._also)),
        )
        _log(grades, columns)
        weights = [weight for _, weight in self._also]
        return [
            _total([grade.value, *rewards], [1.0, *weights])
            for grade, *rewards in zip(grades, *others, strict=True)
        ]

    async def _grades(
        self, completions: Sequence[Any], truths: Sequence[Any], environments: Any
    ) -> list[Grade]:
        masked = [getattr(one, "_masked", "") for one in environments or [None] * len(completions)]
        return await asyncio.gather(
            *(
                _given(Grade(None, reason)) if reason else self._grader.grade(completion, truth)
                for completion, truth, reason in zip(completions, truths, masked, strict=True)
            )
        )


class CodeEnvironment:
    """An environment of TRL with one tool, `run_code`: a sandbox for each rollout.

    Its reward is the grade of the last program that the model ran, over the cases in the row's
    column `truth`. It is 0 if it ran none, and None once our side has failed. With `truth=None` it
    has no reward of its own: give a `CodeReward`, which masks the rollouts of environments that
    failed.
    """

    # TRL offers each public method to the model, and ends no environment. So there is one such
    # method, and the sandbox ends with the reward, with the next rollout, or with this object.

    def __init__(
        self,
        truth: str | None = TRUTH,
        *,
        grader: Grader | None = None,
        timeout: float = 30.0,
        max_output: int = 8192,
        provider: str = "",
    ) -> None:
        self._truth = truth
        self._grader = grader or Grader()
        self._options: dict[str, Any] = {
            "language": self._grader.language or "python", "timeout": timeout,
            "max_output": max_output, "provider": provider,
        }  # fmt: skip
        self._session = CodeSession(**self._options)  # it opens nothing yet
        self._row: dict[str, Any] = {}
        self._last = ""

    def reset(self, **row: Any) -> None:
        """TRL calls it before each rollout. The prompt stays as it is."""
        self._session.end_soon()
        self._session = CodeSession(**self._options)
        self._row, self._last = row, ""

    async def run_code(self, code: str) -> str:
        """Run a Python program in a sandbox. Variables and files stay until the end.

        Args:
            code: The program.

        Returns:
            What the program printed, and how it ended.
        """
        self._last = str(code)
        return (await self._session.run(self._last)).text

    async def get_reward(self) -> float | None:
        """TRL calls it after each rollout, for one after the other: it waits for no teardown."""
        self._session.end_soon()
        if self._masked or self._truth is None:
            return None
        if self._truth not in self._row:
            raise SettingError("truth", f"the data set has no column {self._truth!r}")
        if not self._last:
            return 0.0
        return (await self._grader.grade_code(self._last, self._row[self._truth])).value

    @property
    def _masked(self) -> str:
        return self._session.masked

    def _close(self) -> None:
        self._session.end_soon()


async def _asked(function: Reward, given: dict[str, Any]) -> Sequence[float | None]:
    """A function that blocks gets a thread: the trainer's other rewards share the event loop."""
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - of an object, its method
    ):
        found = await function(**given)
    else:
        found = await asyncio.to_thread(function, **given)
    return list(found)


async def _given(grade: Grade) -> Grade:
    return grade


def _total(rewards: Sequence[float | None], weights: Sequence[float]) -> float | None:
    known = [reward for reward in rewards if reward is not None]
    if len(known) < len(rewards):
        return None
    return sum(reward * weight for reward, weight in zip(known, weights, strict=True))


def _log(grades: Sequence[Grade], columns: dict[str, Any]) -> None:
    """Log to TRL's metrics and its table of completions, if it has them."""
    if callable(log_metric := columns.get("log_metric")):
        reasons = Counter(grade.reason for grade in grades if grade.masked)
        log_metric("penstock/masked", float(sum(reasons.values())))
        for reason, count in reasons.items():
            log_metric(f"penstock/masked/{reason}", float(count))
    if callable(log_extra := columns.get("log_extra")):
        log_extra("penstock_reason", [grade.reason for grade in grades])
        log_extra("penstock_job", [grade.job for grade in grades])


code_reward = CodeReward()
"""For TRL's command line: `--reward_funcs worker.hosts.trl.code_reward`."""
