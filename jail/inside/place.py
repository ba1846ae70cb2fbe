"""A place does what a level of isolation needs at each step of an execution's life.

`namespaces.Namespaces` is the strong one; `folder.Folder` serves the levels without namespaces.
One is made in the fork server, and every clone works on its own copy.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Any, Protocol

from .wire import Socket

NICE = 5  # about a third of the usual share


class Refused(Exception):
    """A file that cannot be put, or had, where it is asked for."""


def be_nice(pids: Iterator[str]) -> None:
    """Priority is lowered by groups: what these processes start meanwhile is in one of them."""
    groups = set()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            groups.add(os.getpgid(int(pid)))
    for group in groups:
        # One is nicer already, or all have ended.
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.setpriority(os.PRIO_PGRP, group, NICE)


class Place(Protocol):
    clone_flags: int
    home: str  # where a program starts
    scratch: str  # what it may write to lies on this file system
    writable: str  # the same, in words
    limited: bool  # whether that is as large as the request allows; else the machine's disk is
    environment: dict[str, str]
    server: int  # the fork server's pidfd

    def admit(self, process: int, line: Socket) -> None:
        """Do for this clone, in the fork server, what it cannot do itself."""

    def enter(self, line: Socket) -> None:
        """Become an execution's init, in the clone, as it begins."""

    def build(self) -> None:
        """Make what the program is confined to, its process being there already.

        Before that, for what init has touched by then is copied for the program too.
        """

    def furnish(self, limits: dict[str, Any]) -> None:
        """Once the request is there: give the program's folders their size."""

    def target(self, name: str) -> str:
        """The path at which a file of the request goes; raises `Refused`."""

    def source(self, name: str) -> str:
        """The path of a file that is asked back, once the program is dead; raises `Refused`."""

    def process_limit(self, granted: int) -> int:
        """The number of processes at which the kernel refuses more to the program's user."""

    def allow_to_run(self, name: str) -> None:
        """Make a compiler's output executable, if its own `chmod` is refused."""

    def confine(self) -> None:
        """Confine the program's process, the last thing before its code."""

    def become(self, user: str, workdir: str) -> None:
        """Become the command's user once the process is confined; `home` and `environment` are that
        user's then. Raises `Refused` for a user that is not there."""

    def changed(self) -> list[int]:
        """Open, in a command's process before it is confined, the folders of all that was written,
        the first over the others."""

    def start_from(self, image: dict[str, Any] | None, given: list[int]) -> None:
        """Begin, in init, before any command: its root is the image's, if one is named, and under
        all that it will write lies what another session has shared. Raises `Refused`."""

    def freeze(self) -> list[int]:
        """Freeze, in init, while nothing runs: what was written so far is to be shared. It never
        changes again. Raises `Refused` where it can only be copied."""

    def give_way(self, pids: Iterator[str]) -> None:
        """Make these processes nice to others, as far as the kernel heeds it."""

    def pids(self) -> Iterator[str]:
        """The program's processes, found as they are asked for."""

    def kill(self, program: int) -> None:
        """Kill all that is left of the program."""

    def kill_all(self) -> None:
        """Kill all that init has below it, whichever command it is of."""

    def terminals(self) -> str:
        """The path that gives a new terminal when it is opened; it may be missing."""

    def leave(self) -> bool:
        """Init ends, and removes what it made; False if more is left than a moment suffices for."""

    def bury(self) -> None:
        """Bury, in the fork server, an init that was killed, or has left something. This waits for
        nobody."""
