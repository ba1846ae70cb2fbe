"""slime's adapter: a reward that removes what our side broke, and agents' sandboxes.

    --custom-rm-path worker.hosts.slime.rm
    --custom-reward-post-process-path worker.hosts.slime.without_masked
    --dynamic-sampling-filter-path worker.hosts.slime.keep_clean_groups
    --custom-eval-rollout-log-function-path worker.hosts.slime.eval_without_masked

slime masks the loss of a sample with `remove_sample`, but counts its reward in its group's mean.
`without_masked` leaves it out there too; `keep_clean_groups` drops its group instead. Evaluations
count it as well, unless `eval_without_masked` is given.
"""

import asyncio
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Self

from ground import PenstockError
from worker.hosts.grading import Grade, Grader
from worker.hosts.process_lifecycle import lifecycle_here
from worker.lifecycle.provider import FILE_ERRORS, SandboxSpec
from worker.lifecycle.sandbox import OpenSandbox

MASKED = "penstock_masked"  # in a sample's metadata: why it is removed
JOB = "penstock_job"  # in a sample's metadata: what judged it, for `penstock why`
_NORMED = ("grpo", "gspo", "cispo")
_CENTRED = (*_NORMED, "reinforce_plus_plus_baseline")
_EPSILON = 1e-6  # as slime has it


class CodeReward:
    """A reward function of slime, with the settings of `worker.hosts.Grader`.

    A sample's `label` has the cases. A sample that cannot be graded is removed, with the reason in
    its metadata. Its reward is 0.0, since slime takes no None. The job that judged a sample is in
    its metadata too.
    """

    def __init__(self, grader: Grader | None = None, **settings: Any) -> None:
        self._grader = grader or Grader(**settings)

    async def __call__(self, args: Any, sample: Any, **_: Any) -> Any:
        """slime calls it for a sample; with `--group-rm` for a list of samples."""
        if isinstance(sample, list):
            return await asyncio.gather(*(self._rewarded(args, each) for each in sample))
        return await self._rewarded(args, sample)

    async def _rewarded(self, args: Any, sample: Any) -> Any:
        grade = await self._grader.grade(sample.response, sample.label)
        _note(sample, grade)
        value = 0.0 if grade.value is None else grade.value
        keys = {getattr(args, name, None) for name in ("reward_key", "eval_reward_key")} - {
            None,
            "",
        }
        return dict.fromkeys(keys, value) if keys else value


def _note(sample: Any, grade: Grade) -> None:
    if grade.masked:
        sample.remove_sample = True
        sample.metadata = {**(sample.metadata or {}), MASKED: grade.reason}
    if grade.job:
        sample.metadata = {**(sample.metadata or {}), JOB: grade.job}


rm = CodeReward()
"""For `--custom-rm-path`."""


