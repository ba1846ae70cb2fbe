"""A cgroup per execution where this process may make one: memory and processes of the tree.

The client makes it and hands the program a descriptor to join by, opened with the
client's rights. The jail itself never sees the hierarchy.
"""

import contextlib
import os
import time
from pathlib import Path
from typing import ClassVar

from jail.cgroups import marks
from jail.cgroups.group import Files, Group
from jail.cgroups.marks import Mark
from jail.limits import DEFAULTS, Limits

_PASSED_ON = "cgroup.subtree_control"
_CONTROLLERS = ("memory", "cpu", "cpuacct", "pids")
_MOUNTS = Path("/proc/self/mounts")
_OWN = Path("/proc/self/cgroup")


class Hierarchy:
    """A hierarchy is a place where this process may create groups; `find` makes it, `close` removes
    it.

    They are siblings of the group of the process that hands out the programs: weights are compared
    among neighbours only, and one folder around them all would outweigh every one in it.
    """

    _removal_patience: ClassVar[float] = 5.0

    def __init__(self, made_in: list[Mark], unified: bool) -> None:
        self.kind = "cgroup-v2" if unified else "cgroup-v1"
        self.marks = made_in
        self._files = Files.of({name for mark in made_in for name in mark.files}, unified)
        self._made = 0
        self._used: list[Group] = []
        self._dying: list[str] = []

    @classmethod
    def find(cls) -> "Hierarchy | None":
        """Version 2 if it controls memory, else version 1, else none; tried, not assumed."""
        name = marks.new_name()
        for made, unified in (_unified(name), True), (_legacy(name), False):
            if not made:
                continue
            hierarchy = cls(made, unified)
            with contextlib.suppress(OSError):
                hierarchy.discard(hierarchy.make(DEFAULTS))
                return hierarchy
            hierarchy.close()
        return None

    def make(self, limits: Limits) -> Group:
        self._made += 1
        group = Group(self._files, [f"{mark.folder}.{self._made}" for mark in self.marks])
        self._used.append(group)
        try:
            group.make(limits)
        except OSError:
            self.discard(group)
            raise
        return group

    def discard(self, group: Group) -> None:
        """Remove a group; one whose last process is still ending is tried again later."""
        group.close()
        if group not in self._used:
            return  # as the hierarchy was closed
        self._used.remove(group)
        self._dying += group.folders
        self._bury()

    def _bury(self) -> None:
        self._dying = [folder for folder in self._dying if not _removed(folder)]

    @property
    def dying(self) -> int:
        return len(self._dying)

    def close(self) -> None:
        """Remove every group, those of programs that ran until now among them."""
        for group in list(self._used):
            self.discard(group)
        deadline = time.monotonic() + self._removal_patience
        while self._dying and time.monotonic() < deadline:
            time.sleep(0.005)
            self._bury()
        for mark in self.marks:
            mark.remove()


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


def _unified(name: str) -> list[Mark]:
    """Find a place in our own group, the one above, or the top: the first that passes control on.

    A group with processes of its own does not, except the top. So our own serves only where
    that is already so, and the one above where systemd has `DelegateSubgroup=`, or for root.
    """
    mount = _mounted("cgroup2")
    if mount is None or "memory" not in _read(mount / "cgroup.controllers").split():
        return []
    own = _own_folder(mount, "")
    bases = dict.fromkeys((own, mount if own == mount else own.parent, mount))
    return next(([mark] for base in bases if (mark := _passes_on(base, name))), [])


def _passes_on(base: Path, name: str) -> Mark | None:
    for wanted in ("+memory +pids", "+cpu"):
        _optional(base / _PASSED_ON, wanted)
    mark = Mark.make(base, name)
    if mark and {"memory.max", "pids.max"} <= set(mark.files):
        return mark
    if mark:
        mark.remove()
    return None


def _legacy(name: str) -> list[Mark]:
    mounts = {controller: _mounted("cgroup", controller) for controller in _CONTROLLERS}
    if mounts["cpuacct"] == mounts["cpu"]:  # as most machines have them
        del mounts["cpuacct"]
    found = {controller: _legacy_mark(controller, at, name) for controller, at in mounts.items()}
    made = [mark for mark in found.values() if mark]
    if found["memory"] and found["pids"]:
        return made
    for mark in made:
        mark.remove()
    return []


def _legacy_mark(controller: str, mount: Path | None, name: str) -> Mark | None:
    """The mark in our own group, or at the top if that is not visible."""
    if mount is None:
        return None
    return Mark.make(_own_folder(mount, controller), name) or Mark.make(mount, name)


def _own_folder(mount: Path, controller: str) -> Path:
    """The top stands for a group that lies outside what is mounted here."""
    path = _own_group(controller)
    return mount if ".." in path else mount / path.lstrip("/")


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""  # what was mounted there is hidden by another mount
