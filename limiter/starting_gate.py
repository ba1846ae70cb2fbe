"""The STARTING counter: how many sandboxes may be starting at once, fleet-wide.

A permit covers a sandbox from just before its creation until it is ready, or its
death is confirmed or handed to the reaper. A set of leases, not a bare counter:
a crash leaks nothing.
"""

from typing import Any, Self

from ground import AnyRedis
from limiter.gate import Gate
from limiter.settings import LimiterSettings
from limiter.terms import Terms, check_manner, check_terms


class StartingGate(Gate):
    """At most `limit` sandboxes in STARTING, however many workers start them."""

    def __init__(
        self,
        redis: AnyRedis,
        name: str = "starting",
        *,
        limit: int = 128,
        lease: float = 30.0,
        heartbeat: float | None = None,
        patience: float = 30.0,
        orphan_hold: float = 0.0,
        run: str | None = None,
        enforce: bool = False,
    ) -> None:
        check_terms(limit, None, None)
        super().__init__(
            redis,
            name,
            Terms(limit),
            check_manner(lease, heartbeat, patience, enforce, orphan_hold),
            orphan_hold=orphan_hold,
            run=run,
        )

    @classmethod
    def from_settings(
        cls,
        redis: AnyRedis,
        settings: LimiterSettings | None = None,
        **options: Any,
    ) -> Self:
        """The fleet's gate with the limit of the environment; `options` as of the constructor."""
        return cls(redis, limit=(settings or LimiterSettings.load()).max_starting, **options)
