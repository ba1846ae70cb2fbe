"""The bound on how old samples are: versions, slots, and what becomes of what is too old."""

import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest

import ground
from buffer import (
    BufferFull,
    ItemRefused,
    NoPolicy,
    NotAdmitted,
    Outcome,
    Policy,
    RolloutBuffer,
    Slot,
    SlotLost,
    TaskConfig,
    TrainerReplaced,
)
from buffer.group_functions import GroupFunctions
from ground import SettingError
from tests.buffer.conftest import Bench, item


@pytest.fixture
async def bench(make: Callable[..., Bench]) -> Bench:
    """Groups of two; two groups a version, at most two versions old."""
    bench = make(group_size=2)
    await bench.buffer.set_policy(Policy(groups_per_version=2, max_age=2, depth=2))
    await bench.buffer.publish(10)
    return bench


async def fill(bench: Bench, slot: Slot, name: str | None = None, **more: Any) -> None:
    """All items of a slot's group."""
    instance = slot.instance_id if slot.instance_id is not None else name or f"p{slot.id}"
    items = [item(instance, f"{slot.id}-{n}", n, **more) for n in range(2)]
    await bench.buffer.write_many(items, slot=slot)


async def somebody_waits(bench: Bench, n: int = 1) -> None:
    while (await bench.buffer.versions()).waiting < n:  # noqa: ASYNC110 - another connection waits
        await asyncio.sleep(0.01)


async def under_way(bench: Bench) -> dict[int, int]:
    return (await bench.buffer.versions()).outstanding


async def test_no_more_groups_are_admitted_than_the_depth_allows(bench: Bench) -> None:
    assert len(await bench.buffer.admit(100)) == 6  # (2 + 1) * 2
    assert await bench.buffer.admit(1) == []
    assert await under_way(bench) == {0: 6}


async def test_nobody_is_admitted_before_a_version_is_published(make: Callable[..., Bench]) -> None:
    bench = make(group_size=2)
    with pytest.raises(NoPolicy):
        await bench.buffer.admit(1)
    await bench.buffer.set_policy(Policy(groups_per_version=2, max_age=2))
    assert await bench.buffer.admit(1) == []
    with pytest.raises(NotAdmitted, match="no version was published yet"):
        async with bench.buffer.slot(wait=0.01):
            pass


async def test_a_batch_tells_its_version_and_the_ages_of_its_groups(bench: Bench) -> None:
    first, second = await bench.buffer.admit(2)
    await fill(bench, first, "a")
    await bench.buffer.publish(11)
    await fill(bench, second, "b", version_start=9)
    batch = await bench.buffer.take()
    assert batch is not None
    assert (batch.version, batch.ages) == (11, (2, 1))  # the older first, though finished later
    assert [name for name, _ in batch.groups] == ["b", "a"]
    assert batch.meta_info["version"] == 11
    assert batch.meta_info["ages"] == [2, 1]
    assert await bench.buffer.fetch(batch.receipt) == batch
    assert (await bench.buffer.versions()).ages == {1: 1, 2: 1}


async def test_no_more_is_taken_under_a_version_than_it_is_trained_on(bench: Bench) -> None:
    for n, slot in enumerate(await bench.buffer.admit(4)):
        await fill(bench, slot, f"g{n}")
    batch = await bench.buffer.take()
    assert batch is not None
    assert len(batch.groups) == 2
    assert await bench.buffer.take() is None
    assert await bench.buffer.available() == 0
    await bench.buffer.publish(11)
    assert await bench.buffer.available() == 2
    with pytest.raises(SettingError, match="2 groups are trained on under one version"):
        await bench.buffer.take(3)


async def test_a_take_waits_for_the_older_group_that_is_under_way(bench: Bench) -> None:
    slow = (await bench.buffer.admit(1, instances=["slow"]))[0]
    for version in (11, 12):
        await bench.buffer.publish(version)
        for n, slot in enumerate(await bench.buffer.admit(2)):
            await fill(bench, slot, f"{version}-{n}")
    batch = await bench.buffer.take()
    assert batch is not None
    assert len(batch.groups) == 1, "one place under version 12 is the slow group's"
    assert await bench.buffer.take() is None
    held_by = (await bench.buffer.versions()).waits_for
    assert (held_by[0].instance_id, held_by[0].start) == ("slow", 10)
    taking = asyncio.create_task(bench.buffer.take(wait=20))
    await fill(bench, slow)
    slow_batch = await taking
    assert slow_batch is not None
    assert slow_batch.ages == (2,)


@pytest.mark.parametrize("when_old", ["drop", "again", "mask", "keep"])
async def test_other_policies_take_what_is_ready(bench: Bench, when_old: Any) -> None:
    policy = Policy(groups_per_version=2, max_age=2, depth=2, when_old=when_old)
    await bench.buffer.set_policy(policy)
    await bench.buffer.admit(1, instances=["slow"])
    await bench.buffer.publish(12)
    for n, slot in enumerate(await bench.buffer.admit(2)):
        await fill(bench, slot, f"{n}")
    batch = await bench.buffer.take()
    assert batch is not None
    assert len(batch.groups) == 2


