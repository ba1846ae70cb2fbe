"""What event loops do at a gate by their shortcuts, before the engine knows of it.

Three tables: what was asked, what is held, what was given back. An entry belongs to the
thread that pops it, which is one step and so needs no lock. Mostly that is the loop, within a
millisecond. What is still there at the engine's next beat the engine pops, and then renews,
asks again or gives back.
"""

from collections.abc import Iterator

from limiter.permit import Lease
from limiter.wishes import Ask

LATE = 1.0  # seconds after which the engine does what a loop has not


class Direct:
    """See the module. Loops put in, on their threads; the engine takes out, on its own."""

    def __init__(self) -> None:
        self.asked: dict[str, Ask] = {}
        self.held: dict[str, Lease] = {}
        self.given: dict[str, int] = {}  # back, and not yet confirmed
        self._given_before: set[str] = set()
        self.watched = False  # whether the engine will look here within a heartbeat

    def take_asked(self, now: float) -> Iterator[Ask]:
        """Those that their loop has not heard about, perhaps because it is blocked or gone."""
        for ask in [*self.asked.values()]:
            if 0 < ask.sent < now - LATE and self.asked.pop(ask.id, None) is not None:
                yield ask

    def overdue(self) -> dict[str, int]:
        """What was given back before the last look and is not confirmed yet."""
        given = self.given.copy()
        before, self._given_before = self._given_before, {*given}
        return {id: fence for id, fence in given.items() if id in before}

    def take_held(self) -> Iterator[Lease]:
        for lease in [*self.held.values()]:
            if self.held.pop(lease.id, None) is not None:
                yield lease
