"""A mark shows whose a cgroup is: an empty one next to a process's groups, locked while the process
lives.

A process's number would not do: another may have it by then, and in a container that shares the
hierarchy it is another's. The kernel gives the lock back however a process ends.
"""

import contextlib
import fcntl
import os
import re
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_PREFIX = "penstock-"
_NAMES = re.compile(rf"({_PREFIX}[0-9a-f]{{16}})([.][0-9]+)?")
_TRIES, _PAUSE = 20, 0.01  # another's sweep has a new mark for a moment
_held: set[int] = set()


def _let_go() -> None:
    """Close the marks in a fork, which may outlive the process whose groups they are."""
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_let_go)


def new_name() -> str:
    """A mark's name, and the start of its groups' names. A program learns nothing from it."""
    return _PREFIX + secrets.token_hex(8)


@dataclass(frozen=True)
class Mark:
    """A mark of this process's groups; `files` is what a group has that is made there."""

    folder: Path
    files: list[str]
    lock: int

    @classmethod
    def make(cls, parent: Path, name: str) -> Self | None:
        """Make a mark; None if no group can be made. What dead processes left there is removed."""
        sweep(parent)
        folder = parent / name
        with contextlib.suppress(OSError):
            for _ in range(_TRIES):
                folder.mkdir(exist_ok=True)
                if (lock := _lock(folder)) is not None:
                    _held.add(lock)
                    return cls(folder, os.listdir(folder), lock)
                time.sleep(_PAUSE)
        return None

    def remove(self) -> None:
        if self.lock not in _held:
            return  # its owner's fork
        _held.remove(self.lock)
        with contextlib.suppress(OSError):  # another's sweep
            self.folder.rmdir()
        os.close(self.lock)


def sweep(parent: Path) -> None:
    """Remove what a process left that was killed before it could."""
    for left in parent.glob(f"{_PREFIX}*"):
        if name := _NAMES.fullmatch(left.name):
            mark = parent / name[1]
            lock = _lock(mark)
            if lock is None and mark.exists():
                continue  # its owner lives
            with contextlib.suppress(OSError):  # another start sweeps too
                left.rmdir()
            if lock is not None:
                os.close(lock)


def _lock(mark: Path) -> int | None:
    """A descriptor that locks the mark; None if another process holds it, or a sweep was faster."""
    try:
        at = os.open(mark, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    with contextlib.suppress(OSError):
        fcntl.flock(at, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(at), os.stat(mark)):  # not one made since in its place
            return at
    os.close(at)
    return None
