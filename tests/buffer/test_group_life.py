"""What a group goes through: open, ready, leased, consumed; or discarded, or quarantined."""

import asyncio
import json
import math
import time
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

import ground
from buffer import (
    BufferFull,
    ItemRefused,
    LeaseLost,
    Outcome,
    RolloutBuffer,
    TaskConfig,
    UnknownTask,
)
from buffer.batch import Batch, figures_of
from buffer.catalog import REWARD_STEPS
from buffer.group_functions import GroupFunctions
from buffer.settings import BufferSettings
from buffer.task import enter_started, listed_tasks, strike_off, tidied_tasks
from tests.buffer.conftest import Bench, item

Make = Callable[..., Bench]


async def test_a_full_group_is_taken_and_acknowledged(bench: Bench) -> None:
    await bench.fill("a", [1, 0, 1, 0])
    batch = await bench.buffer.take()
    assert batch is not None
    assert batch.finished_groups == ["a"]
    await bench.buffer.ack(batch)
    stats = await bench.buffer.catalog.stats()
    assert (stats["consumed"], stats["ready_groups"], stats["leased_groups"]) == (1, 0, 0)
    assert stats["bytes"] == 0


async def test_a_trainer_that_caught_its_cancellation_may_still_take_what_is_ready(
    bench: Bench,
) -> None:
    await bench.fill("a", [1, 0, 1, 0])
    began = asyncio.Event()

    async def drains_at_its_end() -> list[Any]:
        try:
            began.set()
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            batch = await bench.buffer.take()
            assert batch is not None
            return batch.finished_groups
        return []

    trainer = asyncio.create_task(drains_at_its_end())
    await began.wait()
    trainer.cancel()
    assert await trainer == ["a"]


async def test_acknowledging_twice_is_harmless(bench: Bench) -> None:
    await bench.fill("a", [1, 0, 1, 0])
    batch = await bench.buffer.take()
    assert batch is not None
    await bench.buffer.ack(batch)
    await bench.buffer.ack(batch.receipt)
    assert (await bench.buffer.catalog.stats())["consumed"] == 1


async def test_a_repeated_uid_is_acknowledged_and_not_counted(bench: Bench) -> None:
    for _ in range(2):
        for n in range(3):
            await bench.buffer.write(item("a", f"u{n}", n % 2))
    assert (await bench.buffer.catalog.groups("open"))[0].items == 3
    assert await bench.buffer.write(item("a", "u0")) is Outcome.REPEATED
    assert await bench.buffer.take() is None


async def test_a_repeat_within_one_batch_write_is_seen(bench: Bench) -> None:
    outcomes = await bench.buffer.write_many([item("a", "u0"), item("b", "u0"), item("a", "u0")])
    assert outcomes == [Outcome.STORED, Outcome.STORED, Outcome.REPEATED]


async def test_items_without_uid_get_one_each(bench: Bench) -> None:
    written = item("a", None)
    for written["reward"] in (1, 0, 1, 0):  # a writer may use its dict again
        assert await bench.buffer.write(written) is Outcome.STORED
    assert await bench.buffer.write_many([item("b", None)] * 4) == [Outcome.STORED] * 4
    assert "uid" not in written
    batch = await bench.buffer.take(1)
    assert batch is not None
    assert len({found["uid"] for found in batch.items}) == 4


async def test_a_batch_nobody_acknowledged_comes_back_with_the_same_content(bench: Bench) -> None:
    await bench.fill("a", [1, 0, 1, 0])
    await bench.fill("same", [1, 1, 1, 1])
    first = await bench.buffer.take(lease=100)
    bench.advance(101)
    second = await bench.buffer.take()
    assert first is not None
    assert second is not None
    assert second.groups == first.groups
    assert second.finished_groups == first.finished_groups == ["a", "same"]
    with pytest.raises(LeaseLost, match="no longer leased"):
        await bench.buffer.ack(first)
    await bench.buffer.ack(second)


async def test_a_released_batch_is_ready_at_once_in_its_old_place(bench: Bench) -> None:
    for name in ("a", "b"):
        await bench.fill(name, [1, 0, 1, 0])
        bench.advance(1)
    first = await bench.buffer.take(1)
    assert first is not None
    assert await bench.buffer.release(first)
    assert await bench.buffer.release(first), "a call that is sent twice says the same"
    again = await bench.buffer.take(1)
    assert again is not None
    assert again.groups == first.groups
    assert await bench.buffer.release(first)
    await bench.buffer.ack(again)
    assert not await bench.buffer.release(again)


async def test_a_batch_whose_lease_ended_is_not_given_back(bench: Bench) -> None:
    await bench.fill("a", [1, 0, 1, 0])
    batch = await bench.buffer.take(lease=100)
    assert batch is not None
    bench.advance(101)
    await bench.buffer.sweep()
    assert not await bench.buffer.release(batch)


MANY = 1200  # groups: more than one script closes


async def taken_at_once(make: Callable[..., Bench]) -> tuple[Bench, Batch]:
    bench = make(group_size=1, dialect="v1")
    await bench.buffer.write_many([item(f"g{n:04}", "u") for n in range(MANY)])
    batch = await bench.buffer.take(MANY)
    assert batch is not None
    assert len(batch.groups) == MANY
    return bench, batch


async def sizes(bench: Bench) -> tuple[int, int, int]:
    stats = await bench.buffer.catalog.stats()
    return stats["ready_groups"], stats["leased_groups"], stats["delivered_groups"]


async def test_an_ack_that_stopped_half_way_is_completed_by_the_next_to_come(
    make: Callable[..., Bench],
) -> None:
    bench, batch = await taken_at_once(make)
    assert await bench.buffer._task.call("ack", batch.receipt) == 2  # and its process dies
    assert 0 < bench.redis.zcard(bench.key("delivered")) < MANY
    assert not await bench.buffer.release(batch), "it is decided"
    assert (await bench.buffer.fetch(batch.receipt)).groups == batch.groups
    while bench.redis.exists(bench.key("leases")):
        await bench.buffer.sweep()
    assert await sizes(bench) == (0, 0, MANY)
    await bench.buffer.ack(batch)
    assert await sizes(bench) == (0, 0, MANY)


async def test_a_large_batch_is_acknowledged_once(make: Callable[..., Bench]) -> None:
    bench, batch = await taken_at_once(make)
    for _ in range(2):
        await bench.buffer.ack(batch)
        assert await sizes(bench) == (0, 0, MANY)
    assert (await bench.buffer.catalog.stats())["consumed"] == MANY


async def test_a_seal_that_comes_twice_leaves_an_acknowledged_batch_as_it_is(
    make: Callable[..., Bench],
) -> None:
    bench, batch = await taken_at_once(make)
    bench.redis.rpush(bench.key("unreported"), '"told by the next"')
    for parts in (2, 2, 1):  # consuming twice, then consumed
        assert await bench.buffer._task.call("ack", batch.receipt) == parts
        reply = await bench.buffer._task.call("seal", batch.receipt, MANY, 0, "", 0)
        assert reply[0] == 0
        assert not bench.redis.exists(bench.key("ready"))
        assert await bench.buffer.unreported() == ["told by the next"]
    await bench.buffer.ack(batch)
    assert await sizes(bench) == (0, 0, MANY)


def calls_of(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[tuple[Any, ...]], Callable[..., Any]]:
    """The calls of scripts from now on, and what makes one once more."""
    calls: list[tuple[Any, ...]] = []
    call = bench.buffer._task.call

    async def spied(script: str, *args: Any) -> Any:
        calls.append((script, *args))
        return await call(script, *args)

    monkeypatch.setattr(bench.buffer._task, "call", spied)
    return calls, call


