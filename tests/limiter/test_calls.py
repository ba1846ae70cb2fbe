"""How often the server is asked: waiting costs nothing, and what comes together goes together."""

import asyncio
from typing import Any

import pytest

from ground.redis.connect import connect_async, target_of
from limiter import TokenBucket
from tests.limiter.by_shortcut import on_its_shortcut
from tests.limiter.in_flight import settled, settled_sync


class Calls:
    """Script calls on the server since the last look."""

    def __init__(self, redis: Any) -> None:
        self._redis = redis
        self.taken()

    def taken(self) -> int:
        stats = self._redis.info("commandstats")
        self._redis.config_resetstat()
        return sum(stats.get(f"cmdstat_{c}", {}).get("calls", 0) for c in ("evalsha", "eval"))


@pytest.fixture
def calls(real_redis) -> Calls:
    return Calls(real_redis)


def test_an_uncontended_permit_costs_two_calls(real_redis, calls):
    gate = TokenBucket(real_redis, "g", limit=1)
    with gate:
        pass
    gate.sync.status()
    calls.taken()
    for _ in range(10):
        with gate:
            pass
    gate.sync.status()  # after the last release
    assert calls.taken() <= 2 * 10 + 1


async def test_a_hundred_permits_at_once_cost_few_calls(real_redis, calls):
    gate = TokenBucket(real_redis, "g", limit=100)
    await gate.status()
    calls.taken()
    permits = await asyncio.gather(*(gate.acquire() for _ in range(100)))
    assert calls.taken() <= 5
    for permit in permits:
        permit.release()
    await settled(gate, in_flight=0)


async def test_a_process_that_only_looks_at_a_gate_sends_nothing_in_between(real_redis):
    await on_its_shortcut(TokenBucket(real_redis, "used", limit=1))
    gate = TokenBucket(real_redis, "g", limit=1)
    await gate.status()
    real_redis.config_resetstat()
    other = connect_async(target_of(real_redis))
    for _ in range(100):  # round trips, in which this loop reads and sends what is due
        await other.ping()
    await other.aclose()
    assert "cmdstat_sadd" not in real_redis.info("commandstats")


def test_who_waits_asks_once_however_long_it_takes(real_redis, calls):
    holder = TokenBucket(real_redis, "g", limit=1)
    held = holder.sync.acquire()
    loop = asyncio.new_event_loop()
    waiting = loop.create_task(holder.acquire())
    loop.run_until_complete(settled(holder, waiting=1))
    calls.taken()
    loop.run_until_complete(asyncio.sleep(0.5))  # in which one who polls would ask
    assert calls.taken() == 0
    held.release()
    permit = loop.run_until_complete(asyncio.wait_for(waiting, 100))
    assert calls.taken() == 1  # the release, which handed over
    permit.release()
    settled_sync(holder, in_flight=0)
    loop.close()


async def test_a_contended_permit_costs_one_acquire(real_redis, calls):
    gate = TokenBucket(real_redis, "g", limit=2)
    await gate.status()
    calls.taken()

    async def work():
        for _ in range(5):
            async with gate:
                await asyncio.sleep(0.001)  # others come meanwhile

    await asyncio.gather(*(work() for _ in range(20)))
    await gate.status()
    assert calls.taken() <= 100 + 100 + 1  # an acquire and a release each, at the very most
    assert (await gate.status()).granted == 100
