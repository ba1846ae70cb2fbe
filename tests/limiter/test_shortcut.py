"""By a loop's own connection a permit is as safe as by the engine: only sooner there."""

import asyncio
import contextlib
import gc
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ground.redis import shortcut
from ground.redis.unit import Carrier
from limiter import GateError, GateUnavailable, LimitTimeout, TokenBucket
from limiter import engine as engines
from tests.harness.servers import until
from tests.limiter.by_shortcut import on_its_shortcut, takes_it
from tests.limiter.in_flight import Observer, in_line, renewed, served, settled

SHORT = 1.5  # a lease that a test waits for
SOON = 100.0


@pytest.fixture
async def gate(real_redis):
    gate = TokenBucket(real_redis, "g", limit=1)
    await on_its_shortcut(gate)
    return gate


async def is_without_shortcut(gate):
    while takes_it(gate):  # noqa: ASYNC110
        await asyncio.sleep(0.01)


# What goes by it


async def test_a_permit_without_waiting_is_no_work_for_the_engine(gate, exchanges, monkeypatch):
    monkeypatch.setattr(shortcut, "LATE", SOON)  # however slow this machine is
    for _ in range(50):
        async with gate:
            pass
    assert len(exchanges) <= 1  # a heartbeat may have come
    status = await gate.status()
    assert status.granted == status.released
    assert status.in_flight == 0


async def test_releases_ride_with_the_next_acquire(gate, real_redis):
    real_redis.config_resetstat()
    permit = await gate.acquire()
    for _ in range(20):
        permit.release()
        permit = await gate.acquire()
    assert real_redis.info("commandstats")["cmdstat_evalsha"]["calls"] <= 21 + 2
    permit.release()
    await settled(gate, in_flight=0)


async def test_more_asks_than_one_command_holds_are_granted_together(real_redis):
    gate = TokenBucket(real_redis, "wide", limit=1200)
    await on_its_shortcut(gate)
    permits = await asyncio.gather(*(gate.acquire() for _ in range(1200)))
    assert (await gate.status()).in_flight == 1200
    for permit in permits:
        permit.release()
    await settled(gate, in_flight=0)


# Order


async def test_what_was_released_is_free_for_whatever_is_asked_next(gate):
    """By the shortcut or by the engine, which have a connection each."""
    for _ in range(50):
        permit = await gate.acquire(timeout=0)
        permit.release()
        assert (await gate.status()).in_flight == 0
        (await gate.acquire(timeout=0)).release()
        tried = await gate.try_acquire()
        assert tried
        tried.release()


async def test_a_permit_that_was_renewed_is_free_for_the_next_acquire(real_redis):
    gate = TokenBucket(real_redis, "g", limit=1, lease=0.6)
    await on_its_shortcut(gate)
    for _ in range(3):
        permit = await gate.acquire(timeout=0)
        await permit.renew()
        permit.release()
        (await gate.acquire(timeout=0)).release()


async def test_after_one_that_was_cancelled_nobody_stands_in_the_way(gate):
    for _ in range(20):
        async with gate:
            waiting = await in_line(gate, 1)
            waiting.cancel()
            await asyncio.wait([waiting])
        (await gate.acquire(timeout=0)).release()


def test_two_loops_and_a_thread_share_one_permit(real_redis):
    """A grant to one loop's waiter may come home with another's release."""
    gate, observer, rounds = TokenBucket(real_redis, "g", limit=1), Observer(), 150

    async def a_loop():
        await on_its_shortcut(gate)
        for _ in range(rounds):
            async with gate.hold(timeout=SOON):
                with observer:
                    await asyncio.sleep(0)

    def a_thread():
        for _ in range(rounds):
            with gate.hold(timeout=SOON), observer:
                pass

    with ThreadPoolExecutor(3) as pool:
        loops = [pool.submit(asyncio.run, a_loop()) for _ in range(2)]
        for each in (*loops, pool.submit(a_thread)):
            each.result()
    assert observer.peak == 1
    status = gate.sync.status()
    assert status.granted == status.released >= 3 * rounds
    assert (status.lost, status.expired, status.readmitted) == (0, 0, 0)


# Who keeps the lease


async def test_the_engine_renews_what_a_blocked_loop_took(real_redis):
    gate = TokenBucket(real_redis, "g", limit=1, lease=60, heartbeat=0.1)
    await on_its_shortcut(gate)
    async with gate as permit:
        renewed(real_redis)  # without an `await`: this is what user code does to us
        assert not permit.lost
    status = await gate.status()
    assert (status.expired, status.lost, status.readmitted) == (0, 0, 0)


async def test_it_may_be_renewed_entrusted_and_given_back(gate):
    permit = await gate.acquire()
    await permit.renew()
    permit.release()
    permit = await gate.acquire()
    await permit.give_back()
    assert (await gate.status()).in_flight == 0
    permit = await gate.acquire()
    await permit.entrust(60)
    await gate.free(permit.id, permit.fence)
    assert (await gate.status()).in_flight == 0


def test_a_permit_outlives_its_loop_and_comes_back_when_it_is_dropped(real_redis):
    gate = TokenBucket(real_redis, "g", limit=1, lease=60, heartbeat=0.1)

    async def take():
        await on_its_shortcut(gate)
        return await gate.acquire()

    permit = asyncio.run(take())
    renewed(real_redis)
    assert not permit.lost
    assert gate.sync.status().in_flight == 1
    permit.release()
    gate.sync.acquire(timeout=SOON).release()
    assert gate.sync.status().expired == 0


def test_a_release_just_before_the_loop_ends_is_sent(real_redis):
    gate = TokenBucket(real_redis, "g", limit=1)

    async def take_and_give():
        await on_its_shortcut(gate)
        (await gate.acquire()).release()

    asyncio.run(take_and_give())
    gate.sync.acquire(timeout=SOON).release()
    loop = asyncio.new_event_loop()
    loop.run_until_complete(on_its_shortcut(gate))
    permit = loop.run_until_complete(gate.acquire())
    permit.release()  # the loop does not run
    gate.sync.acquire(timeout=SOON).release()
    loop.close()


async def test_a_loop_that_blocks_after_a_release_holds_up_nobody_for_long(real_redis):
    """No heartbeat is near; the engine sends what the loop has not."""
    gate = TokenBucket(real_redis, "g", limit=1, lease=600)
    await on_its_shortcut(gate)
    leases = gate._client.unit.commands.keys[1]
    while True:  # on a machine that stood still the engine may have been quicker than this look
        (await gate.acquire()).release()
        if real_redis.zcard(leases) == 1:
            break
    until(lambda: real_redis.zcard(leases) == 0, "its return")


def test_the_connection_of_a_closed_loop_is_closed(real_redis):
    gate = TokenBucket(real_redis, "g", limit=1)

    async def once():
        await on_its_shortcut(gate)

    for _ in range(10):
        asyncio.run(once())
    assert len(gate._client.unit.engine._shortcuts) <= 1
    assert real_redis.info("clients")["connected_clients"] < 10


@pytest.mark.filterwarnings("ignore:unclosed event loop:ResourceWarning")
def test_a_loop_that_is_dropped_and_never_closed_takes_its_connection_along(real_redis):
    gate = TokenBucket(real_redis, "g", limit=1)
    for _ in range(3):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(on_its_shortcut(gate))
        permit = loop.run_until_complete(gate.acquire())
        permit.release()  # the loop does not run
        del loop, permit
    shortcuts = gate._client.unit.engine._shortcuts
    # The engine's thread may be reading one of them just now, which keeps its loop.
    until(lambda: not (gc.collect() and None) and not shortcuts, "the shortcuts' end")
    until(lambda: real_redis.info("clients")["connected_clients"] < 4, "the connections' end")
    gate.sync.acquire(timeout=SOON).release()


def test_what_a_blocked_loop_does_not_hear_of_the_engine_takes_over(real_redis, monkeypatch):
    """It stands first in line, unread: those behind it must not wait for its lease to end."""
    gate = TokenBucket(real_redis, "g", limit=1, lease=6)
    other = TokenBucket(real_redis, "other", limit=1)
    blocked, go_on = threading.Event(), threading.Event()

    async def ask_and_block():
        await on_its_shortcut(gate)
        await on_its_shortcut(other)
        holder = await asyncio.to_thread(gate.sync.acquire)
        while not takes_it(gate):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        asking = asyncio.create_task(gate.acquire())
        unit = gate._client.unit
        while unit.carrier is Carrier.NOBODY and not unit.line:  # noqa: ASYNC110 - until it is sent
            await asyncio.sleep(0)
        blocked.set()
        go_on.wait(SOON)
        holder.release()
        (await asking).release()

    thread = threading.Thread(target=lambda: asyncio.run(ask_and_block()))
    thread.start()
    assert blocked.wait(SOON)
    until(lambda: gate._client.unit.line, "the engine to read that it stands in line")
    go_on.set()
    thread.join(SOON)
    status = gate.sync.status()
    assert (status.in_flight, status.waiting, status.lost) == (0, 0, 0)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
