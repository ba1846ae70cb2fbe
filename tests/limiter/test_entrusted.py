"""A permit that was left in Redis outlives its process, until somebody gives it back."""

import asyncio
import contextlib
import inspect
import math
from typing import Any

import pytest

from ground import SettingError
from limiter import Adaptive, Gate, PermitLost, Report, StartingGate, SyncGate, TokenBucket
from tests.harness import killing
from tests.harness.servers import until
from worker.run.turn import GateTurn


async def test_an_entrusted_permit_is_given_back_by_anybody_and_once(redis):
    gate, another = StartingGate(redis, limit=1), StartingGate(redis, limit=1)
    permit = await gate.acquire()
    await permit.entrust(600)
    permit.release()  # it is not ours any more
    assert (await gate.status()).in_flight == 1
    await another.free(permit.id, permit.fence + 1)  # not with another fence
    assert (await gate.status()).in_flight == 1
    await another.free(permit.id, permit.fence)
    await another.free(permit.id, permit.fence)
    status = await gate.status()
    assert (status.in_flight, status.released) == (0, 1)


async def test_a_permit_that_was_lost_cannot_be_entrusted(redis):
    gate = StartingGate(redis, limit=1)
    permit = await gate.acquire()
    await StartingGate(redis, limit=1).free(permit.id, permit.fence)
    async with gate:
        with pytest.raises(PermitLost):
            await permit.entrust(600)


@pytest.mark.parametrize("seconds", [15.0, 3600.0])
@pytest.mark.parametrize("steps", [1, 2, 3])
async def test_a_permit_that_was_not_entrusted_after_all_keeps_its_own_lease(redis, seconds, steps):
    """However far it had got."""
    gate = StartingGate(redis, limit=1, lease=60)
    permit = await gate.acquire()
    entrusting = asyncio.ensure_future(permit.entrust(seconds))
    for _ in range(steps):
        await asyncio.sleep(0)
    if entrusting.done():
        return  # this Redis was too quick
    entrusting.cancel()
    await asyncio.wait([entrusting])
    assert entrusting.cancelled()
    (lease,) = (await gate.status()).leases
    assert 20 < lease.expires_in <= 60
    permit.release()


async def test_a_permit_whose_short_entrusting_got_no_reply_may_be_lost_by_then(private_redis):
    server = private_redis(aof=False)
    permit = await StartingGate(server.url, limit=1, lease=600).acquire()
    server.freeze()
    entrusting = asyncio.ensure_future(permit.entrust(0.1))
    await asyncio.sleep(0)
    entrusting.cancel()
    await asyncio.wait([entrusting])
    until(lambda: permit.lost, "the end that Redis may know")
    server.thaw()


@pytest.mark.parametrize("seconds", [-1, 0, math.inf, math.nan, 10**400])
async def test_a_permit_is_entrusted_for_a_time_only(redis, seconds):
    async with StartingGate(redis, limit=1).hold() as permit:
        with pytest.raises(SettingError, match="seconds"):
            await permit.entrust(seconds)


def test_the_sync_face_has_every_call_of_the_gate(redis):
    calls = [
        {name for name, _ in inspect.getmembers(face, inspect.isfunction) if name[0] != "_"}
        for face in (Gate, SyncGate)
    ]
    assert calls[0] - {"hold", "limited"} == calls[1]  # those two are for threads as they are
    gate = StartingGate(redis, limit=1)
    permit = gate.sync.acquire()
    gate.sync.free(permit.id, permit.fence)
    assert gate.sync.status().in_flight == 0


async def entrusts(url: str) -> list[object]:
    permit = await StartingGate(url, limit=1, lease=1.0).acquire()
    await permit.entrust(600)
    return [permit.id, permit.fence]


async def test_an_entrusted_permit_outlives_its_process(private_redis):
    url = private_redis(aof=False).url
    permit, fence = killing.run(entrusts, url).returned
    gate = StartingGate(url, limit=1, lease=1.0)
    (lease,) = (await gate.status()).leases
    assert lease.id == permit
    assert lease.expires_in > 500
    await gate.free(permit, fence)
    assert (await gate.status()).in_flight == 0


# A process that ends as it should, while what its permits were for goes on elsewhere

kept: list[Any] = []


def gate_of(url: str) -> TokenBucket:
    return TokenBucket(url, "g", limit=Adaptive(start=4, min=1, max=4), lease=1.0)


async def ends_a_turn(url: str) -> None:
    turn = GateTurn(gate_of(url))
    await turn.begin(outlives=0.0)
    turn.report(Report.OVERLOADED)
    await turn.end(still_running=600.0)


async def test_a_permit_whose_program_may_still_run_outlives_its_process(private_redis):
    url = private_redis(aof=False).url
    killing.run(ends_a_turn, url)
    gate = gate_of(url)
    status = await gate.status()
    (lease,) = status.leases
    assert lease.expires_in > 500
    assert status.adaptive is not None
    assert status.adaptive.overloaded == 1  # an end by time alone would say nothing
    await gate.free(lease.id, lease.fence)
    assert (await gate.status()).in_flight == 0


def drops_permits(url: str) -> None:
    gate = gate_of(url)
    kept.append(gate.sync.acquire(orphan_hold=600))
    gate.sync.acquire(orphan_hold=600)
    gate.sync.acquire()


async def test_a_permit_that_nobody_releases_stays_for_its_orphan_hold_only(private_redis):
    url = private_redis(aof=False).url
    killing.run(drops_permits, url)
    status = await gate_of(url).status()
    assert [lease.expires_in > 500 for lease in status.leases] == [True, True]


def leaves_a_block(url: str) -> None:
    gate = TokenBucket(url, "g", limit=1, lease=1.0, orphan_hold=600)
    with contextlib.suppress(KeyError), gate:
        raise KeyError


async def test_a_block_that_ends_by_an_error_gives_its_permit_back(private_redis):
    url = private_redis(aof=False).url
    killing.run(leaves_a_block, url)
    assert (await gate_of(url).status()).in_flight == 0


async def test_a_permit_given_back_for_later_is_free_when_that_time_is_over(redis):
    gate = StartingGate(redis, limit=1)
    permit = await gate.acquire()
    await permit.give_back(after=0.05)
    assert not permit.lost
    (await gate.acquire(timeout=100)).release()


@pytest.mark.parametrize("after", [math.inf, math.nan, -1.0, 10**17, 10**400])
async def test_a_permit_that_cannot_be_given_back_so_is_still_to_be_released(redis, after):
    gate = StartingGate(redis, limit=1)
    permit = await gate.acquire()
    with pytest.raises(SettingError, match="after"):
        await permit.give_back(after=after)
    permit.release()
    (await gate.acquire(timeout=100)).release()
