"""slime trains on the sessions of a gateway, which other processes open and finalize.

    --rollout-function-path gateway.adapters.slime.generate_rollout
    --custom-reward-post-process-path gateway.adapters.slime.rewards

A training step takes the groups of its batch from the buffer. Each trajectory is a list of samples,
one per row, with one `rollout_id`.
"""

import contextlib
import logging
from importlib import import_module
from typing import Any

from buffer import Batch, LeaseLost, RolloutBuffer, SyncRolloutBuffer, TaskConfig
from buffer.settings import LONGEST
from gateway.adapters.samples import Group, groups_of, normalized
from ground import SettingError
from ground.settings import GroundSettings

log = logging.getLogger(__name__)

_TASK = "gateway"
_WAIT = 30.0
_LEASE = 120.0  # seconds after which the groups of a trainer that was killed come back
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
        self._held: list[tuple[Batch, list[Group]]] = []  # of a step that is not whole yet

    def take(self, groups: int) -> list[Group]:
        """Take so many groups. They count as trained on once all are here. Under a policy a trainer
        that begins again at an older version gets them once more."""
        while (has := sum(len(made) for _, made in self._held)) < groups:
            self._held = [held for held in self._held if self._extended(held[0])]
            batch = self._buffer.take(groups - has, wait=_WAIT, lease=_LEASE)
            if batch is None:
                log.warning("no finished group yet", extra={"has": has, "of": groups})
                continue
            self._held.append((batch, groups_of(self._sample, batch.groups, self._taken)))
            self._taken += sum(len(items) for _, items in batch.groups)
        for batch, _ in self._held:
            with contextlib.suppress(LeaseLost):  # another one may have them too
                self._buffer.ack(batch)
        found, self._held = [group for _, made in self._held for group in made], []
        return found

    def _extended(self, batch: Batch) -> bool:
        try:
            self._buffer.extend(batch, _LEASE)
        except LeaseLost:
            return False
        return True


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
