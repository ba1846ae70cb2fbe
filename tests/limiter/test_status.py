"""What a gate tells of itself, to its users and in Redis."""

import asyncio
import time

import pytest

from ground.keys import tagged
from limiter import GateError, LimitTimeout, TokenBucket, existing_gate
from tests.limiter.in_flight import in_line


async def test_a_status_tells_who_is_in_who_waits_and_what_has_been(redis):
    gate = TokenBucket(redis, "g", limit=1, rate=100.0, burst=7)
    (await gate.acquire()).release()
    permit = await gate.acquire()
    asked_at = time.monotonic()
    waiting, cancelled = await in_line(gate, 1), await in_line(gate, 2)
    cancelled.cancel()
    await asyncio.wait([cancelled])
    with pytest.raises(LimitTimeout):
        await gate.acquire(timeout=0)
    status = await gate.status()
    assert (status.name, status.limit, status.rate, status.burst) == ("g", 1, 100.0, 7)
    assert (status.in_flight, status.waiting, status.paused) == (1, 1, False)
    assert 0 < status.oldest_wait <= time.monotonic() - asked_at
    assert 0 <= status.tokens <= 7
    assert (status.granted, status.released, status.expired) == (2, 1, 0)
    assert (status.timeouts, status.cancelled, status.dropped) == (1, 1, 0)
    (lease,) = status.leases
    assert (lease.id, lease.fence) == (permit.id, permit.fence)
    assert lease.process == gate._client.unit.engine.process
    assert 0 < lease.held < lease.held + lease.expires_in <= 30
    permit.release()
    (await waiting).release()


async def test_the_oldest_wait_and_the_tokens_of_a_gate_without_either_are_none(redis):
    status = await TokenBucket(redis, "g", limit=1).status()
    assert (status.oldest_wait, status.tokens, status.leases) == (0.0, None, ())


async def test_a_limit_that_somebody_spoiled_grants_nothing_and_says_so(redis):
    gate = TokenBucket(redis, "g", limit=2)
    held = await gate.acquire()
    redis.hset(tagged("gate", "g", ""), "limit", "64x")
    assert not await gate.try_acquire()
    assert not await TokenBucket(redis, "g", limit=3).try_acquire()  # whose terms differ
    with pytest.raises(GateError, match=r"'64x'.*penstock limits set g --gate-limit N"):
        await gate.status()
    await existing_gate(redis, "g").configure(limit=64)
    assert (await gate.status()).limit == 64
    held.release()