async def test_a_claim_that_comes_again_after_its_seal_takes_nothing_into_the_batch(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, call = calls_of(bench, monkeypatch)
    await bench.fill("a", [1, 0, 1, 0])
    batch = await bench.buffer.take()
    await bench.fill("b", [1, 0, 1, 0])
    claims = [sent for sent in steps if sent[0] == "claim"]
    assert claims
    for sent in claims:
        assert len(await call(*sent)) == 3
    assert batch is not None
    await bench.buffer.ack(batch)
    again = await bench.buffer.take()
    assert again is not None
    assert again.finished_groups == ["b"]


async def test_a_large_batch_comes_back_in_its_old_order(make: Callable[..., Bench]) -> None:
    bench, batch = await taken_at_once(make)
    assert await bench.buffer._task.call("release", batch.receipt) == 2
    with pytest.raises(LeaseLost):
        await bench.buffer.ack(batch)
    assert await bench.buffer.release(batch)
    assert await sizes(bench) == (MANY, 0, 0)
    again = await bench.buffer.take(MANY)
    assert again is not None
    assert again.groups == batch.groups


async def test_a_large_batch_whose_lease_ends_comes_back_in_steps(
    make: Callable[..., Bench],
) -> None:
    bench, _ = await taken_at_once(make)
    bench.advance(3600)
    await bench.buffer.sweep()
    assert 0 < bench.redis.zcard(bench.key("leased")) < MANY
    while bench.redis.exists(bench.key("leases")):
        await bench.buffer.sweep()
    assert await sizes(bench) == (MANY, 0, 0)


async def test_an_extended_lease_outlives_its_first_end(bench: Bench) -> None:
    await bench.fill("a", [1, 0, 1, 0])
    batch = await bench.buffer.take(lease=100)
    assert batch is not None
    await bench.buffer.extend(batch, 500)
    bench.advance(300)
    assert await bench.buffer.take() is None
    await bench.buffer.ack(batch)


@pytest.mark.parametrize("functions", [None, GroupFunctions(is_valid_group=lambda *_: False)])
async def test_an_open_group_lives_as_long_as_a_longer_timeout(
    make: Make, functions: GroupFunctions | None
) -> None:
    bench = make(functions=functions, group_timeout_seconds=10)
    await bench.fill("a", [1])
    week = 7 * 86_400
    await bench.buffer.configure(TaskConfig(group_size=4, group_timeout_seconds=week))
    assert week < bench.redis.ttl(bench.key("group:a:0")) <= week + 86_400
    assert bench.redis.ttl(bench.key("group:a:0:meta")) > bench.redis.ttl(bench.key("group:a:0"))


@pytest.mark.parametrize("seconds", [0, -1, math.nan, math.inf, True])
async def test_a_lease_that_cannot_be_is_refused(bench: Bench, seconds: float) -> None:
    await bench.fill("a", [1, 0, 1, 0])
    with pytest.raises(ground.SettingError, match="lease: must be above 0 seconds"):
        await bench.buffer.take(lease=seconds)
    batch = await bench.buffer.take()
    assert batch is not None
    with pytest.raises(ground.SettingError, match="seconds: must be above 0 seconds"):
        await bench.buffer.extend(batch, seconds)
    await bench.buffer.ack(batch)


async def test_a_batch_can_be_fetched_again_by_its_receipt(bench: Bench) -> None:
    await bench.fill("a", [1, 0, 1, 0])
    batch = await bench.buffer.take()
    assert batch is not None
    assert await bench.buffer.fetch(batch.receipt) == batch
    await bench.buffer.ack(batch)
    assert await bench.buffer.fetch(batch.receipt) == batch
    with pytest.raises(LeaseLost):
        await bench.buffer.fetch("unknown")


async def test_an_implicit_batch_is_consumed_by_the_next_read(bench: Bench) -> None:
    await bench.fill("a", [1, 0, 1, 0])
    first = await bench.buffer.take(implicit=True)
    assert first is not None
    await bench.buffer.handed(first)
    assert await bench.buffer.take(implicit=True) is None
    assert (await bench.buffer.catalog.stats())["consumed"] == 1


async def test_an_implicit_batch_that_was_never_handed_over_comes_back(bench: Bench) -> None:
    await bench.fill("a", [1, 0, 1, 0])
    first = await bench.buffer.take(implicit=True, lease=100)
    assert await bench.buffer.take(implicit=True) is None
    bench.advance(101)
    again = await bench.buffer.take(implicit=True)
    assert first is not None
    assert again is not None
    assert again.groups == first.groups


async def test_a_late_item_does_not_reopen_its_group(bench: Bench) -> None:
    await bench.fill("a", [1, 0, 1])
    bench.advance(301)
    batch = await bench.buffer.take()
    assert await bench.buffer.write(item("a", "late")) is Outcome.LATE
    assert batch is not None
    await bench.buffer.ack(batch)
    assert await bench.buffer.write(item("a", "later")) is Outcome.LATE
    assert await bench.buffer.catalog.groups("open") == []
    aside = await bench.buffer.catalog.aside()
    assert [row["outcome"] for row in aside] == ["late", "late"]


async def test_what_comes_after_the_late_window_opens_the_next_round(make: Make) -> None:
    bench = make(late_window=60)
    for n in range(2):
        await bench.fill("a", [1, 0, 1, 0], pass_=n)
        batch = await bench.buffer.take()
        assert batch is not None
        assert len(batch.items) == 4
        await bench.buffer.ack(batch)
        bench.advance(61)
    assert (await bench.buffer.catalog.stats())["consumed"] == 2


async def test_a_newer_round_opens_its_own_group(bench: Bench) -> None:
    for number in (0, 1):
        await bench.fill("a", [1, 0, 1, 0], round_number=number)
    assert [g.round for g in await bench.buffer.catalog.groups("ready")] == [0, 1]


async def test_two_rounds_of_an_instance_never_meet_in_a_batch(bench: Bench) -> None:
    for number in range(3):
        await bench.fill("a", [1, 0, 1, 0], round_number=number)
    await bench.fill("b", [1, 0, 1, 0])
    ids = []
    while batch := await bench.buffer.take():
        ids.append([instance_id for instance_id, _ in batch.groups])
    assert ids == [["a", "b"], ["a"], ["a"]]


async def test_a_take_passes_by_many_rounds_of_an_instance_in_few_steps(
    real_redis: ground.Client,
) -> None:
    redis: Any = real_redis
    buffer = RolloutBuffer(redis, "math", TaskConfig(group_size=1, dialect="v1"))
    await buffer.write_many([item("a", f"u{n}") for n in range(100)])
    await buffer.write_many([item(name, "u") for name in "bcd"])
    redis.config_resetstat()
    batch = await buffer.take(3)
    assert redis.info("commandstats")["cmdstat_zrange"]["calls"] < 10
    assert batch is not None
    assert [name for name, _ in batch.groups] == ["a", "b", "c"]
    await buffer.aclose()


async def test_ten_epochs_deliver_an_instance_ten_times(bench: Bench) -> None:
    for number in range(10):
        for instance in ("a", "b"):
            await bench.fill(instance, [1, 0, 1, 0], round_number=number)
    seen = []
    while batch := await bench.buffer.take():
        seen += batch.finished_groups
        await bench.buffer.ack(batch)
    assert sorted(seen) == ["a"] * 10 + ["b"] * 10


async def test_turns_counted_in_extra_info_are_not_rounds(bench: Bench) -> None:
    for n in range(4):
        await bench.buffer.write(item("a", f"u{n}", n % 2, extra_info={"round_number": n}))
    assert [g.items for g in await bench.buffer.catalog.groups("ready")] == [4]


async def test_a_timeout_needs_no_reader(bench: Bench) -> None:
    await bench.fill("used", [1, 0, 1])
    await bench.fill("discarded", [1])
    bench.advance(301)
    await bench.buffer.sweep()
    stats = await bench.buffer.catalog.stats()
    assert (stats["ready_groups"], stats["expired"], stats["unreported"]) == (1, 1, 1)


async def test_a_write_alone_sweeps_what_is_due(bench: Bench) -> None:
    await bench.fill("old", [1])
    bench.advance(301)
    await bench.fill("new", [1])
    assert [g.instance_id for g in await bench.buffer.catalog.groups("open")] == ["new"]


async def test_timeouts_count_raw_items_and_bypass_validity(bench: Bench) -> None:
    await bench.fill("a", [1, 1, 1])
    bench.advance(301)
    batch = await bench.buffer.take()
    assert batch is not None
    assert [found["reward"] for found in batch.items] == [0.0] * 4


async def test_groups_that_time_out_together_are_ready_in_the_order_of_their_last_writes(
    bench: Bench,
) -> None:
    for name in ("c", "b", "a"):
        await bench.fill(name, [1, 0, 1])
        bench.advance(1)
    bench.advance(301)
    batch = await bench.buffer.take()
    assert batch is not None
    assert batch.finished_groups == ["c", "b", "a"]


async def test_too_few_kept_items_make_a_group_invalid_and_told(bench: Bench) -> None:
    await bench.fill("a", [1, -1, -1, -1])
    await bench.fill("b", [1, 0, 0, 1])
    batch = await bench.buffer.take()
    assert batch is not None
    assert [instance for instance, _ in batch.groups] == ["b"]
    assert batch.finished_groups == ["b", "a"]
    assert (await bench.buffer.catalog.stats())["invalid_items"] == 4


@pytest.mark.parametrize(
    ("rewards", "reason"),
    [
        ([1.0, 1.0, 1.0, 1.0], "all rewards are 1"),
        ([1, -1, -1, -1], "too few items after filter_item"),
        ([None, None, None, None], "too few items with different rewards"),
    ],
)
async def test_an_invalid_group_says_why_until_requeued(bench: Bench, rewards, reason) -> None:
    await bench.fill("a", rewards)
    assert await bench.buffer.take() is None
    (kept,) = await bench.buffer.catalog.groups("kept")
    assert (kept.state, kept.reason) == ("invalid", reason)
    assert await bench.buffer.catalog.requeue("a")
    (ready,) = await bench.buffer.catalog.groups("ready")
    assert ready.reason == ""


async def test_discarded_ids_wait_for_the_next_batch(bench: Bench) -> None:
    await bench.fill("equal", [1, 1, 1, 1])
    assert await bench.buffer.take() is None
    assert await bench.buffer.unreported() == ["equal"]
    await bench.fill("b", [1, 0, 0, 1])
    batch = await bench.buffer.take()
    assert batch is not None
    assert batch.finished_groups == ["b", "equal"]
    assert await bench.buffer.unreported() == []


async def test_meta_info_covers_what_came_since_the_last_read(bench: Bench) -> None:
    await bench.fill("a", [1, 0, 1, 0])
    await bench.fill("open", [0.5])
    first = await bench.buffer.take()
    await bench.fill("b", [1, 1, 1, 0])
    second = await bench.buffer.take()
    assert first is not None
    assert second is not None
    assert (first.figures["total_samples"], first.figures["num_groups"]) == (5, 2)
    assert (second.figures["total_samples"], second.figures["num_groups"]) == (4, 1)
    assert second.figures["avg_reward"] == 0.75


async def test_a_batch_is_sealed_once_however_often_it_is_asked(bench: Bench) -> None:
    await bench.fill("equal", [1, 1, 1, 1])
    await bench.fill("a", [1, 0, 1, 0])
    batch = await bench.buffer.take()
    assert batch is not None
    await bench.fill("b", [1])
    before = await bench.buffer.catalog.stats()
    again = await bench.buffer._task.call("seal", batch.receipt, 1, 0, "")
    assert json.loads(again[1]) == ["equal"]
    assert figures_of(again[2:], await bench.buffer.config()) == batch.figures
    assert await bench.buffer.catalog.stats() == before


async def test_v1_speaks_todays_dialect(make: Make) -> None:
    bench = make(dialect="v1")
    await bench.fill("a", [1, 1, 1, 1])
    batch = await bench.buffer.take()
    assert batch is not None
    assert [found["reward"] for found in batch.items] == [1, 1, 1, 1]
    assert "reward_std" not in batch.meta_info


async def test_a_reader_a_day_away_finds_every_finished_group(bench: Bench) -> None:
    for n in range(50):
        await bench.fill(n, [1, 0, 1, 0])
    bench.advance(86_400)
    await bench.buffer.sweep()
    ttl = bench.redis.ttl(bench.key("group:7:0"))
    batch = await bench.buffer.take()
    assert batch is not None
    assert len(batch.groups) == 50
    assert ttl == -1


async def test_only_groups_that_may_go_carry_a_ttl(bench: Bench) -> None:
    await bench.fill("open", [1])
    await bench.fill("done", [1, 0, 1, 0])
    await bench.fill("ready", [1, 0, 1, 0])
    batch = await bench.buffer.take(1)
    assert batch is not None
    await bench.buffer.ack(batch)
    for name, mortal in (("open", True), ("done", True), ("ready", False)):
        for part in ("", ":meta"):
            assert (bench.redis.pttl(bench.key(f"group:{name}:0{part}")) > 0) is mortal


async def test_a_hash_found_gone_is_counted_and_repaired(bench: Bench) -> None:
    await bench.fill("gone", [1, 0, 1, 0])
    await bench.fill("vanished", [1])
    bench.redis.delete(bench.key("group:gone:0"), bench.key("group:vanished:0"))
    assert await bench.buffer.take() is None
    bench.advance(301)
    await bench.buffer.sweep()
    stats = await bench.buffer.catalog.stats()
    assert (stats["vanished"], stats["bytes"]) == (2, 0)
    assert (stats["ready_groups"], stats["open_groups"]) == (0, 0)


async def test_time_without_a_server_does_not_count(bench: Bench) -> None:
    await bench.fill("a", [1])
    await bench.buffer.sweep(serving=True)
    bench.redis.hincrby(bench.key("state"), "beat", -400_000)
    bench.advance(400)
    await bench.buffer.sweep(serving=True)
    assert [g.instance_id for g in await bench.buffer.catalog.groups("open")] == ["a"]


async def test_a_clock_that_is_set_back_leaves_no_batch_and_no_open_group_more_time(
    make: Make,
) -> None:
    """Libraries went on for an hour in which no server lived; then one starts."""
    bench = make(group_size=2, group_timeout_seconds=60)
    await bench.fill("before", [1, 0])
    long = await bench.buffer.take(lease=3000)
    await bench.buffer.sweep(serving=True)
    bench.redis.hincrby(bench.key("state"), "beat", -3600_000)
    await bench.fill("a", [1, 0])
    batch = await bench.buffer.take(lease=100)
    await bench.fill("b", [1])
    await bench.buffer.sweep(serving=True)
    bench.advance(61)
    await bench.buffer.sweep()
    assert await bench.buffer.catalog.groups("open") == []
    bench.advance(40)
    await bench.buffer.sweep()
    assert batch is not None
    with pytest.raises(LeaseLost):
        await bench.buffer.ack(batch)
    assert long is not None
    await bench.buffer.ack(long)


async def test_a_clock_is_set_back_in_steps_of_some_hundred_groups(make: Make) -> None:
    bench = make(group_size=2, group_timeout_seconds=60)
    await bench.buffer.sweep(serving=True)
    bench.redis.hincrby(bench.key("state"), "beat", -3600_000)
    await bench.buffer.write_many([item(f"g{n}", "u0", 1) for n in range(900)])
    left = [900]
    while left[-1]:
        await bench.buffer.sweep(serving=True)
        beat, paused = map(int, bench.redis.hmget(bench.key("state"), "beat", "paused"))
        left.append(bench.redis.zcount(bench.key("open"), f"({beat - paused}", "+inf"))
        assert 0 < left[-2] - left[-1] <= 400
    assert (await bench.buffer.catalog.stats())["open_groups"] == 900
    bench.advance(61)
    await bench.buffer.sweep()
    assert await bench.buffer.catalog.groups("open") == []


async def test_a_full_buffer_refuses_new_groups_and_completes_open_ones(make: Make) -> None:
    bench = make(max_buffer_size=8)
    await bench.fill("a", [1, 0])
    await bench.fill("b", [1, 0])
    with pytest.raises(BufferFull, match="PENSTOCK_MAX_BUFFER_SIZE"):
        await bench.fill("c", [1])
    for name in ("a", "b"):
        await bench.buffer.write_many([item(name, f"x{n}", n) for n in range(2)])
    batch = await bench.buffer.take(1)
    assert batch is not None
    await bench.buffer.ack(batch)
    await bench.fill("c", [1])


async def test_a_buffer_full_of_bytes_pushes_back_until_a_batch_is_taken(make: Make) -> None:
    bench = make(max_bytes=2000)
    for n in range(4):
        await bench.fill(f"g{n}", [1, 0, 1, 0])
    with pytest.raises(BufferFull):
        await bench.fill("g4", [1, 0, 1, 0])
    batch = await bench.buffer.take()
    assert batch is not None
    await bench.buffer.ack(batch)
    await bench.fill("next", [1, 0, 1, 0])


async def test_a_full_group_stores_no_more_under_its_round(bench: Bench) -> None:
    items = [item("a", f"u{n}", n % 2, round_number=0) for n in range(6)]
    outcomes = await bench.buffer.write_many(items)
    assert outcomes == [Outcome.STORED] * 4 + [Outcome.SURPLUS] * 2


async def test_a_custom_function_may_want_more_than_a_whole_group(make: Make) -> None:
    def enough(group: Any, *_: Any) -> tuple[bool, bool]:
        return (len(group[1]) > 5,) * 2

    bench = make(functions=GroupFunctions(is_valid_group=enough))
    await bench.fill("a", [1, 0, 1, 0])
    assert await bench.buffer.take() is None  # it has seen them, and waits for more
    items = [item("a", f"more{n}", n % 2, round_number=0) for n in range(20)]
    outcomes = await bench.buffer.write_many(items)
    assert outcomes.count(Outcome.STORED) == 12
    assert outcomes.count(Outcome.SURPLUS) == 8


@pytest.mark.parametrize("read", ["after each pass", "at the end"])
@pytest.mark.parametrize(
    "functions", [None, GroupFunctions(is_valid_group=lambda *_: (True, True))]
)
async def test_every_pass_over_the_data_is_delivered(
    make: Make, functions: GroupFunctions | None, read: str
) -> None:
    bench, delivered = make(functions=functions), []
    for n in range(5):
        items = [item("q", f"{n}-{k}", k % 2) for k in range(4)]
        outcomes = await bench.buffer.write_many(items[:2]) + await bench.buffer.write_many(items)
        assert outcomes == [Outcome.STORED] * 2 + [Outcome.REPEATED] * 2 + [Outcome.STORED] * 2
        if read == "after each pass":
            delivered += await _taken(bench)
    while found := await _taken(bench):
        delivered += found
    assert delivered == [[f"{n}-{k}" for k in range(4)] for n in range(5)]


async def _taken(bench: Bench) -> list[list[str]]:
    batch = await bench.buffer.take(1)
    if batch is None:
        return []
    await bench.buffer.ack(batch)
    return [[one["uid"] for one in items] for _, items in batch.groups]


async def test_one_write_may_hold_several_passes(bench: Bench) -> None:
    items = [item("q", f"u{n}", n % 2) for n in range(10)]
    assert await bench.buffer.write_many(items) == [Outcome.STORED] * 10
    assert [(g.round, g.items) for g in await bench.buffer.catalog.groups("ready")] == [
        (0, 4),
        (1, 4),
    ]
    assert [(g.round, g.items) for g in await bench.buffer.catalog.groups("open")] == [(2, 2)]


async def test_a_repeat_of_the_pass_before_is_stored_once(bench: Bench) -> None:
    await bench.fill("a", [1, 0, 1, 0])
    assert await bench.buffer.write(item("a", "next")) is Outcome.STORED
    assert await bench.buffer.write(item("a", "a-u3")) is Outcome.REPEATED
    assert [g.round for g in await bench.buffer.catalog.groups("open")] == [1]


async def test_a_repeat_that_comes_with_what_opened_the_next_round_is_stored_once(
    make: Make,
) -> None:
    bench = make(group_size=2)
    await bench.buffer.write(item("a", "u0"))
    outcomes = await bench.buffer.write_many([item("a", f"u{n}", n) for n in (1, 2, 0)])
    assert outcomes == [Outcome.STORED, Outcome.STORED, Outcome.REPEATED]


async def test_a_pass_is_whole_long_after_its_items_are_gone(make: Make) -> None:
    bench = make(retain=1)
    await bench.fill("a", [1, 0, 1, 0])
    batch = await bench.buffer.take()
    assert batch is not None
    await bench.buffer.ack(batch)
    bench.redis.delete(bench.key("group:a:0"))  # as Redis does after `retain`
    assert bench.redis.ttl(bench.key("group:a:0:meta")) > 500, "as long as the late window"
    assert await bench.buffer.write(item("a", "next")) is Outcome.STORED


async def test_a_lowered_group_size_finishes_what_has_enough(make: Make) -> None:
    bench = make(group_size=8)
    await bench.fill("a", [1, 0, 1, 0, 1, 0])
    await bench.buffer.configure(TaskConfig(group_size=4))
    batch = await bench.buffer.take()
    assert batch is not None
    assert [one["uid"] for one in batch.items] == ["a-u0", "a-u1", "a-u2", "a-u3"]


class _Speechless(BaseException):
    def __str__(self) -> str:
        raise ValueError("no words")


class _QuotesHalfAPair(Exception):
    def __str__(self) -> str:
        return "cannot parse \ud83d"


@pytest.mark.parametrize(
    "failure",
    [asyncio.CancelledError, KeyboardInterrupt, GeneratorExit, SystemExit, _Speechless,
     _QuotesHalfAPair],
)  # fmt: skip
@pytest.mark.parametrize("name", ["normalize_group_data", "is_valid_group"])
async def test_whatever_a_function_raises_concerns_only_its_group(
    make: Make, name: str, failure: type[BaseException]
) -> None:
    def fails(group: Any, *_: Any) -> Any:
        if group[0] == "bad":
            raise failure
        return group if name == "normalize_group_data" else (True, True)

    bench = make(functions=GroupFunctions(**{name: fails}))
    await bench.fill("bad", [1, 0, 1, 0])
    await bench.fill("good", [1, 0, 1, 0])
    batch = await bench.buffer.take()
    assert batch is not None
    assert batch.finished_groups == ["good"]
    (found,) = await bench.buffer.catalog.quarantined()
    assert f"{name} of math: {failure.__name__}" in found.reason


async def test_the_dialect_v1_tells_of_a_group_that_timed_out_short(make: Make) -> None:
    bench = make(dialect="v1")
    await bench.fill("short", [1, 0, 1])
    bench.advance(301)
    await bench.fill("whole", [1, 0, 1, 0])
    batch = await bench.buffer.take()
    assert batch is not None
    assert batch.finished_groups == ["whole", "short"]
    assert await bench.buffer.catalog.quarantined() == []
    assert (await bench.buffer.catalog.stats())["expired"] == 1


async def test_the_dialect_v1_waits_until_a_group_is_whole(make: Make) -> None:
    bench = make(dialect="v1", min_valid_group_size_ratio=0.5)
    for n, reward in enumerate([1, 0, 1, 0]):
        assert await bench.buffer.take() is None, "a reader that is quicker than the writer"
        assert await bench.buffer.write(item("slow", f"u{n}", reward)) == "stored"
    batch = await bench.buffer.take()
    assert batch is not None
    assert [one["reward"] for one in batch.items] == [1, 0, 1, 0]


async def test_a_function_may_complete_a_short_group_of_the_dialect_v1(make: Make) -> None:
    def twice(group: Any, _: str) -> Any:
        return group[0], (group[1] * 2)[:4]

    bench = make(dialect="v1", functions=GroupFunctions(transform_group=twice))
    await bench.fill("short", [1, 0, 1])
    bench.advance(301)
    batch = await bench.buffer.take()
    assert batch is not None
    assert len(batch.items) == 4


async def test_a_failing_function_quarantines_its_group_alone(make: Make) -> None:
    def normalize(group: Any) -> Any:
        if group[0] == "bad":
            raise KeyError("reward")
        return group

    bench = make(functions=GroupFunctions(normalize_group_data=normalize))
    await bench.fill("bad", [1, 0, 1, 0])
    await bench.fill("good", [1, 0, 1, 0])
    batch = await bench.buffer.take()
    assert batch is not None
    assert batch.finished_groups == ["good"]
    (found,) = await bench.buffer.catalog.quarantined()
    assert found.instance_id == "bad"
    assert found.reason == "normalize_group_data of math: KeyError: 'reward'"
    assert await bench.buffer.catalog.finished_rounds() == {
        "bad": 1,
        "good": 1,
    }  # what came were late
    for _ in range(2):
        assert await bench.buffer.catalog.requeue("bad"), "a call that is sent twice says the same"
    assert (await bench.buffer.catalog.stats())["requeued"] == 1
    assert not await bench.buffer.catalog.requeue("nothing")
    assert [g.instance_id for g in await bench.buffer.catalog.groups("ready")] == ["bad"]


async def test_a_group_tells_since_when_it_is_as_it_is(make: Make) -> None:
    def normalize(group: Any) -> Any:
        if group[0] == "bad":
            raise KeyError("reward")
        return group

    bench = make(functions=GroupFunctions(normalize_group_data=normalize), group_size=2)
    await bench.buffer.config()
    bench.advance(-3600)  # an hour in which no server lived: the task's clock stood still
    before = time.time() - 0.001
    for name in ("bad", "gone", "leased", "ready"):
        await bench.fill(name, [1, 0])
    batch = await bench.buffer.take(1)
    assert batch is not None
    await bench.buffer.ack(batch)
    assert await bench.buffer.take(1) is not None
    await bench.fill("open", [1])
    found = await bench.buffer.catalog.quarantined()
    for state in ("open", "ready", "leased", "kept"):
        found += await bench.buffer.catalog.groups(state)
    assert [(one.instance_id, one.state) for one in found] == [
        ("bad", "quarantined"), ("open", "open"), ("ready", "ready"), ("leased", "leased"),
        ("gone", "consumed"), ("bad", "quarantined"),
    ]  # fmt: skip
    assert all(before <= one.since <= time.time() for one in found)


async def test_a_custom_validity_sees_a_group_again_only_when_it_changed(make: Make) -> None:
    seen: list[tuple[Any, int]] = []

    def is_valid(group: Any, size: int, task: str) -> tuple[bool, bool]:
        seen.append((group[0], len(group[1])))
        return len(group[1]) >= 3, len(group[1]) >= 3

    bench = make(functions=GroupFunctions(is_valid_group=is_valid))
    await bench.fill("a", [1, 0])
    await bench.fill("b", [1, 0])
    assert await bench.buffer.take() is None
    assert await bench.buffer.take() is None
    await bench.buffer.write(item("a", "third"))
    batch = await bench.buffer.take()
    assert batch is not None
    assert batch.finished_groups == ["a"]
    assert seen == [("a", 2), ("b", 2), ("a", 3)]


async def test_a_verdict_on_a_group_that_changed_meanwhile_does_not_hold(make: Make) -> None:
    bench = make(functions=GroupFunctions(is_valid_group=lambda *_: (False, True)))
    await bench.fill("a", [1, 0])
    task = bench.buffer._task
    assert await task.call("judge", "a:0", 1, "invalid", "") == 0
    assert await task.call("judge", "a:0", 2, "invalid", "") == 1


async def test_both_return_types_of_is_valid_group_work(make: Make) -> None:
    functions = GroupFunctions(is_valid_group=lambda group, size, task: len(group[1]) >= size)
    bench = make(functions=functions)
    await bench.fill("a", [1, 1, 1])
    assert await bench.buffer.take() is None
    await bench.fill("b", [1, 1, 1, 1])
    batch = await bench.buffer.take()
    assert batch is not None
    assert batch.finished_groups == ["b"]


async def test_a_validity_that_shortens_its_list_is_heard(make: Make) -> None:
    def is_valid(group: Any, size: int, task: str) -> bool:
        group[1][:] = [one for one in group[1] if one["reward"] >= 0]
        return len(group[1]) >= 2

    bench = make(functions=GroupFunctions(is_valid_group=is_valid))
    await bench.fill("a", [-1, 1, 0])
    assert await bench.buffer.available() == 1


@pytest.mark.parametrize("said", [True, [True, True]])
async def test_is_valid_group_may_answer_in_numpys_types(make: Make, said: Any) -> None:
    bench = make(functions=GroupFunctions(is_valid_group=lambda *_: Tensor(said)))
    await bench.fill("a", [1, 0, 1, 0])
    batch = await bench.buffer.take()
    assert batch is not None
    assert batch.finished_groups == ["a"]


async def test_v1s_transform_group_replaces_the_three_last_steps(make: Make) -> None:
    def transform(group: Any, task: str) -> Any:
        return group[0], [found | {"reward": 7} for found in group[1]]

    bench = make(functions=GroupFunctions(transform_group=transform))
    await bench.fill("a", [1, 0, 1, 0])
    batch = await bench.buffer.take()
    assert batch is not None
    assert [found["reward"] for found in batch.items] == [7] * 4


async def test_a_short_group_that_transform_group_does_not_fill_is_discarded_and_told(
    make: Make,
) -> None:
    bench = make(dialect="v1", functions=GroupFunctions(transform_group=lambda group, task: group))
    await bench.fill("short", [1, 0, 1])
    bench.advance(301)
    await bench.fill("whole", [1, 0, 1, 0])
    batch = await bench.buffer.take()
    assert batch is not None
    assert batch.finished_groups == ["whole", "short"]
    (kept,) = await bench.buffer.catalog.groups("kept")
    assert (kept.state, kept.reason) == (
        "invalid", "3 items of 4: transform_group made no whole group"
    )  # fmt: skip


async def test_what_came_late_can_be_read_though_it_is_stored_compressed(bench: Bench) -> None:
    await bench.fill("a", [1, 0, 1, 0])
    for uid in ("small", "large"):
        more = {"padding": "x" * 100_000} if uid == "large" else {}
        surplus = item("a", uid, round_number=0, **more)
        assert await bench.buffer.write(surplus) == "surplus"
    large, small = [row["item"] for row in await bench.buffer.catalog.aside()]
    assert small.startswith('a:0 small {"instance_id":"a","messages":')
    assert large.startswith('a:0 large {"instance_id":"a","messages":')


async def test_custom_meta_information_sees_all_raw_items_since_the_last_read(make: Make) -> None:
    def figures(raw: dict[Any, list[Any]]) -> dict[str, Any]:
        return {"sizes": {name: len(items) for name, items in raw.items()}}

    bench = make(functions=GroupFunctions(get_group_data_meta_info=figures))
    await bench.fill("a", [1, 0, 1, 0])
    await bench.fill("open", [1])
    first = await bench.buffer.take()
    await bench.fill("b", [1, 0, 1, 0])
    second = await bench.buffer.take()
    assert first is not None
    assert second is not None
    assert first.meta_info["sizes"] == {"a": 4, "open": 1}
    assert second.meta_info["sizes"] == {"b": 4}
    assert (await bench.buffer.fetch(first.receipt)).figures == first.figures


async def test_a_read_that_is_sealed_late_cuts_off_no_item_that_it_did_not_see(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def figures(raw: dict[Any, list[Any]]) -> dict[str, Any]:
        return {"seen": sorted(raw)}

    one, other = (
        make(group_size=2, functions=GroupFunctions(get_group_data_meta_info=figures))
        for _ in range(2)
    )
    call, read, may_seal = other.buffer._task.call, asyncio.Event(), asyncio.Event()

    async def seals_late(script: str, *args: Any) -> Any:
        if script == "seal":
            read.set()
            await may_seal.wait()
        return await call(script, *args)

    monkeypatch.setattr(other.buffer._task, "call", seals_late)
    await one.fill("a", [1, 0])
    await one.fill("b", [1, 0])
    late = asyncio.create_task(other.buffer.take(1))
    await read.wait()
    await one.fill("c", [1, 0])
    batches = [await one.buffer.take(1)]
    await one.fill("d", [1, 0])
    may_seal.set()
    batches += [await late, await one.buffer.take(1)]
    seen = [batch.figures["seen"] for batch in batches if batch]
    assert seen == [["a", "b", "c"], ["a", "b"], ["d"]]


async def test_two_runs_and_two_tasks_do_not_meet(make: Make) -> None:
    benches = [make(), make(task="code"), make(run="other")]
    for n, bench in enumerate(benches):
        await bench.fill("a", [1, 0, 1, 0], owner=n)
    for n, bench in enumerate(benches):
        batch = await bench.buffer.take()
        assert batch is not None
        assert {found["owner"] for found in batch.items} == {n}
        assert len(batch.items) == 4


async def test_a_fresh_run_starts_empty(bench: Bench) -> None:
    await bench.fill("a", [1, 0, 1, 0])
    batch = await bench.buffer.take()
    await bench.fill("open", [1])
    await bench.buffer.reset()
    left = {key.decode().rpartition("}:")[2] for key in bench.redis.keys("penstock:*")}
    assert left - {"config", "tasks"} == set()
    assert batch is not None
    with pytest.raises(LeaseLost):
        await bench.buffer.ack(batch)
    await bench.fill("a", [1, 0, 1, 0])
    assert await bench.buffer.take() is not None


async def test_a_step_of_a_reset_that_comes_again_after_its_end_drops_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, call = calls_of(bench, monkeypatch)
    await bench.fill("a", [1])
    for _ in range(2):
        steps.clear()
        await bench.buffer.reset()
        await bench.fill("b", [1])
        for sent in steps[:2]:
            assert await call(*sent) == 0
        assert [one.instance_id for one in await bench.buffer.catalog.groups("open")] == ["b"]


@pytest.mark.parametrize("resumed", [False, True])
async def test_a_round_that_is_made_again_is_not_late(make: Make, resumed: bool) -> None:
    bench = make(group_size=2, retain=1)
    await bench.fill("a", [1, 0], round_number=0)
    batch = await bench.buffer.take()
    assert batch is not None
    await bench.buffer.ack(batch)
    bench.advance(2)
    await bench.buffer.sweep()
    assert await bench.buffer.write(item("a", "new", 1, round_number=0)) is Outcome.LATE
    if resumed:
        assert await bench.buffer.catalog.resume(["b"]) == 0
    else:
        await bench.buffer.reset()
    assert await bench.buffer.write(item("a", "new", 1, round_number=0)) is Outcome.STORED


async def test_resume_takes_up_what_the_trainers_list_does_not_name(bench: Bench) -> None:
    for name in ("kept", "lost", "forgotten"):
        await bench.fill(name, [1, 0, 1, 0])
    batch = await bench.buffer.take()
    assert batch is not None
    await bench.buffer.ack(batch)
    bench.redis.delete(bench.key("group:forgotten:0"))
    assert await bench.buffer.catalog.resume(["kept"]) == 1
    assert await bench.buffer.catalog.finished_rounds(["kept"]) == {"kept": 1, "lost": 1}
    again = await bench.buffer.take()
    assert again is not None
    assert again.finished_groups == ["lost"]


async def test_resume_takes_up_the_batch_that_a_dead_trainer_was_handed_last(bench: Bench) -> None:
    for name in ("lost", "kept"):
        await bench.fill(name, [1, 0, 1, 0])
    batch = await bench.buffer.take(implicit=True)
    assert batch is not None
    await bench.buffer.handed(batch)
    assert await bench.buffer.catalog.resume(["kept"]) == 1
    assert await bench.buffer.catalog.finished_rounds(["kept"]) == {"kept": 1, "lost": 1}
    again = await bench.buffer.take(implicit=True)
    assert again is not None
    assert again.finished_groups == ["lost"]


async def test_an_unknown_task_is_named(redis: ground.Client) -> None:
    buffer = RolloutBuffer(redis, "nobody")
    with pytest.raises(UnknownTask, match="start_rollout"):
        await buffer.take()
    await buffer.aclose()


async def test_a_task_whose_redis_was_emptied_configures_itself_again(bench: Bench) -> None:
    await bench.fill("a", [1])
    bench.redis.flushall()
    await bench.fill("b", [1, 0, 1, 0])
    assert await bench.buffer.take() is not None


async def test_the_settings_in_force_are_everybodys(make: Make) -> None:
    first = make(group_size=2)
    await first.fill("a", [1, 0])
    other = make(group_size=8)
    assert (await other.buffer.config()).group_size == 2
    await other.buffer.configure(TaskConfig(group_size=3))
    assert (await first.buffer.config()).group_size == 3


async def test_a_setting_that_only_a_later_version_knows_is_left_alone(make: Make) -> None:
    first = make(group_size=2)
    await first.buffer.config()
    first.redis.hset(first.key("config"), "of_the_future", "1")
    assert (await make(group_size=3).buffer.config()).group_size == 2


async def test_a_waiting_reader_is_woken_by_the_group_that_finishes(bench: Bench) -> None:
    await bench.fill("a", [1, 0, 1])
    waiting = asyncio.create_task(bench.buffer.take(wait=30))
    await asyncio.sleep(0)
    await bench.buffer.write(item("a", "last", 0))
    batch = await waiting
    assert batch is not None


async def test_two_waiting_readers_share_two_groups(bench: Bench) -> None:
    await bench.buffer.config()
    readers = [asyncio.create_task(bench.buffer.take(1, wait=30)) for _ in range(2)]
    await bench.fill("a", [1, 0, 1, 0])
    await bench.fill("b", [1, 0, 1, 0])
    batches = await asyncio.gather(*readers)
    assert sorted(b.finished_groups[0] for b in batches if b) == ["a", "b"]


async def gone_idle(make: Make) -> Bench:
    """All that it had was taken and acknowledged."""
    bench = make(idle_ttl=1000)
    await bench.fill("a", [1, 0, 1, 0])
    batch = await bench.buffer.take()
    assert batch is not None
    await bench.buffer.ack(batch)
    await bench.buffer.sweep()
    return bench


async def test_an_idle_task_is_remembered_for_a_while_only(make: Make) -> None:
    bench = await gone_idle(make)
    assert 0 < bench.redis.ttl(bench.key("delivered")) <= 1000
    assert 0 < bench.redis.ttl(bench.key("config")) <= 1000
    await bench.fill("b", [1])
    assert bench.redis.ttl(bench.key("config")) == -1


def expire(bench: Bench) -> None:
    """As if the idle task's time were over."""
    for key in bench.redis.keys(bench.key("*").replace("[", "\\[")):
        bench.redis.delete(key)


async def test_a_task_whose_keys_have_expired_is_listed_no_longer(make: Make) -> None:
    other, bench = make("other"), await gone_idle(make)
    await other.fill("a", [1])
    link = bench.buffer._task.link
    assert await listed_tasks(link, "default") == ["math", "other"]
    expire(bench)
    assert await listed_tasks(link, "default") == ["other"]
    assert await tidied_tasks(link, "default") == ["other"]
    assert bench.redis.zrange("penstock:buffer:{default}:tasks", 0, -1) == [b"other"]


async def test_a_task_that_was_forgotten_is_listed_once_it_is_used_again(make: Make) -> None:
    bench = await gone_idle(make)
    expire(bench)
    assert await tidied_tasks(bench.buffer._task.link, "default") == []
    await bench.fill("b", [1])
    assert await listed_tasks(bench.buffer._task.link, "default") == ["math"]


async def test_a_task_that_begins_as_it_is_struck_off_stays_listed(make: Make) -> None:
    bench = make()
    await bench.fill("a", [1])
    await strike_off(bench.buffer._task.link, "default", "math", 0)
    assert await listed_tasks(bench.buffer._task.link, "default") == ["math"]


async def test_a_task_that_is_started_as_it_is_struck_off_stays_the_current_one(make: Make) -> None:
    other, bench = make("other"), make()
    link = bench.buffer._task.link
    await other.fill("a", [1])
    await enter_started(link, "default", "other")
    await bench.fill("a", [1])
    await enter_started(link, "default", "math")
    await strike_off(link, "default", "math", 0)  # as it was listed before
    assert await listed_tasks(link, "default") == ["other", "math"]


async def test_nothing_of_an_idle_task_stays_for_ever(make: Make) -> None:
    def figures(raw: dict[Any, Any]) -> dict[str, Any]:
        return {"groups": len(raw)}

    bench = make(idle_ttl=1000, functions=GroupFunctions(get_group_data_meta_info=figures))
    await bench.fill("used", [1, 0, 1, 0])
    batch = await bench.buffer.take()
    assert batch is not None
    await bench.buffer.ack(batch)
    await bench.fill("used", [1] * 5)  # late: all but the four that it has
    await bench.fill("too few", [1], round_number=2)
    bench.advance(301)
    await bench.buffer.sweep()
    keys = bench.redis.keys(bench.key("*").replace("[", "\\["))
    assert bench.key("raw").encode() in keys
    assert [key for key in keys if bench.redis.pttl(key) == -1] == []


@pytest.mark.parametrize("how", ["configured", "requeued", "written"])
async def test_a_task_that_wakes_forgets_nothing(make: Make, how: str) -> None:
    bench = await gone_idle(make)
    if how == "configured":
        await bench.buffer.configure(TaskConfig(group_size=4))
    elif how == "requeued":
        assert await bench.buffer.catalog.requeue("a")
    else:
        await bench.fill("b", [1])
    for part in ("config", "state", "rounds", "delivered", "ready"):
        assert bench.redis.ttl(bench.key(part)) in (-1, -2), part


async def test_what_is_known_of_an_open_group_outlives_its_items(make: Make) -> None:
    bench = make(idle_ttl=1000)
    await bench.fill("a", [1])
    items, meta = (bench.redis.pttl(bench.key(f"group:a:0{part}")) for part in ("", ":meta"))
    assert 0 < items < meta


async def test_large_items_are_kept_compressed_and_read_back_whole(make: Make) -> None:
    bench = make(group_size=1, dialect="v1")
    text = "step by step " * 20_000
    await bench.buffer.write(item("a", "u", 1, text=text))
    assert bench.redis.hstrlen(bench.key("group:a:0"), "u") < len(text) / 10
    batch = await bench.buffer.take()
    assert batch is not None
    assert batch.items[0]["text"] == text


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ([], "a JSON object"),
        ({}, "no instance_id"),
        ({"instance_id": None}, "no instance_id"),
        ({"instance_id": ""}, "empty"),
        ({"instance_id": True}, "string or an integer"),
        ({"instance_id": 1.5}, "string or an integer"),
        ({"instance_id": "x" * 1025}, "longer than"),
        ({"instance_id": "\ud800"}, "surrogate"),
        ({"instance_id": "a", "uid": []}, "uid"),
        ({"instance_id": "a", "reward": math.nan}, "not JSON"),
        ({"instance_id": "a", "reward": math.inf}, "not JSON"),
        ({"instance_id": "a", "reward": 10**400}, "out of range"),
        ({"instance_id": "a", "reward": -1e151}, "out of range"),
        ({"instance_id": "a", "extra": {1, 2}}, "not JSON"),
        ({"instance_id": "a", "round_number": -1}, "round_number"),
        ({"instance_id": "a", "round_number": "2"}, "round_number"),
    ],
)
async def test_what_could_never_be_trained_on_is_refused(
    bench: Bench, given: Any, reason: str
) -> None:
    with pytest.raises(ItemRefused, match=reason):
        await bench.buffer.write(given)
    await bench.fill("a", [1, 0, 1, 0])
    assert await bench.buffer.take() is not None


