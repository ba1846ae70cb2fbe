"""Slots: leases to make one group each, renewed together while their holders live.

Invariant: a slot that is not renewed, or not ended, comes back by its lease.
"""

import asyncio
import contextlib
import json
import logging
import time
import uuid
import weakref
from collections.abc import Sequence
from typing import Any

from buffer.default_functions import Item
from buffer.errors import ItemRefused, SlotLost
from buffer.item import Entry, entry_of, instance_key, round_key
from buffer.link import deadline_in
from buffer.task import Task
from ground.lua import chunks
from ground.tasks import cancellations, ended, heed_cancellation

log = logging.getLogger(__name__)

_LOOK_AGAIN = 5.0  # a waiter that missed its bell looks again by itself
_LIVES = 10.0  # and is forgotten when it did not for so long
_MOST = 500  # slots in one renewal
_UNSETTLED = -2
Wish = str | int | tuple[str | int, int]


class Slot:
    """A lease to generate one group.

    instance_id  the group that it is for; None: choose one, it is bound by its first item
    round        its round
    start        the version that the group counts as begun under
    newest       the newest version that is known here
    late         only under `newest` may its group still be trained on: hurry
    lost         it is over, and another generator has its group: stop
    partial      what an interrupted generator parked of the group's items, to continue with
    missing      items that the group lacks
    attempt      1 for the first try of this group
    """

    def __init__(self, slots: "Slots", told: Sequence[bytes], newest: int, max_age: int) -> None:
        id_, fence, gid, id_json, start, attempt, missing, parts = (
            part.decode() if isinstance(part, bytes) else str(part) for part in told
        )
        self._slots = slots
        self.id = id_
        self.fence = fence
        self.instance_id: str | int | None = json.loads(id_json) if gid else None
        self.round: int | None = int(gid.rpartition(":")[2]) if gid else None
        self.start = int(start)
        self.newest = newest
        self.late = newest - self.start >= max_age
        self.lost = False
        self.partial: list[Item] = json.loads(parts)
        self.missing = int(missing)
        self.attempt = int(attempt)
        self.published = asyncio.Event()  # a version newer than `start` was

    async def park(self, items: Sequence[Item], *, go_on: bool = False) -> None:
        """Store what there is so far of these items; the next slot of the group gets them as
        `partial`. The slot ends with it, unless its holder continues."""
        try:
            await self._slots.park(self.id, self.fence, items, self.round, go_on=go_on)
        except SlotLost:
            self.lost = True
            raise
        if not go_on:
            self._slots.forget(self)

    async def end(self, *, back: bool = False) -> None:
        """End the slot. With `back`, another generator generates the missing items."""
        self._slots.forget(self)
        await self._slots.end([(self.id, self.fence)], back=back)

    def checked(self, entry: Entry) -> Entry:
        """An item of another group would be refused as if the slot were over."""
        if self.instance_id is not None and entry.id != str(self.instance_id):
            raise ItemRefused(
                f"an item of instance {entry.id!r:.100} under a slot for {self.instance_id!r:.100}"
            )
        return entry

    def note(self, stored: int) -> None:
        """Note that so many items of the group are stored."""
        self.missing = max(0, self.missing - stored)
        if not self.missing:
            self._slots.forget(self)

    def heard(self, version: int, state: int) -> None:
        """Take in what a renewal said."""
        self.newest = version
        self.late = self.late or state == 1
        self.lost = self.lost or state == 2
        if version > self.start:
            self.published.set()


