"""Redis is cut off, far away, frozen, or not there: what a gate makes of it."""

import asyncio
import time
import traceback

import pytest

from ground.redis.url import parse_redis_url
from limiter import GateUnavailable, PermitLost, ledger
from tests.harness.servers import free_port, until
from tests.limiter.in_flight import in_line, served, settled

pytestmark = pytest.mark.usefixtures("no_engine_is_left_running_hot")

SHORT = 2.0  # a lease that a test waits for
SOON = 100.0  # only a hang takes longer


async def held(gate, body):
    async with gate.hold() as permit:
        await body(permit)


async def test_a_cut_connection_costs_a_waiter_nothing(proxy, shared_server, gate_at):
    far, near = gate_at(proxy.target, lease=6), gate_at(shared_server.target, lease=6)
    permit = await near.acquire()
    first = await in_line(far, 1)
    second = await in_line(near, 2)
    proxy.cut()
    permit.release()
    granted = await served(first)
    assert not second.done()
    granted.release()
    (await served(second)).release()
    assert (await near.status()).granted == 3


@pytest.mark.parametrize("lost", [1, 2, 3])
async def test_a_lost_reply_grants_nothing_twice_and_leaks_nothing(
    proxy, shared_server, lost, gate_at
):
    far, near = gate_at(proxy.target, limit=2), gate_at(shared_server.target, limit=2)
    proxy.lose_replies(lost)
    permit = await far.acquire(timeout=SOON)
    status = await near.status()
    assert (status.granted, status.in_flight) == (1, 1)

    other = await near.acquire()
    proxy.lose_replies(lost)
    waiter = await in_line(far, 1)
    proxy.lose_replies(lost)
    other.release()
    granted = await served(waiter)
    status = await near.status()
    assert (status.granted, status.in_flight, status.waiting) == (3, 2, 0)

    proxy.lose_replies(lost)
    permit.release()
    granted.release()
    until(lambda: near.sync.status().in_flight == 0, "both releases")
    assert near.sync.status().released == 3


async def test_a_wish_cancelled_while_its_reply_was_lost_leaves_nothing(
    proxy, shared_server, gate_at
):
    far, near = gate_at(proxy.target), gate_at(shared_server.target)
    (await far.acquire()).release()
    assert (await far.status()).in_flight == 0  # so that no reply of before is on its way
    proxy.freeze("replies")
    wish = asyncio.create_task(far.acquire())
    for _ in range(2):  # it has been sent when a tick has ended
        await asyncio.sleep(0)
    until(lambda: near.sync.status().in_flight == 1, "a grant that nobody hears of")
    wish.cancel()
    await asyncio.wait([wish])
    proxy.cut()
    proxy.thaw()
    until(lambda: near.sync.status().in_flight == 0, "its return")


async def test_a_slow_network_is_only_slow(proxy, shared_server, gate_at):
    far, near = gate_at(proxy.target, lease=6), gate_at(shared_server.target, lease=6)
    proxy.delay(0.1)
    permit = await far.acquire(timeout=SOON)
    waiter = await in_line(near, 1)
    await permit.renew()
    permit.release()
    (await served(waiter)).release()


async def test_a_holder_cut_off_knows_it_before_its_permit_is_anothers(
    proxy, shared_server, gate_at
):
    far, near = gate_at(proxy.target, lease=SHORT), gate_at(shared_server.target, lease=SHORT)
    others, ended = [], asyncio.Event()

    async def take_after(permit):
        taken = await near.acquire(timeout=SOON)
        assert permit.lost or ended.is_set()
        return taken

    async def body(permit):
        others.append(asyncio.create_task(take_after(permit)))
        await settled(near, waiting=1)
        proxy.freeze()
        try:
            await asyncio.sleep(SOON)  # until it is cancelled
        finally:
            ended.set()

    with pytest.raises(PermitLost):
        await held(far, body)
    taken = await served(others[0])
    proxy.thaw()
    taken.release()
    until(lambda: near.sync.status().in_flight == 0, "the release")


