"""A trainer or a generator that is cancelled at any await loses no group and keeps no slot."""

import itertools
from collections.abc import Callable

import pytest

from buffer import Policy, RolloutBuffer
from tests.buffer.conftest import Bench
from tests.harness.cancelling import cancelled_at, cancelled_at_every_await

LEASE = 100.0


async def takes(buffer: RolloutBuffer) -> None:
    assert await buffer.take(lease=LEASE)


async def takes_and_acks(buffer: RolloutBuffer) -> None:
    batch = await buffer.take(lease=LEASE)
    assert batch is not None
    await buffer.ack(batch)


async def takes_and_releases(buffer: RolloutBuffer) -> None:
    batch = await buffer.take(lease=LEASE)
    assert batch is not None
    await buffer.release(batch)


@pytest.mark.parametrize("way", [takes, takes_and_acks, takes_and_releases])
async def test_a_take_that_is_cancelled_at_any_await_loses_no_group(
    bench: Bench, way: Callable[..., None]
) -> None:
    for step in itertools.count():
        await bench.fill(f"group-{step}", [0, 1, 0, 1])
        where = await cancelled_at(lambda: way(bench.buffer), step)
        bench.advance(LEASE + 1)
        again = await bench.buffer.take()  # it is there again, or it is consumed
        if again is not None:
            assert [name for name, _ in again.groups] == [f"group-{step}"], where
            await bench.buffer.ack(again)
        stats = await bench.buffer.catalog.stats()
        found = (stats["consumed"], stats["ready_groups"], stats["leased_groups"])
        assert found == (step + 1, 0, 0), where
        if not where:
            break
    assert step > 1


async def test_a_generator_that_is_cancelled_at_any_await_keeps_no_slot(
    make: Callable[..., Bench],
) -> None:
    bench, places = make(group_size=1), 0
    policy = Policy(groups_per_version=1, max_age=0)  # there is room for one slot
    await bench.buffer.set_policy(policy)
    await bench.buffer.publish(10)

    async def takes_a_slot() -> None:
        async with bench.buffer.slot(wait=10):
            pass

    async for where in cancelled_at_every_await(takes_a_slot):
        bench.advance(policy.slot_lease + 1)  # what it could not give back ends with its lease
        (slot,) = await bench.buffer.admit(1, wait=10)
        await slot.end(back=True)
        assert sum((await bench.buffer.versions()).outstanding.values()) == 0, where
        places += 1
    assert places > 2
