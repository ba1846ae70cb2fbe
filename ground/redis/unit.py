"""A unit: a gate, or a process's jobs. Its commands go by one connection at a time.

Callers post changes. The engine's thread or a loop's shortcut takes them up, under the engine's
lock. While commands of a unit are under way, only its `carrier` sends more of them. So no command
of a unit overtakes another. What got no reply is still due, and is sent again.
"""

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, NamedTuple, Protocol

from ground.lua import Command
from ground.redis.inbox import Entries


class Exchange(NamedTuple):
    """A command, and what reads its reply: with the reply, and when the command was sent."""

    command: Command
    read: Callable[[Any, float], None]
    asks: Sequence[Any] = ()  # callers' requests that the command makes


class Carrier(Enum):
    """A carrier brings a unit's commands to Redis. `Batch` has a method for each way from one to
    another.

        NOBODY → ENGINE, SHORTCUT    `begin`     something was due
        ENGINE, SHORTCUT → NOBODY    `end`       all replies were read
        ENGINE, SHORTCUT → NOBODY    `cut_off`   the connection ended, or is late
        SHORTCUT → NOBODY            `put_back`  nothing was sent: the engine will do it

    While nobody carries a unit, the engine's thread sends what is due, unless the loop that posted
    it is quicker. While somebody does, what is posted waits for the end.
    """

    NOBODY = "nobody"
    ENGINE = "the engine's thread"
    SHORTCUT = "a loop's own connection"


class Unit(Protocol):
    """Everything but `posted` is touched under the engine's lock only."""

    posted: deque[Callable[[], None]]
    carrier: Carrier
    stream: str  # of grants or notices that other processes write
    listening: bool  # whether the inbox reads the stream

    def due(self) -> float:
        """The moment at which there is something to send; 0 for at once."""

    @property
    def pressing(self) -> bool:
        """Whether callers want something that has not been sent."""

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do or to wait for: the engine may forget it."""

    @property
    def awaits_entries(self) -> bool:
        """Whether the inbox has to read the stream."""

    def read_entries(self, entries: Entries) -> None:
        """Read new entries of the stream."""

    def exchange(self, now: float) -> list[Exchange]:
        """Everything that is due."""

    def exchanged(self, now: float) -> None:
        """All that was due at that time has been answered."""

    def cut_off(self, exchanges: Sequence[Exchange]) -> None:
        """End what was sent without a reply: the connection ended. Redis may run it yet, or not."""

    def give_up(self, now: float, down_since: float, why: object) -> None:
        """Redis does not answer: fail the callers who have waited too long."""

    def refuse(self, why: BaseException | str, exchange: Exchange | None = None) -> None:
        """Asking again will not help: fail all callers, or those of one exchange."""

    def unsettle(self) -> None:
        """Redis may have lost this process's state: send all of it again."""

    def leave(self) -> None:
        """The process ends: give everything back."""


class Batch:
    """The commands of one unit that are under way together."""

    __slots__ = ("answered", "claimed", "exchanges", "sent", "unit")

    def __init__(self, unit: Unit, exchanges: list[Exchange], claimed: float) -> None:
        self.unit = unit
        self.exchanges = exchanges
        self.claimed = self.sent = claimed
        self.answered = 0  # how many replies a shortcut has read

    @property
    def commands(self) -> list[Command]:
        return [exchange.command for exchange in self.exchanges]

    def begin(self, carrier: Carrier) -> None:
        """Begin: the commands are about to be sent."""
        self.unit.carrier = carrier

    def end(self) -> None:
        """End: all replies have been read."""
        self.unit.carrier = Carrier.NOBODY
        self.unit.exchanged(self.claimed)

    def cut_off(self) -> None:
        """No more replies come. What is in the batch stays due."""
        self.unit.cut_off(self.exchanges)
        self.unit.carrier = Carrier.NOBODY

    def put_back(self) -> None:
        """Put it back: nothing of it was sent."""
        self.unit.carrier = Carrier.NOBODY


def take_up(unit: Unit) -> None:
    """Apply what was posted, each change at least once: a signal handler may raise in between."""
    posted = unit.posted
    while posted:
        posted[0]()
        posted.popleft()


def what_is_due(unit: Unit, now: float) -> Batch | None:
    """A batch for the caller to carry; None if nothing is due, or commands are under way."""
    if unit.carrier is not Carrier.NOBODY:
        return None
    take_up(unit)
    exchanges = unit.exchange(now)
    return Batch(unit, exchanges, now) if exchanges else None
