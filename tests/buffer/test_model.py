"""Random schedules against a model of what the documents promise, in plain Python.

Two readers and any writers, on one task, while time passes in jumps. After every step
each group is where the model says; at the end every stored item is accounted for.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import fakeredis
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import ground
from buffer import LeaseLost, Outcome, RolloutBuffer, TaskConfig
from ground.redis.url import RedisTarget
from tests.buffer.conftest import Bench, item

SIZE, TIMEOUT, LEASE, LATE = 3, 290, 250, 130  # no sum of the jumps of 100 s is a limit
ROOM = 5  # groups
CONFIG = TaskConfig(
    group_size=SIZE, group_timeout_seconds=TIMEOUT, lease=LEASE, late_window=LATE,
    max_buffer_size=ROOM * SIZE, min_timeout_group_size_ratio=0.6, retain=10_000, grace=10_000,
)  # fmt: skip

writes = st.tuples(
    st.just("write"),
    st.sampled_from("abc"),
    st.integers(0, 7),
    st.sampled_from([0, 1]),
    st.sampled_from([None, None, 0, 1, 2]),
)
steps = st.one_of(
    writes, writes, writes, writes,
    st.tuples(st.just("advance"), st.integers(1, 4)),
    st.tuples(st.just("take"), st.integers(1, 3)),
    st.tuples(st.sampled_from(["ack", "release"]), st.integers(0, 5)),
)  # fmt: skip


@dataclass
class Group:
    state: str = "open"
    items: list[tuple[str, int]] = field(default_factory=list)
    last: tuple[float, int] = (0, 0)
    finished: float = 0
    order: int = 0
    closed: float = 0
    timed_out: bool = False

    def has(self, uid: str) -> bool:
        return any(uid == known for known, _ in self.items)


class Model:
    """The promises, with a dict and a clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.groups: dict[str, Group] = {}
        self.rounds: dict[str, int] = {}
        self.leases: dict[int, tuple[float, list[str], list[str]]] = {}
        self.released: set[int] = set()
        self.unreported: list[str] = []
        self.ticks = 0

    def write(self, name: str, uid: str, reward: int, number: int | None) -> Outcome:
        newest = self.rounds.get(name, 0)
        gid = f"{name}:{newest if number is None else number}"
        group = self.groups.get(gid)
        if number is None and group and self.is_past(group):
            newest = self.rounds[name] = newest + 1
            gid, group = f"{name}:{newest}", None
        before = self.groups.get(f"{name}:{newest - 1}") if number is None else None
        if number is not None:
            self.rounds[name] = max(newest, number)
        # A group that is named knows its items as long as they are kept, which is longer than here.
        if (group and group.has(uid)) or (before and not self.is_past(before) and before.has(uid)):
            return Outcome.REPEATED
        if number is None and group and len(group.items) >= SIZE:
            self.rounds[name] = newest + 1
            gid, group = f"{name}:{newest + 1}", None
        if group and self.is_closed(group):
            return Outcome.LATE
        if group is None:
            if sum(not self.is_gone(other) for other in self.groups.values()) >= ROOM:
                return Outcome.FULL
            group = self.groups[gid] = Group()
        if len(group.items) >= SIZE:
            return Outcome.SURPLUS
        group.items.append((uid, reward))
        if group.state == "open":
            self.ticks += 1
            group.last = (self.now, self.ticks)
            if len(group.items) >= SIZE:
                self.finish(group)
        return Outcome.STORED

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for gid, group in sorted(self.groups.items(), key=lambda pair: pair[1].last):
            if group.state == "open" and self.now - group.last[0] > TIMEOUT:
                if len(group.items) / SIZE >= 0.6:
                    group.timed_out = True
                    self.finish(group)
                else:
                    self.discard(gid, "expired")
        for lease in [n for n, (ends, _, _) in self.leases.items() if ends <= self.now]:
            self.give_back(lease)

    def take(self, lease: int, want: int) -> tuple[list[str], list[str]]:
        """Groups are claimed, oldest first, and judged then: in the place of one that is invalid
        the oldest that is left is claimed, which comes last in the batch."""
        taken: list[str] = []
        while claimed := self.claim(taken, want - len(taken)):
            for gid in claimed:
                group = self.groups[gid]
                if group.timed_out or len({reward for _, reward in group.items}) > 1:
                    group.state, group.closed = "leased", self.now
                    taken.append(gid)
                else:
                    self.discard(gid, "invalid")
        told: list[str] = []
        if taken:
            told, self.unreported = self.unreported, []
            self.leases[lease] = (self.now + LEASE, taken, told)
        return taken, told

    def claim(self, taken: list[str], want: int) -> list[str]:
        """Never two rounds of one instance at once."""
        ready = [gid for gid, group in self.groups.items() if group.state == "ready"]
        found: list[str] = []
        for gid in sorted(ready, key=self.place):
            if len(found) < want and gid[0] not in {one[0] for one in (*taken, *found)}:
                found.append(gid)
        return found

    def place(self, gid: str) -> tuple[float, int, str]:
        group = self.groups[gid]
        return group.finished, group.order, gid

    def ack(self, lease: int) -> bool:
        if lease not in self.leases:
            return False
        for gid in self.leases.pop(lease)[1]:
            self.groups[gid].state, self.groups[gid].closed = "consumed", self.now
        return True

    def release(self, lease: int) -> bool:
        """Repeating it is harmless."""
        if lease in self.leases:
            self.give_back(lease)
            self.released.add(lease)
        return lease in self.released

    def give_back(self, lease: int) -> None:
        _, gids, told = self.leases.pop(lease)
        for gid in gids:
            self.groups[gid].state = "ready"
        self.unreported += told

    def finish(self, group: Group) -> None:
        self.ticks += 1
        group.state, group.finished, group.order = "ready", self.now, self.ticks

    def discard(self, gid: str, state: str) -> None:
        group = self.groups[gid]
        group.state, group.closed = state, self.now
        self.unreported.append(gid[0])

    def is_past(self, group: Group) -> bool:
        return self.is_closed(group) and self.now - group.closed > LATE

    def is_closed(self, group: Group) -> bool:
        return group.state not in ("open", "ready") or group.closed > 0

    @staticmethod
    def is_gone(group: Group) -> bool:
        return group.state in ("consumed", "invalid", "expired")


