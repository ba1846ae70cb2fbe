"""The token bucket: executions in flight, requests per second, or both."""

import math

from ground import AnyRedis, SettingError
from limiter.gate import Gate
from limiter.terms import Terms, check_manner, check_terms


class TokenBucket(Gate):
    """At most `limit` permits in flight, and at most `rate` grants a second, cluster-wide.

        gate = TokenBucket("redis://10.0.0.5", "code", limit=64)

        async with gate:                            # in coroutines
            ...
        with gate:                                  # in threads
            ...
        permit = await gate.acquire(timeout=5)      # to be given back by permit.release()

    Give `limit`, `rate` or both. All processes that use the same `name` on the same Redis
    share one gate; with a `run`, only those of that run. Times are in seconds.

    burst        grants that may come at once after a quiet time; by default a tenth of a
                 second's worth, and at least one
    lease        a holder that dies gives its permit back after this time
    heartbeat    how often a living process renews its leases; by default a third of `lease`
    patience     how long an `acquire` outlasts a Redis that does not answer
    orphan_hold  a dead holder's permit stays this much longer: for work that outlives it
    enforce      overwrite the terms that stand in Redis; without it they win over those given
                 here, and a difference is logged
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
            run=run,
        )
