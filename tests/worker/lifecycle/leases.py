"""The end of leases, without a wait for it."""

from ground.keys import tagged
from ground.redis.connect import AnyRedis
from worker.lifecycle.registry.registry import Registry


def leases_end(redis: AnyRedis, run: str = "test") -> None:
    """All that are left of a run, as if each had ended long ago: those of owners who are dead.

    A lease that is short enough to be waited for is too short for a slow machine to keep.
    """
    registry = Registry(redis, run)
    over = {record.name: 1 for record in registry.look().records}
    if over:  # an owner that ended by itself has left none
        registry._client.zadd(registry._keys[1], over)  # a registry itself only renews them
    registry.close()


def began_long_ago(redis: AnyRedis, name: str, run: str = "test") -> None:
    """A start of a run: longer ago than any start may last."""
    registry = Registry(redis, run)
    registry._client.hset(tagged("sandbox", run, f"box:{name}"), "made", 1)
    registry.close()