schedules = st.lists(steps, min_size=5, max_size=60)


# An invalid group is replaced by a later round of its instance, older than the next group.
REPLACED: list[Any] = [
    *(("write", "a", uid, 0, 0) for uid in range(3)),
    *(("write", "a", uid, uid % 2, 1) for uid in range(3, 6)),
    *(("write", "b", uid, uid % 2, 0) for uid in range(3)),
    ("take", 2),
]

# A repeat that names its round, after the late window.
REPEATED: list[Any] = [
    ("write", "a", 0, 0, None), ("advance", 3), ("advance", 2), ("write", "a", 0, 0, 0),
]  # fmt: skip


# A batch is given back twice, and once more after its lease would have ended.
GIVEN_BACK: list[Any] = [
    *(("write", "a", uid, uid % 2, None) for uid in range(3)),
    ("take", 1), ("release", 0), ("release", 0), ("advance", 3), ("release", 0), ("take", 1),
    ("advance", 3), ("release", 1),
]  # fmt: skip


@settings(max_examples=25, deadline=None)
@example(REPLACED)
@example(REPEATED)
@example(GIVEN_BACK)
@given(schedules)
def test_every_schedule_ends_as_the_model_says(schedule: list[Any]) -> None:
    asyncio.run(_play(schedule))


@pytest.mark.soak
@pytest.mark.timeout(3600)
@settings(max_examples=3000, deadline=None)
@given(schedules)
def test_thousands_of_schedules_do(schedule: list[Any]) -> None:
    asyncio.run(_play(schedule))


async def _play(schedule: list[Any]) -> None:
    options = {"server": fakeredis.FakeServer()}
    target = RedisTarget("fake", (("fake", 0),), options=options)
    client = ground.connect(target)
    bench, model = Bench(client, RolloutBuffer(target, "math", CONFIG)), Model()
    await bench.buffer.config()
    receipts: list[str] = []
    for step in schedule:
        await _step(bench, model, receipts, *step)
        bench.advance(0.005)  # no two groups finish in one millisecond: order is then by name
        await bench.buffer.sweep()
        await _assert_alike(bench, model)
    await _assert_accounted(bench, model)
    await bench.buffer.aclose()
    client.close()


async def _step(
    bench: Bench, model: Model, receipts: list[str], what: str, *arguments: Any
) -> None:
    if what == "write":
        name, uid, reward, number = arguments
        found = item(name, f"u{uid}", reward, round_number=number)
        entry_outcomes = await _write(bench, found)
        assert entry_outcomes == model.write(name, f"u{uid}", reward, number)
    elif what == "advance":
        bench.advance(arguments[0] * 100)
        model.pass_time(arguments[0] * 100)
    elif what == "take":
        batch = await bench.buffer.take(arguments[0])
        gids, told = model.take(len(receipts), arguments[0])
        if batch is None:
            assert gids == []
            return
        receipts.append(batch.receipt)
        assert [name for name, _ in batch.groups] == [gid[0] for gid in gids]
        assert sorted(batch.discarded) == sorted(told)
        assert all(len(items) == SIZE for _, items in batch.groups)
    elif arguments[0] < len(receipts):
        await _end(bench, model, what, arguments[0], receipts)


async def _write(bench: Bench, found: dict[str, Any]) -> Outcome:
    from buffer.item import entry_of

    outcomes, _ = await bench.buffer.write_entries([entry_of(found, 1 << 20)])
    return outcomes[0]


async def _end(bench: Bench, model: Model, what: str, lease: int, receipts: list[str]) -> None:
    if what == "release":
        assert await bench.buffer.release(receipts[lease]) == model.release(lease)
        return
    acked_before = lease not in model.leases and await _consumed(bench, receipts[lease])
    try:
        await bench.buffer.ack(receipts[lease])
    except LeaseLost:
        assert not model.ack(lease)
    else:
        assert model.ack(lease) or acked_before


async def _consumed(bench: Bench, receipt: str) -> bool:
    return bool(bench.redis.hget(bench.key(f"batch:{receipt}"), "state") == b"consumed")


async def _assert_alike(bench: Bench, model: Model) -> None:
    for state in ("open", "ready", "leased"):
        found = {
            f"{g.instance_id}:{g.round}": g.items for g in await bench.buffer.catalog.groups(state)
        }
        assert found == {
            gid: len(group.items) for gid, group in model.groups.items() if group.state == state
        }, state
    assert sorted(await bench.buffer.unreported()) == sorted(model.unreported)


async def _assert_accounted(bench: Bench, model: Model) -> None:
    stats = await bench.buffer.catalog.stats()
    live = [
        g for state in ("open", "ready", "leased") for g in await bench.buffer.catalog.groups(state)
    ]
    gone = sum(stats.get(f"{end}_items", 0) for end in ("consumed", "invalid", "expired"))
    assert stats.get("stored", 0) == sum(group.items for group in live) + gone
    assert stats.get("bytes", 0) == sum(group.bytes for group in live)
