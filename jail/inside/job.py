"""A job says what an init is for, and how it looks after it: one program, a session, or many
cases."""

from typing import NamedTuple

from .meter import Evidence, Meter, wants_to_run
from .place import Place
from .verdict import Running

PROGRAM, SESSION, CASES, COMMANDS = "program", "session", "cases", "commands"
TICK = 0.02
FIRST_LOOK = 0.005
_SHORT, _SHORT_COMPILE = 0.05, 0.5  # seconds of processor time
_FEW = 8  # processes and threads
_IDLE = 0.5  # seconds


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


class Clock:
    """When to look at a program, and whether its time by the clock is over.

    A patient one is there to end what only waits. A program that would run, and has no processor
    because the machine is busy, is left to its limit of processor time.
    """

    def __init__(self, started: float, wall: float, patient: bool) -> None:
        self._started, self._deadline, self._patient = started, started + wall, patient
        self._looked = started
        self._idle = 0.0  # seconds past the deadline in which it only waited
        self.next_look = min(started + FIRST_LOOK, self._deadline)

    def look(self, now: float) -> None:
        """Note a look at the program. The next one is after some milliseconds, or when its time is
        over."""
        self.next_look = now + min(TICK, now - self._started)
        if now < self._deadline:
            self.next_look = min(self.next_look, self._deadline)

    def is_over(self, now: float, meter: Meter) -> bool:
        before, self._looked = max(self._looked, self._deadline), now
        if now < self._deadline or not self._patient:
            return now >= self._deadline
        if not wants_to_run(meter.pids()):
            self._idle += now - before
        return self._idle >= max(_IDLE, (now - self._deadline) / 2)
