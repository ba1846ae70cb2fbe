"""The meter reads from /proc what a program's tree uses, and says which limit it has passed.

If the tree has a cgroup, the kernel says that of memory and processes (limits_passed.py).

Resident memory counts a copy-on-write page once per process. Only when that sum
passes the limit are the processes weighed, which counts it once. Page tables are added: to read
a page here and there of a large empty mapping makes many, and nothing else.
"""

import _thread
import os
import resource
import time
from collections.abc import Callable, Iterator
from typing import Any

from .limits_passed import Evidence, KilledFromOutside, kills_on_machine

_SOON = 0.02  # seconds; it takes a millisecond or two where nobody hinders it
_OVERDUE = 1.0


class Weighing:
    """A weighing of a tree's processes with their resident memory; begun as it is made."""

    def __init__(self, processes: list[tuple[str, int]]) -> None:
        self._processes = processes
        self._share = 0
        self._began = time.monotonic()
        self._under_way = _thread.allocate_lock()
        self._under_way.acquire()
        _thread.start_new_thread(self._weigh, ())

    def _weigh(self) -> None:
        self._share = sum(_proportional(pid, resident) for pid, resident in self._processes)
        self._under_way.release()

    def share(self) -> int | None:
        """The share of memory in bytes; None if it is still unknown. One that hinders us long is
        counted in full."""
        if self._under_way.acquire(timeout=_SOON):
            self._under_way.release()
            return self._share
        if time.monotonic() - self._began > _OVERDUE:
            return sum(resident for _, resident in self._processes)
        return None


def _proportional(pid: str, resident: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    except PermissionError:
        return resident  # it made itself unreadable, and is counted in full for that
    except OSError:
        pass  # it has ended
    return 0


_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICK = os.sysconf("SC_CLK_TCK")
_PER_TABLE = 512  # what a page table maps, as a multiple of its own size
_PART = 64  # of the limit; less than that is not looked for
_OF_FORKS = 0.1  # seconds that the process which forks the cases may take for one


class Meter:
    """Peaks of the tree below init, and which limit it has passed."""

    def __init__(
        self,
        limits: dict[str, Any],
        evidence: Evidence | None,
        pids: Callable[[], Iterator[str]],
        killed: int,
    ) -> None:
        """`killed` is what `kills_on_machine` said before, where there is no evidence."""
        self.memory_peak = 0
        self.processes_peak = 1
        self.cpu = 0.0
        self.idle = 0.0  # seconds in which no process of it ran, or would have with a processor
        self._looked = time.monotonic()
        self._limits = limits
        self._evidence = evidence
        self._before = evidence.seconds() if evidence else 0.0
        self._killed = killed
        self.pids = pids
        self._weighing: Weighing | None = None
        self._alive: dict[tuple[str, bytes], float] = {}  # as last seen, with its seconds
        self._ended = 0.0  # seconds of those that are not seen any more
        self._earlier = _cpu_of_reaped()

    def sample(self) -> str | None:
        """Look at the processes once; the name of the limit that was passed, or None."""
        tables, threads, pids, awake = 0, 0, [], False
        alive: dict[tuple[str, bytes], float] = {}
        for pid in self.pids():
            if stat := _stat(pid):
                thread, figures = _of_its_memory(pid, stat)
                pids.append((thread, int(figures[21]) * _PAGE))
                if int(figures[20]) // _PER_TABLE > self._limits["memory"] // _PART:
                    tables += _tables(thread)
                threads += int(stat[17])
                awake = (
                    awake or stat[0] == b"R" or (int(stat[17]) > 1 and wants_to_run(iter([pid])))
                )
                alive[pid, stat[19]] = (int(stat[11]) + int(stat[12])) / _TICK
            if threads > self._limits["processes"]:
                break  # a bomb grows faster than it can be counted
        self.processes_peak = max(self.processes_peak, threads)
        before, self._looked = self._looked, time.monotonic()
        self.idle += self._looked - before if alive and not awake else 0.0
        self._count_time(alive)
        if self.cpu > self._limits["cpu"]:
            return "time_limit"
        if threads > self._limits["processes"]:
            return "process_limit"  # only where no cgroup refuses it
        return self._evidence.passed() if self._evidence else self._judge_memory(pids, tables)

    def _count_time(self, alive: dict[tuple[str, bytes], float]) -> None:
        """Init collects most that end. One whose parent ignores that ends unseen, with its time.
        A cgroup tells of it, once it is about as much as the limit."""
        self._ended += sum(seconds for one, seconds in self._alive.items() if one not in alive)
        self._alive = alive
        collected = _cpu_of_reaped() - self._earlier
        self.cpu = max(self.cpu, sum(alive.values()) + max(collected, self._ended))
        if self._evidence:
            # The unseen is in it, and what forks the cases, which may compile for as long as one.
            used = self._evidence.seconds() - self._before
            self.cpu = max(self.cpu, used - self._limits["cpu"] - _OF_FORKS)

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

    def check_machine(self) -> None:
        """Check the machine for a program that was killed, and not by us. Raises
        `KilledFromOutside` if there was a shortage of memory: without a cgroup, nothing says whose
        it was."""
        if kills_on_machine() > self._killed:
            raise KilledFromOutside

    @property
    def crowded(self) -> bool:
        """Whether there were so many processes that others may have been refused unseen."""
        return bool(self.processes_peak > self._limits["processes"] // 2)

    def finish(self) -> None:
        """Count what ended between two samples."""
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        of_all = self._evidence.memory_peak() if self._evidence else 0
        self.close(used.ru_utime + used.ru_stime - self._earlier, used.ru_maxrss * 1024, of_all)

    def close(self, cpu: float, of_one: int, of_all: int) -> None:
        """End with what all that has ended used, the peak of the largest process and, if it is
        known, of all together."""
        self.cpu = max(self.cpu, cpu)
        self.memory_peak = of_all or max(self.memory_peak, of_one)


def _cpu_of_reaped() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _of_its_memory(pid: str, stat: list[bytes]) -> tuple[str, list[bytes]]:
    """The thread to read: the main thread's stat is empty after its end, though others run."""
    if stat[0] == b"Z" and int(stat[17]) > 1:
        for thread in threads_of(pid):
            if (found := _stat(thread)) and found[0] not in (b"Z", b"X"):
                return thread, found
    return pid, stat


def wants_to_run(pids: Iterator[str]) -> bool:
    """Whether a thread of these runs, or would if there were a processor for it."""
    return any(
        stat and stat[0] == b"R" for pid in pids for thread in threads_of(pid)
        if (stat := _stat(thread))
    )  # fmt: skip


def threads_of(pid: str) -> list[str]:
    """The places in /proc of a process's threads; none if it has ended."""
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
