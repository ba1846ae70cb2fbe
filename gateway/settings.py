"""The settings of a gateway are read here, by `GatewaySettings.load()`."""

from typing import Literal

from pydantic import Field, SecretStr

from ground.settings import Settings


class GatewaySettings(Settings):
    """The settings of a process that keeps sessions."""

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
        20.0,
        ge=0,
        description="Seconds that finalizing waits for calls under way: more than a call's lease.",
    )
    gateway_cache_bytes: int = Field(
        256 * 1024 * 1024, ge=0, le=2**53, description="Memory for the tokens of sessions in use."
    )
    gateway_on_hole: Literal["session", "lineage"] = Field(
        "session", description="What a lost turn masks: all rows, or those that it may be part of."
    )
    gateway_host: str = Field("127.0.0.1", description="Address that the gateway listens on.")
    gateway_port: int = Field(8893, ge=0, le=65535, description="Port of the gateway.")
    gateway_token: SecretStr | None = Field(
        None,
        description="Bearer token that opens and finalizes sessions. Agents have keys of their own."
        " Unset: none is asked for.",
    )
    gateway_engines: str = Field(
        "",
        description="Engines that serve one model, with commas between: `sglang=http://10.0.0.7:30000`"
        ", or `vllm=…`, or `vllm-plain=…` for a vLLM without its scale-out endpoints.",
    )
    gateway_engine_limit: int = Field(
        256, ge=1, description="Most generations at once in one engine. The gate adapts below it."
    )
    gateway_engine_wait: float = Field(
        600.0, gt=0, description="Most seconds that a turn waits for room in an engine."
    )
    gateway_engine_timeout: float = Field(
        600.0, gt=0, description="Seconds without a byte after which an engine counts as gone."
    )
    gateway_attempts: int = Field(
        6, ge=1, description="Tries in a row that bring no token, after which a turn fails."
    )
    gateway_keepalive: float = Field(
        3.0, gt=0, description="Seconds between signs of life to an agent that waits for a stream."
    )
    gateway_orphan: float = Field(
        600.0, ge=0, description="Seconds that a turn still has after its client hung up."
    )
    gateway_commit: float = Field(
        60.0, ge=0, description="Seconds for which a commit is tried while Redis is away."
    )
    gateway_max_body: int = Field(
        64 * 1024 * 1024, ge=1024, description="Size of the largest request of an agent, in bytes."
    )
    gateway_side_models: str = Field(
        "",
        description="Names of models, with commas between. Their turns are recorded, and never"
        " trained on.",
    )
