"""The library: slime's Rollout Buffer as an object, for trainers and agents in Python.

Invariant: an item stored is in one group. A group ends delivered and acknowledged, or is reported
as discarded, or is in quarantine with a reason.
"""

import asyncio
import contextlib
import functools
import math
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from buffer import traced
from buffer.batch import Batch
from buffer.catalog import Catalog
from buffer.default_functions import Item
from buffer.dump import dump
from buffer.errors import (
    BufferFull,
    ItemRefused,
    LeaseLost,
    NotAdmitted,
    SlotLost,
)
from buffer.group_functions import GroupFunctions
from buffer.item import Entry, entry_of
from buffer.link import Link
from buffer.reading.reader import Reader
from buffer.settings import BufferSettings, TaskConfig
from buffer.task import Task
from buffer.versions.policy import Policy
from buffer.versions.publishing import Published, Publishing, Versions
from buffer.versions.slots import Slot, Slots, Wish
from buffer.writer import Outcome, Writer
from ground import tracing
from ground.numbers import check_number
from ground.process import LoopThread
from ground.redis.connect import AnyRedis
from ground.settings import GroundSettings

_GAP = 10.0  # servers look every second; past this without any, its clock stops


class RolloutBuffer:
    """Groups of trajectories of one task, in one run.

        buffer = RolloutBuffer("redis://10.0.0.5", "math", TaskConfig(group_size=8))

        await buffer.write({"instance_id": "math_0", "messages": [...], "reward": 1.0})

        batch = await buffer.take(32, wait=60)      # up to 32 finished groups, or None
        train(batch.items)
        await buffer.ack(batch)                     # else they come back when the lease ends

    Methods are for coroutines; `buffer.sync` has them for code without an event loop.
    Nothing is asked of Redis before the first call. `buffer.catalog` shows the groups and
    the totals, and `buffer.slots` is for those who hold slots for others.

    config     written if the task has no settings; `configure` changes them. What it leaves out
               has the defaults of this process's settings
    run        a namespace, by default PENSTOCK_RUN: the same task of another run is another buffer
    functions  your own `is_valid_group` and the like, by slime's names
    settings   of this process; by default its environment's (PENSTOCK_…)
    """

    def __init__(
        self,
        redis: AnyRedis | Link,
        task: str = "math",
        config: TaskConfig | None = None,
        *,
        run: str | None = None,
        functions: GroupFunctions | None = None,
        settings: BufferSettings | None = None,
    ) -> None:
        self._settings = settings or BufferSettings.load()
        link = redis if isinstance(redis, Link) else Link(
            redis, patience=self._settings.redis_patience
        )  # fmt: skip
        run = run or GroundSettings.load().run
        config = config and self._settings.complete(config)
        self._task = Task(link, run, task, config=config, functions=functions)
        self._writer = Writer(self._task)
        self._reader = Reader(
            self._task,
            function_timeout=self._settings.function_timeout,
            longest_wait=self._settings.longest_wait,
        )
        self.catalog = Catalog(self._task)
        self.owner = uuid.uuid4().hex
        self.slots = Slots(self._task, self.owner, self._settings.max_item_bytes)
        self._publishing = Publishing(self._task)

    @property
    def task(self) -> str:
        return self._task.name

    @property
    def run(self) -> str:
        return self._task.run

    @property
    def sync(self) -> "SyncRolloutBuffer":
        """A face of the buffer for code without an event loop."""
        return SyncRolloutBuffer(self)

    async def config(self) -> TaskConfig:
        """The settings in force. `UnknownTask` where nobody configured the task."""
        return await self._task.config()

    async def configure(self, config: TaskConfig, asked: dict[str, Any] | None = None) -> None:
        """Put settings in force for every server and library.

        Those that were `asked` for, by default the ones that `config` was given, hold for later
        rollouts too: `/start_rollout` changes only what it names itself.
        """
        if asked is None:
            asked = config.model_dump(exclude_unset=True)
        config = self._settings.complete(config)
        await self.check_room(config)
        await self._task.enforce(config, asked)

    async def check_room(self, config: TaskConfig) -> None:
        """Raise `SettingError` if the policy lets more be under way than these settings have room
        for."""
        if policy := await self._publishing.policy():
            policy.check_room(config)

    async def begin(self, config: TaskConfig) -> None:
        """Put a rollout's settings in force; those that were asked for are kept for the next."""
        await self._task.enforce(config)

    async def asked(self) -> dict[str, Any]:
        """The settings that `/start_rollout` keeps unless it names them itself."""
        return await self._task.asked()

    async def set_policy(self, policy: Policy) -> None:
        """Bound how stale samples are; from the first `publish` on it holds. It may be changed
        at any time. `SettingError` if the buffer has no room for what it lets be under way."""
        policy.check_room(await self.config())
        await self._publishing.set_policy(policy)

    async def policy(self) -> Policy | None:
        """The policy in force, or None."""
        return await self._publishing.policy()

    async def publish(
        self, version: int, *, saved: int | None = None, lead: bool = False,
        owner: str | None = None, fresh: bool = False,
    ) -> Published:  # fmt: skip
        """Publish a version, once the engines have its weights.

        `saved` is the version of the oldest checkpoint that the trainer may go back to; by default
        the first version. Groups that were trained on since then are kept, and return when a
        trainer begins there again. A version lower than the last begins a new line.

        With `lead` this trainer takes over from another one, such as a crashed one. Without it,
        `TrainerReplaced` is raised if another one publishes. The trainer is this object, or
        `owner`. With `fresh` a new run begins: all groups and slots of the task are dropped before.
        """
        return await self._publishing.publish(
            version, saved, owner or self.owner, lead=lead, fresh=fresh
        )

    async def published(self, after: int, wait: float = 30.0) -> int:
        """Wait for a version other than `after`. Returns the last one in any case."""
        return await self._publishing.wait(after, wait)

    async def versions(self) -> Versions:
        """The version, what is under way by age, and what a take waits for."""
        return await self._publishing.versions()

    async def admit(
        self, n: int = 1, *, instances: Sequence[Wish] = (), wait: float = 0.0,
        owner: str | None = None, ask: str | None = None,
    ) -> list[Slot]:  # fmt: skip
        """Get up to n slots, one per group, as far as the policy has room.

        Waits in line up to `wait` seconds for the first one. Parked groups, and groups that must
        be generated again, come first. New slots are for the `instances`, ids or (id, round). End
        each slot that you do not fill. They are renewed here, unless an `owner` elsewhere does it.
        An ask that is repeated with its `ask`, 32 hexadecimal digits, gets the same slots.
        """
        return await self.slots.admit(n, instances, wait, owner, ask)

    @property
    def newest(self) -> int:
        """The newest version that an ask or a renewal returned here; -1 before the first."""
        return self.slots.version

    @contextlib.asynccontextmanager
    async def slot(
        self,
        instance_id: str | int | None = None,
        *,
        round_number: int | None = None,
        wait: float = 30.0,
    ) -> AsyncIterator[Slot]:
        """Hold one slot for the block; `NotAdmitted` if there is none in time. A block that fails
        gives its group to another generator."""  # fmt: skip
        slot = await self._one_slot(instance_id, round_number, wait)
        try:
            yield slot
        except BaseException:
            await slot.end(back=True)
            raise
        await slot.end()

    async def _one_slot(
        self, instance_id: str | int | None, round_number: int | None, wait: float
    ) -> Slot:
        wishes: list[Wish] = []
        if instance_id is not None:
            wishes = [instance_id if round_number is None else (instance_id, round_number)]
        found = await self.admit(1, instances=wishes, wait=wait)
        if not found:
            raise NotAdmitted(self.task, wait, self.slots.version)
        return found[0]

    async def write(self, item: Item, *, slot: Slot | None = None) -> Outcome:
        """Store one item; `ItemRefused` or `BufferFull` if it cannot be."""
        return (await self.write_many([item], slot=slot))[0]

    async def write_many(self, items: Iterable[Item], *, slot: Slot | None = None) -> list[Outcome]:
        """Store many in few round trips. If any found no room: `BufferFull`; repeat them all,
        those with a `uid` that were stored are not stored twice. Under a `slot` that is over:
        `SlotLost`."""
        if not tracing.on():
            return await self._write_many(items, slot)
        items = list(items)
        with traced.writing(self.task, len(items)):
            return await self._write_many(items, slot)

    async def _write_many(self, items: Iterable[Item], slot: Slot | None) -> list[Outcome]:
        limit = self._settings.max_item_bytes
        entries = [entry_of(item, limit) for item in items]
        if slot is not None:
            number = "" if slot.round is None else str(slot.round)
            entries = [
                entry._replace(slot=slot.id, fence=slot.fence, round=entry.round or number)
                for entry in map(slot.checked, entries)
            ]
        outcomes, wait = await self.write_entries(entries)
        if slot is not None:
            slot.note(outcomes.count(Outcome.STORED))
        self.check(outcomes, wait, slot.id if slot else "of the item")
        return outcomes

    def check(self, outcomes: Sequence[Outcome], wait: float, slot: str) -> None:
        """Raise what a writer must know."""
        if Outcome.FULL in outcomes:
            raise BufferFull(self.task, wait)
        if Outcome.LOST in outcomes:
            raise SlotLost(slot)
        if Outcome.UNPUBLISHED in outcomes:
            raise ItemRefused(
                "an item reports a version that no trainer has published: publish a version "
                "before the engines answer with it"
            )
        if Outcome.FOREIGN in outcomes:
            raise ItemRefused(
                f"an item of another instance than the one of slot {slot}: write it under the slot "
                "of its own instance, or without one"
            )

    async def write_entries(
        self, entries: Sequence[Entry], rollout: str = ""
    ) -> tuple[list[Outcome], float]:
        """Store entries that are checked already; with `FULL` ones, the seconds to wait as well.

        What a `rollout` sends is refused with `RolloutReplaced` once another was started.
        """
        outcomes, wait = await self._writer.write(entries, rollout)
        return outcomes, min(max(wait, 0.5), 30.0) if Outcome.FULL in outcomes else 0.0

    async def take(
        self,
        groups: int | None = None,
        *,
        wait: float = 0.0,
        lease: float | None = None,
        implicit: bool = False,
        max_bytes: int | None = None,
    ) -> Batch | None:
        """Take up to `groups` finished groups (default: all ready), oldest first, or None.

        The batch is leased for `lease` seconds: `ack` it, or it comes back. With `implicit` it
        is consumed by the next such take, once `handed` has said that it arrived. Its items have
        at most `max_bytes` as they are stored, unless its first group has more.
        """
        for least, what in ((groups, "group"), (max_bytes, "byte")):
            if least is not None and least < 1:
                raise ValueError(f"take at least 1 {what}, not {least}")
        if lease is not None:
            check_number("lease", lease, above=True)
        await self.check_take(groups)
        taking = self._reader.take(
            groups, wait=wait, lease=lease, implicit=implicit, max_bytes=max_bytes
        )
        if not tracing.on():
            batch = await taking
        else:
            with traced.taking(self.task) as taken:
                batch = await taking
                taken += [batch] if batch else []
        if batch is not None and self._settings.dump_rollouts is not None:
            await self._dump(batch, self._settings.dump_rollouts)
        return batch

    async def _dump(self, batch: Batch, folder: Path) -> None:
        try:
            await asyncio.to_thread(dump, batch, folder)
        except asyncio.CancelledError:  # nobody has its receipt
            await asyncio.shield(self.release(batch))
            raise

    async def check_take(self, groups: int | None) -> None:
        """Raise `SettingError` if the policy never lets this many groups go under one version."""
        if groups is None:
            return
        policy = await self._publishing.policy_at_hand()
        if policy and groups > policy.groups_per_version:  # it may have been raised since
            policy = await self._publishing.policy()
        if policy:
            policy.check_take(groups)

    async def ack(self, batch: Batch | str) -> None:
        """The batch was used. `LeaseLost` if it went back meanwhile; repeating is harmless."""
        receipt = _receipt(batch)
        with tracing.span(f"ack {self.task}", {"penstock.receipt": receipt}, kind="client"):
            if not await self._task.call_to_its_end("ack", receipt):
                raise LeaseLost(receipt)

    async def release(self, batch: Batch | str) -> bool:
        """Give a batch back at once; False if its lease has ended otherwise.
        Repeating is harmless."""
        return bool(await self._task.call_to_its_end("release", _receipt(batch)))

    async def extend(self, batch: Batch | str, seconds: float) -> None:
        """Lease the batch for that long from now."""
        check_number("seconds", seconds, above=True)
        await self._extend(_receipt(batch), math.ceil(seconds * 1000), handed=0)

    async def handed(self, batch: Batch | str) -> None:
        """The batch arrived in full at a reader that cannot acknowledge."""
        await self._extend(_receipt(batch), 0, handed=1)

    async def fetch(self, receipt: str) -> Batch:
        """The batch of a receipt, once more, while it is leased or retained. Your own functions are
        called again, and must give the same for the same items."""
        return await self._reader.fetch(receipt)

    async def available(self) -> int:
        """How many finished groups wait to be taken."""
        return await self._reader.available(1_000_000)

    async def wait_for(self, groups: int, seconds: float) -> None:
        """Wait until that many finished groups wait, or the time is over."""
        await self._reader.wait_for(groups, seconds)

    async def unreported(self) -> list[Any]:
        """Ids that finished without data since the last batch."""
        return await self._reader.unreported()

    async def told(self) -> dict[str, Any]:
        """The ids of those groups, with the figures of all that was written since; empty if there
        are none."""
        return await self._reader.told()

    async def sweep(self, *, serving: bool = False, limit: int = 1000) -> float:
        """Do what is due by now: groups time out, leases end. Returns in how many seconds
        something is due next (-1: nothing is).

        A server calls it every second with `serving`: that keeps the task's clock going.
        """
        done, due, _ = await self._task.call("sweep", limit, int(serving), int(_GAP * 1000))
        return 0.0 if done >= limit else int(due) / 1000 if due >= 0 else -1.0

    async def reset(self) -> None:
        """Begin a fresh run of the task: all its groups are dropped, the settings stay."""
        await self._task.forget()

    async def aclose(self) -> None:
        """Close the connections of this event loop. Slots that are still held are renewed no more.
        What is due is done first, once: without a server, the last to leave lets an idle task
        expire."""
        await self.slots.leave()
        await self._task.leave()
        await self._task.link.aclose()

    async def _extend(self, receipt: str, lease_ms: int, *, handed: int) -> None:
        if not await self._task.call("extend", receipt, lease_ms, handed):
            raise LeaseLost(receipt)


