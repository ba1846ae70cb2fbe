"""miles trains on the sessions of a gateway, which other processes open and finalize.

    --rollout-function-path gateway.adapters.miles.Rollouts

A training step takes the groups of its batch from the buffer. Each trajectory is a list of samples,
one per row, with one `rollout_id`; miles normalizes rewards by it.
"""

import contextlib
import logging
from importlib import import_module
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


class Rollouts:
    """miles' rollout function. `rollout_task_type` on `args` names the buffer's task."""

    def __init__(self, input: Any) -> None:
        settings = GroundSettings.load()
        if settings.redis_url is None:
            raise SettingError("PENSTOCK_REDIS_URL", "unset: name the Redis that keeps the groups")
        self._args = input.args
        self._types: Any = import_module("miles.rollout.base_types")
        self._sample: Any = import_module("miles.utils.types").Sample
        config = TaskConfig(
            group_size=input.args.n_samples_per_prompt, dialect="v1", group_timeout_seconds=LONGEST
        )
        task = getattr(input.args, "rollout_task_type", None) or _TASK
        self._buffer = RolloutBuffer(
            settings.redis_url.get_secret_value(), task, config, run=settings.run
        )
        self._taken = 0
        self._held: list[tuple[Batch, list[Group]]] = []  # of a step that is not whole yet

    async def __call__(self, input: Any) -> Any:
        """The groups of one step. They count as trained on once all are here."""
        if input.evaluation:
            raise ValueError("sessions of a gateway do not evaluate: set --eval-function-path")
        before = cancellations()
        groups = self._args.rollout_batch_size
        while (has := sum(len(made) for _, made in self._held)) < groups:
            heed_cancellation(before)
            self._held = [held for held in self._held if await self._extended(held[0])]
            batch = await self._buffer.take(groups - has, wait=_WAIT, lease=_LEASE)
            if batch is None:
                log.warning("no finished group yet", extra={"has": has, "of": groups})
                continue
            self._held.append((batch, groups_of(self._sample, batch.groups, self._taken)))
            self._taken += sum(len(items) for _, items in batch.groups)
        for batch, _ in self._held:
            with contextlib.suppress(LeaseLost):  # another one may have them too
                await self._buffer.ack(batch)
        found, self._held = [group for _, made in self._held for group in made], []
        return self._types.RolloutFnTrainOutput(samples=found)

    async def _extended(self, batch: Batch) -> bool:
        try:
            await self._buffer.extend(batch, _LEASE)
        except LeaseLost:
            return False
        return True
