"""Who waits: in which order they are let in, and that none of them holds up the others."""

import asyncio
import gc
import multiprocessing
import os
import signal
import threading
import time

import pytest

from limiter import GateUnavailable, LimitTimeout, TokenBucket
from tests.limiter import scenarios
from tests.limiter.in_flight import settled, settled_sync


@pytest.fixture
def gate(redis) -> TokenBucket:
    return TokenBucket(redis, "g", limit=1)


async def in_order(gate, lanes, order):
    """Waiters that come one after the other, each of which notes when it was let in."""

    async def wait(name, lane):
        async with gate.hold(lane=lane):
            order.append(name)

    tasks = []
    for name, lane in enumerate(lanes):
        tasks.append(asyncio.create_task(wait(name, lane)))
        await settled(gate, waiting=len(tasks))
    return tasks


async def test_those_who_wait_are_let_in_as_they_came(gate):
    order = []
    async with gate:
        tasks = await in_order(gate, [0] * 8, order)
    await asyncio.gather(*tasks)
    assert order == list(range(8))


async def test_lower_lanes_are_let_in_first(gate):
    order = []
    async with gate:
        tasks = await in_order(gate, [0, 1, -1, 0, -1], order)
    await asyncio.gather(*tasks)
    assert order == [2, 4, 0, 3, 1]


async def test_a_cancelled_waiter_does_not_hold_up_the_line(gate):
    order = []
    async with gate:
        tasks = await in_order(gate, [0, 0, 0], order)
        tasks[0].cancel()
        tasks[1].cancel()
        await settled(gate, waiting=1)
    await tasks[2]
    assert order == [2]
    assert (await gate.status()).cancelled == 2


async def test_who_only_tries_never_overtakes(gate):
    order = []
    async with gate:
        tasks = await in_order(gate, [0], order)
        assert not await gate.try_acquire()
        assert (await gate.status()).waiting == 1
    await asyncio.gather(*tasks)


async def test_who_tries_in_vain_is_told_when_to_try_again(redis):
    gate = TokenBucket(redis, "g", limit=1, lease=5)
    async with gate:
        wait = await gate.try_acquire()
        assert not wait
        assert 0 < wait <= 5
    assert await gate.try_acquire()


async def test_a_timeout_names_the_gate_its_limit_its_holders_and_the_place(gate):
    async with gate as permit:
        ahead = asyncio.create_task(gate.acquire())
        await settled(gate, waiting=1)
        with pytest.raises(LimitTimeout) as late:
            await gate.acquire(timeout=0.05)
        holder = (await gate.status()).leases[0].process
        assert (late.value.gate, late.value.place, late.value.in_flight) == ("g", 2, 1)
        assert late.value.holders == [holder]
        for word in (
            "'g'",
            "1 of 1 in flight",
            f":{os.getpid()}:",
            "place 2",
            "no permit within 0.",
        ):
            assert word in str(late.value)
        assert not permit.lost
    (await ahead).release()
    await settled(gate, in_flight=0, waiting=0)
    assert (await gate.status()).timeouts == 1


async def test_no_time_at_all_is_enough_where_there_is_room(gate):
    permit = await gate.acquire(timeout=0)
    with pytest.raises(LimitTimeout):
        await gate.acquire(timeout=0)
    with pytest.raises(LimitTimeout):
        await asyncio.to_thread(gate.sync.acquire, timeout=0)
    permit.release()
    assert await gate.acquire(timeout=0)


async def test_long_timeouts_that_were_not_needed_are_forgotten(redis):
    gate = TokenBucket(redis, "g", limit=100)
    for _ in range(30):
        permits = await asyncio.gather(*(gate.acquire(timeout=3600) for _ in range(100)))
        for permit in permits:
            permit.release()
    assert len(gate._client.unit.deadlines) <= 1024


def test_a_thread_interrupted_as_it_waits_leaves_the_line(gate):
    held = gate.sync.acquire()

    interrupted = threading.Event()

    def interrupt():
        settled_sync(gate, waiting=1)
        main = threading.main_thread().ident
        signal.pthread_kill(main, signal.SIGINT)
        # Python looks for signals before it blocks, and a moment later one is only seen
        # when the next arrives.
        while not interrupted.wait(0.5):
            signal.pthread_kill(main, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    other = threading.Thread(target=interrupt)
    other.start()
    with pytest.raises(KeyboardInterrupt):
        gate.sync.acquire()
    interrupted.set()
    other.join()
    signal.signal(signal.SIGUSR1, before)
    settled_sync(gate, in_flight=1, waiting=0)
    held.release()
    assert gate.sync.acquire(timeout=100)


def test_a_thread_interrupted_at_any_line_of_an_acquire_keeps_no_permit(shared_server):
    """In an interpreter of its own: in one that has run for long, CPython 3.11 may loop for ever
    where a trace function raises, deaf to every signal."""
    context = multiprocessing.get_context("spawn")
    child = context.Process(
        target=scenarios.is_interrupted_at_every_line, args=(shared_server.url,)
    )
    child.start()
    child.join(100)
    assert child.exitcode == 0


def test_a_loop_interrupted_at_any_statement_of_its_shortcut_keeps_no_permit(shared_server):
    context = multiprocessing.get_context("spawn")
    child = context.Process(
        target=scenarios.is_interrupted_at_every_statement_of_a_shortcut,
        args=(shared_server.url,),
    )
    child.start()
    child.join(100)
    assert child.exitcode == 0


async def test_a_timeout_at_a_paused_gate_says_so(gate):
    await gate.pause()
    with pytest.raises(LimitTimeout, match="paused: penstock limits resume g") as late:
        await gate.acquire(timeout=0.05)
    assert late.value.paused
    await gate.resume()
    await (await gate.acquire()).renew()


def test_a_loop_that_is_closed_with_waiters_holds_up_nobody(gate):
    held = gate.sync.acquire()
    loop = asyncio.new_event_loop()
    abandoned = loop.create_task(gate.acquire())
    loop.run_until_complete(settled(gate, waiting=1))
    loop.close()
    held.release()
    with gate.hold(timeout=100):
        pass
    settled_sync(gate, in_flight=0, waiting=0)
    abandoned._log_destroy_pending = False
    del abandoned
    gc.collect()


def test_a_permit_that_nobody_holds_any_more_is_given_back(gate):
    gate.sync.acquire()
    gc.collect()
    assert gate.sync.acquire(timeout=100)


def test_releasing_twice_gives_back_once(redis):
    gate = TokenBucket(redis, "g", limit=2)
    first, second = gate.sync.acquire(), gate.sync.acquire()
    first.release()
    first.release()
    assert gate.sync.status().in_flight == 1
    second.release()
    assert gate.sync.status().released == 2


async def test_a_silent_redis_is_named_and_nothing_is_granted():
    gate = TokenBucket("redis://127.0.0.1:1/0", "g", limit=1, patience=0.2)
    began = time.monotonic()
    with pytest.raises(GateUnavailable, match=r"127\.0\.0\.1:1"):
        await gate.acquire()
    with pytest.raises(GateUnavailable):
        await gate.acquire(timeout=0.1)
    with pytest.raises(GateUnavailable):
        await gate.status()
    assert time.monotonic() - began < 90
