"""What a program's tree uses, read from /proc.

Resident memory counts a copy-on-write page once per process; only when that sum
passes the limit are the processes weighed, which counts it once.
"""

import os
import resource
from collections.abc import Callable, Iterator
from typing import Any

from .evidence import Evidence
from .scales import Weighing

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICK = os.sysconf("SC_CLK_TCK")


class Meter:
    """Peaks of the tree below init, and which limit it has passed."""

    def __init__(
        self, limits: dict[str, Any], evidence: Evidence | None, pids: Callable[[], Iterator[str]]
    ) -> None:
        self.memory_peak = 0
        self.processes_peak = 1
        self.cpu = 0.0
        self._limits = limits
        self._evidence = evidence
        self._pids = pids
        self._weighing: Weighing | None = None
        self._earlier = _cpu_of_reaped()

    def sample(self) -> str | None:
        """Look at the processes once; the name of the limit that was passed, or None."""
        resident, threads, running, pids = 0, 0, 0.0, []
        for pid in self._pids():
            if stat := _stat(pid):
                pids.append((pid, int(stat[21]) * _PAGE))
                resident += pids[-1][1]
                threads += int(stat[17])
                running += (int(stat[11]) + int(stat[12])) / _TICK
            if threads > self._limits["processes"]:
                break  # a bomb grows faster than it can be counted
        self.processes_peak = max(self.processes_peak, threads)
        self.cpu = max(self.cpu, running + _cpu_of_reaped() - self._earlier)
        if self.cpu > self._limits["cpu"]:
            return "time_limit"
        if threads > self._limits["processes"]:
            return "process_limit"  # only where no cgroup refuses it
        return self._evidence.passed() if self._evidence else self._judge_memory(resident, pids)

    def _judge_memory(self, resident: int, pids: list[tuple[str, int]]) -> str | None:
        if resident > self._limits["memory"]:
            self._weighing = self._weighing or Weighing(pids)
            share = self._weighing.share()
            if share is None:
                return None
            self._weighing, resident = None, share
        self.memory_peak = max(self.memory_peak, resident)
        return "memory_limit" if resident > self._limits["memory"] else None

    def finish(self) -> None:
        """Count what ended between two samples."""
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.cpu = max(self.cpu, used.ru_utime + used.ru_stime - self._earlier)
        self.memory_peak = max(self.memory_peak, used.ru_maxrss * 1024)
        if self._evidence:
            self.memory_peak = self._evidence.memory_peak() or self.memory_peak


def _cpu_of_reaped() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _stat(pid: str) -> list[bytes]:
    """The fields after the command's name, which may hold anything; none if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []
