"""A permit given back for a while: its holder asks again without losing its place."""

import asyncio

import pytest

from ground import SettingError
from ground.redis.connect import target_of
from limiter import TokenBucket


@pytest.fixture
def gate(redis) -> TokenBucket:
    return TokenBucket(redis, "code", limit=1)


async def waiting(gate: TokenBucket, count: int) -> None:
    while (await gate.status()).waiting < count:  # noqa: ASYNC110 - a gate tells nobody
        await asyncio.sleep(0.001)


async def test_who_asks_again_with_its_ticket_goes_before_those_who_came_later(gate):
    order: list[str] = []

    async def take(name: str, ticket: str = "") -> None:
        permit = await gate.acquire(ticket=ticket, timeout=100)
        order.append(name)
        permit.release()

    first = await gate.acquire()
    second = asyncio.create_task(gate.acquire(timeout=100))
    await waiting(gate, 1)
    late = asyncio.create_task(take("late"))
    await waiting(gate, 2)
    ticket = first.ticket
    first.release()
    held = await second
    again = asyncio.create_task(take("first again", ticket))
    await waiting(gate, 2)
    waited = asyncio.create_task(take("second again", held.ticket))
    await waiting(gate, 3)
    held.release()
    await asyncio.gather(late, again, waited)
    assert order == ["first again", "second again", "late"]


async def test_a_permit_given_back_is_gone_from_redis_when_the_call_returns(redis, gate):
    permit = await gate.acquire()
    await permit.give_back()
    await permit.give_back()
    assert redis.zcard("penstock:gate:{code}:leases") == 0
    assert not permit.lost


async def test_one_permit_may_be_held_longer_for_its_owner_than_the_gate_holds_others(redis, gate):
    permit = await gate.acquire(orphan_hold=1000)
    ((_, ends),) = redis.zrange("penstock:gate:{code}:leases", 0, -1, withscores=True)
    seconds, micros = redis.time()
    assert ends / 1e6 - seconds - micros / 1e6 > 900
    permit.release()


@pytest.mark.parametrize(
    "ticket",
    ["front", "-", "1.5", " 1", "\u0663", "1" * 17, str(2**43 - 1), str(2**52), 5, b"5", None],
)
async def test_what_is_no_ticket_is_refused(gate, ticket):
    with pytest.raises(SettingError, match="ticket: must be that of an earlier permit"):
        await gate.acquire(ticket=ticket)


async def test_a_ticket_of_every_lane_is_one(gate):
    for lane in (-512, -1, 0, 511):
        permit = await gate.acquire(lane=lane)
        permit.release()
        (await gate.acquire(lane=lane, ticket=permit.ticket, timeout=100)).release()


async def test_an_orphan_hold_is_no_less_than_nothing(redis):
    gate = TokenBucket(target_of(redis), "code", limit=1)
    with pytest.raises(SettingError, match="orphan_hold: must be 0 or more seconds"):
        await gate.acquire(orphan_hold=-1)
