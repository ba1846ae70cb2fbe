"""A coroutine may be cancelled wherever it waits: nothing leaks and nobody behind it is stuck."""

import asyncio
import contextlib
import itertools

import pytest

from limiter import LimitTimeout, TokenBucket
from tests.harness.cancelling import cancelled_at
from tests.limiter.in_flight import settled

MOMENTS = 12


async def acquires(gate):
    (await gate.acquire()).release()


async def acquires_within(gate):
    (await gate.acquire(timeout=100)).release()


async def enters(gate):
    async with gate:
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def tries(gate):
    if permit := await gate.try_acquire():
        permit.release()


async def calls(gate):
    await gate.limited(asyncio.sleep)(0)


WAYS = [acquires, acquires_within, enters, tries, calls]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("full", [False, True])
async def test_cancelled_at_any_await_it_leaves_the_gate_as_it_was(redis, way, full):
    gate = TokenBucket(redis, "g", limit=1)
    for step in itertools.count():
        holder = await gate.acquire() if full else None
        cancelling = asyncio.create_task(cancelled_at(lambda: way(gate), step))
        behind = asyncio.create_task(waits_behind(gate))
        await asyncio.sleep(0)
        if holder:
            await asyncio.sleep(0.002 * (step % 3))  # cancelled before, or as, it is let in
            holder.release()
        where = await cancelling
        async with asyncio.timeout(100):
            await behind
        await settled(gate, in_flight=0, waiting=0)
        if not where:  # it has no such await: there was none that was left out
            break
    assert step > 1


@pytest.mark.parametrize("way", WAYS)
async def test_cancelled_from_without_at_any_moment_it_leaves_the_gate_as_it_was(redis, way):
    gate = TokenBucket(redis, "g", limit=1)
    for ticks in range(2 * MOMENTS):
        task = asyncio.create_task(way(gate))
        behind = asyncio.create_task(waits_behind(gate))
        for _ in range(ticks):
            await asyncio.sleep(0.0002)  # any moment will do
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        async with asyncio.timeout(100):
            await behind
        await settled(gate, in_flight=0, waiting=0)


async def test_a_grant_in_the_instant_of_the_timeout_is_given_back(redis):
    gate = TokenBucket(redis, "g", limit=1)
    served = 0
    for moment in range(40):
        holder = await gate.acquire()
        waiting = asyncio.create_task(gate.acquire(timeout=0.01))
        await asyncio.sleep(
            0.009 + 0.0001 * (moment % 20)
        )  # just before the timeout, and just after
        holder.release()
        try:
            (await waiting).release()
            served += 1
        except LimitTimeout:
            pass
        await settled(gate, in_flight=0, waiting=0)
    status = await gate.status()
    assert status.granted == status.released
    assert served + status.timeouts == 40


async def waits_behind(gate: TokenBucket) -> None:
    (await gate.acquire()).release()
