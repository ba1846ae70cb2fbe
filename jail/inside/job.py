"""A job says what an init is for, and how it looks after it: one program, a session, or many
cases."""

from typing import NamedTuple

from .limits_passed import Evidence
from .place import Place
from .running import Running
from .usage_meter import Meter

PROGRAM, SESSION, CASES, COMMANDS = "program", "session", "cases", "commands"
_SHORT, _SHORT_COMPILE = 0.05, 0.5  # seconds of processor time
_FEW = 8  # processes and threads


class Job(NamedTuple):
    """The fork server hands this to an init: the client's descriptors."""

    request: int
    reply: int
    what: str  # one of the four above
    channel: int | None  # an interpreter's, or that by which cases or commands come
    joins: list[int]  # what a program joins its cgroups by
    evidence: Evidence | None
    place: Place
    killed: int  # on the whole machine before it, for want of memory, if no cgroup counts ours

    def look(self, running: Running, meter: Meter, compiles: bool = False) -> None:
        """Hold the program to its limits. What is long or has many processes gives way to others:
        short programs do not wait for long ones, and a fork bomb costs the others little.

        A compiler gives way later, and may have its threads: what waits for it is a short program.
        """
        running.verdict = running.verdict or meter.sample()
        late = meter.cpu > (_SHORT_COMPILE if compiles else _SHORT)
        if not running.gave_way and (late or (meter.processes_peak > _FEW and not compiles)):
            running.gave_way = True
            if not (self.evidence and self.evidence.give_way()):
                self.place.give_way(meter.pids())
