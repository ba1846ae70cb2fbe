"""The gateway's settings: `GatewaySettings.load()`."""

from typing import Literal

from pydantic import Field

from ground.settings import Settings


class GatewaySettings(Settings):
    """What a process that keeps sessions needs to know."""

    gateway_most_sessions: int = Field(
        20_000, ge=1, description="Most open sessions of a task. Further ones are refused."
    )
    gateway_session_idle: float = Field(
        86400.0,
        ge=1,
        description="Seconds without a call after which a session is given up, and put as lost.",
    )
    gateway_tombstone: float = Field(
        3600.0, ge=1, description="Seconds for which a finalized session answers a repeat."
    )
    gateway_call_lease: float = Field(
        15.0,
        gt=0,
        description="Seconds after which an open call of a process that is gone is given up.",
    )
    gateway_answer_ttl: float = Field(
        600.0, ge=1, description="Seconds for which a client's retry is given the same answer."
    )
    gateway_drain: float = Field(
        10.0, ge=0, description="Seconds that finalizing waits for calls under way."
    )
    gateway_cache_bytes: int = Field(
        256 * 1024 * 1024, ge=0, description="Memory for the tokens of sessions in use."
    )
    gateway_on_hole: Literal["session", "lineage"] = Field(
        "session", description="What a lost turn masks: all rows, or those that it may be part of."
    )