async def test_a_forked_child_leaves_its_parents_shortcut_alone(gate):
    async with gate as permit:
        child = os.fork()
        if child == 0:
            code = 99
            try:
                permit.release()
                code = int((gate.sync.status()).in_flight)
                engines.stop_all()
            finally:
                os._exit(code)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert os.waitstatus_to_exitcode(status) == 1
    for _ in range(10):
        (await gate.acquire(timeout=0)).release()
    assert takes_it(gate)


# Trouble


async def test_scripts_that_a_server_forgot_are_the_engines_to_send(gate, real_redis):
    for _ in range(10):
        real_redis.script_flush()
        async with gate:
            real_redis.script_flush()
    await settled(gate, in_flight=0)
    status = await gate.status()
    assert status.granted == status.released


async def test_a_broken_key_is_the_askers_error(gate, real_redis):
    key = gate._client.unit.commands.keys[1]
    real_redis.set(key, "not a sorted set")
    for outcome in await asyncio.gather(
        *(gate.acquire() for _ in range(5)), return_exceptions=True
    ):
        assert isinstance(outcome, GateError)
    real_redis.delete(key)
    async with gate.hold(timeout=SOON):
        pass
    await settled(gate, in_flight=0)


@pytest.mark.parametrize("lost", [1, 2])
async def test_a_lost_reply_grants_nothing_twice_and_leaks_nothing(
    proxy, shared_server, gate_at, lost
):
    far, near = gate_at(proxy.target), gate_at(shared_server.target)
    for _ in range(5):
        await on_its_shortcut(far)
        before = (await near.status()).granted
        proxy.lose_replies(lost)
        permit = await far.acquire(timeout=SOON)
        status = await near.status()
        assert (status.granted, status.in_flight) == (before + 1, 1)
        proxy.lose_replies(lost)
        permit.release()
        until(lambda: near.sync.status().in_flight == 0, "its return")


async def test_a_cut_connection_costs_nobody_a_permit(proxy, shared_server, gate_at):
    far, near = gate_at(proxy.target, limit=4), gate_at(shared_server.target, limit=4)
    await on_its_shortcut(far)
    stopping = False

    async def goes_on():
        while not stopping:
            async with far.hold(timeout=SOON):
                await asyncio.sleep(0)

    workers = [asyncio.create_task(goes_on()) for _ in range(3)]
    for _ in range(10):
        await asyncio.sleep(0.05)  # any moment will do for a cut
        proxy.cut()
    stopping = True
    await asyncio.gather(*workers)
    until(lambda: near.sync.status().in_flight == 0, "every release")
    assert near.sync.status().lost == 0


async def test_a_silent_server_is_the_engines_trouble(proxy, shared_server, gate_at):
    far = gate_at(proxy.target, lease=3)
    await on_its_shortcut(far)
    proxy.freeze()
    with pytest.raises(GateUnavailable):
        await far.acquire(timeout=0.2)
    proxy.thaw()
    async with far.hold(timeout=SOON):
        pass


async def test_while_the_engine_is_cut_off_nothing_is_granted_blindly(
    proxy, shared_server, gate_at, exchanges
):
    """Whatever the shortcut is still connected to: it ends with the engine's contact."""
    far, near = gate_at(proxy.target, lease=SHORT), gate_at(shared_server.target, lease=SHORT)
    await on_its_shortcut(far)
    permit = await far.acquire()
    far._client.unit.engine.connection.connect().shut()
    await is_without_shortcut(far)
    await permit.renew()
    with pytest.raises(LimitTimeout):
        await far.acquire(timeout=0)
    permit.release()
    async with far.hold(timeout=SOON):
        assert (await near.status()).in_flight == 1
    await settled(near, in_flight=0)


async def test_who_asks_as_the_engine_ends_is_answered(gate):
    for _ in range(20):
        await on_its_shortcut(gate)
        asking = [asyncio.create_task(gate.acquire(timeout=SOON)) for _ in range(4)]
        await asyncio.sleep(0)
        await asyncio.to_thread(engines.stop_all)
        for each in asking:
            with contextlib.suppress(GateError):
                (await served(each)).release()
    await settled(gate, in_flight=0, waiting=0)


async def test_a_cancelled_task_whose_loop_ends_leaves_nothing_behind(real_redis):
    gate = TokenBucket(real_redis, "g", limit=1)

    async def is_cancelled():
        await on_its_shortcut(gate)
        asking = asyncio.create_task(gate.acquire())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        asking.cancel()

    def ends():
        loop = asyncio.new_event_loop()
        loop.run_until_complete(is_cancelled())
        for task in asyncio.all_tasks(loop):
            with contextlib.suppress(asyncio.CancelledError):
                loop.run_until_complete(task)
        loop.close()

    for _ in range(10):
        await asyncio.to_thread(ends)
        await settled(gate, in_flight=0, waiting=0)
