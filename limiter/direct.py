"""What event loops do at a gate by their shortcuts, without a word to the engine.

Each entry belongs to whoever pops it, one step for every thread: to the loop, whose
permits mostly come and go between two heartbeats, or to the engine, which then takes over
what is still there, to renew it, to ask again, to give it back.
"""

from collections.abc import Iterator

from limiter.permit import Lease
from limiter.wishes import Ask

# So long ago an ask was sent that the engine's own, on another connection, comes after it.
_SETTLED = 1.0


class Direct:
    """See the module. Loops put in, on their threads; the engine takes out, on its own."""

    def __init__(self) -> None:
        self.asked: dict[str, Ask] = {}
        self.held: dict[str, Lease] = {}
        self.given: dict[str, int] = {}  # back, and not yet confirmed
        self.watched = False  # whether the engine will look here within a heartbeat

    def take_asked(self, now: float) -> Iterator[Ask]:
        """Those that their loop has not heard about, perhaps because it is blocked or gone."""
        for ask in [*self.asked.values()]:
            if 0 < ask.sent < now - _SETTLED and self.asked.pop(ask.id, None) is not None:
                yield ask

    def take_held(self) -> Iterator[Lease]:
        for lease in [*self.held.values()]:
            if self.held.pop(lease.id, None) is not None:
                yield lease
