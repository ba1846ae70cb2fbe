"""Random schedules of a trainer and its generators, against the contract in plain Python.

After every step what is outstanding is what the model says, the bound holds, and no more is
admitted or taken than its formulas allow.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Any

import fakeredis
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ground
from buffer import Batch, Policy, RolloutBuffer, Slot, SlotLost, TaskConfig
from buffer.group_functions import GroupFunctions
from ground.redis.url import RedisTarget
from tests.buffer.conftest import Bench, item
from tests.harness.cluster import Cluster

SIZE, G, K, D, ATTEMPTS, LEASE = 2, 2, 2, 1, 3, 60
CONFIG = TaskConfig(group_size=SIZE, lease=10_000, group_timeout_seconds=100_000, retain=86_400)

n_th = st.integers(0, 5)
steps = st.one_of(
    st.tuples(st.just("admit"), st.integers(1, 5)),
    st.tuples(st.just("admit"), st.integers(1, 5)),
    st.tuples(st.just("write"), n_th, st.integers(1, SIZE), st.integers(0, 2)),
    st.tuples(st.just("write"), n_th, st.just(SIZE), st.just(0)),
    st.tuples(st.just("fill"), n_th),
    st.tuples(st.just("end"), n_th, st.booleans()),
    st.tuples(st.just("park"), n_th),
    st.tuples(st.just("die")),
    st.tuples(st.just("take"), st.integers(1, G)),
    st.tuples(st.just("take"), st.just(G)),
    st.tuples(st.sampled_from(["ack", "release"]), n_th),
    st.tuples(st.just("publish"), st.integers(1, 2), st.booleans()),
    st.tuples(st.just("publish"), st.just(1), st.just(False)),
    st.tuples(st.just("back"), st.integers(1, 3)),
    st.tuples(st.just("set"), st.integers(0, 3), st.integers(0, 1)),
    st.tuples(st.just("wait_long")),
    st.tuples(st.just("reset")),
)


@dataclass(frozen=True)
class Rules:
    """What a schedule is played under."""

    when_old: str
    order: str = "old"
    judged: bool = False  # a custom is_valid_group says when a group is finished
    lost: bool = False  # the reply of every call is lost once, so that it is repeated

    def policy(self, when_old: str, max_age: int) -> Policy:
        return Policy(
            groups_per_version=G, max_age=max_age, depth=min(D, max_age), when_old=when_old,
            order=self.order, attempts=ATTEMPTS, slot_lease=LEASE, longest=1e6,
        )  # fmt: skip


@dataclass
class Group:
    """One prompt's group, from its slot to the trainer; `state` is where it stands."""

    start: int
    state: str  # slot, open, whole, parked, again, ready, leased, used, kept, gone
    made: bool = True  # by a slot
    items: int = 0
    parts: bool = False
    attempt: int = 1
    order: int = 0
    under: tuple[int, int] = (0, 0)  # (publication, version) it was taken under
    target: int | None = None  # the version that it is for, with the order `batch`

    @property
    def has_data(self) -> bool:
        return self.items > 0 or self.parts


