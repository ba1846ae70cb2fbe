"""miles trains on the sessions of a gateway, which other processes open and finalize.

    --rollout-function-path gateway.adapters.miles.Rollouts

A training step takes the groups of its batch from the buffer. Each trajectory is a list of samples,
one per row, with one `rollout_id`; miles normalizes rewards by it.
"""

import logging
from importlib import import_module
from typing import Any

from buffer import RolloutBuffer, TaskConfig
from buffer.settings import LONGEST
from gateway.adapters.samples import Group, groups_of
from ground import SettingError
from ground.settings import GroundSettings
from ground.tasks import cancellations, heed_cancellation

log = logging.getLogger(__name__)

_TASK = "gateway"
_WAIT = 30.0


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

    async def __call__(self, input: Any) -> Any:
        """The groups of one step. They count as trained on."""
        if input.evaluation:
            raise ValueError("sessions of a gateway do not evaluate: set --eval-function-path")
        before = cancellations()
        found: list[Group] = []
        while len(found) < self._args.rollout_batch_size:
            heed_cancellation(before)
            batch = await self._buffer.take(self._args.rollout_batch_size - len(found), wait=_WAIT)
            if batch is None:
                log.warning("no finished group yet", extra={"has": len(found)})
                continue
            await self._buffer.ack(batch)
            found += groups_of(self._sample, batch.groups, self._taken)
            self._taken += sum(len(items) for _, items in batch.groups)
        return self._types.RolloutFnTrainOutput(samples=found)
