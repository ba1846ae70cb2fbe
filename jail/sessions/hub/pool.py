"""Sessions that are ready before somebody asks for one: `open` then only takes one over.

Each shelf holds sessions of one kind, for as long as the process that wants them holds its
connection. A session leaves its shelf once, in one step of the hub's loop.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from jail.limits import Limits
from jail.sessions.hub.hub_session import KeptSession

Kind = tuple[str, Limits]
Begin = Callable[[Callable[[], None]], Awaitable[KeptSession]]  # what to call at its end


def kind_of(about: dict[str, Any], limits: Limits) -> Kind:
    """The properties of a session that cannot be changed once it has begun."""
    return about["image"], limits


class Shelf:
    """A shelf has so many sessions of one kind. `wanted` is set while there is room for one
    more."""

    def __init__(self, kind: Kind, size: int) -> None:
        self.kind, self.size = kind, size
        self.ready: deque[KeptSession] = deque()
        self.wanted = asyncio.Event()

    def __len__(self) -> int:
        return len(self.ready)

    def take(self) -> KeptSession | None:
        """Take a session that lives; it is the caller's alone."""
        while self.ready:
            kept = self.ready.popleft()
            if not kept.over.is_set():
                return kept
        return None

    async def clear(self) -> None:
        self.size = 0
        while (kept := self.take()) is not None:
            await kept.end("nobody keeps it ready any more")


class Pool:
    """All shelves of the hub. `room` says whether it may have one more session."""

    def __init__(self, room: Callable[[], bool]) -> None:
        self._room = room
        self._shelves: list[Shelf] = []
        self._filling: set[asyncio.Future[None]] = set()  # each is done when its session is made

    def __len__(self) -> int:
        """How many there are, with those that are being made."""
        return sum(map(len, self._shelves)) + len(self._filling)

    @contextmanager
    def holding(self, shelf: Shelf) -> Iterator[None]:
        self._shelves.append(shelf)
        self.look()
        try:
            yield
        finally:
            self._shelves.remove(shelf)
            self.look()

    def take(self, kind: Kind | None = None) -> KeptSession | None:
        """Take a session of this kind, or of any."""
        for shelf in self._shelves:
            if kind in (None, shelf.kind) and (kept := shelf.take()) is not None:
                self.look()
                return kept
        return None

    async def next(self) -> KeptSession | None:
        """Take a session of any kind, even one that is still being made. None if there is none."""
        while len(self):
            if (kept := self.take()) is not None:
                return kept
            if self._filling:
                await asyncio.wait(self._filling, return_when=asyncio.FIRST_COMPLETED)
        return None

    async def fill(self, shelf: Shelf, begin: Begin) -> None:
        """Make one more session, if there is still room for it."""
        self.look()
        if not shelf.wanted.is_set():
            return
        made = asyncio.get_running_loop().create_future()
        self._filling.add(made)
        self.look()
        try:
            shelf.ready.append(await begin(self.look))
        finally:
            self._filling.discard(made)
            made.set_result(None)
            self.look()

    def look(self) -> None:
        """Look whether there is room; to be called when a session has begun or ended, here or with
        its user."""
        for shelf in self._shelves:
            shelf.ready = deque(kept for kept in shelf.ready if not kept.over.is_set())
        room = self._room()
        for shelf in self._shelves:
            if room and len(shelf) < shelf.size:
                shelf.wanted.set()
            else:
                shelf.wanted.clear()
