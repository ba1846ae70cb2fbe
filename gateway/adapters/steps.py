"""The groups of a training step, for slime and miles: they count as trained on together."""

import contextlib
import logging
from typing import Any

from buffer import Batch, LeaseLost, RolloutBuffer, TaskConfig
from buffer.settings import LONGEST
from gateway.adapters.samples import Group, groups_of
from ground import SettingError
from ground.settings import GroundSettings
from ground.tasks import cancellations, heed_cancellation

log = logging.getLogger(__name__)

_TASK = "gateway"
_WAIT = 30.0
_LEASE = 120.0  # seconds after which the groups of a trainer that was killed come back


def task_of(args: Any) -> str:
    """The buffer's task: `rollout_task_type`, or `gateway`."""
    return getattr(args, "rollout_task_type", None) or _TASK


class Steps:
    """The steps of one task, with `n_samples_per_prompt` sessions per group. `sample` is the
    trainer's type."""

    def __init__(self, args: Any, sample: type[Any]) -> None:
        settings = GroundSettings.load()
        if settings.redis_url is None:
            raise SettingError("PENSTOCK_REDIS_URL", "unset: name the Redis that keeps the groups")
        config = TaskConfig(
            group_size=args.n_samples_per_prompt, dialect="v1", group_timeout_seconds=LONGEST
        )
        self.buffer = RolloutBuffer(
            settings.redis_url.get_secret_value(), task_of(args), config, run=settings.run
        )
        self._sample = sample
        self._taken = 0
        self._held: list[tuple[Batch, list[Group]]] = []  # of a step that is not whole yet

    async def take(self, groups: int) -> list[Group]:
        """Take so many groups. They count as trained on once all are here. Under a policy a trainer
        that begins again at an older version gets them once more."""
        before = cancellations()
        while (has := sum(len(made) for _, made in self._held)) < groups:
            heed_cancellation(before)
            self._held = [held for held in self._held if await self._extended(held[0])]
            batch = await self.buffer.take(groups - has, wait=_WAIT, lease=_LEASE)
            if batch is None:
                log.warning("no finished group yet", extra={"has": has, "of": groups})
                continue
            self._held.append((batch, groups_of(self._sample, batch.groups, self._taken)))
            self._taken += sum(len(items) for _, items in batch.groups)
        for batch, _ in self._held:
            with contextlib.suppress(LeaseLost):  # another one may have them too
                await self.buffer.ack(batch)
        found, self._held = [group for _, made in self._held for group in made], []
        return found

    async def _extended(self, batch: Batch) -> bool:
        try:
            await self.buffer.extend(batch, _LEASE)
        except LeaseLost:
            return False
        return True
