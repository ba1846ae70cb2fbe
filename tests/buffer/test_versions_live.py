"""What may change while slots are out: settings, the clock, the holder's luck with replies."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from buffer import Outcome, Policy, SlotLost
from buffer.group_functions import GroupFunctions
from buffer.reading import taking
from tests.buffer.conftest import Bench, item

POLICY = Policy(groups_per_version=2, max_age=2, depth=2)


@pytest.fixture
async def bench(make: Callable[..., Bench]) -> Bench:
    """Groups of two; two groups a version, at most two versions old."""
    return await begun(make(group_size=2))


async def begun(bench: Bench, **changes: Any) -> Bench:
    await bench.buffer.set_policy(POLICY.model_copy(update=changes))
    await bench.buffer.publish(10)
    return bench


async def fill(bench: Bench, slot: Any, name: str, **more: Any) -> None:
    await bench.buffer.write_many(
        [item(name, f"{slot.id}-{n}", n, **more) for n in range(2)], slot=slot
    )


async def under_way(bench: Bench) -> dict[int, int]:
    found = (await bench.buffer.versions()).outstanding
    return {age: n for age, n in found.items() if n}


async def test_a_repeated_ask_overwrites_no_slot_that_lives(bench: Bench) -> None:
    call = bench.buffer._task.call
    asked = ("grant_slots", "f" * 32, "me", 3, 0, '"a"', "a", "", '"b"', "b", "", '"c"', "c", "")
    first = await call(*asked)
    ids = [part.decode() for part in first[4::8]]
    assert await bench.buffer.slots.end([(ids[0], first[5].decode())], back=False)
    assert await call(*asked) == first[:4] + first[12:], "the slots that go on"
    assert await under_way(bench) == {0: 2}
    assert (await bench.buffer.versions()).slots == 2


async def test_a_lower_max_age_holds_for_what_is_there(bench: Bench) -> None:
    await begun(bench, when_old="drop")
    ready, slow = await bench.buffer.admit(2, instances=["ready", "slow"])
    await fill(bench, ready, "ready")
    await bench.buffer.publish(12)
    await bench.buffer.set_policy(POLICY.model_copy(update={"when_old": "drop", "max_age": 1}))
    assert await under_way(bench) == {}
    assert sorted(await bench.buffer.unreported()) == ["ready", "slow"]
    assert await bench.buffer.take() is None
    with pytest.raises(SlotLost):
        await fill(bench, slow, "slow")


async def test_a_policy_that_keeps_no_more_drops_what_is_too_old(bench: Bench) -> None:
    await begun(bench, when_old="keep")
    (slot,) = await bench.buffer.admit(1)
    await fill(bench, slot, "a")
    await bench.buffer.publish(15)
    assert await under_way(bench) == {5: 1}
    await bench.buffer.set_policy(POLICY.model_copy(update={"when_old": "drop"}))
    assert await bench.buffer.take() is None
    assert await bench.buffer.unreported() == ["a"]


async def test_an_item_that_is_too_old_takes_its_ready_group_with_it(
    make: Callable[..., Bench],
) -> None:
    bench = await begun(make(group_size=2, min_valid_group_size_ratio=0.5), when_old="drop")
    await bench.buffer.write(item("a", "u0", 0, version_start=10))
    assert await bench.buffer.available() == 1
    await bench.buffer.write(item("a", "u1", 1, version_start=3))
    assert await bench.buffer.take() is None
    assert await bench.buffer.unreported() == ["a"]
    assert await under_way(bench) == {}


async def test_a_batch_of_several_claims_is_of_one_version(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "_CHUNK", 1)
    await begun(bench, when_old="keep", groups_per_version=4)
    for n, slot in enumerate(await bench.buffer.admit(4)):
        await fill(bench, slot, f"g{n}")
    settle = taking.Taking._settle

    async def publishes(self: Any, *given: Any) -> None:
        await settle(self, *given)
        monkeypatch.setattr(taking.Taking, "_settle", settle)
        await bench.buffer.publish(15)

    monkeypatch.setattr(taking.Taking, "_settle", publishes)
    first = await bench.buffer.take(4)
    assert first is not None
    assert (first.version, first.ages) == (10, (0,))
    assert await bench.buffer.fetch(first.receipt) == first
    rest = await bench.buffer.take(4)
    assert rest is not None
    assert (rest.version, rest.ages) == (15, (5, 5, 5))


async def test_a_shorter_lease_holds_from_the_next_renewal_on(bench: Bench) -> None:
    (slot,) = await bench.buffer.admit(1)
    holder = [(slot.id, slot.fence)]
    await bench.buffer.set_policy(POLICY.model_copy(update={"slot_lease": 3.0}))
    bench.advance(20)
    assert await bench.buffer.slots.renew(holder) == (10, [0])
    bench.advance(20)
    await bench.buffer.sweep()
    assert await bench.buffer.slots.renew(holder) == (10, [0]), "its holder knew the old one"
    bench.advance(4)
    await bench.buffer.sweep()
    assert await bench.buffer.slots.renew(holder) == (10, [2])


async def test_a_holder_renews_at_the_pace_of_its_shortest_lease(bench: Bench) -> None:
    (first,) = await bench.buffer.admit(1)
    await bench.buffer.set_policy(POLICY.model_copy(update={"slot_lease": 0.3}))
    (second,) = await bench.buffer.admit(1)
    await bench.buffer.publish(11)
    async with asyncio.timeout(100):
        await second.published.wait()
        await first.published.wait()


async def test_a_holder_whose_renewals_are_refused_hears_that_its_slots_are_lost(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.buffer.set_policy(POLICY.model_copy(update={"slot_lease": 0.3}))
    (slot,) = await bench.buffer.admit(1)

    async def refused(_: Any) -> Any:
        raise ValueError("no")

    monkeypatch.setattr(bench.buffer.slots, "renew", refused)
    async with asyncio.timeout(100):
        while not slot.lost:  # noqa: ASYNC110 - it is the renewer that says so
            await asyncio.sleep(0.01)


async def test_a_buffer_that_is_closed_renews_no_slot(bench: Bench) -> None:
    others = asyncio.all_tasks()
    await bench.buffer.admit(1)
    await bench.buffer.aclose()
    assert asyncio.all_tasks() <= others


async def test_a_slots_group_has_room_in_a_buffer_that_a_new_line_filled(
    make: Callable[..., Bench],
) -> None:
    bench = make(group_size=2, max_buffer_size=12)
    await begun(bench, depth=2)
    await bench.buffer.publish(11, saved=11)
    for version in (11, 12, 13):
        if version > 11:
            await bench.buffer.publish(version)
        for n, slot in enumerate(await bench.buffer.admit(2)):
            await fill(bench, slot, f"{version}-{n}")
        batch = await bench.buffer.take(2)
        assert batch is not None
        await bench.buffer.ack(batch)
    slots = await bench.buffer.admit(4)
    assert len(slots) == 4
    assert (await bench.buffer.publish(11, lead=True)).returned == 6
    await fill(bench, slots[0], "slow")
    assert (await bench.buffer.versions()).ready == {0: 7}


async def test_a_clock_that_is_set_back_leaves_no_slot_a_longer_lease(bench: Bench) -> None:
    """Libraries went on for an hour in which no server lived; then one starts."""
    for slot in await bench.buffer.admit(6, instances=["a"]):
        if slot.instance_id is None:
            await slot.end()
    await bench.buffer.sweep(serving=True)
    real = int(bench.redis.hget(bench.key("state"), "beat"))
    bench.redis.hset(bench.key("state"), "beat", real - 3600_000)
    await bench.buffer.sweep(serving=True)
    bench.advance(61)
    await bench.buffer.sweep()
    assert (await bench.buffer.versions()).slots == 0


async def test_parking_that_is_repeated_after_a_lost_reply_is_a_repeat(bench: Bench) -> None:
    (slot,) = await bench.buffer.admit(1, instances=["a"])
    part = item("a", "u0", None, segment=1)
    await slot.park([part])
    await slot.park([part])
    assert (await bench.buffer.versions()).parked == 1
    with pytest.raises(SlotLost):
        await slot.park([{**part, "segment": 2}])


async def test_a_task_with_nothing_but_parked_groups_does_not_fall_asleep(bench: Bench) -> None:
    first, second = await bench.buffer.admit(2, instances=["a", "b"])
    await first.park([item("a", "u0", None)])
    await second.end(back=True)
    await bench.buffer.sweep()
    assert not bench.redis.hexists(bench.key("config"), "idle")
    assert bench.redis.ttl(bench.key("policy")) == -1
    assert {bench.redis.ttl(bench.key(f"group:{name}:0:meta")) for name in "ab"} == {-1}


async def test_a_task_wakes_by_a_publication_or_an_ask(bench: Bench) -> None:
    for wakes in (bench.buffer.publish(11), bench.buffer.admit(1)):
        await bench.buffer.sweep()
        assert bench.redis.ttl(bench.key("policy")) > 0
        await wakes
        assert bench.redis.ttl(bench.key("policy")) == -1


async def test_what_a_returning_trainer_gets_again_counts_as_taken_no_more(bench: Bench) -> None:
    for n, slot in enumerate(await bench.buffer.admit(2)):
        await fill(bench, slot, f"g{n}")
    batch = await bench.buffer.take(2)
    assert batch is not None
    await bench.buffer.ack(batch)
    assert await bench.buffer.catalog.resume([]) == 2
    assert (await bench.buffer.versions()).taken == 0
    again = await bench.buffer.take(2)
    assert again is not None
    assert len(again.groups) == 2


async def test_a_new_line_finds_a_group_of_parked_items_that_a_slot_goes_on_with(
    bench: Bench,
) -> None:
    (slot,) = await bench.buffer.admit(1, instances=["a"])
    await slot.park([item("a", "u0")])
    await bench.buffer.admit(1)
    await bench.buffer.publish(9)
    assert {age: n for age, n in (await bench.buffer.versions()).outstanding.items() if n} == {0: 1}


async def test_a_requeued_group_gives_its_place_back_once(make: Callable[..., Bench]) -> None:
    def fails(group: Any) -> Any:
        raise ZeroDivisionError

    bench = await begun(make(group_size=2, functions=GroupFunctions(normalize_group_data=fails)))
    (slot,) = await bench.buffer.admit(1)
    await fill(bench, slot, "a")
    assert await bench.buffer.take() is None
    assert len(await bench.buffer.catalog.quarantined()) == 1
    assert await bench.buffer.catalog.requeue("a")
    assert (await bench.buffer.versions()).taken == 0


async def test_the_names_of_dropped_instances_are_bounded(make: Callable[..., Bench]) -> None:
    bench = await begun(make(group_size=2, done_max=3), when_old="drop")
    for version in range(10, 30, 3):
        for n, slot in enumerate(await bench.buffer.admit(2)):
            name = "often" if n == 0 else f"once-{version}"
            await bench.buffer.write(item(name, f"{slot.id}", 0), slot=slot)
        await bench.buffer.publish(version + 3)
    await bench.buffer.sweep()
    dropped = (await bench.buffer.versions()).dropped
    assert len(dropped) == 3
    assert dropped["often"] == 7


async def test_a_repeated_write_after_its_group_was_parked_is_a_repeat(bench: Bench) -> None:
    (slot,) = await bench.buffer.admit(1, instances=["a"])
    one = item("a", "u0", 0)
    await bench.buffer.write(one, slot=slot)
    await slot.end(back=True)
    assert await bench.buffer.write(one, slot=slot) is Outcome.REPEATED


async def test_a_slot_that_was_held_too_long_is_told_from_a_dead_holders(bench: Bench) -> None:
    await begun(bench, slot_lease=60.0, longest=50.0)
    await bench.buffer.admit(1, instances=["a"])
    bench.advance(61)
    await bench.buffer.sweep()
    await begun(bench, slot_lease=60.0, longest=500.0)
    await bench.buffer.admit(1)
    bench.advance(61)
    await bench.buffer.sweep()
    stats = await bench.buffer.catalog.stats()
    assert (stats["slots_overdue"], stats["slots_lapsed"]) == (1, 1)


async def test_the_time_that_asks_waited_is_counted(bench: Bench) -> None:
    held = await bench.buffer.admit(6)
    ask = asyncio.create_task(bench.buffer.admit(1, wait=60))
    while not (await bench.buffer.versions()).waiting:  # noqa: ASYNC110 - another connection waits
        await asyncio.sleep(0.01)
    bench.advance(7)
    await held[0].end()
    assert len(await ask) == 1
    stats = await bench.buffer.catalog.stats()
    assert stats["admissions_waited"] == 1
    assert stats["admission_waited_ms"] >= 7000
    assert bench.redis.hlen(bench.key("asks")) == 0