async def test_two_hundred_levels_are_stored_and_read_back(bench: Bench) -> None:
    deep: list[Any] = []
    for _ in range(198):
        deep = [deep]
    await bench.fill("a", [1, 0, 1, 0], deep=deep, flat=[[]] * 500)
    batch = await bench.buffer.take()
    assert batch is not None
    assert batch.items[0]["deep"] == deep
    with pytest.raises(ItemRefused, match="200 levels"):
        await bench.buffer.write(item("a", "u", deep=[deep]))


@pytest.mark.parametrize(
    "name", ["a b", "{a}", "}{", "é\u4e2d\U0001f600", "a:b:0:meta", "x\x00y", "\n", "*", 7]
)
async def test_odd_ids_come_back_as_they_were(bench: Bench, name: str | int) -> None:
    for n in range(4):
        await bench.buffer.write(item(name, f"{name}{n}", n % 2))
    batch = await bench.buffer.take()
    assert batch is not None
    assert batch.finished_groups == [name]
    assert {found["instance_id"] for found in batch.items} == {name}
    assert {found["uid"] for found in batch.items} == {f"{name}{n}" for n in range(4)}
    await bench.buffer.ack(batch)


class _Problem(str, Enum):  # noqa: UP042 - as programs of before StrEnum have it
    FIRST = "first"


