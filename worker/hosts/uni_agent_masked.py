"""A failed rollout as uni-agent takes it: masked, so that no loss and no mean ever counts it."""

from dataclasses import dataclass
from typing import Any

_LONGEST = 512


@dataclass(frozen=True)
class MaskedSample:
    """A masked sample takes a failed trajectory's place, as uni-agent emits it."""

    response_ids: list[int]
    response_mask: list[int]
    reward_score: float
    extra_fields: dict[str, Any]


def masked_sample(why: str, *, max_response: int = _LONGEST, pad_token: int = 0) -> MaskedSample:
    """`why` goes to `traj_exit_reason`: `agent_loop_failed` upstream, or what failed."""
    length = max(1, min(_LONGEST, max_response))
    return MaskedSample(
        [pad_token] * length, [0] * length, 0.0, {"traj_masked": 1, "traj_exit_reason": why}
    )
