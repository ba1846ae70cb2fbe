"""A cancellation that something below swallowed still ends a loop that heeds it."""

import asyncio
import contextlib

import pytest

from ground.tasks import cancellations, heed_cancellation


async def test_a_loop_ends_though_its_cancellation_was_swallowed() -> None:
    waiting = asyncio.Event()

    async def loops() -> None:
        while True:
            heed_cancellation()
            waiting.set()
            with contextlib.suppress(asyncio.CancelledError):  # as `wait_for` may
                await asyncio.sleep(3600)

    task = asyncio.create_task(loops())
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 100)


async def test_it_does_nothing_where_nobody_cancelled() -> None:
    heed_cancellation()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0):
            await asyncio.sleep(3600)
    heed_cancellation()  # what a timeout took back is no cancellation


async def test_what_was_caught_before_is_no_cancellation_of_what_begins_after_it() -> None:
    drained, waiting = [], asyncio.Event()

    async def drains_when_cancelled() -> None:
        try:
            waiting.set()
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            before = cancellations()
            heed_cancellation(before)
            drained.append("all")

    task = asyncio.create_task(drains_when_cancelled())
    await waiting.wait()
    task.cancel()
    await task
    assert drained == ["all"]