def _receipt(batch: Batch | str) -> str:
    return batch if isinstance(batch, str) else batch.receipt


P = ParamSpec("P")
R = TypeVar("R")
# Not the process's loop: a job that runs there may block on a buffer.
_loop = LoopThread("penstock-buffer")


def _blocking(
    call: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Any, P], R]:
    """The method of a sync face that does the same, with the same signature, and blocks."""

    @functools.wraps(call)
    def blocks(face: Any, /, *args: P.args, **options: P.kwargs) -> R:
        return _loop.run(call(face._of, *args, **options))

    return blocks


class SyncSlot:
    """A slot for code without an event loop; `slot.slot` is the one underneath."""

    def __init__(self, slot: Slot) -> None:
        self.slot = self._of = slot

    def __getattr__(self, name: str) -> Any:
        return getattr(self.slot, name)

    park = _blocking(Slot.park)
    end = _blocking(Slot.end)


class SyncCatalog:
    """The catalog for threads, as `buffer.sync.catalog` has it: its methods block."""

    def __init__(self, catalog: Catalog) -> None:
        self._of = catalog

    stats = _blocking(Catalog.stats)
    rewards = _blocking(Catalog.rewards)
    groups = _blocking(Catalog.groups)
    group = _blocking(Catalog.group)
    holding = _blocking(Catalog.holding)
    items = _blocking(Catalog.items)
    quarantined = _blocking(Catalog.quarantined)
    requeue = _blocking(Catalog.requeue)
    resume = _blocking(Catalog.resume)
    finished_rounds = _blocking(Catalog.finished_rounds)


