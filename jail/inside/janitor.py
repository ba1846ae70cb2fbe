"""The fork server's parent where no namespace ends a program: it clears up, and holds nobody up.

The kernel gives it whatever a dead init, or a dead fork server, leaves running. It kills that, and
has a process of its own remove the files. So the fork server, which serves all programs, waits for
none of it, and nothing of a program outlives both.
"""

import contextlib
import fcntl
import glob
import itertools
import math
import os
import secrets
import select
import signal
import stat
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

from . import syscalls
from .usage_meter import threads_of

_PREFIX = "penstock-jails-"
_FAREWELL = 1000  # milliseconds for the last files; what takes longer goes on by itself
_FOLDER = os.O_DIRECTORY | os.O_CLOEXEC
_NICE = 19


def stand_by(parent: str, control: int) -> dict[str, Any]:
    """Stay behind as the janitor; it is the child that returns, to become the fork server."""
    base, lock = locked_folder(parent)
    syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
    janitor = os.getpid()
    woken, waking = os.pipe()
    if server := os.fork():
        os.close(control)
        os.close(waking)
        _do_and_end(Janitor(base, server, woken).serve, parent)
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != janitor:
        os._exit(0)
    os.close(woken)
    os.set_blocking(waking, False)
    for kept in (lock, waking):
        os.set_inheritable(kept, True)
    return {"base": base, "lock": lock, "waking": waking}


class Janitor:
    """Woken by a byte when an init was killed, or had no time to remove all of its files."""

    def __init__(self, base: str, server: int, woken: int) -> None:
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
        self._base = base
        self._server = server
        self._server_ended = os.pidfd_open(server)
        self._woken = woken
        self._cleaner = self._cleaner_ended = -1
        self._given: set[str] = set()  # to a cleaner; one that fails is not asked again

    def serve(self, parent: str) -> None:
        """Wait until the fork server has ended; then clear up after it."""
        self._send_cleaner(sweep, parent)
        while self._server_ended not in (ready := self._wait(None)):
            if self._woken in ready:
                os.read(self._woken, 1 << 16)
            if self._cleaner_ended in ready:
                self._dismiss_cleaner()
            self._kill_orphans()
            if self._cleaner < 0 and (left := self._left()):
                self._given |= left
                self._send_cleaner(_remove_all, left)
        os.waitpid(self._server, 0)
        if self._cleaner >= 0:
            os.kill(self._cleaner, signal.SIGKILL)
            self._dismiss_cleaner()
        self._kill_orphans()
        self._send_cleaner(_remove_all, [self._base])
        self._wait(_FAREWELL)

    def _wait(self, timeout: int | None) -> set[int]:
        poll = select.poll()
        watched = [self._cleaner_ended]
        if timeout is None:
            watched += [self._server_ended, self._woken]
        for at in watched:
            if at >= 0:
                poll.register(at, select.POLLIN)
        return {at for at, _ in poll.poll(timeout)}

    def _kill_orphans(self) -> None:
        """Kill until none is left: the children of one that dies are the next to come."""
        known = {self._server, self._cleaner}
        while orphans := set(map(int, children_of(str(os.getpid())))) - known:
            for orphan in orphans:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    if (group := os.getpgid(orphan)) != os.getpgrp():  # else it has no group so far
                        os.killpg(group, signal.SIGKILL)
                os.kill(orphan, signal.SIGKILL)
            for orphan in orphans:
                os.waitpid(orphan, 0)

    def _left(self) -> set[str]:
        """The folders of inits that have ended. An init lives longer than the name of its folder.

        A number that another process has by now is looked at again, and at the end at the latest.
        Other names are the fork server's, whose home this is: modules may keep files there.
        """
        left = {
            f"{self._base}/{name}"
            for name in os.listdir(self._base)
            if (init := name.partition("-")[0]).isdigit() and not os.path.exists(f"/proc/{init}")
        }
        self._given &= left
        return left - self._given

    def _send_cleaner(self, task: Callable[[Any], None], what: object) -> None:
        """Clean in a process of its own, which gives way to programs."""
        self._cleaner = os.fork()
        if self._cleaner == 0:
            os.nice(_NICE)
            _do_and_end(task, what)
        self._cleaner_ended = os.pidfd_open(self._cleaner)

    def _dismiss_cleaner(self) -> None:
        os.waitpid(self._cleaner, 0)
        os.close(self._cleaner_ended)
        self._cleaner = self._cleaner_ended = -1