async def test_what_got_too_old_is_discarded_and_told(bench: Bench) -> None:
    policy = Policy(groups_per_version=2, max_age=2, depth=2, when_old="drop")
    await bench.buffer.set_policy(policy)
    ready, slow = await bench.buffer.admit(2, instances=["ready", "slow"])
    await fill(bench, ready)
    said = await bench.buffer.publish(13)
    assert said.stale == 2
    assert await under_way(bench) == {}
    assert sorted(await bench.buffer.unreported()) == ["ready", "slow"]
    with pytest.raises(SlotLost):
        await fill(bench, slow)
    stats = await bench.buffer.catalog.stats()
    assert (stats["stale"], stats["late"]) == (2, 2)
    assert (await bench.buffer.versions()).dropped == {"ready": 1, "slow": 1}


async def test_what_got_too_old_is_made_again_by_the_next_slot(bench: Bench) -> None:
    slow = (await bench.buffer.admit(1, instances=["slow"]))[0]
    await bench.buffer.publish(13)  # sooner than `wait` would have had it
    (slot,) = await bench.buffer.admit(1, instances=["another"])
    assert (slot.instance_id, slot.attempt, slot.start) == ("slow", 2, 13)
    with pytest.raises(SlotLost):
        await fill(bench, slow)
    await fill(bench, slot)
    batch = await bench.buffer.take()
    assert batch is not None
    assert [name for name, _ in batch.groups] == ["slow"]


async def test_a_group_is_tried_so_often_and_then_discarded(bench: Bench) -> None:
    policy = Policy(groups_per_version=2, max_age=2, depth=2, when_old="again")
    await bench.buffer.set_policy(policy)
    for attempt in (1, 2, 3):
        (slot,) = await bench.buffer.admit(1, instances=["hopeless"] if attempt == 1 else [])
        assert slot.attempt == attempt
        bench.advance(61)
    await bench.buffer.sweep()
    assert await bench.buffer.unreported() == ["hopeless"]
    (slot,) = await bench.buffer.admit(1)
    assert slot.instance_id is None


async def test_a_dead_generators_group_is_completed_by_another(bench: Bench) -> None:
    (dead,) = await bench.buffer.admit(1, instances=["half"])
    await bench.buffer.write(item("half", "one", 0), slot=dead)
    assert await under_way(bench) == {0: 1}
    bench.advance(61)
    (slot,) = await bench.buffer.admit(1, instances=["another"])
    assert (slot.instance_id, slot.round, slot.missing) == ("half", 0, 1)
    with pytest.raises(SlotLost):
        await bench.buffer.write(item("half", "two", 0), slot=dead)
    assert await bench.buffer.write(item("half", "three", 1), slot=slot) is Outcome.STORED
    assert await bench.buffer.available() == 1
    assert await under_way(bench) == {0: 1}


async def test_a_full_buffer_of_parked_groups_is_gone_on_with(bench: Bench) -> None:
    for n, slot in enumerate(await bench.buffer.admit(6)):
        await bench.buffer.write(item(f"g{n}", f"u{n}", 0), slot=slot)
        await slot.end(back=True)
    # An end that is not `back` leaves the group to its timeout; a parked one is another's.
    parked = (await bench.buffer.versions()).parked
    again = await bench.buffer.admit(10)
    assert len(again) == parked == 6
    assert {slot.missing for slot in again} == {1}
    assert await under_way(bench) == {0: 6}


async def test_parked_items_that_fill_the_buffer_can_be_completed(
    make: Callable[..., Bench],
) -> None:
    bench = make(group_size=2, max_bytes=4000)
    await bench.buffer.set_policy(Policy(groups_per_version=2, max_age=1))
    await bench.buffer.publish(10)
    for slot in await bench.buffer.admit(3, instances=["a", "b", "c"]):
        name = slot.instance_id
        assert name is not None
        parts = [item(name, f"{slot.id}-{n}", n, text="x" * 1000) for n in range(2)]
        await slot.park(parts, go_on=True)
    assert (await bench.buffer.catalog.stats())["bytes"] > 5000
    with pytest.raises(BufferFull):
        await bench.buffer.write(item(name, "another"), slot=slot)
    assert await bench.buffer.write_many(parts, slot=slot) == [Outcome.STORED] * 2
    assert await bench.buffer.take(1) is not None


async def test_slots_that_are_ended_leave_room(bench: Bench) -> None:
    for slot in await bench.buffer.admit(6):
        await slot.end()
    assert await under_way(bench) == {}
    with pytest.raises(ZeroDivisionError):
        async with bench.buffer.slot("a") as slot:
            raise ZeroDivisionError
    (slot,) = await bench.buffer.admit(1)
    assert slot.instance_id == "a", "a block that fails gives its prompt to another"


async def test_a_renewed_slot_goes_on_up_to_its_longest_time(bench: Bench) -> None:
    policy = Policy(groups_per_version=2, max_age=2, depth=2, slot_lease=60, longest=100)
    await bench.buffer.set_policy(policy)
    (slot,) = await bench.buffer.admit(1)
    holder = [(slot.id, slot.fence)]
    bench.advance(50)
    assert await bench.buffer.slots.renew(holder) == (10, [0])
    bench.advance(45)
    assert await bench.buffer.slots.renew(holder) == (10, [0])
    await bench.buffer.publish(12)
    assert await bench.buffer.slots.renew(holder) == (12, [1])
    bench.advance(10)
    await bench.buffer.sweep()
    assert await bench.buffer.slots.renew(holder) == (12, [2])


async def test_waiters_get_their_slots_in_order(bench: Bench) -> None:
    held = await bench.buffer.admit(6)
    asks = []
    for n in range(3):
        asks.append(asyncio.create_task(bench.buffer.admit(1, wait=30)))
        await somebody_waits(bench, n + 1)
    for ask, slot in zip(asks, held, strict=False):
        assert not ask.done()
        await slot.end()
        assert await bench.buffer.admit(1) == [], "who comes now is behind those who wait"
        assert len(await ask) == 1
    assert (await bench.buffer.versions()).waiting == 0


