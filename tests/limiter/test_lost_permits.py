"""Leases: who keeps one whatever it does, who loses it, and how the holder hears of that."""

import asyncio
import contextlib
import time

import pytest

from ground.keys import tagged
from limiter import GateError, Permit, PermitLost, TokenBucket, UnknownPermit
from tests.limiter.in_flight import renewed, settled

SHORT = {"lease": 0.6, "heartbeat": 0.2}


@pytest.fixture
def gate(redis) -> TokenBucket:
    return TokenBucket(redis, "g", limit=1, lease=1.5)


def take_away(redis, *, and_give_to: str) -> None:
    """What a server does that lost its data, when another asks before the holder does."""
    now = time.time()
    keys = [tagged("gate", "g", part) for part in ("leases", "holders")]
    redis.delete(*keys)
    redis.zadd(keys[0], {and_give_to: int((now + 600) * 1e6)})
    redis.hset(keys[1], and_give_to, f"{int(now * 1e6)}|someone|{int(now * 1e6)}")


async def test_a_blocked_event_loop_keeps_its_permit(redis):
    gate = TokenBucket(redis, "g", limit=1, lease=60, heartbeat=0.1)
    async with gate as permit:
        renewed(redis)  # without an `await`: this is what user code does to us
        assert not permit.lost
        assert not await gate.try_acquire()
    assert (await gate.status()).expired == 0


async def test_losing_its_permit_cancels_the_body_of_a_block(redis, gate):
    reached = []
    with pytest.raises(PermitLost, match="'g'") as loss:
        async with gate as permit:
            take_away(redis, and_give_to="another")
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                reached.append("cancelled")
                raise
    assert reached == ["cancelled"]
    assert loss.value.permit == permit.id
    assert asyncio.current_task().cancelling() == 0
    await asyncio.sleep(0)  # no cancellation is left over
    assert (await gate.status()).lost >= 1  # more, where a reply got lost


async def test_a_permit_that_is_lost_as_its_block_begins_cancels_nothing_later(gate, monkeypatch):
    def lost(permit: Permit) -> bool:
        permit._lease.lost = True
        permit._lease.notify_holder()  # on another thread, between two lines of ours
        return True

    monkeypatch.setattr(Permit, "lost", property(lost))
    with pytest.raises(PermitLost):
        async with gate:
            pytest.fail("there is no permit to begin with")
    await asyncio.sleep(0)  # in which a cancellation would come
    assert asyncio.current_task().cancelling() == 0


async def test_the_users_own_cancellation_stays_one_though_the_permit_was_lost(redis, gate):
    async def body():
        async with gate as permit:
            take_away(redis, and_give_to="another")
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                assert permit.lost
                task.cancel()  # now, as well
                raise

    task = asyncio.create_task(body())
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_a_body_that_failed_by_itself_keeps_its_own_error(redis, gate):
    with pytest.raises(KeyError):
        async with gate:
            take_away(redis, and_give_to="another")
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                raise KeyError("its own") from None
    assert asyncio.current_task().cancelling() == 0


async def test_a_body_that_shrugs_the_cancellation_off_raises_at_its_end(redis, gate):
    with pytest.raises(PermitLost):
        async with gate:
            take_away(redis, and_give_to="another")
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(60)


def test_a_sync_body_raises_at_its_end(redis, gate):
    with pytest.raises(PermitLost), gate as permit:
        take_away(redis, and_give_to="another")
        wait_until(lambda: permit.lost)


def test_a_sync_body_that_failed_by_itself_keeps_its_own_error(redis, gate):
    with pytest.raises(KeyError), gate as permit:
        take_away(redis, and_give_to="another")
        wait_until(lambda: permit.lost)
        raise KeyError("its own")


async def test_renewing_tells_of_a_loss_at_once(redis):
    gate = TokenBucket(redis, "g", limit=1, lease=600)
    permit = await gate.acquire()
    take_away(redis, and_give_to="another")
    with pytest.raises(PermitLost):
        await permit.renew()
    assert permit.lost
    with pytest.raises(PermitLost):
        permit.check()


