"""Redis restarts, forgets, or refuses for a while: what a gate makes of it."""

import asyncio
from dataclasses import replace

import pytest

from limiter import Adaptive, GateUnavailable, PermitLost, TokenBucket
from tests.harness.servers import until
from tests.limiter.in_flight import in_line, served, settled

pytestmark = pytest.mark.usefixtures("no_engine_is_left_running_hot")

SOON = 100.0  # only a hang takes longer
BEATS = {"lease": 12.0, "heartbeat": 1.0}  # a heartbeat is waited for, and the lease is kept


@pytest.fixture
def durable(private_redis):
    """A server that keeps every write."""
    return private_redis(aof=True)


@pytest.fixture(params=["the same process", "another process"])
def other(request, durable):
    """Another way to the server: through the engine that holds, or through one of its own."""
    return durable.target if request.param == "the same process" else durable.socket_target


async def held(gate, body):
    async with gate.hold() as permit:
        await body(permit)


async def test_a_restart_with_its_data_moves_nobody(durable, other, gate_at):
    gate, elsewhere = gate_at(durable.target, lease=6), gate_at(other, lease=6)
    permit = await gate.acquire()
    first = await in_line(elsewhere, 1)
    second = await in_line(gate, 2)
    durable.restart()
    await permit.renew()
    assert (await gate.status()).waiting == 2
    permit.release()
    granted = await served(first)
    assert not second.done()
    granted.release()
    (await served(second)).release()
    status = await gate.status()
    assert (status.granted, status.readmitted) == (3, 0)


async def test_a_holder_registers_again_after_the_data_is_lost(durable, gate_at):
    gate = gate_at(durable.target, **BEATS)
    permit = await gate.acquire()
    durable.restart(keep_data=False)
    elsewhere = gate_at(durable.socket_target, **BEATS)
    until(lambda: elsewhere.sync.status().readmitted == 1, "a heartbeat")
    status = await elsewhere.status()
    assert (status.in_flight, status.limit, status.leases[0].fence) == (1, 1, permit.fence)
    assert not permit.lost
    permit.release()
    next_one = await elsewhere.acquire(timeout=SOON)
    assert next_one.fence > permit.fence
    next_one.release()


async def test_a_permit_whose_room_was_given_away_with_the_data_is_lost(durable, gate_at):
    gate, elsewhere = gate_at(durable.target), gate_at(durable.socket_target)
    was_cancelled = asyncio.Event()

    async def body(permit):
        durable.restart(keep_data=False)
        taken = await elsewhere.acquire(timeout=SOON)
        assert taken.fence > permit.fence
        renewing = asyncio.create_task(permit.renew())
        try:
            await asyncio.sleep(SOON)  # until it is cancelled
        except asyncio.CancelledError:
            was_cancelled.set()
            with pytest.raises(PermitLost):
                await renewing
            assert (await gate.status()).in_flight == 1
            taken.release()
            raise

    with pytest.raises(PermitLost):
        await held(gate, body)
    assert was_cancelled.is_set()


async def test_waiters_are_in_line_again_in_their_order_after_the_data_is_lost(durable, gate_at):
    gate, elsewhere = gate_at(durable.target, **BEATS), gate_at(durable.socket_target, **BEATS)
    permit = await gate.acquire()
    first = await in_line(gate, 1)
    second = await in_line(elsewhere, 2)
    durable.restart(keep_data=False)
    await permit.renew()
    await settled(gate, waiting=2)
    permit.release()
    granted = await served(first)
    assert not second.done()
    granted.release()
    (await served(second)).release()


@pytest.mark.parametrize("keep_data", [True, False])
async def test_limits_that_were_found_costs_and_shares_after_a_restart(durable, name, keep_data):
    """With the data all is as it was. Without, the gate begins at `start`, with equal weights."""
    bounds = Adaptive(start=8, min=4, max=16)
    gate = TokenBucket(durable.target, name, limit=bounds, **BEATS)
    await gate.configure(weights={"b": 3})
    async with gate.hold(cost=1, timeout=SOON) as permit:
        permit.throttled()
    held = await gate.acquire(cost=6, timeout=SOON)
    waiters = [
        asyncio.create_task(gate.acquire(cost=5, share=share, timeout=SOON)) for share in "ab"
    ]
    await settled(gate, waiting=2)
    durable.restart(keep_data=keep_data)
    async with asyncio.timeout(SOON):
        await held.renew()
    await settled(gate, waiting=2)
    status = await gate.status()
    assert status.shares is not None
    assert (status.limit, status.cost, status.in_flight) == (7 if keep_data else 8, 6, 1)
    weights = {one.name: one.weight for one in status.shares.shares}
    assert weights == {"a": 1, "b": 3 if keep_data else 1}
    held.unreported()
    held.release()
    for waiter in asyncio.as_completed(waiters):
        permit = await waiter
        assert (await gate.status()).cost == 5
        permit.release()
    await settled(gate, in_flight=0, waiting=0)


async def test_flushed_scripts_are_loaded_again(durable, gate_at):
    gate, elsewhere = gate_at(durable.target), gate_at(durable.socket_target)
    for _ in range(3):
        durable.ask("SCRIPT", "FLUSH")
        permit = await gate.acquire(timeout=SOON)
        durable.ask("SCRIPT", "FLUSH")
        waiter = await in_line(elsewhere, 1)
        durable.ask("SCRIPT", "FLUSH")
        permit.release()
        (await served(waiter)).release()
    until(lambda: gate.sync.status().in_flight == 0, "the last release")
    assert (await gate.status()).granted == 6


# Redis refuses for a while


@pytest.mark.parametrize(
    ("refusing", "serving"),
    [
        (("min-replicas-to-write", 1), ("min-replicas-to-write", 0)),
        (("maxmemory", 1), ("maxmemory", 0)),
    ],
)
async def test_a_server_that_takes_no_writes_for_a_while_is_waited_for(
    durable, refusing, serving, gate_at
):
    gate = gate_at(durable.target)
    permit = await gate.acquire()
    waiter = await in_line(gate, 1)
    durable.ask("CONFIG", "SET", *refusing)
    with pytest.raises(GateUnavailable):
        await gate.acquire(timeout=0.2)
    permit.release()
    durable.ask("CONFIG", "SET", *serving)
    (await served(waiter)).release()


@pytest.mark.parametrize("cost", [None, 2])
async def test_permits_in_use_stay_in_use_while_redis_is_full(durable, name, cost):
    gate = TokenBucket(durable.target, name, limit=4, lease=60.0, heartbeat=1.0)
    permit = await gate.acquire(cost=cost)
    durable.ask("CONFIG", "SET", "maxmemory", 1)
    for _ in range(2):  # the first may have been under way
        known = permit._lease.deadline
        until(lambda: permit.lost or permit._lease.deadline > known, "a renewal")  # noqa: B023
    assert not permit.lost
    permit.release()
    leases = f"penstock:gate:{{{name}}}:leases"
    until(lambda: not int(durable.ask("ZCARD", leases)), "the release")


async def test_a_wrong_password_is_said_at_once(private_redis, gate_at, caplog):
    server = private_redis(config=["requirepass right"])
    gate = gate_at(replace(server.target, options={"password": "wrong"}))
    for _ in range(2):
        with pytest.raises(GateUnavailable, match="password"):
            await gate.acquire(timeout=SOON)
    assert f"Redis at {server.target} refused" in caplog.text
    assert "does not answer" not in caplog.text