async def test_a_member_of_an_enum_is_the_id_that_json_makes_of_it(bench: Bench) -> None:
    assert await bench.buffer.write(item(_Problem.FIRST, _Problem.FIRST)) == "stored"
    assert await bench.buffer.write(item("first", "first")) == "repeated"
    (found,) = await bench.buffer.catalog.groups("open")
    assert (found.instance_id, found.items) == ("first", 1)


def test_the_sync_face_does_the_same(bench: Bench) -> None:
    face = bench.buffer.sync
    outcomes = face.write_many([item("a", f"u{n}", n % 2) for n in range(4)])
    assert outcomes == [Outcome.STORED] * 4
    batch = face.take(wait=5)
    assert batch is not None
    face.ack(batch)
    assert face.catalog.stats()["consumed"] == 1
    face.close()


async def test_rewards_are_counted_by_tenths_as_they_are_stored(bench: Bench) -> None:
    rewards = [1, 1.0, 0, -0.0, 0.7, 0.70001, -1, -5, 3, 0.05]
    await bench.buffer.write_many([item(f"g{n}", "u", r) for n, r in enumerate(rewards)])
    await bench.buffer.write(item("g0", "u", 1))  # known already
    await bench.buffer.write({"instance_id": "g0", "uid": "unrated", "messages": []})
    counted = zip(REWARD_STEPS, await bench.buffer.catalog.rewards(), strict=True)
    assert {step: n for step, n in counted if n} == {
        "-1.0": 2, "0.0": 2, "0.1": 1, "0.7": 1, "0.8": 1, "1.0": 2, "+Inf": 1,
    }  # fmt: skip
    await bench.buffer.reset()
    assert sum(await bench.buffer.catalog.rewards()) == 0


