"""What a program's tree uses, read from /proc.

Resident memory counts a copy-on-write page once per process; only when that sum
passes the limit are the processes weighed, which counts it once. Page tables are added: to read
a page here and there of a large empty mapping makes many, and nothing else.
"""

import os
import resource
from collections.abc import Callable, Iterator
from typing import Any

from .evidence import Evidence
from .scales import Weighing

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICK = os.sysconf("SC_CLK_TCK")
_PER_TABLE = 512  # what a page table maps, as a multiple of its own size
_PART = 64  # of the limit; less than that is not looked for


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
        tables, threads, running, pids = 0, 0, 0.0, []
        for pid in self._pids():
            if stat := _stat(pid):
                teller, told = _of_its_memory(pid, stat)
                pids.append((teller, int(told[21]) * _PAGE))
                if int(told[20]) // _PER_TABLE > self._limits["memory"] // _PART:
                    tables += _tables(teller)
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
        return self._evidence.passed() if self._evidence else self._judge_memory(pids, tables)

    def _judge_memory(self, pids: list[tuple[str, int]], tables: int) -> str | None:
        used = sum(resident for _, resident in pids) + tables
        if used > self._limits["memory"]:
            self._weighing = self._weighing or Weighing(pids)
            share = self._weighing.share()
            if share is None:
                return None
            self._weighing, used = None, share + tables
        self.memory_peak = max(self.memory_peak, used)
        return "memory_limit" if used > self._limits["memory"] else None

    @property
    def crowded(self) -> bool:
        """Whether there were so many processes that others may have been refused unseen."""
        return bool(self.processes_peak > self._limits["processes"] // 2)

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


def _of_its_memory(pid: str, stat: list[bytes]) -> tuple[str, list[bytes]]:
    """Who tells: a process whose first thread has ended goes on in others, and has it empty."""
    if stat[0] == b"Z" and int(stat[17]) > 1:
        for thread in threads_of(pid):
            if (told := _stat(thread)) and told[0] not in (b"Z", b"X"):
                return thread, told
    return pid, stat


def threads_of(pid: str) -> list[str]:
    """Where in /proc each is found; none if the process has ended."""
    try:
        return [f"{pid}/task/{thread}" for thread in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def _tables(pid: str) -> int:
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            return next(
                (int(line.split()[1]) << 10 for line in file if line.startswith(b"VmPTE")), 0
            )
    except OSError:
        return 0  # it has ended


def _stat(pid: str) -> list[bytes]:
    """The fields after the command's name, which may hold anything; none if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []
