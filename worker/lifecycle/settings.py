"""How session sandboxes are started, kept and ended; uni-agent's names are read too."""

from pydantic import AliasChoices, Field, field_validator

from ground.keys import check_name
from ground.settings import Settings


class LifecycleSettings(Settings):
    """Settings of every process that opens session sandboxes, or reaps them."""

    init_wall_budget: float = Field(
        900.0,
        gt=0,
        validation_alias=AliasChoices("PENSTOCK_INIT_WALL_BUDGET", "MODAL_INIT_WALL_BUDGET"),
        description="Seconds that one start may take with all its attempts, counted from the"
        " STARTING permit.",
    )
    start_attempts: int = Field(2, ge=1, description="Attempts per start.")
    startup_timeout: float = Field(300.0, gt=0, description="Seconds that one attempt may take.")
    attempt_floor: float = Field(
        0.0,
        ge=0,
        description="Least seconds per attempt, within the rest of the budget, even beyond"
        " `PENSTOCK_STARTUP_TIMEOUT`.",
    )
    start_backoff: float = Field(
        10.0, ge=0, description="Longest pause between two attempts, in seconds."
    )
    starting_timeout: float = Field(
        3600.0,
        gt=0,
        description="Seconds that a start waits for its STARTING permit.",
    )
    max_starting_run: int | None = Field(
        None,
        ge=1,
        description="Session sandboxes of this run that may be starting at once. Unset: no limit"
        " per run.",
    )
    sandbox_ttl: float = Field(
        3600.0,
        ge=1,
        description="Seconds after which the provider itself ends a session sandbox.",
    )
    session_idle: float = Field(
        600.0,
        gt=0,
        description="Seconds after its last use when a session by `instance_id` is ended.",
    )
    sandbox_lease: float = Field(
        30.0,
        ge=0.5,
        description="Seconds after which the session sandboxes of a dead process are reaped.",
    )
    sandbox_grace: float = Field(
        60.0,
        ge=0,
        description="Seconds before an unregistered sandbox is ended, or a missing one is"
        " believed gone.",
    )
    teardown_timeout: float = Field(15.0, gt=0, description="Seconds for each step of a teardown.")
    reap_interval: float = Field(
        10.0, gt=0, description="Seconds between two passes of the reaper."
    )
    session_provider: str = Field(
        "local",
        description="Provider of the sandbox `worker.lifecycle.code.sessions`: `local`, `modal`,"
        " `e2b`, `daytona`, `agent-sandbox`, or the dotted name of your own.",
    )
    agent_sandbox_url: str = Field(
        "",
        description="Address of agent-sandbox's router, for the provider `agent-sandbox`.",
    )
    agent_sandbox_namespace: str = Field(
        "default", description="Kubernetes namespace of the provider `agent-sandbox`."
    )
    fleet: str = Field(
        "",
        description="Tag of this fleet's sandboxes in a shared provider account. Unset: a random"
        " tag, kept in Redis.",
    )

    @field_validator("fleet")
    @classmethod
    def _fleet_is_a_name(cls, fleet: str) -> str:
        return check_name(fleet, "a fleet") if fleet else fleet

    def ttl(self, asked: float | None) -> float:
        """Seconds after which the provider ends a sandbox, of which this was asked."""
        return self.sandbox_ttl if asked is None else asked

    @property
    def longest_start(self) -> float:
        """Seconds that an attempt takes at most."""
        return max(self.attempt_floor, self.startup_timeout)

    def attempt(self, left: float) -> float:
        """Seconds for an attempt, of those that are left of the budget."""
        return min(self.longest_start, left)
