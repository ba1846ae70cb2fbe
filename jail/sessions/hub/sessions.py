"""All sessions of one hub: how one is named, opened and ended, and how many there may be.

A name is a link in the hub's folder, made before its session is. Nobody finds a session before it
is whole: a fork before it has its parent's files.
"""

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from jail.jails import Jails
from jail.limits import Limits
from jail.sessions.errors import (
    SessionExists,
    SessionGone,
    SessionTrouble,
    TooManySessions,
)
from jail.sessions.hub.calls import check_request
from jail.sessions.hub.hub_session import KeptSession, inherited
from jail.sessions.hub.pool import Pool, Shelf, kind_of
from jail.sessions.hub.starts import ImageStart, Starts
from jail.sessions.hub.way_out import WayOut
from jail.sessions.launch import hub_of, sweep

Fill = Callable[[], Coroutine[Any, Any, None]]


class KeptSessions:
    """The sessions of a hub: at most so many, those that are ready among them. `stirred` is set
    when one has ended."""

    def __init__(
        self, folder: Path, hub: str, jails: Jails, starts: Starts, way_out: WayOut,
        limits: Limits, most: int, stirred: asyncio.Event,
    ) -> None:  # fmt: skip
        self._folder, self._hub, self._jails, self._starts = folder, hub, jails, starts
        self._way_out, self._limits, self._most = way_out, limits, most
        self._stirred = stirred
        self._kept: dict[str, KeptSession] = {}
        self._opening: dict[str, asyncio.Task[Any]] = {}
        self._pool = Pool(lambda: self.count() < self._most)
        self._making_room = asyncio.Lock()
        self._later: set[asyncio.Task[None]] = set()
        self._closing = False

    # Who is there.

    def all(self) -> Iterable[KeptSession]:
        return self._kept.values()

    def find(self, name: str) -> KeptSession:
        """Find a session by its name. Raises `SessionGone`."""
        if (kept := self._kept.get(name)) is None:
            raise SessionGone(f"no session {name!r:.100} lives on this machine. Open a new one")
        return kept

    @property
    def any(self) -> bool:
        """Whether one lives, or is being opened, that was asked for."""
        return bool(self._kept or self._opening)

    def count(self) -> int:
        return len(self._kept) + len(self._opening) + len(self._pool)

    # How one begins.

    async def open(self, about: dict[str, Any], parent: KeptSession | None = None) -> KeptSession:
        """Open a session in a task of its own, which is cancelled to end what is being opened."""
        limits = check_request(about, self._jails, self._limits)
        self._way_out.check(about["network"])
        if parent:
            about["env"] = {**parent.about["env"], **about["env"]}
        name = about["name"] = about["name"] or f"session-{uuid.uuid4().hex[:16]}"
        if self._closing:
            raise SessionGone(f"hub {self._hub} ends; ask again")
        if len(self._kept) + len(self._opening) >= self._most:
            raise TooManySessions(
                f"this machine keeps {self._most} sessions, and no more. End some, or raise "
                "PENSTOCK_SESSION_MOST and the limit of open files"
            )
        self._take_name(name)
        self._opening[name] = asyncio.current_task()  # type: ignore[assignment]
        try:
            kept = await self._begun(about, limits, parent.start_from if parent else None)
            await self._finished(kept, parent)
            self._kept[name] = kept
        except BaseException:
            self._give_name_back(name)
            raise
        finally:
            del self._opening[name]
            self._pool.look()
        return kept

    def _take_name(self, name: str) -> None:
        for last in (False, True):
            try:
                os.symlink(self._hub, self._folder / name)
                return
            except FileExistsError:
                if not last and hub_of(self._folder, name) not in (None, self._hub):
                    sweep(self._folder)  # its hub may have been killed
                    continue
                raise SessionExists(f"a session {name!r} lives already; choose a name") from None

    def _give_name_back(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)

    async def _begun(
        self, about: dict[str, Any], limits: Limits, filled: ImageStart | None
    ) -> KeptSession:
        """A session from the pool if one is ready, else a new one. There are never more jails than
        allowed: one that is ready, or is being made, ends before this one begins."""
        on_end = partial(self._ended, about["name"])
        async with self._starts.of(about["image"], filled) as start:
            kind = kind_of(about, limits)
            while not filled and (kept := self._pool.take(kind)):
                if start is None or start.is_that_of(kept.start_from):
                    kept.hand_over(about, on_end)
                    return kept
                await asyncio.shield(self._do_later(kept.end("its image's name has moved")))
            async with self._making_room:
                while self.count() > self._most and (spare := await self._pool.next()):
                    ending = spare.end("another session needs its place")
                    await asyncio.shield(self._do_later(ending))
            return await KeptSession.open(self._jails, about, limits, start, on_end)

    async def _finished(self, kept: KeptSession, parent: KeptSession | None) -> None:
        """Give a session what it still lacks, which nobody has so far."""
        try:
            if parent:
                await inherited(parent, kept)
            if wanted := kept.about["network"]:
                await self._connected(kept, wanted)
            if kept.over.is_set():
                raise SessionTrouble(f"session {kept.name} ended as it was opened: {kept.why}")
        except BaseException:
            await kept.end("it could not be given its files, or its proxy")
            raise

    async def _connected(self, kept: KeptSession, wanted: dict[str, Any]) -> None:
        """Connect a session to its network. It waits for the answer even if cancelled: the process
        of proxies answers one after the other."""
        setting = asyncio.ensure_future(self._way_out.set(kept, wanted))
        try:
            await asyncio.shield(setting)
        finally:
            await asyncio.wait([setting])

    @asynccontextmanager
    async def ready(self, about: dict[str, Any], size: int) -> AsyncIterator[tuple[Shelf, Fill]]:
        """Keep so many sessions of this kind ready for the length of the block; yield what makes
        one of them."""
        limits = check_request(about, self._jails, self._limits)
        shelf = Shelf(kind_of(about, limits), size)

        async def begin(on_end: Callable[[], None]) -> KeptSession:
            async with self._starts.of(about["image"], None) as start:
                return await KeptSession.open(self._jails, dict(about), limits, start, on_end)

        with self._pool.holding(shelf):
            try:
                yield shelf, partial(self._pool.fill, shelf, begin)
            finally:
                await shelf.clear()

    # How one ends.

    async def end(self, name: str) -> None:
        """End a session, also while it is being opened. Raises `SessionGone`."""
        if opening := self._opening.get(name):
            opening.cancel()
            await asyncio.wait([opening])
        if name in self._kept or not opening:
            await self.find(name).end("it was ended by its name")

    def _ended(self, name: str) -> None:
        self._do_later(self._way_out.close(name))
        if self._kept.pop(name, None):
            self._give_name_back(name)
        self._pool.look()
        self._stirred.set()

    def _do_later(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._later.add(task)
        task.add_done_callback(self._later.discard)
        return task

    def admit_no_more(self) -> None:
        self._closing = True

    async def end_all(self) -> None:
        await asyncio.gather(*(kept.end("its hub ends") for kept in list(self._kept.values())))

    async def settle(self) -> None:
        """Wait until nothing of those that have ended is left to do."""
        if self._later:
            await asyncio.wait(self._later)
