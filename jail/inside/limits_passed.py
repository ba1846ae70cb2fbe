"""The kernel's word on which limit a program passed: its memory, or its processes.

The program's cgroup counts the forks that it refused, and the processes that it killed. Without
a cgroup usage_meter.py compares what it has measured.
"""

import os
from typing import NamedTuple

_SHARE = 4
_NEAR = 16  # of the limit; what one page more would pass is not all of it


class KilledFromOutside(Exception):
    """The machine, or the container around the sandbox, had no memory left."""

    def __init__(self) -> None:
        super().__init__(
            "the machine or its container ran out of memory, and the kernel killed a process of "
            "the program, which was within its own limit: run fewer programs at once, or with less"
        )


class Evidence(NamedTuple):
    """Descriptors of the group's own files; the hierarchy itself is not visible in a jail."""

    memory_events: int
    process_events: int
    peak: int
    weight: int
    used: int
    limit: int = 0  # bytes that the group may have

    def passed(self) -> str | None:
        """The limit that the tree has passed: a fork was refused, or one killed for its memory.

        Forks that are refused use up memory too, so they are asked for first. Raises
        `KilledFromOutside` for a kill that the limit of the tree does not explain.
        """
        if _count(self.process_events, b"max"):
            return "process_limit"
        if not _count(self.memory_events, b"oom_kill"):
            return None
        if not self.shortages():
            raise KilledFromOutside
        return "memory_limit"

    def kills(self) -> int:
        """The kernel counts them in the group of the process, for whatever memory they were."""
        return _count(self.memory_events, b"oom_kill") or 0

    def shortages(self) -> int:
        """How often the tree had all its memory. Version 1 does not count them: any kill is for
        one, once the tree had nearly all. Cached files are memory to it, too."""
        own = _count(self.memory_events, b"oom")
        if own is not None:
            return own
        return self.kills() if self.memory_peak() >= self.limit - self.limit // _NEAR else 0

    def counts(self) -> str:
        """The counts of the group, for people."""
        return f"oom_kill {self.kills()} and {self.shortages()} shortages in its own cgroup"

    def refusals(self) -> int:
        return _count(self.process_events, b"max") or 0

    def give_way(self) -> bool:
        """Leave most of the processor to others that want it; False where it cannot be divided."""
        return self._times(1 / _SHARE)

    def take_back(self) -> None:
        """Take the group back for another program, after one that gave way."""
        self._times(_SHARE)

    def _times(self, factor: float) -> bool:
        usual = os.pread(self.weight, 64, 0)
        return bool(usual) and os.write(self.weight, b"%d" % (int(usual) * factor)) > 0

    def seconds(self) -> float:
        """The processor time of all that were in the group so far; 0 if nothing counts it."""
        if (micro := _count(self.used, b"usage_usec")) is not None:
            return micro / 1e6
        return int(os.pread(self.used, 64, 0) or 0) / 1e9

    def forget_peak(self) -> bool:
        """Forget the peak, for another program in the same group; False if the kernel cannot."""
        try:
            return os.pwrite(self.peak, b"0", 0) > 0
        except OSError:
            return False

    def memory_peak(self) -> int:
        try:
            return int(os.pread(self.peak, 64, 0))
        except (OSError, ValueError):
            return 0  # not every kernel keeps it; the sampled peak stands


class Passed:
    """The limit that a tree has passed since the last question, for one program after another."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._kills, self._shortages = evidence.kills(), evidence.shortages()
        self._refusals = evidence.refusals()

    def since(self) -> str:
        shortages, kills = self._evidence.shortages(), self._evidence.kills()
        refusals, self._refusals = self._refusals, self._evidence.refusals()
        if kills > self._kills:  # a shortage may be counted long before the kill that follows
            before, self._kills, self._shortages = self._shortages, kills, shortages
            if shortages > before:
                return "memory_limit"
        return "process_limit" if self._refusals > refusals else ""


def _count(at: int, name: bytes) -> int | None:
    for line in os.pread(at, 4096, 0).splitlines():
        key, _, value = line.partition(b" ")
        if key == name:
            return int(value)
    return None


def kills_on_machine() -> int:
    """The kills on this machine since it started, by any shortage of memory; the kernel does not
    say whose."""
    with open("/proc/vmstat", "rb") as file:
        return next((int(line.split()[1]) for line in file if line.startswith(b"oom_kill ")), 0)