class Slots:
    """The slots that one buffer object holds."""

    def __init__(self, task: Task, owner: str, max_bytes: int) -> None:
        self._task = task
        self._owner = owner
        self._max_bytes = max_bytes
        self._keepers: weakref.WeakKeyDictionary[Any, _Keeper] = weakref.WeakKeyDictionary()
        self.version = -1
        self.lease = 0.0  # of a slot, as last heard

    async def admit(
        self, n: int, wishes: Sequence[Wish], wait: float, owner: str | None, named: str | None
    ) -> list[Slot]:
        """Get up to n slots, at least one unless the time is over. An `owner` elsewhere renews them
        itself. An ask that is `named` may be repeated: what it got, and its place in the line, are
        the repeat's, or end by their leases."""
        if n < 1:
            raise ValueError(f"admit at least 1 group, not {n}")
        if isinstance(wishes, str):  # a sequence too, of letters
            raise TypeError(f"instances is a list of ids, such as [{wishes!r:.100}]")
        ask, before = named or uuid.uuid4().hex, cancellations()
        deadline = deadline_in(wait)
        try:
            while True:
                heed_cancellation(before)
                left = deadline - time.monotonic()
                lives = _LIVES if left > 0 else 0.0
                found, due = await self._ask(ask, owner or self._owner, n, wishes, lives)
                if owner is None:
                    self._keep(found)
                if found or left <= 0:
                    return found
                await self._task.link.rung(self._task.turn_key(ask), min(left, _LOOK_AGAIN, due))
        except BaseException:
            if named:
                raise
            with contextlib.suppress(Exception):  # its place in the line ends by itself, too
                await asyncio.shield(self._ask(ask, owner or self._owner, 0, (), 0.0))
            raise

    async def park(
        self, slot: str, fence: str, items: Sequence[Item], number: int | None, *, go_on: bool
    ) -> None:
        """`number` is the round for items that name none."""
        parts = [
            _parked(item, "" if number is None else str(number), self._max_bytes) for item in items
        ]
        if len({instance for _, instance, *_ in parts}) > 1:
            raise ItemRefused("items of several instances: a slot makes the group of one")
        args = [field for part in parts for field in part]
        parked = await self._task.call("park", slot, fence, int(go_on), *args)
        if parked == -1:
            raise SlotLost(slot)
        if parked == -2:
            raise ItemRefused("an item reports a version that no trainer has published")
        if parked == -3:
            raise ItemRefused(f"an item of another instance than the one of slot {slot}")

    async def end(self, slots: Sequence[tuple[str, str]], *, back: bool) -> int:
        """How many of these (id, fence) ended now."""
        over, how = 0, "back" if back else "done"
        for some in chunks([part for slot in slots for part in slot], 2 * _MOST):
            over += int(await self._task.call("end_slot", how, *some))
        return over

    async def renew(self, slots: Sequence[tuple[str, str]]) -> tuple[int, list[int]]:
        """The version, and for each slot: 0 it continues, 1 late, 2 lost."""
        version, states = -1, []
        parts = [part for slot in slots for part in slot]
        for some in chunks(parts, 2 * _MOST) if parts else [[]]:  # the version is told to all
            reply = await self._task.call("renew_slots", *some)
            version, self.version, self.lease = int(reply[0]), int(reply[0]), int(reply[1]) / 1000
            states += [int(state) for state in reply[2:]]
        return version, states

    def forget(self, slot: Slot) -> None:
        """Stop renewing it."""
        for keeper in list(self._keepers.values()):
            keeper.held.pop(slot.id, None)

    async def leave(self) -> None:
        """Renew those of this event loop no more: they come back by their leases."""
        keeper = self._keepers.pop(asyncio.get_running_loop(), None)
        if keeper is not None:
            await keeper.end()

    async def _ask(
        self, ask: str, owner: str, n: int, wishes: Sequence[Wish], lives: float
    ) -> tuple[list[Slot], float]:
        """The slots; else in how many seconds a lease ends that may bring one."""
        named = [part for wish in wishes for part in _wish(wish)]
        reply = await self._task.call("grant_slots", ask, owner, n, int(lives * 1000), *named)
        self.version, max_age = int(reply[0]), int(reply[2])
        slots = [Slot(self, told, self.version, max_age) for told in chunks(reply[4:], 8)]
        if not n:
            await self.end([(slot.id, slot.fence) for slot in slots], back=True)
            return [], 0.0
        self.lease, due = int(reply[1] or 0) / 1000, int(reply[3])
        if due == _UNSETTLED:  # the trainer that published may have died
            await self._task.call("catch_up", "")
            return slots, 0.0
        return slots, _LOOK_AGAIN if due < 0 else due / 1000

    def _keep(self, slots: list[Slot]) -> None:
        if slots:
            loop = asyncio.get_running_loop()
            self._keepers.setdefault(loop, _Keeper(self)).keep(slots)


class _Keeper:
    """A keeper renews the slots of one event loop, all with one call, three times in a lease."""

    def __init__(self, slots: Slots) -> None:
        self._slots = weakref.proxy(slots)
        self.held: dict[str, Slot] = {}
        self._renewed = 0.0  # when all that are held were
        self._more = asyncio.Event()
        self._runner: asyncio.Task[None] | None = None

    def keep(self, slots: Sequence[Slot]) -> None:
        if not self.held:
            self._renewed = time.monotonic()
        self.held.update({slot.id: slot for slot in slots})
        self._more.set()  # their lease may be shorter
        if self._runner is None or self._runner.done():
            self._runner = asyncio.create_task(self._run())

    async def end(self) -> None:
        if self._runner is not None:
            await ended([self._runner])

    async def _run(self) -> None:
        with contextlib.suppress(ReferenceError):  # the buffer is no more: its slots end
            while self.held:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(self._next() - time.monotonic(), 0.01)):
                        await self._more.wait()
                self._more.clear()
                if time.monotonic() >= self._next():
                    await self._renew()

    def _next(self) -> float:
        lease: float = self._slots.lease
        return self._renewed + lease / 3

    async def _renew(self) -> None:
        held, sent, lease = list(self.held.values()), time.monotonic(), self._slots.lease
        try:
            _, states = await self._slots.renew([(slot.id, slot.fence) for slot in held])
        except ReferenceError:
            raise
        except Exception as failure:  # noqa: BLE001 - a holder that is not renewed must know
            log.warning("slots were not renewed", extra={"reason": str(failure)})
            if sent - self._renewed > lease:
                for slot in held:
                    slot.lost = True
            await asyncio.sleep(lease / 10)
            return
        self._renewed = sent
        for slot, state in zip(held, states, strict=True):
            slot.heard(self._slots.version, state)
            if state == 2:
                self.held.pop(slot.id, None)


def _wish(wish: Wish) -> tuple[str, str, str]:
    instance, number = wish if isinstance(wish, tuple) else (wish, None)
    key = instance_key(instance)
    named = json.dumps(key, ensure_ascii=False) if isinstance(instance, str) else key
    return named, key, round_key(number)


def _parked(item: Item, number: str, max_bytes: int) -> list[Any]:
    """A partial item has a uid and a segment, by which the next one replaces it."""
    if not isinstance(item, dict):
        raise ItemRefused(f"an item is a JSON object, not {type(item).__name__}")
    segment = item.get("segment", 0)
    if isinstance(segment, bool) or not isinstance(segment, int) or not 0 <= segment < 2**53:
        raise ItemRefused(f"segment must be an integer from 0 up, not {segment!r:.100}")
    if item.get("uid") in (None, ""):
        raise ItemRefused("a partial item needs a uid, by which its next segment replaces it")
    marked = {**item, "status": "partial", "segment": segment}
    entry = entry_of(marked, max_bytes, packed=False)
    return [entry.id_json, entry.id, entry.round or number, entry.uid, segment, entry.lowest,
            entry.highest, entry.payload]  # fmt: skip
