"""A breaker: it stops what fails for reasons of our own, and lets a few through until they succeed.

    breaker = Breaker(need=32, last=64)      # 32 failures among the last 64 ends open it
    breaker.room(now)                        # how many may begin now
    breaker.let_through(1, now)
    breaker.succeed(began)                   # or .fail(began, now)

This one is of a process. That of a queue, or of its gate, is in Redis: `limiter/lua/breaker.lua` is
the same states and rules, and `tests/worker/concurrent/test_breaker.py` holds them side by side.
"""

import math
import re
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum

FEW = 3  # that may be out at once while nobody knows whether things work again
PAUSE = 5.0  # seconds from a failure until a few are let through
ROUND = 10.0  # seconds for which those are waited for; then the dead are forgotten


class State(StrEnum):
    """A breaker's state says what may begin."""

    CLOSED = "closed"  # everything
    OPEN = "open"  # nothing
    HALF_OPEN = "half"  # a few


class Event(StrEnum):
    """An event moves a breaker from one state to another."""

    TRIPPED = "tripped"  # too many of the last ends were failures
    LET_THROUGH = "let through"  # its pause is over, and a few began
    SUCCEEDED = "succeeded"  # as many as needed, or all of those that were let through
    FAILED = "failed"  # one that began since it opened
    RESUMED = "resumed"  # by hand


# An event that is not named here changes no state.
MOVES: dict[State, dict[Event, State]] = {
    State.CLOSED: {Event.TRIPPED: State.OPEN},
    State.OPEN: {Event.LET_THROUGH: State.HALF_OPEN, Event.RESUMED: State.CLOSED},
    State.HALF_OPEN: {
        Event.SUCCEEDED: State.CLOSED,
        Event.FAILED: State.OPEN,
        Event.RESUMED: State.CLOSED,
    },
}


@dataclass
class Breaker:
    """A breaker stops work whose ends fail, and lets a few through after a pause. Times are
    seconds of one clock, which the caller reads."""

    need: int
    last: int
    state: State = State.CLOSED
    until: float = 0.0
    opened: float = 0.0
    out: int = 0  # that were let through, and are not back
    good: int = 0  # successes since the last failure
    ended: int = 0
    failures: deque[int] = field(default_factory=deque)  # the latest, each by how many had ended

    def room(self, now: float) -> float:
        """How many may begin."""
        if self.state is State.CLOSED:
            return math.inf
        if now >= self.until:
            return FEW
        return max(0, FEW - self.out) if self.state is State.HALF_OPEN else 0

    def wait(self, now: float) -> float:
        """Seconds until time lets others through."""
        return 0.0 if self.state is State.CLOSED else max(0.0, self.until - now)

    def let_through(self, many: int, now: float) -> None:
        if self.state is State.CLOSED or not many:
            return
        if now >= self.until:
            self.until, self.out = now + ROUND, 0
            self._move(Event.LET_THROUGH)
        self.out += many

    def back(self, began: float) -> None:
        """Take back one that was let through, and whose end says nothing of us."""
        if self._is_news(began):
            self.out = max(0, self.out - 1)
            if self.good and not self.out:
                self._move(Event.SUCCEEDED)

    def succeed(self, began: float) -> None:
        """An end that is not our fault."""
        if self.state is State.CLOSED:
            self.ended += 1
        elif self._is_news(began):
            self.good += 1
            self.back(began)
            if self.good >= FEW:
                self._move(Event.SUCCEEDED)

    def fail(self, began: float, now: float) -> bool:
        """An end that is our fault. Returns whether it is put off, to begin again later."""
        if self.state is State.CLOSED:
            self.ended += 1
            self.failures.append(self.ended)
            while len(self.failures) > self.need:
                self.failures.popleft()
            if len(self.failures) < self.need or self.failures[0] <= self.ended - self.last:
                return False
            self.failures.clear()
            self.opened = now
            self._pause(Event.TRIPPED, now)
        elif self._is_news(began):
            self._pause(Event.FAILED, now)
        return True

    def resume(self) -> None:
        """Close it by hand."""
        self._move(Event.RESUMED)

    def _is_news(self, began: float) -> bool:
        """Tell those that were let through from late news: what began before it opened."""
        return self.state is State.HALF_OPEN and began >= self.opened

    def _pause(self, event: Event, now: float) -> None:
        self.until, self.out, self.good = now + PAUSE, 0, 0
        self._move(event)

    def _move(self, event: Event) -> None:
        self.state = MOVES[self.state].get(event, self.state)


_TEXT = re.compile(r"(open|half) \d+ (\d+) \d+ \d+")


def read_state(paused: str | None) -> State:
    """Read a breaker's state from the field `paused` of a queue or a gate."""
    found = _TEXT.fullmatch(paused or "")
    return State(found[1]) if found else State.CLOSED
