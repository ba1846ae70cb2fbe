"""What event loops do at a gate by their shortcuts, without a word to the engine.

Each entry belongs to whoever pops it, one step for every thread: to the loop, whose
permits mostly come and go between two heartbeats, or to the engine, which then takes over
what is still there, to renew it, to ask again, to give it back.
"""

from collections.abc import Iterator
from typing import TypeVar

from limiter.permit import Lease
from limiter.wishes import Ask

_V = TypeVar("_V")


class Direct:
    """See the module. Loops put in, on their threads; the engine takes out, on its own."""

    def __init__(self) -> None:
        self.asked: dict[str, Ask] = {}
        self.held: dict[str, Lease] = {}
        self.given: dict[str, int] = {}  # back, and not yet confirmed
        self.watched = False  # whether the engine will look here within a heartbeat

    def take_all(self) -> Iterator[Ask | Lease]:
        """What loops asked and did not hear about, and what they hold."""
        self.watched = False  # before the look: who puts something in after it tells the engine
        yield from _popped(self.asked)
        yield from _popped(self.held)


def _popped(entries: dict[str, _V]) -> Iterator[_V]:
    for _ in range(len(entries)):
        try:
            yield entries.popitem()[1]
        except KeyError:
            return  # its loop was faster
