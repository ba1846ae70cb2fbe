"""How slots end, whichever way, and what becomes of their groups and of their places."""

from collections.abc import Callable
from typing import Any

import pytest

from buffer import Outcome, Policy, SlotLost
from buffer.group_functions import GroupFunctions
from tests.buffer.conftest import Bench, item

POLICY = Policy(groups_per_version=2, max_age=2, depth=2)


@pytest.fixture
async def bench(make: Callable[..., Bench]) -> Bench:
    """Groups of two; two groups a version, at most two versions old."""
    return await begun(make(group_size=2))


async def begun(bench: Bench, policy: Policy = POLICY) -> Bench:
    await bench.buffer.set_policy(policy)
    await bench.buffer.publish(10)
    return bench


async def judged_bench(make: Callable[..., Bench]) -> Bench:
    """Its groups are open until a function says that they are finished."""

    def is_valid_group(group: Any, least: int, task: str) -> tuple[bool, bool]:
        return len(group[1]) >= least, len(group[1]) >= least

    functions = GroupFunctions(is_valid_group=is_valid_group)
    return await begun(make(group_size=2, functions=functions))


async def under_way(bench: Bench) -> dict[int, int]:
    found = (await bench.buffer.versions()).outstanding
    return {age: n for age, n in found.items() if n}


async def taken(bench: Bench, groups: int | None = None) -> list[Any]:
    batch = await bench.buffer.take(groups)
    return [] if batch is None else [name for name, _ in batch.groups]


async def test_a_whole_group_that_waits_for_its_verdict_gets_no_other_slot(
    make: Callable[..., Bench],
) -> None:
    bench = await judged_bench(make)
    (slot,) = await bench.buffer.admit(1, instances=[("a", 0)])
    await bench.buffer.write_many([item("a", "u0", 0), item("a", "u1", 1)], slot=slot)
    (other,) = await bench.buffer.admit(1, instances=[("a", 0)])
    assert other.instance_id is None, "its wish was begun before"
    await other.end()
    assert await taken(bench) == ["a"]
    assert await under_way(bench) == {}


async def test_a_slot_for_an_open_group_that_nobody_makes_completes_it(bench: Bench) -> None:
    (slot,) = await bench.buffer.admit(1, instances=[("a", 0)])
    await bench.buffer.write(item("a", "u0", 0), slot=slot)
    await slot.end()
    (other,) = await bench.buffer.admit(1, instances=[("a", 0)])
    assert (other.instance_id, other.missing) == ("a", 1)
    assert await under_way(bench) == {0: 1}, "the group is counted once"
    await other.end()
    assert await under_way(bench) == {0: 1}, "and stays, with its item"
    (third,) = await bench.buffer.admit(1, instances=[("a", 0)])
    assert await bench.buffer.write(item("a", "u1", 1), slot=third) is Outcome.STORED
    assert await taken(bench) == ["a"]
    assert await under_way(bench) == {}


async def test_items_from_elsewhere_make_a_slots_group_outstanding_once(bench: Bench) -> None:
    (slot,) = await bench.buffer.admit(1, instances=[("a", 0)])
    await bench.buffer.write(item("a", "u0", 0, round_number=0))
    assert await under_way(bench) == {0: 1}
    await slot.end()
    assert await under_way(bench) == {0: 1}
    await bench.buffer.write(item("a", "u1", 1, round_number=0))
    assert await taken(bench) == ["a"]
    assert await under_way(bench) == {}


async def test_a_slot_that_finds_its_group_parked_takes_it_from_the_line(bench: Bench) -> None:
    unbound, first = await bench.buffer.admit(2)
    await bench.buffer.write(item("a", "u0", 0), slot=first)
    await first.end(back=True)
    assert (await bench.buffer.versions()).parked == 1
    await bench.buffer.write(item("a", "u1", 1), slot=unbound)
    assert await taken(bench) == ["a"]
    assert (await bench.buffer.versions()).parked == 0
    assert await under_way(bench) == {}
    (fresh,) = await bench.buffer.admit(1)
    assert fresh.instance_id is None


async def test_a_slot_that_finds_its_group_to_be_made_again_takes_it_from_the_line(
    bench: Bench,
) -> None:
    first, unbound = await bench.buffer.admit(2, instances=[("a", 0)])
    assert unbound.instance_id is None
    await first.end(back=True)
    assert (await bench.buffer.versions()).again == 1
    await bench.buffer.write(item("a", "u0", 0), slot=unbound)
    assert (await bench.buffer.versions()).again == 0
    await unbound.end(back=True)
    (slot,) = await bench.buffer.admit(1)
    assert (slot.instance_id, slot.missing) == ("a", 1)
    assert await under_way(bench) == {0: 1}


async def test_items_from_elsewhere_complete_a_parked_group(bench: Bench) -> None:
    (slot,) = await bench.buffer.admit(1, instances=[("a", 0)])
    await bench.buffer.write(item("a", "u0", 0), slot=slot)
    await slot.end(back=True)
    await bench.buffer.write(item("a", "u1", 1, round_number=0))
    now = await bench.buffer.versions()
    assert (now.parked, now.ready) == (0, {0: 1})
    assert await taken(bench) == ["a"]
    (fresh,) = await bench.buffer.admit(1)
    assert fresh.instance_id is None, "what was trained on is not made again"


async def test_a_parked_group_waits_for_a_slot_longer_than_a_groups_time(bench: Bench) -> None:
    (slot,) = await bench.buffer.admit(1, instances=["a"])
    await bench.buffer.write(item("a", "u0", 0), slot=slot)
    await slot.end(back=True)
    bench.advance(100_000)
    await bench.buffer.sweep()
    now = await bench.buffer.versions()
    assert (now.parked, now.ready, await bench.buffer.unreported()) == (1, {}, [])
    (other,) = await bench.buffer.admit(1)
    assert (other.instance_id, other.missing) == ("a", 1)
    await bench.buffer.write(item("a", "u1", 1), slot=other)
    assert await taken(bench) == ["a"]


async def test_a_judged_group_is_parked_no_more(make: Callable[..., Bench]) -> None:
    functions = GroupFunctions(is_valid_group=lambda group, least, task: (True, True))
    bench = await begun(make(group_size=2, functions=functions))
    (slot,) = await bench.buffer.admit(1, instances=["a"])
    await bench.buffer.write(item("a", "u0", 0), slot=slot)
    await slot.end(back=True)
    assert (await bench.buffer.versions()).parked == 1
    assert await bench.buffer.available() == 1
    assert (await bench.buffer.versions()).parked == 0


async def test_a_slot_whose_group_is_anothers_is_lost(bench: Bench) -> None:
    (slot,) = await bench.buffer.admit(1, instances=[("a", 0)])
    bench.redis.hset(bench.key("group:a:0:meta"), mapping={"slot": "another", "fence": "99"})
    with pytest.raises(SlotLost):
        await bench.buffer.write(item("a", "u0", 0), slot=slot)


async def test_under_wait_no_death_of_generators_discards_a_prompt(bench: Bench) -> None:
    for attempt in range(1, 6):
        (slot,) = await bench.buffer.admit(1, instances=["hard"] if attempt == 1 else [])
        assert (slot.instance_id, slot.attempt) == ("hard", attempt)
        bench.advance(61)
        await bench.buffer.sweep()
    assert await bench.buffer.unreported() == []
    assert (await bench.buffer.versions()).again == 1
