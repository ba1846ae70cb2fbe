"""Overload is answered by waiting in line, and then by 504.

verl repeats a request after 504 alone; 429 and 503 become a wrong answer there.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class NoRoom(Exception):
    """The line is full, or did not move in time."""


class Line:
    """At most `places` at once, `longest` waiting, nobody longer than `patience` seconds."""

    def __init__(self, places: int, longest: int, patience: float) -> None:
        self._places = asyncio.Semaphore(places)
        self._longest = longest
        self._patience = patience
        self.waiting = 0

    @property
    def full(self) -> bool:
        """Whether every place is taken."""
        return self._places.locked()

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        if self._places.locked() and self.waiting >= self._longest:
            raise NoRoom(f"{self.waiting} requests are waiting already")
        self.waiting += 1
        try:
            async with asyncio.timeout(self._patience):
                await self._places.acquire()
        except TimeoutError:
            raise NoRoom(f"no place became free in {self._patience:g} s") from None
        finally:
            self.waiting -= 1
        try:
            yield
        finally:
            self._places.release()
