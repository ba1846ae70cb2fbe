"""The limiter of verl's tool, under its name: a gate's permits, taken and given back one by one.

verl's lives in a Ray actor, which takes the count with it when it dies, and never
gets back what a dead caller held. This one is a gate in Redis.
"""

from collections import deque

from ground import AnyRedis
from limiter import SyncPermit, TokenBucket
from worker.tool.redis_here import redis_here

GATE = "rate-limiter"


class TokenBucketWorker:
    """At most `rate_limit` permits at once, over every process that names the same gate.

    Nothing is asked of Redis before the first call. A limit that stands in Redis
    wins over the one given here; a difference is logged.
    """

    def __init__(
        self,
        rate_limit: int,
        *,
        redis: AnyRedis | None = None,
        gate: str = GATE,
    ) -> None:
        self.rate_limit = rate_limit
        self._redis = redis
        self._name = gate
        self._made: TokenBucket | None = None
        self._held: deque[SyncPermit] = deque()

    @property
    def gate(self) -> TokenBucket:
        if self._made is None:
            self._made = TokenBucket(redis_here(self._redis), self._name, limit=self.rate_limit)
        return self._made

    def acquire(self) -> None:
        """Wait for a permit. Raises `GateError` where Redis does not answer."""
        self._held.append(self.gate.sync.acquire())

    def release(self) -> None:
        """Give one back; harmless when this object holds none."""
        try:
            permit = self._held.popleft()
        except IndexError:
            return
        permit.release()

    def get_current_count(self) -> int:
        """The permits in use now, by all processes."""
        return self.gate.sync.status().in_flight