async def test_commands_that_arrive_late_leak_nothing_past_a_lease(proxy, shared_server, gate_at):
    far, near = gate_at(proxy.target, lease=SHORT), gate_at(shared_server.target, lease=SHORT)
    (await far.acquire()).release()
    proxy.freeze()
    for _ in range(3):
        with pytest.raises(GateUnavailable):
            await far.acquire(timeout=0.2)
    proxy.thaw()
    permits = [await near.acquire(timeout=SOON) for _ in range(1)]
    assert (await near.status()).in_flight == len(permits)
    for permit in permits:
        permit.release()
    until(lambda: near.sync.status().in_flight == near.sync.status().waiting == 0, "all to end")


# Redis is not there


@pytest.fixture
def nowhere():
    return parse_redis_url(f"redis://127.0.0.1:{free_port()}/0")


@pytest.fixture
def silent(proxy):
    proxy.freeze()
    return proxy.target


@pytest.fixture(params=["nowhere", "silent"])
def unreachable(request):
    return request.getfixturevalue(request.param)


async def test_without_redis_an_acquire_fails_after_its_timeout(unreachable, gate_at, monkeypatch):
    monkeypatch.setattr(ledger, "_BENEFIT_OF_DOUBT", 0.3)
    gate = gate_at(unreachable)
    for asking in (gate.acquire, lambda **t: asyncio.to_thread(gate.sync.acquire, **t)):
        began = time.monotonic()
        with pytest.raises(GateUnavailable, match="nothing was granted"):
            await asking(timeout=0.3)
        assert 0.25 < time.monotonic() - began < SOON


async def test_without_redis_patience_ends_an_acquire_that_has_no_timeout(unreachable, gate_at):
    gate = gate_at(unreachable, lease=3, patience=0.5)
    with pytest.raises(GateUnavailable):
        await served(asyncio.create_task(gate.acquire()))
    with pytest.raises(GateUnavailable):
        await asyncio.wait_for(asyncio.to_thread(gate.sync.acquire), SOON)


async def test_without_redis_each_waiter_gets_an_error_of_its_own(nowhere, gate_at):
    gate = gate_at(nowhere, lease=3, patience=0.5)
    waits = [gate.acquire() for _ in range(200)]
    errors = await asyncio.gather(*waits, return_exceptions=True)
    assert {type(error) for error in errors} == {GateUnavailable}
    assert len({id(error) for error in errors}) == 200
    assert max(len(traceback.extract_tb(error.__traceback__)) for error in errors) < 20


async def test_without_redis_every_question_ends_in_the_same_error(unreachable, gate_at):
    gate = gate_at(unreachable, lease=3, patience=0.5)
    for question in (gate.status, gate.try_acquire, gate.pause, lambda: gate.configure(limit=3)):
        with pytest.raises(GateUnavailable):
            await asyncio.wait_for(question(), SOON)


async def test_a_redis_that_comes_back_within_the_patience_grants(private_redis, gate_at):
    server = private_redis()
    server.kill()
    gate = gate_at(server.target)
    wish = asyncio.create_task(gate.acquire())
    await asyncio.sleep(0)
    server.start()
    (await served(wish)).release()


async def test_after_an_outage_nobody_is_above_the_limit(private_redis, gate_at):
    """A server frozen for longer than the leases: the holders know before anybody else gets in."""
    server = private_redis(aof=False)
    gate = gate_at(server.target, limit=2, lease=SHORT)
    elsewhere = gate_at(server.socket_target, limit=2, lease=SHORT)
    held = [await gate.acquire(), await gate.acquire()]
    waiters = [await in_line(elsewhere, 1), await in_line(elsewhere, 2)]
    server.freeze()
    until(lambda: all(permit.lost for permit in held), "the leases to end by our own clock")
    assert not any(waiter.done() for waiter in waiters)
    await asyncio.sleep(SHORT / 3)  # and by the server's
    server.thaw()
    taken = [await served(waiter) for waiter in waiters]
    assert not any(permit.lost for permit in taken)
    for permit in held:
        with pytest.raises(PermitLost):
            permit.check()
    assert (await gate.status()).in_flight == 2
    for permit in taken:
        permit.release()