class SyncRolloutBuffer:
    """The buffer for threads, as `buffer.sync` has it: its methods block the calling thread."""

    def __init__(self, buffer: RolloutBuffer) -> None:
        self._of = buffer
        self.catalog = SyncCatalog(buffer.catalog)
        self.task, self.run = buffer.task, buffer.run

    @property
    def newest(self) -> int:
        return self._of.newest

    config = _blocking(RolloutBuffer.config)
    configure = _blocking(RolloutBuffer.configure)
    set_policy = _blocking(RolloutBuffer.set_policy)
    policy = _blocking(RolloutBuffer.policy)
    publish = _blocking(RolloutBuffer.publish)
    published = _blocking(RolloutBuffer.published)
    versions = _blocking(RolloutBuffer.versions)
    take = _blocking(RolloutBuffer.take)
    ack = _blocking(RolloutBuffer.ack)
    release = _blocking(RolloutBuffer.release)
    extend = _blocking(RolloutBuffer.extend)
    fetch = _blocking(RolloutBuffer.fetch)
    available = _blocking(RolloutBuffer.available)
    wait_for = _blocking(RolloutBuffer.wait_for)
    unreported = _blocking(RolloutBuffer.unreported)
    sweep = _blocking(RolloutBuffer.sweep)
    reset = _blocking(RolloutBuffer.reset)
    close = _blocking(RolloutBuffer.aclose)

    # Slots are given, and taken, in their own sync face.

    def admit(
        self, n: int = 1, *, instances: Sequence[Wish] = (), wait: float = 0.0
    ) -> list[SyncSlot]:
        found = _loop.run(self._of.admit(n, instances=instances, wait=wait))
        return [SyncSlot(slot) for slot in found]

    @contextlib.contextmanager
    def slot(
        self,
        instance_id: str | int | None = None,
        *,
        round_number: int | None = None,
        wait: float = 30.0,
    ) -> Iterator[SyncSlot]:
        slot = SyncSlot(_loop.run(self._of._one_slot(instance_id, round_number, wait)))
        try:
            yield slot
        except BaseException:
            slot.end(back=True)
            raise
        slot.end()

    def write(self, item: Item, *, slot: SyncSlot | None = None) -> Outcome:
        return _loop.run(self._of.write(item, slot=slot.slot if slot else None))

    def write_many(self, items: Iterable[Item], *, slot: SyncSlot | None = None) -> list[Outcome]:
        return _loop.run(self._of.write_many(items, slot=slot.slot if slot else None))
