"""SkyRL's adapter: an environment that grades programs, and a generator that masks what our side
broke.

    register("penstock", "worker.hosts.skyrl:CodeEnv")     # in each of SkyRL's processes

    class Experiment(BasePPOExp):
        def get_generator(self, *given):
            return MaskingGenerator(super().get_generator(*given))

SkyRL takes no None: its batch ends with an exception, and a 0.0 is trained on. So `CodeEnv` notes a
mask in its row. `MaskingGenerator` takes such a trajectory out of the loss and of its group's mean.
"""

import inspect
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

from ground import SettingError
from worker.hosts.grading import Grader
from worker.hosts.session import CodeSession

MASKED = "traj_masked"  # in a row: 1 if its reward is not known
REASON = "traj_exit_reason"

# As SkyRL's own tools are called. An engine that stops at `</python>` may leave it out.
_CALL = re.compile(r"<tool>\s*<python>(.*?)(?:</python>|\Z)", re.DOTALL)


class CodeEnv(BaseTextEnv):
    """An environment whose reward is the grade of the program in the model's last turn, over the
    cases in the row's `reward_spec.ground_truth`.

    With `generator.max_turns` above 1, the model may run programs before it answers, by
    `<tool><python>…</python></tool>`. They share one sandbox. `settings` are those of
    `worker.hosts.Grader`; the `kwargs` of SkyRL's `register` pass all of these.
    """

    def __init__(
        self,
        env_config: Any = None,
        extras: dict[str, Any] | None = None,
        *,
        grader: Grader | None = None,
        timeout: float = 30.0,
        max_output: int = 8192,
        provider: str = "",
        **settings: Any,
    ) -> None:
        super().__init__()
        if grader is not None and settings:
            raise SettingError(next(iter(settings)), "is a setting of the grader that is given")
        self._row = {} if extras is None else extras
        self._row.pop(MASKED, None)  # of an earlier episode
        self._truth = _truth_in(self._row)
        self._grader = grader or Grader(**settings)
        self.max_turns = int(self._row.get("max_turns", 1))
        self._session: CodeSession | None = None
        if self.max_turns > 1:
            self._session = CodeSession(
                language=self._grader.language or "python",
                timeout=timeout, max_output=max_output, provider=provider,
            )  # fmt: skip

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """SkyRL calls it in a thread. It raises nothing: that would end the batch."""
        self.turns += 1
        call = _CALL.search(action)
        if call is None or self._session is None or self.turns >= self.max_turns:
            return self._graded(action)
        answer = self._session.run_sync(call[1].strip("\n"))
        if answer.masked:
            return self._masked(answer.reason)
        seen = [{"role": "user", "content": answer.text or "(no output)"}]
        return _output(seen, 0.0, done=False, **answer.metrics)

    def close(self) -> None:
        """SkyRL forgets it when a batch fails; the session then ends by itself."""
        if self._session is not None:
            self._session.end_soon()

    def get_metrics(self) -> dict[str, Any]:
        """SkyRL logs their mean as `environment/traj_masked`."""
        return {MASKED: int(self._row.get(MASKED, 0))}

    def _graded(self, action: str) -> BaseTextEnvStepOutput:
        grade = self._grader.grade_sync(action, self._truth)
        if grade.value is None:
            return self._masked(grade.reason)
        return _output([], grade.value, done=True, reason=grade.reason)

    def _masked(self, reason: str) -> BaseTextEnvStepOutput:
        noted = {MASKED: 1, REASON: f"infrastructure: {reason}"}
        self._row.update(noted)
        return _output([], 0.0, done=True, **noted)


class MaskingGenerator:
    """Any generator of SkyRL, whose masked trajectories train nothing.

    Their loss mask is 0, and their reward is the mean of their group without them, so that the mean
    stays. A group without any known reward has 0.0, and no loss.
    """

    def __init__(self, generator: Any) -> None:
        self._generator = generator

    async def generate(self, input_batch: Any, disable_tqdm: bool = False) -> Any:
        """SkyRL calls it for a batch of prompts."""
        asked = inspect.signature(self._generator.generate).parameters
        options = {"disable_tqdm": disable_tqdm} if "disable_tqdm" in asked else {}
        output = await self._generator.generate(input_batch, **options)
        rows = input_batch["env_extras"] or []
        ids = _ids(input_batch.get("trajectory_ids"), len(rows))
        masked = {one for one, row in zip(ids, rows, strict=True) if row.get(MASKED)}
        if masked:
            _mask(output, masked, ids)
        return output


def _mask(output: dict[str, Any], left_out: set[Any], ids: Sequence[Any]) -> None:
    rewards, masks = output["rewards"], output["loss_masks"]
    last = output.get("is_last_step")
    if last:  # step-wise: a row per turn, and a trajectory's last one has its reward
        ids = _ids(output["trajectory_ids"], len(rewards))
    counts = last or [True] * len(rewards)
    known: dict[Any, list[float]] = defaultdict(list)
    for one, reward, counted in zip(ids, rewards, counts, strict=True):
        if counted and one not in left_out:
            known[one[0]].append(_total(reward))
    for row, (one, counted) in enumerate(zip(ids, counts, strict=True)):
        if one in left_out:
            kept = known[one[0]] if counted else []
            rewards[row] = _like(rewards[row], fmean(kept) if kept else 0.0)
            masks[row] = [0] * len(masks[row])


def _ids(trajectories: Sequence[Any] | None, count: int) -> list[tuple[Any, Any]]:
    """The group of each, and which of it. Without ids, all are one group."""
    if trajectories is None:
        return [(None, number) for number in range(count)]
    return [(one.instance_id, one.repetition_id) for one in trajectories]


def _total(reward: float | list[float]) -> float:
    return sum(reward) if isinstance(reward, list) else float(reward)


def _like(reward: float | list[float], total: float) -> float | list[float]:
    """The total in the form of the other: one number, or one per token."""
    if not isinstance(reward, list):
        return total
    return [*[0.0] * (len(reward) - 1), total] if reward else []


def _truth_in(row: Mapping[str, Any]) -> Any:
    spec = row.get("reward_spec")
    if not isinstance(spec, Mapping) or "ground_truth" not in spec:
        its = ", ".join(sorted(row)) or "none"
        raise SettingError(
            "reward_spec.ground_truth", f"the row must have the cases there; its columns are: {its}"
        )
    return spec["ground_truth"]


def _output(
    observations: list[dict[str, str]], reward: float, *, done: bool, **metadata: Any
) -> BaseTextEnvStepOutput:
    return BaseTextEnvStepOutput(
        observations=observations, reward=reward, done=done, metadata=metadata
    )