async def test_a_batch_has_at_most_the_bytes_that_its_reader_wants(make: Make) -> None:
    bench = make(group_size=2)
    for n in range(4):
        await bench.fill(f"g{n}", [1, 0], text="x" * 5_000)
        bench.advance(1)
    sizes = []
    while batch := await bench.buffer.take(max_bytes=22_000):
        sizes.append(len(batch.groups))
        await bench.buffer.ack(batch)
    assert sizes == [2, 2]
    await bench.fill("large", [1, 0], text="x" * 50_000)
    batch = await bench.buffer.take(max_bytes=1)
    assert batch is not None
    assert len(batch.groups) == 1, "or it would never be taken"
    with pytest.raises(ValueError, match="at least 1 byte"):
        await bench.buffer.take(max_bytes=0)


async def test_what_comes_out_invalid_takes_no_bytes_of_a_batch(make: Make) -> None:
    bench = make(group_size=2)
    for n, rewards in enumerate(([1, 1], [1, 0], [1, 1], [1, 0])):
        await bench.fill(f"g{n}", rewards, text="x" * 5_000)
        bench.advance(1)
    batch = await bench.buffer.take(max_bytes=22_000)
    assert batch is not None
    assert [name for name, _ in batch.groups] == ["g1", "g3"]


@pytest.mark.parametrize("text", ["\u00e9", "\ud83d"])
async def test_every_delivered_batch_is_dumped(
    redis: ground.Client, tmp_path: Path, text: str
) -> None:
    settings = BufferSettings(dump_rollouts=tmp_path / "dumped")
    buffer = RolloutBuffer(redis, "math", TaskConfig(group_size=2), settings=settings)
    await buffer.write_many([item("a", f"u{n}", n, answer=text) for n in range(2)])
    batch = await buffer.take()
    assert batch is not None
    (file,) = (tmp_path / "dumped").iterdir()
    assert json.loads(file.read_text()) == batch.items
    await buffer.aclose()