def _do_and_end(task: Callable[[Any], None], what: object) -> NoReturn:
    try:
        task(what)
    except BaseException:  # noqa: BLE001  it goes to the client's log
        traceback.print_exc()
    finally:
        os._exit(0)


def _remove_all(folders: Iterable[str]) -> None:
    for folder in folders:
        try:
            remove(folder)
        except OSError as problem:
            print(f"{folder} cannot be removed: {problem}", file=sys.stderr)


def sweep(parent: str) -> None:
    """Remove what was left by sandboxes that were killed with their janitors."""
    for left in glob.glob(f"{parent}/{_PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's, or in use
            at = os.open(left, os.O_RDONLY | os.O_NOFOLLOW | _FOLDER)
            try:
                fcntl.flock(at, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove(left)
            finally:
                os.close(at)


def locked_folder(parent: str) -> tuple[str, int]:
    """The folder's lock is also the fork server's and every init's: who can take it finds all
    dead."""
    while True:
        base = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)
        with contextlib.suppress(FileNotFoundError):
            lock = os.open(base, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if os.path.exists(base):
                return base, lock
            os.close(lock)  # another one's sweep came before the lock


def children_of(pid: str) -> list[str]:
    """The children of each of its threads: whichever forks has the child for its own."""
    found = []
    for thread in threads_of(pid):
        with contextlib.suppress(OSError), open(f"/proc/{thread}/children") as file:
            found += file.read().split()
    return found


def remove(folder: str, until: float = math.inf) -> bool:
    """A tree however deep, large and closed; False if the time came first.

    What lies in a folder's folders is moved up into it, so that no path grows. No link is
    followed: one who still changes the tree can hinder this, and reach nothing by it.
    """
    return all(time.monotonic() <= until for _ in _removal(folder))


def _removal(folder: str) -> Iterator[None]:
    mark, numbers = secrets.token_hex(8), itertools.count()
    top = _opened(folder, None)
    try:
        found = True
        while found:
            found = False
            for name, is_folder in _entries(top):
                found = True
                yield
                if not is_folder:
                    os.unlink(name, dir_fd=top)
                    continue
                inner = _opened(name, top)
                try:
                    yield from _move_up(inner, top, (f"{mark}-{number}" for number in numbers))
                finally:
                    os.close(inner)
                os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
    os.rmdir(folder)


def _move_up(inner: int, top: int, names: Iterator[str]) -> Iterator[None]:
    for name, is_folder in _entries(inner):
        yield
        if not is_folder:
            os.unlink(name, dir_fd=inner)
            continue
        os.close(_opened(name, inner))  # to move a folder is to write to it
        os.rename(name, next(names), src_dir_fd=inner, dst_dir_fd=top)


def _entries(folder: int) -> Iterator[tuple[str, bool]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            yield entry.name, entry.is_dir(follow_symlinks=False)


def _opened(name: str, at: int | None) -> int:
    """This folder, and no link to another, to be read and written to from now on."""
    found = os.open(name, os.O_PATH | os.O_NOFOLLOW | _FOLDER, dir_fd=at)
    try:
        itself = f"/proc/self/fd/{found}"
        os.chmod(itself, stat.S_IRWXU)
        return os.open(itself, os.O_RDONLY | _FOLDER)
    finally:
        os.close(found)
