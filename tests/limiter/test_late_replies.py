"""What comes late by a shortcut: the engine has gone on meanwhile, and nothing is forgotten."""

import asyncio
import threading
from contextlib import closing

import pytest

from ground.redis import loop_wire
from ground.redis.connect import target_of
from ground.redis.dial import dial
from ground.redis.unit import Carrier
from ground.redis.wire import Wire
from limiter import TokenBucket, UnknownPermit
from tests.harness.servers import until
from tests.limiter.by_shortcut import on_its_shortcut
from tests.limiter.in_flight import in_line, served


@pytest.fixture
def held_back(monkeypatch):
    """While this is set, no reply reaches a loop by its shortcut."""
    back, received = threading.Event(), loop_wire.LoopWire.received
    monkeypatch.setattr(
        loop_wire.LoopWire,
        "received",
        lambda wire: [] if back.is_set() else received(wire),
    )
    return back


async def test_a_lease_that_its_loop_reads_late_is_renewed(real_redis, held_back):
    gate = TokenBucket(real_redis, "g", limit=1, lease=3)
    await on_its_shortcut(gate)
    held_back.set()
    asking = asyncio.create_task(gate.acquire())
    while not leases(real_redis):  # noqa: ASYNC110
        await asyncio.sleep(0.002)
    unit = gate._client.unit
    until(lambda: unit.carrier is Carrier.NOBODY and not unit.pressing, "the engine to ask again")
    held_back.clear()
    permit = await served(asking)
    granted = leases(real_redis)
    until(lambda: permit.lost or leases(real_redis) != granted, "a renewal")
    assert not permit.lost
    permit.release()


async def test_a_grant_in_a_reply_that_no_loop_read_reaches_its_waiter(real_redis, held_back):
    gate = TokenBucket(real_redis, "g", limit=1, lease=600)
    await on_its_shortcut(gate)
    permit = await gate.acquire()
    waiting = await in_line(gate, 1)
    held_back.set()
    permit.release()
    (await served(waiting)).release()


def leases(redis):
    return redis.zrange("penstock:gate:{g}:leases", 0, -1, withscores=True)


async def test_an_older_reply_does_not_put_off_the_next_look_at_the_gate(redis):
    gate = TokenBucket(redis, "g", rate=1, burst=1, lease=600)
    await gate.status()
    unit = gate._client.unit
    sweep = unit.commands.sweep()
    nothing_to_wait_for = redis.execute_command(*sweep)
    waiting = await in_line(gate, 1)
    with unit.engine.lock:
        unit.read_time(nothing_to_wait_for, unit.engine.clock())
    assert await served(waiting)


async def test_a_revocation_whose_reply_was_lost_has_the_same_answer_again(redis):
    gate = TokenBucket(redis, "g", limit=3, lease=600)
    held = [await gate.acquire() for _ in range(3)]
    commands = gate._client.unit.commands
    calls = [commands.revoke(permit.id, f"call:{permit.fence}") for permit in held[:2]]
    once, again = ([redis.execute_command(*call)[3:] for call in calls] for _ in range(2))
    assert [int(holder.split(b"|")[0]) for _, holder in once] == [one.fence for one in held[:2]]
    assert once == again
    status = await gate.status()
    assert (status.in_flight, status.expired) == (1, 2)
    with pytest.raises(UnknownPermit):  # another call is told so
        await gate.revoke(held[0].id)


async def test_an_ask_that_its_cancellation_overtook_leaves_no_permit_behind(
    real_redis, monkeypatch
):
    gate = TokenBucket(real_redis, "g", limit=1, lease=600)
    asking, ask = await one_that_stays_unsent(gate, monkeypatch)
    asking.cancel()
    await asyncio.wait([asking])
    assert (await gate.status()).waiting == 0  # this comes after the cancellation
    with closing(dial(target_of(real_redis), 5.0, Wire)) as other:
        other.send(ask)
        assert other.wait(100.0)
        *_, fence, _ = other.received()[0]
    assert fence > 0  # so it was granted; it may be given back before anybody looks
    until(lambda: not leases(real_redis), "its end")


async def one_that_stays_unsent(gate, monkeypatch):
    """An acquire by the loop's shortcut, and the bytes that it did not send. The engine's thread
    may be quicker than the loop: then that permit is given back, and there is another try."""
    kept = []
    while True:
        await on_its_shortcut(gate)
        with monkeypatch.context() as holding:
            holding.setattr(loop_wire.LoopWire, "send_whole", lambda _, data: kept.append(data))
            asking = asyncio.create_task(gate.acquire())
            while not (kept or asking.done()):  # noqa: ASYNC110
                await asyncio.sleep(0)
        if kept:
            return asking, kept[0]
        asking.result().release()
