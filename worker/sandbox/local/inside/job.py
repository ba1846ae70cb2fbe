"""What an init is there for, and how it looks after it: one program, a session, or many cases."""

from typing import NamedTuple

from .meter import Evidence, Meter
from .place import Place
from .verdict import Running

PROGRAM, SESSION, CASES = "program", "session", "cases"
TICK = 0.02
FIRST_LOOK = 0.005
_SHORT = 0.05  # seconds of processor time
_FEW = 8  # processes and threads


class Job(NamedTuple):
    """What the fork server hands to an init: the client's descriptors."""

    request: int
    reply: int
    what: str  # one of the three above
    channel: int | None  # a session's, or that by which cases come
    joins: list[int]  # what a program joins its cgroups by
    evidence: Evidence | None
    place: Place

    def look(self, running: Running, meter: Meter) -> None:
        """Hold the program to its limits. What is long or has many processes gives way to others:
        short programs do not wait for long ones, and a fork bomb costs the others little."""
        running.verdict = running.verdict or meter.sample()
        if not running.gave_way and (meter.cpu > _SHORT or meter.processes_peak > _FEW):
            running.gave_way = True
            if not (self.evidence and self.evidence.give_way()):
                self.place.give_way(running.pid)