class Model:
    """The contract, with a dict."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.when_old = rules.when_old
        self.max_age = K
        self.version = self.top = 10
        self.publication = 1
        self.taken = 0
        self.saved: int | None = None
        self.groups: dict[str, Group] = {}
        self.targets: Counter[int] = Counter()
        self.ticks = 0  # what one step brings about has one time; its order is then by name

    def outstanding(self) -> Counter[int]:
        return Counter(group.start for group in self.groups.values() if group.state in UNDER_WAY)

    def admit(self, n: int, fresh: list[str]) -> list[str]:
        parked = sorted((g.start, gid) for gid, g in self.groups.items() if g.state == "parked")
        again = sorted((g.order, gid) for gid, g in self.groups.items() if g.state == "again")
        depth = min(D, self.max_age)
        free = max(0, (depth + 1) * G - self.taken - self.outstanding().total())
        found = [gid for _, gid in parked][:n]
        while len(found) < n and free:
            free -= 1
            if again:
                gid = again.pop(0)[1]
                self.groups[gid].start = self.version
            else:
                gid = fresh.pop(0)
                self.groups.setdefault(gid, Group(self.version, "slot"))
            found.append(gid)
        for gid in found:
            self.groups[gid].state = "open" if self.groups[gid].has_data else "slot"
            self.groups[gid].made = True
            self.aim(self.groups[gid])
        return found

    def aim(self, group: Group) -> None:
        if self.rules.order != "batch" or group.target is not None:
            return
        last = self.version + min(D, self.max_age)
        group.target = next((v for v in range(self.version, last) if self.targets[v] < G), last)
        self.targets[group.target] += 1

    def lose_aim(self, group: Group) -> None:
        if group.target is not None:
            self.targets[group.target] -= 1
            group.target = None

    def retarget(self) -> None:
        if self.rules.order != "batch":
            return
        self.targets = Counter({self.version: self.taken})
        alive = [
            (self.place(group), gid)
            for gid, group in self.groups.items()
            if group.state in (*UNDER_WAY, "again")
        ]
        groups = [self.groups[gid] for _, gid in sorted(alive)]
        for group in groups:
            group.target = None
        for group in groups:
            self.aim(group)

    def write(self, gid: str, n: int, lag: int) -> None:
        group = self.groups[gid]
        group.items, group.state = group.items + n, "open"
        group.start = min(group.start, self.version - lag)
        if group.items >= SIZE:
            group.parts = False
            group.state = "whole"
            if not self.rules.judged:
                self.finish(group)

    def finish(self, group: Group) -> None:
        group.state, group.order = "ready", self.ticks
        if self.too_old(group):
            self.end_too_old(group)

    def end(self, gid: str, *, back: bool, lapsed: bool = False) -> None:
        group = self.groups[gid]
        group.made = False
        if not group.has_data:
            if back or lapsed:
                self.again(group, tried=int(lapsed))
            else:
                group.state = "gone"
                self.lose_aim(group)
        elif back or lapsed or group.parts:
            group.state = "parked"

    def again(self, group: Group, *, tried: int) -> None:
        group.attempt += tried
        group.items, group.parts = 0, False
        over = group.attempt > ATTEMPTS and self.when_old != "wait"
        group.state = "gone" if over else "again"
        group.order = self.ticks
        if over:
            self.lose_aim(group)

    def too_old(self, group: Group) -> bool:
        return group.start < self.version - self.max_age and self.when_old not in ("keep", "mask")

    def end_too_old(self, group: Group) -> None:
        if self.when_old == "drop":
            group.state = "gone"
            self.lose_aim(group)
        else:
            self.again(group, tried=1)

    def may_take(self, start: int) -> int:
        room = G - self.taken
        if self.when_old != "wait" or self.rules.order == "batch":
            return room
        older = self.outstanding()
        for s in (s for s in older if s < start):
            sum_ = sum(n for other, n in older.items() if other <= s)
            room = min(room, (max(s + self.max_age - self.version, 0) + 1) * G - self.taken - sum_)
        return room

    def take(self, n: int) -> list[str]:
        found: list[str] = []
        self.judge()
        ready = sorted(
            ((self.place(g), g.order, gid) for gid, g in self.groups.items() if g.state == "ready"),
            reverse=self.rules.order == "fresh",
        )
        for place, _, gid in ready:
            early = self.rules.order == "batch" and place > self.version
            if len(found) == n or early or self.may_take(place) < 1:
                break
            group = self.groups[gid]
            group.state, group.under = "leased", (self.publication, self.version)
            self.taken += 1
            found.append(gid)
        return found

    def place(self, group: Group) -> int:
        return group.start if group.target is None else group.target

    def judge(self) -> None:
        for group in self.groups.values():
            if group.state == "whole":
                self.finish(group)

    def give_back(self, gid: str) -> None:
        group = self.groups[gid]
        group.state = "ready"
        if group.under[0] == self.publication:
            self.taken -= 1
        if self.too_old(group):
            self.end_too_old(group)

    def publish(self, by: int, *, save: bool) -> None:
        self.version += by
        self.top = max(self.top, self.version)
        self.publication += 1
        self.taken = 0
        if save or self.saved is None:
            self.saved = self.version
        for target in [target for target in self.targets if target < self.version]:
            del self.targets[target]
        self._end_all_too_old()

    def _end_all_too_old(self) -> None:
        for group in self.groups.values():
            if group.state in UNDER_WAY and self.too_old(group):
                self.end_too_old(group)

    def back(self, version: int) -> None:
        self.version = version
        self.publication += 1
        self.taken = 0
        for group in self.groups.values():
            under_now = group.under[1] >= version
            if group.state in ("leased", "used", "kept") and under_now:
                group.state = "ready"
            if group.state in (*UNDER_WAY, "leased"):
                group.start = min(group.start, version)
        self.saved = min(version if self.saved is None else self.saved, version)
        self.retarget()
        self._end_all_too_old()

    def set(self, when_old: str, max_age: int) -> None:
        self.when_old, self.max_age = when_old, max_age
        self.retarget()
        self._end_all_too_old()

    def time_out(self) -> None:
        """Groups that nobody makes, and that wait for no slot, have too few items by now."""
        for group in self.groups.values():
            if group.state == "open" and not group.made:
                group.state = "gone"
                self.lose_aim(group)

    def reset(self) -> None:
        self.groups.clear()
        self.targets.clear()
        self.taken, self.saved, self.top = 0, None, self.version


UNDER_WAY = ("slot", "open", "whole", "parked", "ready")
schedules = st.lists(steps, min_size=10, max_size=60)
policies = st.builds(
    lambda how, judged, lost: Rules(*how, judged, lost),
    st.sampled_from([
        ("wait", "old"), ("wait", "old"), ("drop", "old"), ("again", "old"), ("keep", "old"),
        ("mask", "old"), ("drop", "fresh"), ("mask", "fresh"), ("again", "fresh"),
        ("wait", "batch"), ("wait", "batch"), ("again", "batch"), ("drop", "batch"),
        ("keep", "batch"),
    ]),
    st.booleans(),
    st.booleans(),
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(policies, schedules)
def test_every_schedule_keeps_the_contract(rules: Rules, schedule: list[Any]) -> None:
    asyncio.run(_on_fake(rules, schedule))


@pytest.mark.soak
@pytest.mark.timeout(3600)
@settings(max_examples=2000, deadline=None)
@given(policies, schedules)
def test_thousands_of_schedules_keep_it(rules: Rules, schedule: list[Any]) -> None:
    asyncio.run(_on_fake(rules, schedule))


LONG: list[Any] = [
    step
    for version in range(6)
    for step in (
        ("admit", 4), ("fill", 0), ("write", 0, 1, 1), ("end", 0, False), ("admit", 2), ("park", 0),
        ("fill", 1), ("die",), ("take", 2), ("ack", 0), ("publish", 1, version == 2),
        ("end", 0, True), ("set", 1 + version % 3, version % 2),
        *([("back", 2)] if version == 4 else []),
        *([("wait_long",)] if version in (1, 5) else []),
        *([("reset",)] if version == 3 else []),
    )
]  # fmt: skip
RULES = [
    Rules("wait"), Rules("wait", judged=True, lost=True), Rules("drop", lost=True),
    Rules("again", "fresh"), Rules("keep", judged=True), Rules("mask", lost=True),
    Rules("wait", "batch", lost=True),
]  # fmt: skip


@pytest.mark.parametrize("rules", RULES, ids=str)
async def test_a_long_schedule_keeps_it_on_a_server(real_redis: Any, rules: Rules) -> None:
    await Play(real_redis, real_redis, rules).run(LONG)


@pytest.mark.parametrize("rules", RULES[1:3], ids=str)
async def test_a_long_schedule_keeps_it_on_a_cluster(redis_cluster: Cluster, rules: Rules) -> None:
    client = ground.connect(redis_cluster.target)
    await Play(client, redis_cluster.target, rules).run(LONG)
    client.close()


def _finished(group: Any, least: int, task: str) -> tuple[bool, bool]:
    whole = len(group[1]) >= least
    return whole, whole


async def _on_fake(rules: Rules, schedule: list[Any]) -> None:
    options = {"server": fakeredis.FakeServer()}
    target = RedisTarget("fake", (("fake", 0),), options=options)
    client = ground.connect(target)
    await Play(client, target, rules).run(schedule)
    client.close()


class Play:
    """One schedule, on the scripts and on the model."""

    def __init__(self, client: Any, where: Any, rules: Rules) -> None:
        functions = GroupFunctions(is_valid_group=_finished) if rules.judged else None
        self.buffer = RolloutBuffer(where, "math", CONFIG, functions=functions)
        self.bench, self.model, self.rules = Bench(client, self.buffer), Model(rules), rules
        self.slots: dict[str, Slot] = {}
        self.batches: dict[str, tuple[Batch, list[str]]] = {}
        self.prompts = 0
        self.played: list[Any] = []
        if rules.lost:
            self._lose_replies()

    def _lose_replies(self) -> None:
        call = self.buffer._task.call

        async def twice(script: str, *args: Any) -> Any:
            await call(script, *args)
            return await call(script, *args)

        self.buffer._task.call = twice  # type: ignore[method-assign]

    async def run(self, schedule: list[Any]) -> None:
        await self.buffer.set_policy(self.rules.policy(self.rules.when_old, K))
        await self.buffer.publish(10, saved=10)
        self.model.saved = 10
        for what, *arguments in schedule:
            self.model.ticks += 1
            self.played.append((what, *arguments))
            await getattr(self, what)(*arguments)
            self.bench.advance(0.005)  # no two groups finish in one millisecond
            await self.buffer.sweep()
            await self.assert_alike()
        await self.buffer.aclose()

    async def assert_alike(self) -> None:
        now, model = await self.buffer.versions(), self.model
        expected = {model.version - start: n for start, n in model.outstanding().items()}
        assert now.version == model.version
        assert now.taken == model.taken
        assert {age: n for age, n in now.outstanding.items() if n} == expected, self.played
        states = Counter(group.state for group in model.groups.values())
        assert (now.parked, now.again) == (states["parked"], states["again"])
        assert sum(now.ready.values()) == states["ready"]

    def held(self, n: int) -> str | None:
        """The n-th slot that somebody makes, in both worlds."""
        live = [gid for gid in self.slots if self.alive(gid)]
        return live[n] if n < len(live) else None

    async def admit(self, n: int) -> None:
        groups = self.model.groups
        loose = [gid for gid in groups if groups[gid].state == "open" and not groups[gid].made]
        fresh = loose[:1] + [f"g{number:03}" for number in range(self.prompts, self.prompts + n)]
        self.prompts += n
        found = await self.buffer.admit(n, instances=fresh)
        expected = self.model.admit(n, list(fresh))
        assert [slot.instance_id for slot in found] == expected
        for slot in found:
            group = self.model.groups[str(slot.instance_id)]
            assert (slot.start, slot.missing) == (group.start, SIZE - group.items)
            assert (slot.attempt, bool(slot.partial)) == (group.attempt, group.parts)
            self.slots[str(slot.instance_id)] = slot

    async def write(self, n: int, items: int, lag: int) -> None:
        gid = self.held(n)
        if gid is None:
            return
        group = self.model.groups[gid]
        items = min(items, SIZE - group.items)
        said = [
            item(gid, f"{gid}-{group.items + k}", group.items + k,
                 version_end=self.model.top, version_start=self.model.version - lag)
            for k in range(items)
        ]  # fmt: skip
        self.model.write(gid, items, lag)
        try:
            await self.buffer.write_many(said, slot=self.slots[gid])
        except (
            SlotLost
        ):  # it ended with the first call, as its group was too old: by now it is over
            assert self.rules.lost
            assert group.state == "again"

    async def fill(self, n: int) -> None:
        await self.write(n, SIZE, 0)

    async def end(self, n: int, back: bool) -> None:
        if gid := self.held(n):
            await self.slots[gid].end(back=back)
            self.model.end(gid, back=back)
            await self.refused(gid)

    async def park(self, n: int) -> None:
        if gid := self.held(n):
            start = min(10, self.model.top)
            await self.slots[gid].park([item(gid, f"{gid}-1", None, version_start=start)])
            self.model.groups[gid].start = min(self.model.groups[gid].start, start)
            self.model.groups[gid].parts = True
            self.model.groups[gid].state, self.model.groups[gid].made = "parked", False
            if self.model.groups[gid].start > self.model.version:
                self.model.groups[gid].start = self.model.version
            await self.refused(gid)

    async def refused(self, gid: str) -> None:
        """Who wrote under a slot that is over is told, and changes nothing."""
        with pytest.raises(SlotLost):
            await self.buffer.write(item(gid, "late", 0), slot=self.slots.pop(gid))

    async def die(self, seconds: float = LEASE + 1) -> None:
        """All generators do."""
        live = sorted((int(self.slots[gid].fence), gid) for gid in self.slots if self.alive(gid))
        self.bench.advance(seconds)
        await self.buffer.sweep()
        for _, gid in live:
            self.model.end(gid, back=True, lapsed=True)
        self.slots.clear()

    def alive(self, gid: str) -> bool:
        group = self.model.groups.get(gid)
        return group is not None and group.state in ("slot", "open") and group.made

    async def take(self, n: int) -> None:
        batch = await self.buffer.take(n)
        expected = self.model.take(n)
        assert ([] if batch is None else [name for name, _ in batch.groups]) == expected
        if batch is not None:
            assert batch.version == self.model.version
            if self.model.when_old not in ("keep", "mask"):
                assert max(batch.ages) <= self.model.max_age
            self.batches[batch.receipt] = (batch, expected)

    async def ack(self, n: int) -> None:
        if n < len(self.batches):
            batch, gids = self.batches.pop(list(self.batches)[n])
            if self.model.groups[gids[0]].state != "leased":
                return
            await self.buffer.ack(batch)
            for gid in gids:
                saved = self.model.saved
                unsaved = saved is not None and self.model.groups[gid].under[1] >= saved
                self.model.groups[gid].state = (
                    "used" if unsaved else "kept" if saved is None else "gone"
                )

    async def release(self, n: int) -> None:
        if n < len(self.batches):
            batch, gids = self.batches.pop(list(self.batches)[n])
            if self.model.groups[gids[0]].state != "leased":
                return
            await self.buffer.release(batch)
            for gid in gids:
                self.model.give_back(gid)

    async def set(self, max_age: int, other: int) -> None:
        """The policy changes while it is in force."""
        ways = [self.rules.when_old, "keep" if self.rules.order == "fresh" else "wait"]
        await self.buffer.set_policy(self.rules.policy(ways[other], max_age))
        self.model.set(ways[other], max_age)

    async def wait_long(self) -> None:
        """Nobody comes for longer than any lease and any group's time."""
        if self.rules.judged:
            await self.buffer.available()
            self.model.judge()
        self.model.time_out()
        await self.die(100_001)
        for _, gids in self.batches.values():
            for gid in gids:
                if self.model.groups[gid].state == "leased":
                    self.model.give_back(gid)
        for group in self.model.groups.values():
            group.state = "gone" if group.state == "kept" else group.state
        self.batches.clear()

    async def reset(self) -> None:
        await self.buffer.reset()
        self.model.reset()
        self.slots.clear()
        self.batches.clear()

    async def publish(self, by: int, save: bool) -> None:
        version = self.model.version + by
        await self.buffer.publish(version, saved=version if save else None)
        self.model.publish(by, save=save)
        if save:
            for group in self.model.groups.values():
                if group.state == "used" and group.under[1] < version:
                    group.state = "gone"

    async def back(self, by: int) -> None:
        """The trainer begins again at an earlier version, from its newest checkpoint on."""
        version = max(self.model.version - by, self.model.saved or 0)
        if version < self.model.version:
            await self.buffer.publish(version)
            self.model.back(version)
            self.batches = {
                receipt: found
                for receipt, found in self.batches.items()
                if self.model.groups[found[1][0]].state == "leased"
            }
