"""A level without namespaces gives an execution its own folder, and a process group that it cannot
leave.

At the level `landlock` the program can reach nothing but this folder and what may be read;
at `none` nothing holds it. Its processes are found as descendants of its init, to which the
kernel gives every orphan, and die together: the filter lets nobody leave the group.
"""

import contextlib
import glob
import os
import secrets
import signal
import stat
import time
from collections.abc import Iterator
from typing import Any

from . import janitor, landlock, root, syscall_filter, syscalls
from .place import Refused, be_nice
from .wire import Socket

_MOMENT = 1.0  # second, for an init to remove what its program left before it reports
_MORE_PROCESSES = 512
_OF_ITSELF = ("status", "stat", "statm", "maps", "fd")
_OF_THE_MACHINE = ("cpuinfo", "meminfo", "stat")


class Folder:
    clone_flags = 0

    def __init__(self, config: dict[str, Any]) -> None:
        self._base = config["base"]
        self._lock, self._waking = config["lock"], config["waking"]
        for kept in (self._lock, self._waking):
            os.set_inheritable(kept, False)
        self.server = os.pidfd_open(os.getpid())
        self._rights = _rights(config["exposed"])
        self._confined = config["level"] == "landlock"
        self._already = _tasks_of_this_user()
        self._filter = syscalls.Filter(syscall_filter.program(alone=True))
        self.home = self.scratch = ""
        self.writable = "the program's own folder"
        self.limited = False
        # Nothing can be hidden from one program and not from all: pytest is asked not to look.
        self._usual = {"PYTEST_ADDOPTS": "-p no:penstock"} if config["hidden"] else {}
        self.environment: dict[str, str] = {}

    def admit(self, process: int, line: Socket) -> None:
        """Do nothing: a folder needs nothing here."""

    def enter(self, line: Socket) -> None:
        syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
        # A program cannot find another's folder by the name of its own.
        self.scratch = f"{self._base}/{os.getpid()}-{secrets.token_hex(8)}"
        self.home = self.scratch + "/home"
        temporary = self.scratch + "/temporary"
        try:
            for path in (self.scratch, self.home, temporary):
                os.mkdir(path, 0o700)
        except OSError:
            self.leave()
            raise
        self.environment = {"TMPDIR": temporary, **self._usual}

    def build(self) -> None:
        """The program's folders are made as it enters: their names are the program's to know."""

    def furnish(self, limits: dict[str, Any]) -> None:
        """No quota can be set on a folder: a file's size is limited, their number is not."""

    def target(self, name: str) -> str:
        return self._inside(name, os.path.normpath(os.path.join(self.home, name)))

    def source(self, name: str) -> str:
        return self._inside(name, os.path.realpath(os.path.join(self.home, name)))

    def _inside(self, name: str, path: str) -> str:
        if not path.startswith(self.scratch + "/"):
            raise Refused("not in a folder that the program may write to")
        return path

    def process_limit(self, granted: int) -> int:
        """The kernel counts all processes of a user, so init counts the program's own.

        But a bomb outgrows one that looks every 20 ms, and must meet an end before the machine's.
        """
        return self._already + max(_MORE_PROCESSES, 2 * granted)

    def allow_to_run(self, name: str) -> None:
        at = os.open(os.path.join(self.home, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            os.fchmod(at, stat.S_IRWXU)
        finally:
            os.close(at)

    def confine(self) -> None:
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
        if self._confined:
            own = {f"/proc/self/{name}": landlock.READ for name in _OF_ITSELF}
            landlock.restrict({**self._rights, **own, self.scratch: landlock.WRITE})
            self._filter.install()

    def become(self, user: str, workdir: str) -> None:
        """There is one user."""

    def changed(self) -> list[int]:
        return [os.open(self.scratch, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]

    def start_from(self, image: dict[str, Any] | None, given: list[int]) -> None:
        raise Refused("a root of its own needs the level ns")

    def freeze(self) -> list[int]:
        raise Refused("a level that is shared needs mounts, and with them the level ns")

    def give_way(self, pids: Iterator[str]) -> None:
        be_nice(pids)

    def pids(self) -> Iterator[str]:
        """Descendants, the dead ones that nobody has collected among them."""
        parents = [str(os.getpid())]
        while parents:
            children = janitor.children_of(parents.pop())
            yield from children
            parents += children

    def kill(self, program: int) -> None:
        try:
            os.killpg(program, signal.SIGKILL)
            one_by_one = not self._confined
        except (ProcessLookupError, PermissionError):
            one_by_one = True  # all are gone, or zombies; or it has no group so far
        for pid in self.pids() if one_by_one else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)

    def kill_all(self) -> None:
        """Processes are killed by groups, which nobody can leave: a bomb dies at once."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if (group := os.getpgid(int(pid))) != os.getpgrp():
                    os.killpg(group, signal.SIGKILL)
                os.kill(int(pid), signal.SIGKILL)

    def terminals(self) -> str:
        return "/dev/ptmx"  # of the machine: init opens it, and no program can

    def leave(self) -> bool:
        try:
            return janitor.remove(self.scratch, until=time.monotonic() + _MOMENT)
        except OSError:
            return False  # the janitor tries as well, and logs why

    def bury(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it is awake
            os.write(self._waking, b"x")


def _rights(readable: list[str]) -> dict[str, int]:
    system = [f"/{name}" for name in root.SYSTEM] + [
        f"/etc/{name}" for name in root.settings("/etc")
    ]
    machine = [f"/proc/{name}" for name in _OF_THE_MACHINE]
    rights = dict.fromkeys([*system, "/etc/passwd", "/etc/group", "/etc/hosts"], landlock.READ)
    rights |= dict.fromkeys([*machine, *readable], landlock.READ)
    return rights | {f"/dev/{name}": landlock.USE for name in root.DEVICES}


def _tasks_of_this_user() -> int:
    count = 0
    for status in glob.iglob("/proc/[0-9]*/status"):
        with contextlib.suppress(OSError), open(status) as file:
            fields = dict(line.split(":", 1) for line in file)
            if fields["Uid"].split()[0] == str(os.getuid()):
                count += int(fields["Threads"])
    return count
