"""slime trains on the sessions of a gateway, which other processes open and finalize.

    --rollout-function-path gateway.adapters.slime.generate_rollout
    --custom-reward-post-process-path gateway.adapters.slime.rewards

A training step takes the groups of its batch from the buffer. Each trajectory is a list of samples,
one per row, with one `rollout_id`.
"""

import logging
from importlib import import_module
from typing import Any

from buffer import RolloutBuffer, SyncRolloutBuffer, TaskConfig
from buffer.settings import LONGEST
from gateway.adapters.samples import Group, groups_of, normalized
from ground import SettingError
from ground.settings import GroundSettings

log = logging.getLogger(__name__)

_TASK = "gateway"
_WAIT = 30.0
_readers: dict[str, "Reader"] = {}


class Reader:
    """A reader takes groups of one task, with `n_samples_per_prompt` sessions each."""

    def __init__(self, args: Any) -> None:
        settings = GroundSettings.load()
        if settings.redis_url is None:
            raise SettingError("PENSTOCK_REDIS_URL", "unset: name the Redis that keeps the groups")
        config = TaskConfig(
            group_size=args.n_samples_per_prompt, dialect="v1", group_timeout_seconds=LONGEST
        )
        self.task = task_of(args)
        self._buffer: SyncRolloutBuffer = RolloutBuffer(
            settings.redis_url.get_secret_value(), self.task, config, run=settings.run
        ).sync
        self._sample: Any = import_module("slime.utils.types").Sample
        self._taken = 0

    def take(self, groups: int) -> list[Group]:
        """Take so many groups. They count as trained on; under a policy a trainer that begins again
        at an older version gets them once more."""
        found: list[Group] = []
        while len(found) < groups:
            batch = self._buffer.take(groups - len(found), wait=_WAIT)
            if batch is None:
                log.warning("no finished group yet", extra={"has": len(found), "of": groups})
                continue
            self._buffer.ack(batch)
            found += groups_of(self._sample, batch.groups, self._taken)
            self._taken += sum(len(items) for _, items in batch.groups)
        return found


def task_of(args: Any) -> str:
    """The buffer's task: `rollout_task_type`, or `gateway`."""
    return getattr(args, "rollout_task_type", None) or _TASK


def generate_rollout(
    args: Any, rollout_id: int, data_source: Any, evaluation: bool = False
) -> list[Group]:
    """slime's `--rollout-function-path`."""
    if evaluation:
        raise ValueError("sessions of a gateway do not evaluate: set slime's own function")
    task = task_of(args)
    if task not in _readers:
        _readers[task] = Reader(args)
    return _readers[task].take(args.rollout_batch_size)


def rewards(args: Any, samples: list[Any]) -> tuple[list[float], list[float]]:
    """slime's `--custom-reward-post-process-path`: by prompt, and per trajectory, not per row."""
    by_deviation = args.advantage_estimator in ("grpo", "gspo", "cispo")
    return normalized(samples, by_deviation=by_deviation and args.grpo_std_normalization)
