"""A session writes to the highest of its levels, which lie over one another. Forks share them, so
that nothing is copied.

To be forked, a session in which nothing runs goes on in a new highest level; the others never
change again. Its fork mounts those below a level of its own. All that a session wrote, also after a
fork, stays in memory. It goes when the last session that has a level of it mounted ends.

The levels have their paths in init's first namespace of mounts. From the first level that lies over
another one on, commands run in a second namespace, where no path leads to them.
"""

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from . import root, syscalls
from .place import Refused

MOST = 16  # what would lie deeper is copied
FIRST = root.SCRATCH + "/level-1"  # which every jail has, for what is in no image
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOUNTS = "/proc/self/ns/mnt"


class Level(NamedTuple):
    path: str  # in the first namespace
    at: int  # which reads it from anywhere


class Levels:
    """The levels of a session, made in init's first namespace of mounts."""

    def __init__(self) -> None:
        self._all: list[Level] = []  # the highest first
        self._named = 1
        self._first = -1

    @property
    def top(self) -> Level:
        return self._all[0]

    def to_copy(self) -> list[int]:
        """The levels to read them by, the highest first, in a process of its own. These are mounts
        that are nowhere: a program may put a link in a folder's place meanwhile, and `..` ends
        there."""
        with _back_from(self._first):
            return [syscalls.shared(level.path) for level in self._all]

    def begin(self, parts: Sequence[str]) -> None:
        """Begin with the jail's own level, which has these folders. Raises `Refused` where no other
        level can lie over it: programs may have changed it by the path that it has until then."""
        if len(self._all) > 1:
            return  # they have that path no longer
        require_attributes()
        try:
            for part in parts:
                os.close(os.open(part, FOLDER))
            if not self._all:
                self._put_over(FIRST)
        except OSError as problem:
            raise Refused(f"{problem.filename}: {problem.strerror}") from None

    def add(self) -> None:
        """Add a new highest level, as open to others as the last."""
        self._put_over(self._new_folder())
        self._give_owner_and_mode()

    def _put_over(self, path: str) -> None:
        if self._first < 0:
            self._first = os.open(_MOUNTS, os.O_RDONLY | os.O_CLOEXEC)
        os.mkdir(f"{path}-work", 0o755)
        self._all.insert(0, Level(path, os.open(path, FOLDER)))

    def take(self, given: list[int]) -> None:
        """Put those of another session below the one that is there, the highest first."""
        while given:
            path = self._new_folder()
            syscalls.attach(given.pop(0), path)
            self._all.append(Level(path, os.open(path, FOLDER)))
        self._give_owner_and_mode()

    def _new_folder(self) -> str:
        self._named += 1
        path = f"{root.SCRATCH}/level-{self._named}"
        os.mkdir(path, 0o755)
        return path

    def _give_owner_and_mode(self) -> None:
        """Give the highest level the owner and the mode of /, which it decides."""
        for before in self._all[1:2]:
            found = os.fstat(before.at)
            os.fchown(self.top.at, found.st_uid, found.st_gid)
            os.fchmod(self.top.at, stat.S_IMODE(found.st_mode))

    def over(self, layers: list[str]) -> int:
        """A mount of all of them over these layers. To be called in the first namespace."""
        top, *others = self._all
        return syscalls.overlay(
            [*(level.path for level in others), *layers], top.path, f"{top.path}-work"
        )

    def enter_new_namespace(self) -> None:
        """Enter a new namespace of mounts: the one in which the session began, without the
        levels."""
        syscalls.enter_mounts(self._first)
        syscalls.unshare(syscalls.NEW_NS)

    def frozen(self, layers: list[str]) -> tuple[list[int], int | None]:
        """The levels so far, as mounts for another session. And the mount that this one has to go
        on in, unless it wrote nothing since the last time. Raises `Refused`."""
        with _back_from(self._first), contextlib.ExitStack() as opened:
            shared = []
            if written := self._has_changed():
                if len(self._all) == MOST:
                    raise Refused(f"{MOST} levels lie over one another")
                opened.callback(self._drop_above, self.top)
                self.add()
            for level in self._all[1:]:
                shared.append(syscalls.shared(level.path))
                opened.callback(os.close, shared[-1])
            image = self.over(layers) if written else None
            opened.pop_all()
        return shared, image

    def _has_changed(self) -> bool:
        if os.listdir(self.top.at) or len(self._all) == 1:
            return True
        now, before = (os.fstat(level.at) for level in self._all[:2])
        return (now.st_mode, now.st_uid, now.st_gid) != (
            before.st_mode, before.st_uid, before.st_gid
        )  # fmt: skip

    def _drop_above(self, level: Level) -> None:
        """Drop the highest level, to which nothing was written."""
        while self.top is not level:
            os.close(self._all.pop(0).at)
        for path in (f"{root.SCRATCH}/level-{self._named}{end}" for end in ("", "-work")):
            with contextlib.suppress(OSError):  # it was not made, or the kernel uses it
                os.rmdir(path)


def require_attributes() -> None:
    """Require attributes of folders, in which the kernel notes what a level hides of those
    below."""
    try:
        os.setxattr(root.SCRATCH, "user.overlay.test", b"y")
    except OSError:
        raise Refused("a session from an image needs Linux 6.6 or newer") from None


@contextlib.contextmanager
def _back_from(namespace: int) -> Iterator[None]:
    """Enter another namespace's mounts for a `with` block, and come back. An error there is
    `Refused`; an error on the way back is not caught."""
    here = os.open(_MOUNTS, os.O_RDONLY | os.O_CLOEXEC)
    try:
        syscalls.enter_mounts(namespace)
        try:
            yield
        except OSError as problem:
            raise Refused(f"{problem.strerror or problem}") from None
        finally:
            syscalls.enter_mounts(here)
    finally:
        os.close(here)
