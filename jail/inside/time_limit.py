"""A program's limit of time by the clock: when it is over. supervise.py kills the program then."""

from .usage_meter import Meter, wants_to_run

_TICK, _FIRST_LOOK = 0.02, 0.005  # seconds
_IDLE = 0.5  # seconds


class TimeLimit:
    """When to look at a program, and whether its time by the clock is over.

    A patient one is there to end what only waits. A program that would run, and has no processor
    because the machine is busy, is left to its limit of processor time.
    """

    def __init__(self, started: float, wall: float, patient: bool) -> None:
        self._started, self._deadline, self._patient = started, started + wall, patient
        self._looked = started
        self._idle = 0.0  # seconds past the deadline in which it only waited
        self.next_look = min(started + _FIRST_LOOK, self._deadline)

    def look(self, now: float) -> None:
        """Note a look at the program. The next one is after some milliseconds, or when its time is
        over."""
        self.next_look = now + min(_TICK, now - self._started)
        if now < self._deadline:
            self.next_look = min(self.next_look, self._deadline)

    def is_over(self, now: float, meter: Meter) -> bool:
        before, self._looked = max(self._looked, self._deadline), now
        if now < self._deadline or not self._patient:
            return now >= self._deadline
        if not wants_to_run(meter.pids()):
            self._idle += now - before
        return self._idle >= max(_IDLE, (now - self._deadline) / 2)
