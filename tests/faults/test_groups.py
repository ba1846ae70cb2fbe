"""A script of a buffer may stop at any of its calls: each item is in one group, which ends."""

import asyncio
import contextlib
import json
import re
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from string import ascii_lowercase
from typing import Any
from zlib import crc32

import pytest

from buffer import LeaseLost, Policy, RolloutBuffer, SlotLost, TaskConfig
from buffer.group_functions import GroupFunctions
from buffer.settings import BufferSettings
from buffer.task import Task, enter, tidied_tasks
from buffer.versions.slots import Slot
from ground.lua import load_script
from tests.architecture.source import ROOT
from tests.buffer.conftest import item
from tests.harness.lua_faults import (
    EVERY,
    SEED,
    Faulty,
    FaultyLink,
    Injected,
    commands_of,
    every_script,
    faults_of,
    saying,
)

KINDS = ("plain", "custom", "wait", "again", "drop", "batch")
SECOND = 1_000_000
LEASE, TIMEOUT, SLOT = 600.0, 300.0, 60.0
CONFIG = TaskConfig(
    group_size=2, group_timeout_seconds=TIMEOUT, min_timeout_group_size_ratio=0.5, lease=LEASE,
    retain=86400, grace=86400, idle_ttl=86400 * 30, max_bytes=10**6, late_window=1,
)  # fmt: skip
SETTINGS = BufferSettings.load()
Step = Callable[["Office"], Any]


def is_valid(group: Any, *_: Any) -> tuple[bool, bool]:
    """As a task's own function: of a group called `bad…` it has no opinion, but an error."""
    instance, items = group
    if str(instance).startswith("bad"):
        raise RuntimeError("no opinion")
    return len(items) >= 2 and not str(instance).startswith("poor"), len(items) >= 2


FUNCTIONS = GroupFunctions(is_valid_group=is_valid)


