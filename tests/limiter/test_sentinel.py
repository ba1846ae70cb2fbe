"""Sentinel moves the primary: permits and places in line move with it."""

import asyncio
import itertools

import pytest

from limiter import TokenBucket
from tests.harness.servers import until
from tests.limiter.in_flight import in_line, served, served_in_turn

SOON = 100.0


_numbers = itertools.count()


@pytest.fixture
def gate(sentinel_pair):
    return TokenBucket(sentinel_pair.target, f"gate-{next(_numbers)}", limit=1, lease=20)


@pytest.mark.parametrize("how", ["failover", "kill_primary"])
async def test_a_failover_keeps_permits_and_places_in_line(sentinel_pair, gate, how):
    permit = await gate.acquire(timeout=SOON)
    first = await in_line(gate, 1)
    second = await in_line(gate, 2)
    sentinel_pair.replica.until_in_step(sentinel_pair.primary)
    getattr(sentinel_pair, how)()
    async with asyncio.timeout(SOON):
        await permit.renew()
    assert not permit.lost
    until(lambda: gate.sync.status().waiting == 2, "both to be in line")
    assert gate.sync.status().in_flight == 1
    await served_in_turn(permit, first, second)
    status = await gate.status()
    assert (status.granted, status.waiting) == (3, 0)


async def test_an_acquire_during_a_failover_is_granted_once(sentinel_pair, gate):
    (await gate.acquire(timeout=SOON)).release()
    sentinel_pair.primary.kill()
    wish = asyncio.create_task(gate.acquire())
    await asyncio.sleep(0)
    await asyncio.to_thread(sentinel_pair.failover)
    permit = await served(wish)
    assert (await gate.status()).in_flight == 1
    permit.release()


async def test_what_a_failover_forgot_is_registered_again(sentinel_pair, gate):
    """The replica had not heard of the permit and of the line; their process has."""
    await gate.status()
    sentinel_pair.replica.until_in_step(sentinel_pair.primary)
    permit = await gate.acquire(timeout=SOON)
    waiter = await in_line(gate, 1)
    sentinel_pair.primary.ask("FLUSHALL")
    sentinel_pair.replica.until_in_step(sentinel_pair.primary)
    sentinel_pair.kill_primary()
    async with asyncio.timeout(SOON):
        await permit.renew()
    until(lambda: gate.sync.status().waiting == 1, "the waiter to be in line")
    assert gate.sync.status().readmitted == 1
    permit.release()
    (await served(waiter)).release()
