"""The token bucket: executions in flight, requests per second, or both."""

import math

from ground import AnyRedis, SettingError
from limiter.gate import Gate
from limiter.terms import Terms, check_manner, check_terms


class TokenBucket(Gate):
    """At most `limit` permits in flight, and at most `rate` grants a second, cluster-wide.

    `burst` grants may come at once after a quiet time; by default a tenth of a
    second's worth, and at least one. What stands in Redis wins over what is given
    here, unless `enforce` is set; a difference is logged. `orphan_hold` keeps a
    dead owner's permit for as long as the work it started may outlive it.
    """

    def __init__(
        self,
        redis: AnyRedis,
        name: str,
        *,
        limit: int | None = None,
        rate: float | None = None,
        burst: int | None = None,
        lease: float = 30.0,
        heartbeat: float | None = None,
        patience: float = 30.0,
        orphan_hold: float = 0.0,
        run: str | None = None,
        enforce: bool = False,
    ) -> None:
        if limit is None and rate is None:
            raise SettingError("limit", "a token bucket needs a limit, a rate, or both")
        if burst is not None and rate is None:
            raise SettingError("burst", f"a burst of {burst} needs a rate")
        check_terms(limit, rate, burst)
        if rate is not None and burst is None:
            burst = max(1, math.ceil(rate / 10))
        super().__init__(
            redis,
            name,
            Terms(limit, rate, burst),
            check_manner(lease, heartbeat, patience, enforce, orphan_hold),
            orphan_hold=orphan_hold,
            run=run,
        )
