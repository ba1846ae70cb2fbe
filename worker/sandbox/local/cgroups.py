"""A cgroup per execution where this process may make one: memory and processes of the tree.

The client makes it and hands the program a descriptor to join by, opened with the
client's rights; the jail itself never sees the hierarchy.
"""

import contextlib
import os
import time
from pathlib import Path
from typing import ClassVar

from worker.sandbox.local.group import PASSED_ON, Files, Group
from worker.sandbox.local.limits import DEFAULTS, Limits

_MOUNTS = Path("/proc/self/mounts")
_OWN = Path("/proc/self/cgroup")


class Hierarchy:
    """Where this process may create groups; made by `find`, removed by `close`."""

    _removal_patience: ClassVar[float] = 5.0

    def __init__(self, parents: list[Path], unified: bool) -> None:
        self.kind = "cgroup-v2" if unified else "cgroup-v1"
        self._parents = parents
        self._files = Files.of(parents, unified)
        self._made = 0
        self._dying: list[tuple[float, str]] = []

    @classmethod
    def find(cls) -> "Hierarchy | None":
        """Version 2 if it controls memory, else version 1, else none; tried, not assumed."""
        for parents, unified in (_unified_parents(), True), (_legacy_parents(), False):
            if not parents:
                continue
            hierarchy = cls(parents, unified)
            try:
                hierarchy.discard(hierarchy.make(DEFAULTS))
            except OSError:
                hierarchy.close()
                continue
            return hierarchy
        return None

    def make(self, limits: Limits) -> Group:
        self._made += 1
        group = Group(self._files, [f"{parent}/{self._made}" for parent in self._parents])
        try:
            group.make(limits)
        except OSError:
            self.discard(group)
            raise
        return group

    def discard(self, group: Group) -> None:
        """Remove a group; one whose last process is still ending is tried again later."""
        group.close()
        now = time.monotonic()
        self._dying += [(now, folder) for folder in group.folders]
        self._dying = [(since, folder) for since, folder in self._dying if not _removed(folder)]

    @property
    def dying(self) -> int:
        return len(self._dying)

    def close(self) -> None:
        deadline = time.monotonic() + self._removal_patience
        while self._dying and time.monotonic() < deadline:
            self._dying = [entry for entry in self._dying if not _removed(entry[1])]
            time.sleep(0.005)
        for parent in self._parents:
            with contextlib.suppress(OSError):  # a process that will not die keeps it
                parent.rmdir()


def _removed(folder: str) -> bool:
    try:
        os.rmdir(folder)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _optional(file: Path, value: str) -> None:
    with contextlib.suppress(OSError):  # no swap accounting, or a kernel before the feature
        file.write_text(value)


def _own_group(controller: str) -> str:
    """This process's path in a hierarchy, from /proc/self/cgroup."""
    for line in _OWN.read_text().splitlines():
        _, names, path = line.split(":", 2)
        if controller in names.split(","):
            return path
    return "/"


def _mounted(kind: str, option: str = "") -> Path | None:
    for line in _MOUNTS.read_text().splitlines():
        _, where, found, options, *_ = line.split(" ")
        if found == kind and (not option or option in options.split(",")):
            return Path(where)
    return None


def _create(base: Path) -> Path | None:
    """A folder of ours in this group; None where none can be made."""
    _sweep(base)
    folder = base / f"penstock-{os.getpid()}-{time.monotonic_ns()}"
    try:
        folder.mkdir()
    except OSError:
        return None
    return folder


def _sweep(base: Path) -> None:
    """Remove what a process left that was killed before it could."""
    for left in base.glob("penstock-*-*"):
        if not Path("/proc", left.name.split("-")[1]).exists():
            for folder in (*left.glob("*/"), left):
                with contextlib.suppress(OSError):  # another start sweeps too
                    folder.rmdir()


def _unified_parents() -> list[Path]:
    """Below our own group, the one above, or the top: the first that passes control on.

    A group with processes of its own does not, except the top; so our own serves only where
    that is already so, and the one above where systemd has `DelegateSubgroup=`, or for root.
    """
    mount = _mounted("cgroup2")
    if mount is None or "memory" not in (mount / "cgroup.controllers").read_text().split():
        return []
    own = mount / _own_group("").lstrip("/")
    bases = dict.fromkeys((own, mount if own == mount else own.parent, mount))
    return next(([folder] for base in bases if (folder := _unified_parent(base))), [])


def _unified_parent(base: Path) -> Path | None:
    _optional(base / PASSED_ON, "+memory +pids")
    folder = _create(base)
    if folder is None:
        return None
    try:
        (folder / PASSED_ON).write_text("+memory +pids")
    except OSError:
        folder.rmdir()
        return None
    _optional(folder / PASSED_ON, "+cpu")
    return folder


def _legacy_parents() -> list[Path]:
    parents: list[Path] = []
    for controller in ("memory", "cpu", "pids"):
        folder = _legacy_parent(controller)
        if folder is not None:
            parents.append(folder)
        elif controller != "cpu":
            for made in parents:
                made.rmdir()
            return []
    return parents


def _legacy_parent(controller: str) -> Path | None:
    """Below our own group, or below the top where that is not visible."""
    mount = _mounted("cgroup", controller)
    if mount is None:
        return None
    return _create(mount / _own_group(controller).lstrip("/")) or _create(mount)
