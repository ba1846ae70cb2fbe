"""The STARTING counter, as a gate: a set of leases, so that a crash leaks nothing."""

from typing import Any, Self

from ground import AnyRedis
from limiter.gate import Gate
from limiter.settings import LimiterSettings
from limiter.terms import Terms, check_manner, check_terms


class StartingGate(Gate):
    """At most `limit` sandboxes that are starting at once, over the whole fleet.

        gate = StartingGate.from_settings("redis://10.0.0.5")    # PENSTOCK_MAX_STARTING

        async with gate:
            sandbox = await create()      # and wait until it is ready

    A permit covers a sandbox from just before its creation until it is ready, or is
    confirmed dead. The other arguments are those of `TokenBucket`.
    """

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
            run=run,
        )

    @classmethod
    def from_settings(
        cls,
        redis: AnyRedis,
        settings: LimiterSettings | None = None,
        **options: Any,
    ) -> Self:
        """The fleet's gate, its limit by PENSTOCK_MAX_STARTING; `options` as on the constructor."""
        return cls(redis, limit=(settings or LimiterSettings.load()).max_starting, **options)
