"""The settings of rewards, read from the environment."""

from typing import Literal

from pydantic import Field

from ground import Settings


class RewardSettings(Settings):
    """Settings of the reward functions with verl's signatures."""

    reward_failures: Literal["raise", "zero"] = Field(
        "raise",
        description="What `compute_score` does when a sandbox or Redis fails: `raise` raises"
        " `RewardUnknown`, `zero` returns 0.",
    )