async def test_the_first_in_line_asks_again_as_soon_as_a_dead_holders_lease_ends(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.buffer.set_policy(Policy(groups_per_version=2, max_age=2, slot_lease=3))
    await bench.buffer.admit(6, owner="dead")
    waits: list[float] = []

    async def pass_time(ask: str, seconds: float) -> None:
        waits.append(seconds)
        bench.advance(seconds)

    monkeypatch.setattr(bench.buffer._task.link, "rung", pass_time)
    assert len(await bench.buffer.admit(1, wait=30)) == 1
    assert sum(waits) <= 3


async def test_an_ask_that_is_repeated_gets_the_same_slots(bench: Bench) -> None:
    call = bench.buffer._task.call
    first = await call("grant_slots", "f" * 32, "me", 2, 0, '"a"', "a", "")
    assert await call("grant_slots", "f" * 32, "me", 2, 0, '"a"', "a", "") == first
    assert await under_way(bench) == {0: 2}


async def test_a_write_that_is_repeated_after_the_slots_end_is_a_repeat(bench: Bench) -> None:
    (slot,) = await bench.buffer.admit(1, instances=["a"])
    await fill(bench, slot)
    items = [item("a", f"{slot.id}-{n}", n) for n in range(2)]
    assert await bench.buffer.write_many(items, slot=slot) == [Outcome.REPEATED] * 2
    batch = await bench.buffer.take()
    assert batch is not None
    await bench.buffer.ack(batch)
    assert await bench.buffer.write_many(items, slot=slot) == [Outcome.REPEATED] * 2


async def test_a_batch_that_comes_back_may_be_taken_again_under_its_version(bench: Bench) -> None:
    for n, slot in enumerate(await bench.buffer.admit(2)):
        await fill(bench, slot, f"g{n}")
    batch = await bench.buffer.take()
    assert batch is not None
    assert (await bench.buffer.versions()).taken == 2
    await bench.buffer.release(batch)
    assert (await bench.buffer.versions()).taken == 0
    assert await under_way(bench) == {0: 2}
    assert (await bench.buffer.take()) is not None


async def test_groups_that_turn_out_invalid_leave_room_for_others(bench: Bench) -> None:
    slots = await bench.buffer.admit(2)
    for n, slot in enumerate(slots):
        await bench.buffer.write_many([item(f"g{n}", f"{n}{m}", 1) for m in range(2)], slot=slot)
    assert await bench.buffer.take() is None, "all rewards are equal"
    assert (await bench.buffer.versions()).taken == 0
    assert len(await bench.buffer.admit(10)) == 6


async def test_items_without_a_slot_count_as_begun_when_the_first_came(bench: Bench) -> None:
    await bench.buffer.write(item("old", "u0", 0))
    await bench.buffer.publish(11)
    await bench.buffer.write(item("old", "u1", 1, weight_versions=["default"]))
    await bench.fill("told", [0, 1], weight_versions=["9", "10"])
    ready = await bench.buffer.catalog.groups("ready")
    assert {(group.version, group.assumed, group.orphan) for group in ready} == {
        (9, True, False), (10, True, False)
    }  # fmt: skip
    batch = await bench.buffer.take()
    assert batch is not None
    assert batch.ages == (2, 1)


async def test_a_policy_takes_over_what_is_there(make: Callable[..., Bench]) -> None:
    bench = make(group_size=2)
    await bench.fill("ready", [0, 1])
    await bench.fill("open", [0])
    await bench.buffer.set_policy(Policy(groups_per_version=2, max_age=2))
    await bench.buffer.publish(5)
    assert await under_way(bench) == {0: 2}
    batch = await bench.buffer.take()
    assert batch is not None
    assert batch.ages == (0,)


async def test_masked_groups_say_from_which_token_they_are_trained(bench: Bench) -> None:
    policy = Policy(groups_per_version=2, max_age=2, depth=2, when_old="mask")
    await bench.buffer.set_policy(policy)
    (slot,) = await bench.buffer.admit(1)
    await bench.buffer.publish(15)
    spans = [[5, -1], [7, 10], [3, 13], [4, 15]]
    more = [
        item("a", "u0", 0, versions=spans),
        item("a", "u1", 1, version_start=10, version_end=12),
    ]
    await bench.buffer.write_many(more, slot=slot)
    batch = await bench.buffer.take()
    assert batch is not None
    assert batch.ages == (5,)
    assert [one["train_from"] for one in batch.items] == [12, None]
    assert (await bench.buffer.catalog.stats())["masked_tokens"] == 7
    assert await bench.buffer.fetch(batch.receipt) == batch


async def test_an_item_without_a_version_is_masked_if_its_group_began_too_early(
    bench: Bench,
) -> None:
    policy = Policy(groups_per_version=4, max_age=2, when_old="mask")
    await bench.buffer.set_policy(policy)
    await bench.fill("old", [0, 1])
    for version in (11, 12, 13):
        await bench.buffer.publish(version)
    await bench.fill("young", [0, 1])
    batch = await bench.buffer.take()
    assert batch is not None
    assert batch.ages == (3, 0)
    assert [one["train_from"] for one in batch.items] == [None, None, 0, 0]
    assert await bench.buffer.fetch(batch.receipt) == batch


@pytest.mark.parametrize("versions", ["all", [[2**31, 9]] * 2])
async def test_a_function_that_spoils_versions_harms_its_group_alone(
    make: Callable[..., Bench], versions: Any
) -> None:
    def normalize(group: Any) -> Any:
        if group[0] == "bad":
            group[1][0]["versions"] = versions
        return group

    bench = make(group_size=2, functions=GroupFunctions(normalize_group_data=normalize))
    await bench.buffer.set_policy(Policy(groups_per_version=2, max_age=2, when_old="mask"))
    await bench.buffer.publish(12)
    await bench.fill("bad", [1, 0])
    await bench.fill("good", [1, 0])
    batch = await bench.buffer.take()
    assert batch is not None
    assert batch.finished_groups == ["good"]
    (found,) = await bench.buffer.catalog.quarantined()
    assert "versions" in found.reason


async def test_a_trainer_that_was_replaced_is_refused(bench: Bench) -> None:
    other = RolloutBuffer(bench.redis, "math", TaskConfig(group_size=2))
    with pytest.raises(TrainerReplaced, match="lead=True"):
        await other.publish(11)
    await other.publish(11, lead=True)
    with pytest.raises(TrainerReplaced):
        await bench.buffer.publish(12)
    with pytest.raises(TrainerReplaced):
        await bench.buffer.publish(3)
    assert (await other.versions()).version == 11
    await other.aclose()


@pytest.mark.parametrize("wrong", [-1, 1.5, math.nan, "12", True, None, 2**40])
async def test_a_version_is_an_integer(bench: Bench, wrong: Any) -> None:
    with pytest.raises(ValueError, match="version must be an integer"):
        await bench.buffer.publish(wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"version_start": math.nan},
        {"version_start": "new"},
        {"version_end": -3},
        {"versions": [[1, 2, 3]]},
        {"versions": [[-1, 3]]},
        {"versions": "12"},
        {"versions": [[3, math.inf]]},
        {"versions": [[[2**31, 3]], [[1, 3]]]},
        {"version_start": 2**40},
    ],
)
async def test_an_item_with_senseless_versions_is_refused(bench: Bench, wrong: Any) -> None:
    with pytest.raises(ItemRefused):
        await bench.buffer.write(item("a", "u", 0, **wrong))


