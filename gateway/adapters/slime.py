"""slime trains on the sessions of a gateway, which other processes open and finalize.

    --rollout-function-path gateway.adapters.slime.generate_rollout
    --custom-reward-post-process-path gateway.adapters.slime.rewards

A training step takes the groups of its batch from the buffer. Each trajectory is a list of samples,
one per row, with one `rollout_id`.
"""

from importlib import import_module
from typing import Any

from gateway.adapters.samples import Group, normalized
from gateway.adapters.steps import Steps, task_of
from ground.process import from_thread

_steps: dict[str, Steps] = {}

# The estimators for which slime takes the mean off, and divides by the deviation.
_NORMED = ("grpo", "gspo", "cispo")
_CENTRED = (*_NORMED, "reinforce_plus_plus_baseline")


def generate_rollout(
    args: Any, rollout_id: int, data_source: Any, evaluation: bool = False
) -> list[Group]:
    """slime's `--rollout-function-path`."""
    if evaluation:
        raise ValueError("sessions of a gateway do not evaluate: set slime's own function")
    task = task_of(args)
    if task not in _steps:
        _steps[task] = Steps(args, import_module("slime.utils.types").Sample)
    return from_thread(_steps[task].take(args.rollout_batch_size))


def rewards(args: Any, samples: list[Any]) -> tuple[list[float], list[float]]:
    """slime's `--custom-reward-post-process-path`: as its options say, but by prompt, and per
    trajectory, not per row."""
    estimator = args.advantage_estimator
    return normalized(
        samples,
        centred=estimator in _CENTRED and args.rewards_normalization,
        by_deviation=estimator in _NORMED and args.grpo_std_normalization,
    )
