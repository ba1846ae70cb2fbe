"""miles trains on the sessions of a gateway, which other processes open and finalize.

    --rollout-function-path gateway.adapters.miles.Rollouts

A training step takes the groups of its batch from the buffer. Each trajectory is a list of samples,
one per row, with one `rollout_id`; miles normalizes rewards by it.
"""

from importlib import import_module
from typing import Any

from gateway.adapters.steps import Steps


class Rollouts:
    """miles' rollout function. `rollout_task_type` on `args` names the buffer's task."""

    def __init__(self, input: Any) -> None:
        self._args = input.args
        self._types: Any = import_module("miles.rollout.base_types")
        self._steps = Steps(input.args, import_module("miles.utils.types").Sample)

    async def __call__(self, input: Any) -> Any:
        """The groups of one step."""
        if input.evaluation:
            raise ValueError("sessions of a gateway do not evaluate: set --eval-function-path")
        found = await self._steps.take(self._args.rollout_batch_size)
        return self._types.RolloutFnTrainOutput(samples=found)