async def test_quarantine_has_a_share_of_the_room_and_the_oldest_go(make: Make) -> None:
    def fails(_: Any) -> Any:
        raise KeyError("always")

    bench = make(
        group_size=2, max_bytes=80_000, functions=GroupFunctions(normalize_group_data=fails)
    )
    for n in range(20):
        await bench.fill(f"g{n}", [1, 0], text="x" * 1_000)
        assert await bench.buffer.take() is None
    stats = await bench.buffer.catalog.stats()
    left = stats["quarantined_groups"]
    assert 2 <= left < 10
    assert stats["quarantine_bytes"] <= 20_000
    assert stats["quarantine_dropped"] == 20 - left
    names = {found.instance_id for found in await bench.buffer.catalog.quarantined()}
    assert names == {f"g{n}" for n in range(20 - left, 20)}
    assert await bench.buffer.unreported() == [f"g{n}" for n in range(20 - left)]
    assert bench.redis.exists(*(bench.key(f"group:g{n}:0") for n in range(20 - left))) == 0
    for name in names:
        assert await bench.buffer.catalog.requeue(name)
    assert "quarantine_bytes" not in await bench.buffer.catalog.stats()
    assert bench.redis.llen(bench.key("quarantined")) == 0


async def test_without_a_server_a_reader_forgets_old_marks(make: Make) -> None:
    bench = make(group_size=2, done_max=5)
    for n in range(30):
        await bench.fill(f"g{n}", [1, 0])
        batch = await bench.buffer.take()
        assert batch is not None
        await bench.buffer.ack(batch)
    assert bench.redis.zcard(bench.key("delivered")) == 5