async def test_an_item_of_a_version_never_published_is_refused_alone(bench: Bench) -> None:
    with pytest.raises(ItemRefused, match="no trainer has published"):
        await bench.buffer.write_many([item("a", "u0", 0), item("a", "u1", 1, version_end=11)])
    await bench.buffer.publish(11)
    await bench.buffer.write(item("a", "u1", 1, version_end=11))
    assert await bench.buffer.available() == 1


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"groups_per_version": 0}, "groups_per_version"),
        ({"max_age": -1}, "max_age"),
        ({"depth": 3}, "depth 3 is more than max_age 2"),
        ({"order": "fresh"}, "when_old 'wait' waits"),
        ({"slot_lease": math.nan}, "slot_lease"),
        ({"when_old": "panic"}, "when_old"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(SettingError, match=named):
        Policy.load(**{"groups_per_version": 2, "max_age": 2, **settings})


async def test_a_policy_that_needs_more_room_than_there_is_is_refused(
    make: Callable[..., Bench],
) -> None:
    bench = make(group_size=8, max_buffer_size=64)
    with pytest.raises(SettingError, match=r"\(2 \+ 1\) \* 4 groups of 8 are 96"):
        await bench.buffer.set_policy(Policy(groups_per_version=4, max_age=4))
    await bench.buffer.set_policy(Policy(groups_per_version=4, max_age=1))
    with pytest.raises(SettingError, match="max_buffer_size"):
        await bench.buffer.configure(TaskConfig(group_size=8, max_buffer_size=32))


async def test_a_policy_may_be_changed_at_any_time(bench: Bench) -> None:
    assert len(await bench.buffer.admit(100)) == 6
    waiting = asyncio.create_task(bench.buffer.admit(10, wait=20))
    await somebody_waits(bench)
    await bench.buffer.set_policy(Policy(groups_per_version=3, max_age=2, depth=2))
    assert len(await waiting) == 3
    assert (await bench.buffer.policy()) == Policy(groups_per_version=3, max_age=2, depth=2)


async def test_a_trainer_that_comes_back_gets_what_its_checkpoint_does_not_hold(
    bench: Bench,
) -> None:
    buffer = bench.buffer
    trained: dict[int, list[Any]] = {}
    for version in range(10, 15):
        if version > 10:
            await buffer.publish(version, saved=min(version, 12))
        for n, slot in enumerate(await buffer.admit(2)):
            await fill(bench, slot, f"{version}-{n}")
        batch = await buffer.take(2)
        assert batch is not None
        await buffer.ack(batch)
        trained[version] = sorted(name for name, _ in batch.groups)
    left = await buffer.admit(1, instances=["slow"])

    again = RolloutBuffer(bench.redis, "math", TaskConfig(group_size=2))
    said = await again.publish(12, saved=12, lead=True)
    assert (said.line, said.returned) == (2, 6)
    assert await again.admit(10) == [], "no burst: what came back is enough"
    assert await under_way(bench) == {0: 7}
    assert {(group.version, group.orphan) for group in await again.catalog.groups("ready")} == {
        (12, True)
    }
    assert (await again.publish(12)) == said, "repeated without harm"
    assert await left[0].end() is None
    back: list[Any] = []
    for version in (12, 13, 14):
        if version > 12:
            await again.publish(version)
        batch = await again.take(2)
        assert batch is not None
        await again.ack(batch)
        back += [name for name, _ in batch.groups]
    assert sorted(back) == sorted(trained[12] + trained[13] + trained[14])
    await again.aclose()


async def test_a_dead_waiter_keeps_no_task_from_going_away(make: Callable[..., Bench]) -> None:
    bench = make(group_size=2, idle_ttl=1000)
    await bench.buffer.set_policy(Policy(groups_per_version=1, max_age=0, depth=0))
    await bench.buffer.publish(0)
    (slot,) = await bench.buffer.admit(1)
    await bench.buffer._task.call("grant_slots", "f" * 32, "dead", 1, 5000)
    await fill(bench, slot)
    batch = await bench.buffer.take(1)
    assert batch is not None
    await bench.buffer.ack(batch)
    await bench.buffer.sweep()
    assert bench.redis.pttl(bench.key("policy")) == -1
    bench.advance(6)
    await bench.buffer.sweep()
    assert (await bench.buffer.versions()).waiting == 0
    assert [key for key in bench.redis.keys(bench.key("*")) if bench.redis.pttl(key) == -1] == []


async def test_a_group_that_was_kept_for_too_long_does_not_come_back(
    make: Callable[..., Bench],
) -> None:
    bench = make(group_size=2, idle_ttl=1)
    await bench.buffer.set_policy(Policy(groups_per_version=2, max_age=2))
    await bench.buffer.publish(10, saved=10)
    for slot in await bench.buffer.admit(2, instances=["a", "b"]):
        await fill(bench, slot)
    batch = await bench.buffer.take(2)
    assert batch is not None
    await bench.buffer.ack(batch)
    bench.redis.delete(bench.key("group:a:0"), bench.key("group:a:0:meta"))  # their TTL is over
    assert (await bench.buffer.publish(10, saved=10, lead=True, owner="next")).returned == 1
    batch = await bench.buffer.take(2)
    assert batch is not None
    assert [name for name, _ in batch.groups] == ["b"]


async def _trained(bench: Bench, *names: str) -> None:
    for slot in await bench.buffer.admit(len(names), instances=names):
        await fill(bench, slot)
    batch = await bench.buffer.take(len(names))
    assert batch is not None
    assert [name for name, _ in batch.groups] == list(names)
    await bench.buffer.ack(batch)


async def test_a_trainer_without_a_checkpoint_gets_all_groups_again(
    make: Callable[..., Bench],
) -> None:
    bench = make(group_size=2, retain=1)
    await bench.buffer.set_policy(Policy(groups_per_version=2, max_age=2))
    for version in range(3):
        await bench.buffer.publish(version)
        await _trained(bench, f"{version}-a", f"{version}-b")
    bench.advance(100)
    await bench.buffer.sweep()
    said = await bench.buffer.publish(0, saved=0, lead=True, owner="next")
    assert (said.returned, said.gone) == (6, 0)


async def test_a_checkpoint_before_the_newest_brings_back_what_is_still_kept(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    for version in (11, 12, 13):
        await bench.buffer.publish(version, saved=version)
        await _trained(bench, f"{version}-a", f"{version}-b")
    await bench.buffer.publish(14, saved=14)
    await bench.buffer.sweep()  # those before the checkpoint are let go, and retained
    gone = [bench.key("group:11-a:0"), bench.key("group:11-a:0:meta")]
    bench.redis.delete(*gone)  # as at the end of `retain`
    said = await bench.buffer.publish(11, lead=True, owner="next")
    assert (said.returned, said.gone) == (5, 1)
    assert "are lost to its checkpoint" in caplog.text
    back: list[Any] = []
    for version in (11, 12, 13):
        if version > 11:
            await bench.buffer.publish(version, owner="next")
        batch = await bench.buffer.take()
        assert batch is not None
        await bench.buffer.ack(batch)
        back += [name for name, _ in batch.groups]
    assert sorted(back) == ["11-b", "12-a", "12-b", "13-a", "13-b"]


async def test_a_new_line_and_a_publication_take_bounded_steps(real_redis: ground.Client) -> None:
    config = TaskConfig(group_size=1, dialect="v1")
    bench = Bench(real_redis, RolloutBuffer(real_redis, "math", config))
    many = 1000
    await bench.buffer.write_many([item(f"g{n}", "u") for n in range(many)])
    drop = Policy(groups_per_version=many, max_age=1, when_old="drop")
    await bench.buffer.set_policy(drop)
    steps: list[int] = []
    call = bench.buffer._task.call

    async def counted(script: str, *args: Any) -> Any:
        if script in ("publish", "catch_up", "set_policy"):
            before = bench.redis.info("commandstats")
            reply = await call(script, *args)
            steps.append(_calls(bench.redis.info("commandstats")) - _calls(before))
            return reply
        return await call(script, *args)

    bench.buffer._task.call = counted  # type: ignore[method-assign]
    await bench.buffer.publish(10)
    assert await under_way(bench) == {0: many}
    batch = await bench.buffer.take(many // 2)
    assert batch is not None
    await bench.buffer.ack(batch)
    said = await bench.buffer.publish(10, lead=True, owner="next")
    assert said.returned == many // 2
    assert await under_way(bench) == {0: many}
    assert (await bench.buffer.publish(12, owner="next")).stale == many
    assert await under_way(bench) == {}
    assert max(steps) < 12_000, "commands of one script"
    assert len(steps) > 12
    await bench.buffer.aclose()


def _calls(stats: Any) -> int:
    return sum(int(one["calls"]) for one in stats.values())


async def test_a_take_does_not_get_what_a_publication_has_yet_to_drop(
    make: Callable[..., Bench],
) -> None:
    bench = make(group_size=1, dialect="v1")
    await bench.buffer.set_policy(Policy(groups_per_version=500, max_age=0, when_old="drop"))
    await bench.buffer.publish(10)
    await bench.buffer.write_many([item(f"g{n}", "u") for n in range(450)])
    await bench.buffer._task.call("publish", 11, "", bench.buffer.owner, 0, 1)  # and dies then
    assert 0 < bench.redis.zcard(bench.key("ready")) < 450
    assert await bench.buffer.available() == 0
    for _ in range(2):
        assert await bench.buffer.take() is None
    assert (await bench.buffer.catalog.stats())["ready_groups"] == 0


async def test_a_late_copy_of_a_publication_begins_no_line(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stayed on its way while its repeat was answered."""
    copies: list[tuple[Any, ...]] = []
    task = bench.buffer._task
    call = task.call

    async def noted(script: str, *args: Any) -> Any:
        copies.append((script, *args))
        return await call(script, *args)

    async def all_come_once_more() -> None:
        before = bench.redis.hgetall(bench.key("policy"))
        for copy in copies:
            await call(*copy)
        assert bench.redis.hgetall(bench.key("policy")) == before

    with monkeypatch.context() as watched:
        watched.setattr(task, "call", noted)
        await bench.buffer.publish(11)
    await bench.buffer.publish(12)
    await all_come_once_more()
    await bench.buffer.publish(12, lead=True, owner="next")
    await all_come_once_more()
    await bench.buffer.reset()
    await all_come_once_more()
    assert (await bench.buffer.publish(11, lead=True)).line == 3


async def test_a_publication_whose_answer_was_lost_is_repeated_with_the_same_answer(
    bench: Bench,
) -> None:
    said = await bench.buffer.publish(11)
    bench.buffer._publishing._epoch -= 1  # as before its reply
    assert await bench.buffer.publish(11) == said


async def test_the_next_trainer_finishes_what_a_dead_ones_publication_began(
    make: Callable[..., Bench],
) -> None:
    bench = make(group_size=1, dialect="v1")
    await bench.buffer.set_policy(Policy(groups_per_version=1000, max_age=2))
    await bench.buffer.publish(10, saved=10)
    await bench.buffer.write_many([item(f"g{n}", "u") for n in range(900)])
    batch = await bench.buffer.take(800)
    assert batch is not None
    await bench.buffer.ack(batch)
    await bench.buffer.publish(11)
    await bench.buffer._task.call("publish", 10, 10, "next", 1, 2)  # and dies then
    assert await bench.buffer.admit(1) == [], "not before all groups count"
    await bench.buffer.publish(11, lead=True, owner="third")
    assert (await bench.buffer.catalog.stats())["ready_groups"] == 900
    assert (await bench.buffer.versions()).outstanding == {1: 900}


async def test_generators_complete_what_a_dead_trainers_publication_began(
    make: Callable[..., Bench],
) -> None:
    bench = make(group_size=1, dialect="v1")
    await bench.buffer.set_policy(Policy(groups_per_version=1000, max_age=2))
    await bench.buffer.write_many([item(f"g{n}", "u") for n in range(900)])
    await bench.buffer._task.call("publish", 10, "", "trainer", 0, 0)  # and dies then
    assert await bench.buffer.admit(1) == [], "not before all groups count"
    assert len(await bench.buffer.admit(1, wait=100)) == 1
    assert (await bench.buffer.versions()).outstanding == {0: 901}


async def test_only_the_first_in_the_line_completes_what_a_publication_began(
    make: Callable[..., Bench],
) -> None:
    bench = make(group_size=1, dialect="v1")
    await bench.buffer.set_policy(Policy(groups_per_version=1000, max_age=2))
    await bench.buffer.write_many([item(f"g{n}", "u") for n in range(900)])
    await bench.buffer._task.call("publish", 10, "", "trainer", 0, 0)  # and dies then

    async def told(ask: str, lives_ms: int) -> int:
        return int((await bench.buffer._task.call("grant_slots", ask, "somebody", 1, lives_ms))[3])

    assert [await told(ask, 60_000) for ask in ("first", "second", "third")] == [-2, -1, -1]
    assert await told("one that does not wait", 0) == -2


async def test_a_batch_of_the_line_before_cannot_be_acknowledged(bench: Bench) -> None:
    for n, slot in enumerate(await bench.buffer.admit(2)):
        await fill(bench, slot, f"g{n}")
    batch = await bench.buffer.take()
    assert batch is not None
    again = RolloutBuffer(bench.redis, "math", TaskConfig(group_size=2))
    assert (await again.publish(10, lead=True)).returned == 2
    with pytest.raises(Exception, match="no longer leased"):
        await bench.buffer.ack(batch)
    assert await again.available() == 2
    await again.aclose()


async def test_a_requeued_group_that_no_checkpoint_holds_has_no_time_to_live(bench: Bench) -> None:
    for n, slot in enumerate(await bench.buffer.admit(2)):
        await fill(bench, slot, f"g{n}")
    batch = await bench.buffer.take()
    assert batch is not None
    await bench.buffer.ack(batch)
    assert await bench.buffer.catalog.requeue("g0")
    assert bench.redis.pttl(bench.key("group:g0:0")) == -1
    assert bench.redis.pttl(bench.key("group:g0:0:meta")) == -1
    held = (await bench.buffer.catalog.group("g1"), await bench.buffer.catalog.stats())
    assert held[0] is not None
    assert held[1]["used_bytes"] == held[0].bytes
    assert not bench.redis.zscore(bench.key("kept"), "g0:0")


async def test_saved_groups_are_kept_no_longer_than_retained_ones(bench: Bench) -> None:
    await bench.buffer.publish(11, saved=11)
    for n, slot in enumerate(await bench.buffer.admit(2)):
        await fill(bench, slot, f"g{n}")
    batch = await bench.buffer.take()
    assert batch is not None
    await bench.buffer.ack(batch)
    assert (await bench.buffer.catalog.stats())["used_bytes"] > 0
    await bench.buffer.publish(12, saved=12)
    await bench.buffer.sweep()
    assert (await bench.buffer.catalog.stats())["used_bytes"] == 0
    assert bench.redis.zcard(bench.key("used")) == 0


async def test_a_parked_group_that_gets_an_item_without_a_slot_counts_once(bench: Bench) -> None:
    (slot,) = await bench.buffer.admit(1, instances=["a"])
    await slot.park([item("a", "u0", None)])
    await bench.buffer.publish(11)
    await bench.buffer.write(item("a", "u1", 0))
    assert await under_way(bench) == {1: 1}
    await bench.buffer.write(item("a", "u2", 1))
    assert await bench.buffer.take() is not None
    assert await under_way(bench) == {}


async def test_what_came_whole_without_a_slot_is_not_gone_on_with(bench: Bench) -> None:
    (slot,) = await bench.buffer.admit(1, instances=["a"])
    await slot.park([item("a", "u0", None)])
    await bench.buffer.write(item("a", "u0", 0))
    (slot,) = await bench.buffer.admit(1)
    assert (slot.instance_id, slot.missing, slot.partial) == ("a", 1, [])
    assert await bench.buffer.write(item("a", "u1", 1), slot=slot) == "stored"
    batch = await bench.buffer.take()
    assert batch is not None
    assert batch.finished_groups == ["a"]


async def test_what_is_parked_is_gone_on_with_by_another(bench: Bench) -> None:
    (slot,) = await bench.buffer.admit(1, instances=["a"])
    part = item("a", "u0", None, versions=[[4, 10]], logprobs=[-0.1, -0.2, -0.3, -0.4])
    await slot.park([part])
    assert (await bench.buffer.versions()).parked == 1
    await bench.buffer.publish(11)
    (other,) = await bench.buffer.admit(1)
    assert (other.start, other.missing) == (10, 2), "to go on with it makes it no younger"
    assert other.partial == [{**part, "status": "partial", "segment": 0}]
    await other.park([{**other.partial[0], "versions": [[4, 10], [6, 11]], "segment": 1}])
    await bench.buffer.publish(12)
    (last,) = await bench.buffer.admit(1)
    (prefix,) = last.partial
    assert prefix["versions"] == [[4, 10], [6, 11]]
    whole = item("a", "u0", 1, versions=[*prefix["versions"], [2, 12]])
    await bench.buffer.write_many([whole, item("a", "u1", 0, version_start=12)], slot=last)
    batch = await bench.buffer.take()
    assert batch is not None
    assert batch.ages == (2,)
    assert sum(tokens for tokens, _ in batch.items[0]["versions"]) == 12
    assert (await bench.buffer.catalog.stats())["bytes"] > 0
    await bench.buffer.ack(batch)
    assert (await bench.buffer.catalog.stats())["bytes"] == 0


async def test_an_older_segment_does_not_replace_a_newer_one(bench: Bench) -> None:
    (slot,) = await bench.buffer.admit(1, instances=["a"])
    await slot.park([item("a", "u0", None, segment=2, text="abc")], go_on=True)
    await slot.park([item("a", "u0", None, segment=1, text="ab")])
    (other,) = await bench.buffer.admit(1)
    assert [part["text"] for part in other.partial] == ["abc"]
    with pytest.raises(SlotLost):
        await slot.park([item("a", "u0", None, segment=3)])
    with pytest.raises(ItemRefused, match="uid"):
        await other.park([item("a", None, None)])


async def test_a_published_version_wakes_who_waits_for_it(bench: Bench) -> None:
    waiting = asyncio.create_task(bench.buffer.published(10, wait=20))
    await asyncio.sleep(0.05)  # it waits by now; if not, it still has to hear of it
    await bench.buffer.publish(11)
    assert await waiting == 11
    assert await bench.buffer.published(11, wait=0.0) == 11


async def test_a_fresh_run_of_the_task_goes_on_under_its_version(bench: Bench) -> None:
    slots = await bench.buffer.admit(3, instances=["a", "b", "c"])
    await fill(bench, slots[0], "a")
    await slots[1].park([item("b", "u0", None)])
    await bench.buffer.take(1)
    await bench.buffer.reset()
    now = await bench.buffer.versions()
    assert (now.version, now.outstanding, now.taken, now.slots) == (10, {}, 0, 0)
    found = await bench.buffer.admit(10, instances=["c", "b", "a"])
    assert [slot.instance_id for slot in found[:3]] == ["c", "b", "a"], "none of them is skipped"
    assert len(found) == 6
    with pytest.raises(SlotLost):
        await fill(bench, slots[2], "c")


async def test_a_trainer_of_a_fresh_run_needs_not_take_over(bench: Bench) -> None:
    await bench.buffer.publish(12, saved=11)
    await bench.buffer.reset()
    other = RolloutBuffer(bench.redis, "math", TaskConfig(group_size=2))
    assert (await other.publish(0)).version == 0
    now = await other.versions()
    assert (now.version, now.saved, now.outstanding) == (0, 0, {})
    assert len(await other.admit(10)) == 6
    with pytest.raises(TrainerReplaced):
        await bench.buffer.publish(13)
    await other.aclose()


def test_a_generator_without_a_loop_holds_slots_too(redis: Any) -> None:
    buffer = RolloutBuffer(redis, "math", TaskConfig(group_size=1)).sync
    buffer.set_policy(Policy(groups_per_version=2, max_age=1))
    assert buffer.publish(3).version == 3
    with buffer.slot("a") as slot:
        slot.park([item("a", "u", None)])
    with buffer.slot() as slot:
        assert (slot.instance_id, [part["uid"] for part in slot.partial]) == ("a", ["u"])
        buffer.write(item("a", "u", 1), slot=slot)
    (other,) = buffer.admit(1)
    other.end()
    assert buffer.published(after=2) == 3
    assert buffer.versions().outstanding == {0: 1}
    assert buffer.policy() == Policy(groups_per_version=2, max_age=1, depth=1)
    buffer.close()


async def test_a_fresh_run_begins_without_the_groups_of_the_one_before(bench: Bench) -> None:
    await bench.buffer.publish(10, saved=10)
    await _trained(bench, "a", "b")
    left = await bench.buffer.admit(2, instances=["c", "d"])
    await fill(bench, left[0])
    again = RolloutBuffer(bench.redis, "math", TaskConfig(group_size=2))
    said = await again.publish(0, fresh=True)
    assert (said.version, said.returned, said.gone) == (0, 0, 0)
    assert await under_way(bench) == {}
    assert await again.take() is None
    with pytest.raises(SlotLost):
        await fill(bench, left[1])
    with pytest.raises(TrainerReplaced):
        await bench.buffer.publish(11)
    await again.aclose()


async def test_without_a_policy_a_fresh_run_drops_nothing(make: Callable[..., Bench]) -> None:
    bench = make(group_size=2)
    await bench.fill("a", [1, 0])
    with pytest.raises(NoPolicy):
        await bench.buffer.publish(0, fresh=True)
    assert await bench.buffer.available() == 1


async def test_a_discarded_group_that_got_too_old_can_be_requeued(bench: Bench) -> None:
    policy = Policy(groups_per_version=2, max_age=2, depth=2, when_old="drop")
    await bench.buffer.set_policy(policy)
    (slot,) = await bench.buffer.admit(1, instances=["a"])
    await fill(bench, slot)
    assert (await bench.buffer.publish(15)).stale == 1
    assert await bench.buffer.catalog.requeue("a")
    batch = await bench.buffer.take()
    assert batch is not None
    assert ([name for name, _ in batch.groups], batch.ages) == (["a"], (0,))


@pytest.mark.parametrize("when_old", ["wait", "drop"])
async def test_a_group_that_got_too_old_in_quarantine_can_be_requeued(
    make: Callable[..., Bench], when_old: Any
) -> None:
    ways = iter([ValueError("a bug"), None])

    def buggy(group: Any) -> Any:
        if failure := next(ways):
            raise failure
        return group

    bench = make(group_size=2, functions=GroupFunctions(normalize_group_data=buggy))
    await bench.buffer.set_policy(Policy(groups_per_version=2, max_age=2, when_old=when_old))
    await bench.buffer.publish(10)
    (slot,) = await bench.buffer.admit(1, instances=["a"])
    await fill(bench, slot)
    assert await bench.buffer.take() is None
    await bench.buffer.publish(15)
    assert await bench.buffer.catalog.requeue("a")
    batch = await bench.buffer.take()
    assert batch is not None
    assert ([name for name, _ in batch.groups], batch.ages) == (["a"], (0,))
    assert await under_way(bench) == {}


@pytest.mark.parametrize("wrong", [True, 1.0, "1", -1, 2**31 + 1, None])
async def test_a_version_is_a_whole_number(bench: Bench, wrong: Any) -> None:
    with pytest.raises(ValueError, match="version must be an integer"):
        await bench.buffer.publish(wrong)


class Index:
    """A whole number of numpy or torch."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


async def test_a_version_may_be_whatever_python_takes_for_an_index(bench: Bench) -> None:
    said = await bench.buffer.publish(Index(11), saved=Index(10))  # type: ignore[arg-type]
    assert said.version == 11


class Boxed:
    """An id of numpy or torch."""

    def __init__(self, value: int) -> None:
        self.value = value

    def tolist(self) -> int:
        return self.value


async def test_a_slot_may_be_asked_for_by_an_id_of_numpy_as_an_item_may_have_one(
    bench: Bench,
) -> None:
    wish: Any = Boxed(7)
    (slot,) = await bench.buffer.admit(1, instances=[wish])
    await bench.buffer.write({**item(7, "u0"), "instance_id": wish}, slot=slot)
    wish = (Boxed(7), Boxed(3))
    (other,) = await bench.buffer.admit(1, instances=[wish])
    assert [(one.instance_id, one.round) for one in (slot, other)] == [(7, 0), (7, 3)]
    with pytest.raises(ItemRefused, match="instance_id must be"):
        await bench.buffer.admit(1, instances=[Boxed(True)])  # type: ignore[list-item]