class Office:
    """A task, the process that uses it, and another one that does what is left."""

    def __init__(self, faulty: Faulty, kind: str, runner: asyncio.Runner) -> None:
        self.faulty, self.kind, self._runner = faulty, kind, runner
        self.has_policy = kind in ("wait", "again", "drop", "batch")
        self.link = FaultyLink(faulty)
        self.begin()

    def begin(self) -> None:
        self.faulty.begin()
        functions = FUNCTIONS if self.kind == "custom" else None
        self.buffer, self.other = (
            RolloutBuffer(self.link, "t", CONFIG, functions=functions, settings=SETTINGS)
            for _ in range(2)
        )
        self.task = Task(self.link, "default", "t")
        self.asked: Counter[str] = Counter()  # written items that were acknowledged, by group
        self.used: Counter[str] = Counter()  # how often a group was acknowledged by a trainer
        self.told: Counter[str] = Counter()  # finished without items, as a trainer heard
        self.requeued: set[str] = (
            set()
        )  # by a person, or for a trainer that begins again: they come once more
        self.taken: set[str] = set()
        self.noted: set[str] = set()  # receipts
        self.batch: Any = None
        self.batches: list[Any] = []  # that a trainer had
        self.slots: list[Slot] = []
        self.version = 0
        self.run(self.buffer.config())
        if self.has_policy:
            self.run(self.buffer.set_policy(self.policy(4)))
            self.run(self.buffer.publish(0, saved=0))

    def policy(self, groups: int) -> Policy:
        order = "batch" if self.kind == "batch" else "old"
        when_old = "again" if self.kind == "batch" else self.kind
        return Policy(
            groups_per_version=groups, max_age=1, when_old=when_old, order=order,  # type: ignore[arg-type]
            slot_lease=SLOT, attempts=50,
        )  # fmt: skip

    def run(self, call: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(call)

    def key(self, part: str) -> str:
        return self.task.key(part)

    # What its processes do

    def write(self, *names: str, slot: Slot | None = None) -> None:
        """Items by name: `a1` is the first of instance `a`; `b` is both of `b`."""
        rows = [
            (name.rstrip("0123456789"), int(n))
            for name in names
            for n in (name.lstrip("abcdefghijklmnopqrstuvwxyz-") or "01")
        ]
        items = [item(group, f"{group}{n}", n % 2) for group, n in rows]
        self.run(self.buffer.write_many(items, slot=slot))
        self.asked.update(f"{group}" for group, _ in rows)

    def take(self, groups: int | None = 2, **how: Any) -> None:
        self.batch = self.run(self.buffer.take(groups, **how))
        if self.batch is not None:
            self.batches.append(self.batch)
            self.taken.update(str(instance) for instance, _ in self.batch.groups)

    def ack(self) -> None:
        if self.batch is not None:
            self.run(self.buffer.ack(self.batch))
            self.note(self.batch)

    def note(self, batch: Any) -> None:
        if batch.receipt in self.noted:
            return
        self.noted.add(batch.receipt)
        self.used.update(str(instance) for instance, _ in batch.groups)
        self.told.update(str(instance) for instance in batch.discarded)

    def fetch(self) -> None:
        self.run(self.buffer.fetch(self.batch.receipt))

    def release(self) -> None:
        if self.batch is not None:
            self.run(self.buffer.release(self.batch))

    def extend(self) -> None:
        if self.batch is not None:
            self.run(self.buffer.extend(self.batch, 700))

    def take_implicitly(self) -> None:
        """What was handed out in full counts as used by the next read."""
        self.take(1, implicit=True)

    def handed(self) -> None:
        if self.batch is not None:
            self.run(self.buffer.handed(self.batch))

    def sweep(self) -> None:
        self.run(self.buffer.sweep())

    def serve(self) -> None:
        self.run(self.buffer.sweep(serving=True))

    def requeue(self) -> None:
        for name in ("a", "b", "bad", "poor"):
            self.requeued.add(name)
            self.run(self.buffer.catalog.requeue(name))

    def forget_used(self) -> None:
        for name in ("a", "b"):
            self.asked.pop(name, None)
            self.run(self.buffer._task.call("forget_group", f"{name}:0"))

    def reset(self) -> None:
        self.forget_all()
        self.run(self.buffer.reset())

    def forget_all(self) -> None:
        for counts in (self.asked, self.used, self.told, self.taken):
            counts.clear()

    def configure(self) -> None:
        changed = CONFIG.model_copy(update={"group_size": 1})
        self.run(self.buffer.configure(changed))

    def change_policy(self) -> None:
        self.run(self.buffer.set_policy(self.policy(5)))

    def publish(self, version: int, **how: Any) -> None:
        self.run(self.buffer.publish(version, saved=0, **how))
        self.version = version

    def admit(self, n: int = 2, *names: str) -> None:
        self.slots = self.run(self.buffer.admit(n, instances=names or ("s", "t"), ask="f" * 32))

    def queue_up(self) -> None:
        """One more than there is room for waits in the line."""
        args = ["e" * 32, "somebody", 50, 60_000]
        self.run(self.buffer._task.call("grant_slots", *args))

    def leave_line(self) -> None:
        self.run(self.buffer._task.call("grant_slots", "e" * 32, "somebody", 0, 0))

    def write_under_slots(self) -> None:
        for slot in self.slots:
            self.write(str(slot.instance_id), slot=slot)

    def park(self, *, go_on: bool = False) -> None:
        for slot in self.slots:
            name = str(slot.instance_id)
            self.run(slot.park([item(name, f"{name}0", 0, segment=1)], go_on=go_on))

    def end_slots(self, *, back: bool = True) -> None:
        for slot in self.slots:
            self.run(slot.end(back=back))

    def renew(self) -> None:
        self.run(self.buffer.slots.renew([(slot.id, slot.fence) for slot in self.slots]))

    def look(self) -> None:
        self.run(self.buffer.available())
        self.run(self.buffer.versions())

    def catch_up(self) -> None:
        self.faulty.client.hset(self.key("policy"), "todo", "adopt_open 0")
        self.run(self.buffer._task.call("catch_up", ""))

    def waits_for(self) -> None:
        self.run(self.buffer._task.call("waits_for", 10))

    def rollout(self) -> None:
        rollout = [self.key("rollout")]
        for name, args in (
            ("hire", ["me", 1000, "digest", "payload", 0]),
            ("enter", ["me", 1000, "digest", "running"]),
            ("watch", ["me", 1000, "", 1, 0]),
            ("enter", ["me", 1000, "digest", "finished"]),
        ):
            self.faulty.run(load_script("buffer", name).command(rollout, args))

    def tidy(self) -> None:
        self.run(enter(self.link, "default", "expired"))
        self.run(tidied_tasks(self.link, "default"))

    def time_passes(self, seconds: float = LEASE + 100) -> None:
        """A server lives all the while, if one was there: without one the task's clock stops."""
        self.faulty.now += int(seconds * SECOND)
        if self.faulty.client.hexists(self.key("state"), "beat"):
            self.faulty.client.hset(self.key("state"), "beat", self.faulty.now // 1000)

    # What is left of it

    def nothing_is_lost(self) -> None:
        """Each item that was acknowledged is in its group, and the group in an index."""
        for name in self.asked - self.used - self.told:
            assert self.places(name), f"{name} is in no place"

    def places(self, name: str) -> list[str]:
        redis, gid = self.faulty.client, f"{name}:0"
        found = [
            part
            for part in ("open", "ready", "leased", "kept", "parked", "again", "used", "undone")
            if redis.zscore(self.key(part), gid) is not None
        ]
        slot = redis.hget(self.task.meta_key(gid), "slot")
        if slot and redis.zscore(self.key("slots"), slot) is not None:
            found.append("slots")
        return found

    def go_on(self) -> None:
        """The first process is dead. Another one sweeps, generates and trains until all is done."""
        for _ in range(4):
            self.time_passes()
            self.run(self.other.sweep(serving=True))
            if self.has_policy:
                last = self.faulty.client.hget(self.key("policy"), "version")
                self.version = max(self.version, int(last or 0)) + 1
                self.run(self.other.publish(self.version, saved=0, lead=True))
                self.generate()
            for _ in range(20):
                batch = self.run(self.other.take(4))
                if batch is None:
                    break
                self.run(self.other.ack(batch))
                self.note(batch)
            self.run(self.other.sweep(serving=True))

    def generate(self) -> None:
        for slot in self.run(self.other.admit(8)):
            if slot.instance_id is None:
                self.run(slot.end())
                continue
            name = str(slot.instance_id)
            items = [item(name, f"{name}{n}", n) for n in (0, 1)]
            self.run(self.other.write_many(items, slot=slot))
            self.run(slot.end())

    def everything_has_ended(self) -> None:
        redis = self.faulty.client
        for batch in self.batches:  # its trainer may not have had the answer to its ack
            if redis.hget(self.task.batch_key(batch.receipt), "state") == b"consumed":
                self.note(batch)
        self.told.update(map(str, self.run(self.other.unreported())))
        for name in self.requeued:
            self.used[name] = min(self.used[name], 1)
            if self.used[name]:
                self.told.pop(name, None)
        quarantined = {
            str(info.instance_id)
            for info in self.run(self.other.catalog.quarantined())
            if info.state == "quarantined"
        }
        for name in self.asked:
            ends = [self.used[name] > 0, self.told[name] > 0, name in quarantined]
            assert sum(ends) == 1, (
                f"{name} was used {self.used[name]} times, told {self.told[name]} times, "
                f"in quarantine: {name in quarantined}; it is in {self.places(name)}"
            )
        twice = [name for name, n in (self.used + self.told).items() if n > 1]
        assert not twice, f"{twice} came twice"
        for part in BUSY:
            assert not redis.exists(self.key(part)), f"{part} has {self.content(part)}"

    def content(self, part: str) -> str:
        kind = self.faulty.client.type(self.key(part))
        return str(READ[kind](self.faulty.client, self.key(part)))

    def counts_are_true(self) -> None:
        """Counters equal what is there, beside a group that is open and one that is ready."""
        redis = self.faulty.client
        self.run(self.other.write_many([item("y", "y0", 0), item("z", "z0", 0), item("z", "z1")]))
        self.run(self.other.sweep(serving=True))
        there = [
            gid
            for part in ("open", "ready", "leased")
            for gid in redis.zrange(self.key(part), 0, -1)
        ]
        metas = [self.task.meta_key(gid.decode()) for gid in there]
        held = sum(int(redis.hget(meta, "bytes") or 0) for meta in metas)
        state = redis.hgetall(self.key("state"))
        assert int(state.get(b"bytes", 0)) == held, f"bytes: {state}"
        if self.has_policy:
            starts = {start: int(n) for start, n in redis.hgetall(self.key("starts")).items()}
            found = Counter(redis.hget(self.task.meta_key(gid.decode()), "start") for gid in there)
            assert starts == dict(found), "outstanding"
        used, quarantined = (
            redis.zrange(self.key("used"), 0, -1),
            redis.hkeys(self.key("quarantine")),
        )
        assert int(state.get(b"used_bytes", 0)) == self.bytes_of(used), "used_bytes"
        there = [
            gid
            for gid in quarantined
            if redis.hget(self.task.meta_key(gid.decode()), "state") == b"quarantined"
        ]
        assert int(state.get(b"quarantine_bytes", 0)) == self.bytes_of(there), "quarantine_bytes"

    def all_of_it_expires(self) -> None:
        """Once what is closed was kept for as long as it is, nothing stays for good."""
        redis = self.faulty.client
        self.time_passes(CONFIG.idle_ttl + 1)
        for _ in range(3):
            self.run(self.other.sweep(serving=True))
        live = {
            key
            for part in ("open", "ready", "leased", "used")
            for gid in map(bytes.decode, redis.zrange(self.key(part), 0, -1))
            for key in (self.task.group_key(gid), self.task.meta_key(gid))
        }
        stay = [
            key
            for key in map(bytes.decode, redis.keys(f"{self.task.root}:*:*"))
            if key not in live and redis.ttl(key) == -1
        ]
        assert not stay, f"{stay} have no TTL"

    def fields_are_in_the_reference(self) -> None:
        page = (ROOT / "docs" / "reference" / "keys.md").read_text().partition("## Rollout buffer")
        known = set(re.findall(r"`(\w+)`", page[2])) | set(
            Policy(groups_per_version=1, max_age=1).to_redis()[::2]
        )
        for part in ("policy", "group:*:meta", "slot:*", "batch:*"):
            for key in self.faulty.client.keys(f"{self.task.root}:{part}"):
                if self.faulty.client.type(key) == b"hash":
                    fields = set(map(bytes.decode, self.faulty.client.hkeys(key)))
                    assert fields <= known, f"{key} has {fields - known}"

    def bytes_of(self, gids: list[bytes]) -> int:
        metas = [self.task.meta_key(gid.decode()) for gid in gids]
        return sum(int(self.faulty.client.hget(meta, "bytes") or 0) for meta in metas)


READ = {
    b"zset": lambda redis, key: {
        gid: redis.hgetall(key.rpartition(":")[0] + f":group:{gid.decode()}:meta")
        for gid in redis.zrange(key, 0, -1)
    },
    b"hash": lambda redis, key: redis.hgetall(key),
}
BUSY = (
    "open", "changed", "ready", "leased", "leases", "slots", "starts", "aged", "parked", "again",
    "targeted", "waiting", "asks", "undone", "aiming",
)  # fmt: skip


def nothing(office: Office) -> None:
    pass


def filled(office: Office) -> None:
    office.write("a", "b", "c", "h1")


def taken(office: Office) -> None:
    filled(office)
    office.take()


def handed(office: Office) -> None:
    taken(office)
    office.handed()
    office.note(office.batch)


def used(office: Office) -> None:
    taken(office)
    office.ack()


def no_more_kept(office: Office) -> None:
    used(office)
    office.faulty.client.delete(*map(office.task.group_key, ("a:0", "b:0")))


def overdue(office: Office) -> None:
    taken(office)
    office.time_passes()


def idle(office: Office) -> None:
    used(office)
    office.go_on()


def quarantined(office: Office) -> None:
    office.write("bad", "poor", "a")
    office.take(1)


def slotted(office: Office) -> None:
    filled(office)
    office.admit()


def parked(office: Office) -> None:
    slotted(office)
    office.park()
    office.slots = []


def lapsed(office: Office) -> None:
    slotted(office)
    office.park(go_on=True)
    office.time_passes(SLOT + 1)


def aged(office: Office) -> None:
    slotted(office)
    office.park(go_on=True)
    office.publish(1)


def waited(office: Office) -> None:
    slotted(office)
    office.queue_up()


def trained(office: Office) -> None:
    used(office)
    office.publish(1)
    office.take(1)


def resume(office: Office) -> None:
    """What was trained on since is to be trained on again."""
    office.requeued |= office.used.keys()
    office.publish(0)


def begin_anew(office: Office) -> None:
    office.forget_all()
    office.version = 0
    office.run(office.buffer.publish(0, fresh=True))


STORIES: dict[str, tuple[Step, Step]] = {
    "write": (nothing, filled),
    "write the rest": (filled, lambda office: office.write("h0", "d")),
    "take": (filled, Office.take),
    "take what is invalid": (lambda office: office.write("e0", "e2", "a"), Office.take),
    "take some bytes": (filled, lambda office: office.take(2, max_bytes=1)),
    "take as the trainer of old": (handed, Office.take_implicitly),
    "take what is overdue": (overdue, Office.take),
    "ack": (taken, Office.ack),
    "release": (taken, Office.release),
    "extend": (taken, Office.extend),
    "fetch": (taken, Office.fetch),
    "requeue": (used, Office.requeue),
    "forget what is kept no more": (no_more_kept, Office.forget_used),
    "requeue what failed": (quarantined, Office.requeue),
    "judge": (lambda office: office.write("bad", "poor", "a"), Office.take),
    "sweep": (overdue, Office.sweep),
    "serve": (overdue, Office.serve),
    "serve an idle task": (idle, Office.serve),
    "write into an idle task": (idle, lambda office: office.write("i")),
    "look": (filled, Office.look),
    "reset": (taken, Office.reset),
    "configure": (filled, Office.configure),
    "rollout": (nothing, Office.rollout),
    "tidy": (nothing, Office.tidy),
}
# Those of a task with a policy on versions.
VERSIONED: dict[str, tuple[Step, Step]] = {
    "admit": (filled, Office.admit),
    "admit what was parked": (parked, Office.admit),
    "wait in line": (slotted, Office.queue_up),
    "leave the line": (waited, Office.leave_line),
    "write under slots": (slotted, Office.write_under_slots),
    "park": (slotted, Office.park),
    "park and go on": (slotted, lambda office: office.park(go_on=True)),
    "end slots": (slotted, Office.end_slots),
    "give slots back": (slotted, lambda office: office.end_slots(back=False)),
    "renew": (slotted, Office.renew),
    "sweep what lapsed": (lapsed, Office.serve),
    "publish": (slotted, lambda office: office.publish(1)),
    "publish what makes some too old": (aged, lambda office: office.publish(2)),
    "resume": (trained, resume),
    "begin a new run": (trained, begin_anew),
    "change the policy": (slotted, Office.change_policy),
    "catch up": (slotted, Office.catch_up),
    "waits for": (slotted, Office.waits_for),
}


def stories(kind: str) -> dict[str, tuple[Step, Step]]:
    return STORIES if kind in ("plain", "custom") else STORIES | VERSIONED


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.mark.parametrize("again", [False, True], ids=["once", "and is repeated"])
@pytest.mark.parametrize("story", STORIES | VERSIONED)
@EVERY
def test_a_script_that_stops_at_any_call_loses_no_item(
    faulty: Faulty, runner: asyncio.Runner, every: int, story: str, again: bool
) -> None:
    kinds = [kind for kind in KINDS if story in stories(kind)]
    for kind in kinds if every == 1 else [kinds[(SEED + crc32(story.encode())) % len(kinds)]]:
        office, (before, step) = Office(faulty, kind, runner), stories(kind)[story]

        def begin(office: Office = office, before: Step = before) -> None:
            office.begin()
            before(office)

        def act(office: Office = office, step: Step = step) -> None:
            step(office)

        for number in faults_of(act, begin, faulty, every):
            with saying(f"{story} of {kind} stopped at call {number}"):
                if again:
                    with contextlib.suppress(LeaseLost, SlotLost):
                        step(office)
                office.nothing_is_lost()
                office.go_on()
                office.everything_has_ended()
                office.counts_are_true()
                office.all_of_it_expires()


@pytest.mark.parametrize("kind", KINDS)
def test_all_of_it_ends_if_no_script_stops(
    faulty: Faulty, runner: asyncio.Runner, kind: str
) -> None:
    office = Office(faulty, kind, runner)
    for story, (before, step) in stories(kind).items():
        with saying(story):
            office.begin()
            before(office)
            step(office)
            office.fields_are_in_the_reference()
            office.nothing_is_lost()
            office.go_on()
            office.everything_has_ended()
            office.counts_are_true()
            office.fields_are_in_the_reference()
            office.all_of_it_expires()


def test_each_script_of_buffers_was_stopped(faulty: Faulty, runner: asyncio.Runner) -> None:
    for kind in ("custom", "again"):
        office = Office(faulty, kind, runner)
        for before, step in stories(kind).values():
            faulty.stop_each(2, office, before, step)
    assert {each.name for each in every_script("buffer").values()} - faulty.injected == set()


def test_what_could_not_be_written_of_a_thousand_groups_is_written_in_the_end(
    faulty: Faulty, runner: asyncio.Runner
) -> None:
    office = Office(faulty, "drop", runner)
    names = [one + other for one in "ab" for other in ascii_lowercase]
    for version, refused in ((2, "HINCRBY"), (4, "RPUSH")):
        faulty.fail(refused)
        for name in names:
            with contextlib.suppress(Injected):
                office.write(*(f"{refused.lower()}-{name}-{other}0" for other in names[:26]))
        for _ in range(20):  # each drops some that got too old
            with contextlib.suppress(Injected):
                office.publish(version)
    assert faulty.client.hget(office.key("state"), "owed")
    faulty.fail()
    office.publish(5)
    assert not faulty.client.hget(office.key("state"), "owed")
    stats = office.run(office.buffer.catalog.stats())
    many = 2 * 26 * len(names)
    assert (stats["stored"], stats["stale"], stats["unreported"]) == (many, many, many)
    assert stats["bytes"] == 0
    assert office.run(office.buffer.versions()).outstanding == {}


@pytest.mark.parametrize("kind", ["plain", "wait"])
def test_what_is_requeued_of_a_batch_whose_ack_stopped_comes_once_more(
    faulty: Faulty, runner: asyncio.Runner, kind: str
) -> None:
    """A person makes a group ready again between an ack that stopped and its repeat."""
    office, came = Office(faulty, kind, runner), 0

    def begin() -> None:
        office.begin()
        taken(office)

    for number in faults_of(office.ack, begin, faulty, 1):
        with saying(f"stopped at call {number}"):
            ready = [name for name in ("a", "b") if "kept" in office.places(name)]
            for name in ready:
                office.run(office.buffer.catalog.requeue(name))
            ready = [name for name in ready if "ready" in office.places(name)]
            office.ack()
            for name in ready:
                assert office.places(name) == ["ready"]
            stats = office.run(office.buffer.catalog.stats())
            assert (stats["consumed"], stats.get("requeued", 0)) == (2, len(ready))
            office.take(3)
            again = {str(instance) for instance, _ in office.batch.groups}
            assert set(ready) <= again
            came += len(ready)
    assert came, "some stop was between two groups"


def test_what_is_owed_names_no_more_groups_than_are_remembered(
    faulty: Faulty, runner: asyncio.Runner
) -> None:
    office = Office(faulty, "plain", runner)
    few = {"done_max": 3, "min_timeout_group_size_ratio": 1.0}
    office.run(office.buffer.configure(CONFIG.model_copy(update=few)))
    for name in ("ha", "hb", "hc", "hd", "he"):
        office.write(f"{name}0")
        office.time_passes(1)
    faulty.fail("RPUSH")
    tried(office, Office.time_passes, Office.sweep)
    faulty.fail()
    owed = json.loads(faulty.client.hget(office.key("state"), "owed"))
    assert [json.loads(name) for name in owed["reports"]] == ["hc", "hd", "he"]


def test_a_script_says_what_stopped_it_if_it_may_not_write_what_it_counted_either(
    faulty: Faulty, runner: asyncio.Runner
) -> None:
    office = Office(faulty, "plain", runner)
    office.write("a0")
    faulty.client.delete(office.task.group_key("a:0"))
    office.time_passes(TIMEOUT + 1)
    faulty.fail("ZADD HINCRBY HSET")
    with pytest.raises(Injected, match="ZADD"):
        office.sweep()


def test_what_redis_has_let_expire_costs_a_sweep_no_command_a_group(
    faulty: Faulty, runner: asyncio.Runner
) -> None:
    office = Office(faulty, "plain", runner)
    used(office)
    faulty.client.delete(*(office.task.group_key(f"{name}:0") for name in ("a", "b")))
    office.time_passes(CONFIG.retain + 1)
    faulty.fail("UNLINK PEXPIRE")
    office.run(office.buffer._task.call("sweep", 100, 0, 0))
    assert not faulty.client.exists(office.key("kept"))


def tried(office: Office, *steps: Step) -> None:
    """Each of them, whatever becomes of it."""
    for step in steps:
        with contextlib.suppress(Injected, LeaseLost, SlotLost):
            step(office)


LIFE: tuple[Step, ...] = (
    lambda office: office.write("a", "b", "c", "h1", "bad", "poor"),
    Office.take,
    Office.extend,
    Office.ack,
    lambda office: office.write("d", "h0", "k1"),
    lambda office: office.take(1),
    Office.release,
    Office.requeue,
    Office.sweep,
    lambda office: office.write("e0", "e2", "f"),
    Office.take_implicitly,
    Office.handed,
    lambda office: office.time_passes(TIMEOUT + 1),
    Office.serve,
    Office.take_implicitly,
    Office.look,
    lambda office: office.write("g"),
    Office.take,
    Office.time_passes,
    Office.serve,
    Office.take,
    Office.ack,
)
VERSIONED_LIFE: tuple[Step, ...] = (
    *LIFE,
    Office.admit,
    Office.queue_up,
    Office.park,
    lambda office: office.admit(2, "u", "v"),
    Office.renew,
    Office.write_under_slots,
    lambda office: office.admit(2, "w", "x"),
    lambda office: office.park(go_on=True),
    lambda office: office.publish(1),
    lambda office: office.end_slots(back=False),
    Office.leave_line,
    Office.change_policy,
    lambda office: office.admit(2, "l", "m"),
    Office.take,
    lambda office: office.publish(2),
    Office.ack,
    lambda office: office.time_passes(SLOT + 1),
    Office.serve,
    lambda office: office.publish(3),
    Office.take,
)


@pytest.mark.parametrize("command", commands_of("buffer"))
@EVERY
def test_after_a_command_was_refused_for_a_while_no_item_is_lost(
    faulty: Faulty, runner: asyncio.Runner, every: int, command: str
) -> None:
    """Its user lacks the right to it, from some step of a task's life on, and gets it back."""
    chosen = SEED + crc32(command.encode())
    for kind in KINDS if every == 1 else [KINDS[chosen % len(KINDS)]]:
        office = Office(faulty, kind, runner)
        life = VERSIONED_LIFE if office.has_policy else LIFE
        for begins in range(chosen % every, len(life), every):
            with saying(f"{command} is refused to {kind} from step {begins} on"):
                office.begin()
                tried(office, *life[:begins])
                faulty.fail(command)
                tried(office, *life[begins:])
                faulty.fail()
                office.nothing_is_lost()
                office.go_on()
                office.everything_has_ended()
                office.counts_are_true()
                office.all_of_it_expires()