async def test_the_last_to_leave_lets_an_idle_task_expire(make: Make) -> None:
    bench = make(group_size=2)
    await bench.fill("a", [1, 0])
    await bench.buffer.aclose()
    assert bench.redis.ttl(bench.key("config")) == -1, "it has a group"
    batch = await bench.buffer.take()
    assert batch is not None
    await bench.buffer.ack(batch)
    await bench.buffer.aclose()
    keys = bench.redis.keys(bench.key("*"))
    assert [key for key in keys if bench.redis.ttl(key) == -1] == []


async def test_discarded_groups_are_reported_in_the_order_in_which_they_ended(make: Make) -> None:
    bench = make(group_size=2)
    for n in range(6):
        await bench.fill(f"g{n}", [1])
        bench.advance(1)
    bench.advance(301)
    await bench.buffer.sweep()
    assert await bench.buffer.unreported() == [f"g{n}" for n in range(6)]


async def test_a_batch_reports_a_thousand_groups_and_the_next_one_the_rest(make: Make) -> None:
    bench = make(group_size=2)
    await bench.buffer.write_many([item(f"d{n}", "u") for n in range(1200)])
    bench.advance(301)
    await bench.buffer.sweep(limit=2000)
    told = []
    for name in ("a", "b"):
        await bench.fill(name, [1, 0])
        batch = await bench.buffer.take()
        assert batch is not None
        await bench.buffer.ack(batch)
        told += batch.discarded
        assert len(batch.discarded) == (1000 if name == "a" else 200)
    assert sorted(told) == sorted(f"d{n}" for n in range(1200))


