"""The notes of a process on its calls, made without waiting: what was sent, and that it still
lives."""

import asyncio
import contextlib
import logging
import time
from collections import defaultdict
from typing import Any

from buffer.link import Link
from ground.complaint import Complaint
from ground.lua import chunks, load_script
from ground.redis.connect import UNWELL
from ground.tasks import ended

log = logging.getLogger(__name__)

_NOTE = load_script("gateway", "note")
_GATHER = 0.2  # seconds in which notes come together
_MOST = 200  # in one script
_Call = tuple[str, str, int]  # root, session, number


class Notes:
    """Notes go out together, and leases of open calls are renewed together."""

    def __init__(self, link: Link, lease_ms: int) -> None:
        self._link = link
        self._lease = lease_ms
        self._held: dict[_Call, str] = {}
        self._due: dict[_Call, tuple[str, str]] = {}
        self._leaving: dict[_Call, tuple[str, str]] = {}
        self._more = asyncio.Event()
        self._runner: asyncio.Task[None] | None = None
        self._flushing = asyncio.Lock()
        self._complaint = Complaint(log, "notes of calls wait for Redis")

    def keep(self, root: str, sid: str, call: int, fence: str) -> None:
        """Renew the lease of a call until something is noted of it."""
        self._held[root, sid, call] = fence
        self._start()

    def forget(self, root: str, sid: str, call: int) -> None:
        """The call is another's, or nobody's."""
        self._held.pop((root, sid, call), None)

    def note(self, root: str, sid: str, call: int, fence: str, what: str) -> None:
        """Have note.lua note this of a call."""
        one = root, sid, call
        self._held.pop(one, None)
        if what == "3" and (fence, "2") in (self._due.get(one), self._leaving.get(one)):
            return  # another of its clients has the whole answer
        self._due[one] = (fence, what)
        self._more.set()
        self._start()

    def has(self, root: str, sid: str, call: int) -> bool:
        """Whether something of this call is still to be noted."""
        return (root, sid, call) in self._due or (root, sid, call) in self._leaving

    async def flush(self) -> None:
        """Note all of it now."""
        async with self._flushing:
            self._leaving, self._due = self._due, {}
            try:
                await self._send([(*call, *said) for call, said in self._leaving.items()])
            except BaseException:
                self._due = self._leaving | self._due  # a repeat changes nothing
                raise
            finally:
                self._leaving = {}

    async def aclose(self) -> None:
        """Note what is left, and renew no more."""
        if self._runner is not None:
            await ended([self._runner])
            self._runner = None
        if self._due:
            with contextlib.suppress(*UNWELL):
                await self.flush()

    def _start(self) -> None:
        if self._runner is None or self._runner.done():
            self._runner = asyncio.create_task(self._run())

    async def _run(self) -> None:
        pause = self._lease / 3000
        renewed = time.monotonic()
        while self._held or self._due:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(renewed + pause - time.monotonic(), 0.01)):
                    await self._more.wait()
            try:
                if self._more.is_set():
                    await asyncio.sleep(_GATHER)
                    self._more.clear()
                    await self.flush()
                if time.monotonic() >= renewed + pause:
                    renewed = time.monotonic()
                    held = [(*call, fence, "r") for call, fence in self._held.items()]
                    await self._send(held)
            except UNWELL as why:  # a full Redis has room again, and leases must be renewed then
                self._complaint.of(why)
                self._more.set()

    async def _send(self, rows: list[tuple[Any, ...]]) -> None:
        by_root: defaultdict[str, list[tuple[Any, ...]]] = defaultdict(list)
        for root, *row in rows:
            by_root[root].append(tuple(row))
        for root, mine in by_root.items():
            for some in chunks(mine, _MOST):
                args = [self._lease, *(part for row in some for part in row)]
                await self._link.run(_NOTE, [root], args)
        if rows:
            self._complaint.over()
