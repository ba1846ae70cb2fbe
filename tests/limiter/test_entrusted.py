"""A permit that was left in Redis outlives its process, until somebody gives it back."""

import inspect

import pytest

from limiter import Gate, PermitLost, StartingGate, SyncGate
from tests.harness import killing


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