async def test_reports_that_nobody_takes_are_bounded(make: Make) -> None:
    bench = make(group_size=2, done_max=3)
    for n in range(6):
        await bench.fill(f"g{n}", [1])
        bench.advance(301)
        await bench.buffer.sweep()
    assert await bench.buffer.unreported() == ["g3", "g4", "g5"]


class Tensor:
    """What numpy's numbers and arrays, and tensors, have in common."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def tolist(self) -> Any:
        return self.value


async def test_numbers_of_numpy_and_tensors_are_what_their_lists_are(make: Make) -> None:
    bench = make(group_size=2, dialect="v1")
    more = {"tokens": Tensor([1, 2, 3]), "deep": {"x": [Tensor(1)]}}
    for n in range(2):
        await bench.buffer.write({**item("", f"u{n}"), "instance_id": Tensor(7),
                                  "reward": Tensor(float(n)), **more})  # fmt: skip
    batch = await bench.buffer.take()
    assert batch is not None
    assert batch.finished_groups == [7]
    assert [one["reward"] for one in batch.items] == [0.0, 1.0]
    assert batch.items[0]["tokens"] == [1, 2, 3]
    assert batch.items[0]["deep"] == {"x": [1]}
    assert batch.figures["avg_reward"] == 0.5
    with pytest.raises(ItemRefused, match="not JSON"):
        await bench.buffer.write(item("a", "u", Tensor(math.nan)))
    with pytest.raises(ItemRefused, match="not JSON"):
        await bench.buffer.write(item("a", "u", object()))


async def test_half_a_surrogate_pair_is_text_as_it_is_over_http(make: Make) -> None:
    bench = make(group_size=2)
    await bench.buffer.write_many([item("a", f"u{n}", n, text="\ud800") for n in range(2)])
    batch = await bench.buffer.take()
    assert batch is not None
    assert {one["text"] for one in batch.items} == {"\ud800"}


async def test_no_round_follows_the_last_one(make: Make) -> None:
    bench = make(group_size=1, dialect="v1")
    assert await bench.buffer.write(item("a", "u0", round_number=2**53 - 2)) is Outcome.STORED
    assert await bench.buffer.write(item("a", "u1")) is Outcome.STORED
    assert await bench.buffer.write(item("a", "u2")) is Outcome.SURPLUS
    bench.advance(10_000)
    assert await bench.buffer.write(item("a", "u3")) is Outcome.SURPLUS
    assert [g.round for g in await bench.buffer.catalog.groups("ready")] == [2**53 - 2, 2**53 - 1]


async def test_a_repeat_among_new_items_does_not_change_how_many_there_are(bench: Bench) -> None:
    items = [item("q", f"q-{n}", n % 2) for n in range(4)]
    await bench.buffer.write(items[1])
    outcomes = await bench.buffer.write_many(items)
    assert outcomes == [Outcome.STORED, Outcome.REPEATED, Outcome.STORED, Outcome.STORED]
    batch = await bench.buffer.take()
    assert batch is not None
    assert len(batch.items) == 4
