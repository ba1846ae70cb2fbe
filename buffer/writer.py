"""Writes, coalesced: what arrives while a script runs goes into the next one.

One round trip carries hundreds of items however they came, and a script touches
each group once.
"""

import asyncio
import weakref
from collections.abc import Iterator, Sequence
from enum import StrEnum
from operator import itemgetter
from typing import Any

from buffer.item import Entry
from buffer.task import Task

_MOST_ITEMS = 512
_MOST_BYTES = 4 * 1024 * 1024


class Outcome(StrEnum):
    """An item's outcome; all but `full` are success for its writer."""

    STORED = "stored"
    REPEATED = "repeated"  # its uid is known: this is a retry
    LATE = "late"  # its group was closed before it came
    SURPLUS = "surplus"  # its group has more than enough
    FULL = "full"  # there is no room: try again
    LOST = "lost"  # its slot is over, and its group another's
    UNPUBLISHED = "unpublished"  # it reports a version that no trainer has published
    FOREIGN = "foreign"  # its slot makes a group of another instance


OUTCOMES = (None, *Outcome)
"""By the code of put_item.lua."""


_alike = itemgetter(slice(6))


class Writer:
    """A writer puts entries into a task's groups."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._lines: weakref.WeakKeyDictionary[Any, dict[str, _Line]] = weakref.WeakKeyDictionary()

    async def write(self, entries: Sequence[Entry], rollout: str) -> tuple[list[Outcome], float]:
        """Each entry's outcome, and in how many seconds a full buffer may have room."""
        lines = self._lines.setdefault(asyncio.get_running_loop(), {})
        if rollout not in lines:
            lines[rollout] = _Line(self._task, rollout)
        return await lines[rollout].join(entries)


class _Line:
    """The entries of one rollout that wait for the next script, on one event loop."""

    def __init__(self, task: Task, rollout: str) -> None:
        self._task = task
        self._rollout = rollout
        self._waiting: list[tuple[Entry, _Ticket]] = []
        self._runner: asyncio.Task[None] | None = None

    async def join(self, entries: Sequence[Entry]) -> tuple[list[Outcome], float]:
        if not entries:
            return [], 0.0
        ticket = _Ticket(len(entries))
        self._waiting += [(entry, ticket) for entry in entries]
        if self._runner is None or self._runner.done():
            self._runner = asyncio.create_task(self._run())
        await ticket.done
        return ticket.outcomes, ticket.wait

    async def _run(self) -> None:
        while self._waiting:
            chunk = self._next_chunk()
            try:
                wait, outcomes = await self._send([entry for entry, _ in chunk])
            except Exception as failure:  # noqa: BLE001 - each of the waiting writers raises it
                for _, ticket in chunk:
                    ticket.fail(failure)
            else:
                for (_, ticket), outcome in zip(chunk, outcomes, strict=True):
                    ticket.note(outcome, wait)

    async def _send(self, entries: list[Entry]) -> tuple[float, list[Outcome]]:
        """Write entries by one script call; those of one group travel together."""
        places = _by_group(entries)
        args = list(_arguments([[entries[place] for place in group] for group in places]))
        reply = await self._task.call("write", self._rollout, *args)
        outcomes = [Outcome.FULL] * len(entries)
        for place, code in zip((p for group in places for p in group), reply[1:], strict=True):
            outcomes[place] = OUTCOMES[code] or Outcome.FULL
        return max(int(reply[0]), 0) / 1000, outcomes

    def _next_chunk(self) -> list[tuple[Entry, "_Ticket"]]:
        size = end = 0
        for entry, _ in self._waiting[:_MOST_ITEMS]:
            size += len(entry.payload)
            end += 1
            if size >= _MOST_BYTES:
                break
        chunk, self._waiting = self._waiting[:end], self._waiting[end:]
        return chunk


class _Ticket:
    """A ticket collects the outcomes of one caller's entries, in order."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.outcomes: list[Outcome] = []
        self.wait = 0.0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def note(self, outcome: Outcome, wait: float) -> None:
        self.outcomes.append(outcome)
        self.wait = max(self.wait, wait)
        if len(self.outcomes) == self._size and not self.done.done():
            self.done.set_result(None)

    def fail(self, failure: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(failure)


def _by_group(entries: list[Entry]) -> list[list[int]]:
    groups: dict[tuple[str, ...], list[int]] = {}
    for place, entry in enumerate(entries):
        groups.setdefault(_alike(entry), []).append(place)
    return list(groups.values())


def _arguments(groups: list[list[Entry]]) -> Iterator[Any]:
    for group in groups:
        first = group[0]
        yield from (first.id_json, first.id, first.round)
        yield from (first.slot, first.fence, first.lowest, first.highest, len(group))
        for entry in group:
            yield from (entry.uid, entry.reward, entry.payload)