async def test_an_operator_revokes_a_permit_and_its_holder_learns_of_it(redis):
    gate = TokenBucket(redis, "g", limit=1, lease=600)
    with pytest.raises(PermitLost, match="revoked"):
        async with gate as permit:
            revoked = await gate.revoke(permit.id)
            assert (revoked.id, revoked.fence) == (permit.id, permit.fence)
            await permit.renew()
    with pytest.raises(UnknownPermit, match="penstock limits permits g"):
        await gate.revoke(permit.id)
    with pytest.raises(PermitLost), gate as another:
        assert gate.sync.revoke(another.id).process == revoked.process
        another.renew()


async def test_a_permit_whose_record_is_gone_is_taken_in_again(redis, gate):
    async with gate as permit:
        redis.flushall()
        await permit.renew()
        assert not permit.lost
        status = await gate.status()
        assert (status.in_flight, status.readmitted) == (1, 1)
    await settled(gate, in_flight=0)


async def test_a_lost_permit_is_not_renewed_nor_counted_twice(redis, gate):
    permit = await gate.acquire()
    take_away(redis, and_give_to="another")
    while not permit.lost:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    permit.release()
    status = await gate.status()
    assert (status.released, status.lost, status.in_flight) == (0, 1, 1)


async def test_one_that_was_handed_in_is_not_missed(redis, gate, caplog):
    """Its id was told to a script, which gave it up: a heartbeat that comes after is no loss."""
    spent = await gate.acquire()
    spent.hand_in()
    await gate.free(spent.id, spent.fence)
    kept = await TokenBucket(redis, "h", limit=1, lease=30, heartbeat=0.4).acquire()
    for _ in range(2):
        before = kept._lease.deadline
        while kept._lease.deadline == before:  # noqa: ASYNC110 - the engine beats for both gates
            await asyncio.sleep(0.01)
    status = await gate.status()
    assert (status.lost, status.readmitted, status.in_flight) == (0, 0, 0)
    assert "was lost" not in caplog.text
    spent.release()
    kept.release()


def test_who_cannot_renew_counts_itself_lost_before_the_server_does(private_redis):
    server = private_redis(aof=False)
    gate = TokenBucket(server.target, "g", limit=1, lease=1.2, heartbeat=0.4)
    permit = gate.sync.acquire()
    mine = time.time() + permit._lease.deadline - time.monotonic()
    # Of the same renewal, or of one after it.
    assert mine < int(server.ask("ZSCORE", "penstock:gate:{g}:leases", permit.id)) / 1e6
    server.freeze()
    try:
        wait_until(lambda: permit.lost)
        wait_until(lambda: permit._lease.lost)
    finally:
        server.thaw()
    with pytest.raises(PermitLost):
        permit.check()
    permit.release()


async def test_a_frozen_server_ends_the_body_of_a_block(private_redis):
    server = private_redis(aof=False)
    gate = TokenBucket(server.target, "g", limit=1, **SHORT)
    with pytest.raises(PermitLost):
        async with gate:
            server.freeze()
            await asyncio.sleep(60)
    server.thaw()
    await settled(gate, in_flight=0)


async def test_what_hears_of_a_loss_may_fail_without_harm(redis, gate, caplog):
    permit = await gate.acquire()
    permit.on_lost = lambda: 1 / 0
    take_away(redis, and_give_to="another")
    while "ZeroDivisionError" not in caplog.text:  # noqa: ASYNC110 - it is told after it is lost
        await asyncio.sleep(0.01)
    assert permit.lost
    assert (await gate.status()).lost >= 1  # more, where a reply got lost


async def test_a_permit_of_an_ended_engine_is_given_back_and_the_gate_goes_on(redis):
    from limiter import engine as engines

    gate = TokenBucket(redis, "g", limit=1)
    permit = await gate.acquire()
    waiting = asyncio.create_task(gate.acquire())
    await settled(gate, waiting=1)
    await asyncio.to_thread(engines.stop_all)
    with pytest.raises(GateError, match="ending"):
        await waiting
    permit.release()
    async with gate.hold(timeout=100):
        assert (await gate.status()).in_flight == 1


def wait_until(condition) -> None:
    deadline = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)
