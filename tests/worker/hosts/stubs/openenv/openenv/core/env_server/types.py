from typing import Any

from pydantic import BaseModel, ConfigDict


class Action(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Observation(BaseModel):
    done: bool = False
    reward: float | None = None
    metadata: dict[str, Any] = {}


class State(BaseModel):
    episode_id: str | None = None
    step_count: int = 0
