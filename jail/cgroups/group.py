"""A group is the cgroup of one execution: its limits, and the files that its jail is handed."""

import os
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Self

from jail.limits import Limits

_KILL_ALL = "memory.oom.group"
_FOR_SOCKETS = 8  # the part of its memory that version 1 counts apart: buffers of TCP and UDP


@dataclass(frozen=True)
class Files:
    """The names of the files of one version of cgroups; empty for a file that it lacks."""

    memory: str
    swap: str
    swap_with_memory: bool
    sockets: str
    kill_all: str
    killed: str
    peak: str
    weight: str
    used: str
    joined_by: str

    @classmethod
    def of(cls, there: Collection[str], unified: bool) -> Self:
        def present(name: str, otherwise: str = "") -> str:
            return name if name in there else otherwise

        if unified:
            return cls(
                memory="memory.max",
                swap=present("memory.swap.max"),
                swap_with_memory=False,
                sockets="",  # counted with all else
                kill_all=present(_KILL_ALL),
                killed="memory.events",
                peak=present("memory.peak", "memory.current"),  # no peak before 5.19
                weight=present("cpu.weight"),
                used=present("cpu.stat"),
                joined_by="cgroup.procs",
            )
        return cls(
            memory="memory.limit_in_bytes",
            swap=present("memory.memsw.limit_in_bytes"),
            swap_with_memory=True,
            sockets=present("memory.kmem.tcp.limit_in_bytes"),
            kill_all="",
            killed="memory.oom_control",
            peak="memory.max_usage_in_bytes",
            weight=present("cpu.shares"),
            used=present("cpuacct.usage"),
            joined_by="tasks",  # lets a process move itself without stopping all others
        )


@dataclass
class Group:
    """A group has one folder, or in version 1 those of memory, processor, its use, and
    processes."""

    files: Files
    folders: list[str]
    # Three accounts, its weight, its processor time, then what to join by.
    descriptors: list[int] = field(default_factory=list)

    @property
    def weight(self) -> str:
        """The file whose weight divides the processor between groups; one without content if
        nothing does."""
        folder = self.folders[1 if len(self.folders) > 1 else 0]
        return f"{folder}/{self.files.weight}" if self.files.weight else os.devnull

    @property
    def used(self) -> str:
        """The file that counts its processor time; one without content if nothing does."""
        paths = (f"{folder}/{self.files.used}" for folder in self.folders if self.files.used)
        return next(filter(os.path.exists, paths), os.devnull)

    def make(self, limits: Limits) -> None:
        for folder in self.folders:
            os.mkdir(folder)
        memory, processes = self.folders[0], self.folders[-1]
        _write(f"{processes}/pids.max", limits.processes)
        _write(f"{memory}/{self.files.memory}", limits.memory)
        if self.files.swap:
            both = limits.memory if self.files.swap_with_memory else 0
            _write(f"{memory}/{self.files.swap}", both)
        if self.files.sockets:
            _write(f"{memory}/{self.files.sockets}", limits.memory // _FOR_SOCKETS)
        if self.files.kill_all:
            _write(f"{memory}/{self.files.kill_all}", 1)
        self._open(f"{memory}/{self.files.killed}", os.O_RDONLY)
        self._open(f"{processes}/pids.events", os.O_RDONLY)
        try:
            self._open(f"{memory}/{self.files.peak}", os.O_RDWR)
        except PermissionError:
            self._open(f"{memory}/{self.files.peak}", os.O_RDONLY)  # it is never forgotten
        self._open(self.weight, os.O_RDWR)
        self._open(self.used, os.O_RDONLY)
        for folder in self.folders:
            self._open(f"{folder}/{self.files.joined_by}", os.O_WRONLY)

    def _open(self, path: str, mode: int) -> None:
        self.descriptors.append(os.open(path, mode | os.O_CLOEXEC))

    def close(self) -> None:
        while self.descriptors:
            os.close(self.descriptors.pop())


def _write(path: str, value: int) -> None:
    at = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(at, b"%d" % value)
    finally:
        os.close(at)
