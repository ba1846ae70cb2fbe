"""What a gate tells of itself, to its users and in Redis."""

import asyncio
import time

import pytest

from ground.keys import tagged
from limiter import GateError, LimitTimeout, TokenBucket, existing_gate, remove_gate
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


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("rate:tokens", "17x", "its rate:tokens in Redis is '17x'"),
        ("burst:tokens", "", "'tokens' has no rate or no burst"),
        ("granted", "many", "'many'"),
        ("min", "1", "'start'"),
        ("limit", b"\xff", "0xff"),
    ],
)
async def test_a_field_that_no_gate_writes_is_a_typed_error_with_its_remedy(
    redis, field, value, said
):
    gate = TokenBucket(redis, "g", limit=2, rates={"requests": 1000, "tokens": 1000})
    (await gate.acquire()).release()
    redis.hset(tagged("gate", "g", ""), field, value)
    for each in gate, existing_gate(redis, "g"):
        with pytest.raises(GateError, match=rf"gate 'g': .*{said}.*; .*limits rm g --force"):
            await each.status()


@pytest.mark.parametrize("field", ["limit", "rate:tokens", "burst:tokens"])
async def test_a_gate_with_amounts_that_somebody_spoiled_lets_nobody_in_until_it_is_removed(
    redis, field
):
    gate = TokenBucket(redis, "g", limit=2, rates={"requests": 1000, "tokens": 1000})
    (await gate.acquire()).release()
    redis.hset(tagged("gate", "g", ""), field, "17x")
    assert not await gate.try_acquire()
    assert not await gate.try_acquire()  # nor is one in flight now
    remove_gate(redis, "g", force=True)
    (await gate.acquire()).release()


@pytest.mark.parametrize("part", ["", "leases"])
async def test_a_gate_whose_key_has_another_type_is_removed_by_force(redis, part):
    gate = TokenBucket(redis, "g", limit=2)
    (await gate.acquire()).release()
    redis.delete(tagged("gate", "g", part))
    redis.set(tagged("gate", "g", part), "not a gate's")
    with pytest.raises(GateError, match=r"WRONGTYPE.*; .*limits rm g --force"):
        await gate.status()
    with pytest.raises(GateError, match=r"WRONGTYPE.*; .*limits rm g --force"):
        await existing_gate(redis, "g").status()
    remove_gate(redis, "g", force=True)
    (await gate.acquire()).release()