def without_masked(args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
    """The raw rewards, and those that are trained on: slime's own, as if no removed sample were
    there. A removed one has the mean of its group, and 0 to train on."""
    raw: list[float] = []
    trained: list[float] = []
    for group in _groups(args, samples):
        rewards = [None if one.remove_sample else one.get_reward_value(args) for one in group]
        kept = [float(reward) for reward in rewards if reward is not None]
        mean = fmean(kept) if kept else 0.0
        base, scale = _norm(args, kept, mean)
        raw += [mean if reward is None else reward for reward in rewards]
        trained += [0.0 if reward is None else (reward - base) / scale for reward in rewards]
    return raw, trained


def _norm(args: Any, kept: Sequence[float], mean: float) -> tuple[float, float]:
    """The mean that slime takes off each reward, and the number that it divides it by."""
    if args.advantage_estimator not in _CENTRED or not args.rewards_normalization:
        return 0.0, 1.0
    if args.advantage_estimator not in _NORMED or not args.grpo_std_normalization:
        return mean, 1.0
    return mean, (stdev(kept) if len(kept) > 1 else 0.0) + _EPSILON


def _groups(args: Any, samples: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """The groups as slime has them: all are one group if their number is not that of whole
    groups."""
    size = args.n_samples_per_prompt
    if len(samples) != size * args.rollout_batch_size:
        size = max(len(samples), 1)
    for start in range(0, len(samples), size):
        yield samples[start : start + size]


def keep_clean_groups(args: Any, samples: Sequence[Any], **_: Any) -> Any:
    """Drop a group of which a sample is removed; slime samples another one in its place."""
    from slime.rollout.filter_hub.base_types import DynamicFilterOutput

    clean = not any(one.remove_sample for one in _flat(samples))
    return DynamicFilterOutput(keep=clean, reason=None if clean else "masked")


def eval_without_masked(
    rollout_id: int, args: Any, data: Mapping[str, Any], extra_metrics: Any = None
) -> bool:
    """Give a masked sample, before slime logs an evaluation, the mean of its data set's others, or
    NaN if there are none. So slime's own mean is that of the others."""
    for found in data.values():
        masked = [MASKED in (one.metadata or {}) for one in found.get("samples") or ()]
        if any(masked):
            pairs = [*zip(found["rewards"], masked, strict=True)]
            known = [float(reward) for reward, out in pairs if not out]
            mean = fmean(known) if known else math.nan
            found["rewards"] = [mean if out else reward for reward, out in pairs]
    return False


def _flat(samples: Sequence[Any]) -> Iterator[Any]:
    for one in samples:
        yield from _flat(one) if isinstance(one, list) else [one]


class Sandbox:
    """A session sandbox with the interface of `slime.agent.sandbox.Sandbox`.

    `image` may stay empty: the provider's own. A sandbox has one user, so `user` is ignored.
    """

    def __init__(self, image: str = "", *, provider: str = "", **spec: Any) -> None:
        self.sandbox_id = ""
        self._lifecycle = lifecycle_here(provider)
        self._spec = SandboxSpec(image, **spec)
        self._open: OpenSandbox | None = None

    async def __aenter__(self) -> Self:
        self._open = await self._lifecycle.start(self._spec)
        self.sandbox_id = self._open.name
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._open is not None:
            await self._lifecycle.stop(self._open)

    async def exec(
        self,
        cmd: str,
        *,
        user: str = "root",
        env: dict[str, str] | None = None,
        timeout: int = 120,  # noqa: ASYNC109 - slime's
        check: bool = False,
        idempotent: bool = True,
    ) -> tuple[int, str, str]:
        """Exit code, stdout and stderr of a shell's command. Raises `TimeoutError`, with `check`
        `RuntimeError` if the command fails, and a `SandboxFailure` if the sandbox does."""
        ended = await self._sandbox.exec(["bash", "-c", cmd], timeout=timeout, env=env)
        if ended.timed_out:
            raise TimeoutError(f"{cmd[:100]!r} did not end within {timeout} s")
        code = ended.exit_code if ended.exit_code is not None else -1
        out, err = (stream.decode(errors="replace") for stream in (ended.stdout, ended.stderr))
        if check and code != 0:
            raise RuntimeError(f"{cmd[:100]!r} failed with exit code {code}: {err[:400]}")
        return code, out, err

    async def write_file(
        self, sandbox_path: str, content: str | bytes | Path, *, user: str = "root"
    ) -> None:
        """A path is a file of this machine."""
        data = content.read_bytes() if isinstance(content, Path) else content  # noqa: ASYNC240
        await self._sandbox.write_file(sandbox_path, data)

    async def read_file(self, sandbox_path: str, *, user: str = "root") -> str:
        """Read a file as text; empty if there is no such file, as with slime's own."""
        try:
            return (await self._sandbox.read_file(sandbox_path)).decode(errors="replace")
        except FILE_ERRORS:
            return ""

    @property
    def _sandbox(self) -> OpenSandbox:
        if self._open is None:
            raise PenstockError("the sandbox is not open: `async with Sandbox() as sandbox`")
        return self._open
