"""A coroutine may be cancelled wherever it waits: nothing leaks and nobody behind it is stuck."""

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import Any

import pytest

from limiter import LimitTimeout, TokenBucket
from tests.limiter.in_flight import settled

MOMENTS = 12


class CancelledAt:
    """Awaits something, and cancels its own task at the k-th step that the task takes."""

    def __init__(self, awaitable: Awaitable[Any], step: int) -> None:
        self.awaitable, self.step, self.steps = awaitable, step, 0

    def __await__(self) -> Any:
        inner = self.awaitable.__await__()
        value, error = None, None
        while True:
            try:
                waits_for = inner.throw(error) if error else inner.send(value)
            except StopIteration as done:
                return done.value
            self.steps += 1
            if self.steps == self.step:
                asyncio.current_task().cancel()
            value = error = None
            try:
                value = yield waits_for
            except BaseException as thrown:  # noqa: BLE001 - it is thrown on
                error = thrown


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
async def test_cancelled_at_any_step_it_leaves_the_gate_as_it_was(redis, way, full):
    gate = TokenBucket(redis, "g", limit=1)
    for step in range(1, MOMENTS):
        holder = await gate.acquire() if full else None
        task = asyncio.create_task(cancelled_at(way(gate), step))
        behind = asyncio.create_task(waits_behind(gate))
        await asyncio.sleep(0)
        if holder:
            await asyncio.sleep(0.002 * (step % 3))  # cancelled before, or as, it is let in
            holder.release()
        cancelled = (await asyncio.gather(task, return_exceptions=True))[0]
        async with asyncio.timeout(100):
            await behind
        await settled(gate, in_flight=0, waiting=0)
        if step == 1:
            assert isinstance(cancelled, asyncio.CancelledError)
    assert cancelled is None  # it has no such step: there was none that was left out


@pytest.mark.parametrize("way", WAYS)
async def test_cancelled_from_without_at_any_moment_it_leaves_the_gate_as_it_was(redis, way):
    gate = TokenBucket(redis, "g", limit=1)
    for ticks in range(2 * MOMENTS):
        task = asyncio.create_task(way(gate))
        behind = asyncio.create_task(waits_behind(gate))
        for _ in range(ticks):
            await asyncio.sleep(0.0002)
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
        await asyncio.sleep(0.009 + 0.0001 * (moment % 20))
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


async def cancelled_at(way: Awaitable[Any], step: int) -> Any:
    return await CancelledAt(way, step)


async def waits_behind(gate: TokenBucket) -> None:
    (await gate.acquire()).release()
