"""A cgroup per execution where this process may make one: memory and processes of the tree.

The client makes it and hands the program a descriptor to join by, opened with the
client's rights; the jail itself never sees the hierarchy.
"""

import contextlib
import os
import time
from pathlib import Path
from typing import ClassVar

from worker.sandbox.local.group import Files, Group
from worker.sandbox.local.limits import DEFAULTS, Limits

_PASSED_ON = "cgroup.subtree_control"
_MOUNTS = Path("/proc/self/mounts")
_OWN = Path("/proc/self/cgroup")


class Hierarchy:
    """Where this process may create groups; made by `find`, at its end by `close`.

    They lie side by side with the group of whoever hands out the programs: weights are compared
    among neighbours only, and one folder around them all would outweigh every one in it.
    """

    _removal_patience: ClassVar[float] = 5.0

    def __init__(self, parents: list[Path], unified: bool) -> None:
        self.kind = "cgroup-v2" if unified else "cgroup-v1"
        self._parents = parents
        self._name = f"penstock-{os.getpid()}-{time.monotonic_ns()}"
        self._files = Files.of({name for parent in parents for name in _sample(parent)}, unified)
        self._made = 0
        self._dying: list[tuple[float, str]] = []

    @classmethod
    def find(cls) -> "Hierarchy | None":
        """Version 2 if it controls memory, else version 1, else none; tried, not assumed."""
        for parents, unified in (_unified_parents(), True), (_legacy_parents(), False):
            if not parents:
                continue
            hierarchy = cls(parents, unified)
            with contextlib.suppress(OSError):
                hierarchy.discard(hierarchy.make(DEFAULTS))
                return hierarchy
            hierarchy.close()
        return None

    def make(self, limits: Limits) -> Group:
        self._made += 1
        name = f"{self._name}-{self._made}"
        group = Group(self._files, [f"{parent}/{name}" for parent in self._parents])
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


def _sample(parent: Path) -> list[str]:
    """What files a group has that is made there; none where no group can be."""
    folder = parent / f"penstock-{os.getpid()}-{time.monotonic_ns()}"
    try:
        folder.mkdir()
    except OSError:
        return []
    names = os.listdir(folder)
    folder.rmdir()
    return names


def _sweep(parent: Path) -> None:
    """Remove what a process left that was killed before it could."""
    for left in parent.glob("penstock-*-*"):
        if not Path("/proc", left.name.split("-")[1]).exists():
            with contextlib.suppress(OSError):  # another start sweeps too
                left.rmdir()


def _unified_parents() -> list[Path]:
    """Our own group, the one above, or the top: the first that passes control on.

    A group with processes of its own does not, except the top; so our own serves only where
    that is already so, and the one above where systemd has `DelegateSubgroup=`, or for root.
    """
    mount = _mounted("cgroup2")
    if mount is None or "memory" not in (mount / "cgroup.controllers").read_text().split():
        return []
    own = mount / _own_group("").lstrip("/")
    bases = dict.fromkeys((own, mount if own == mount else own.parent, mount))
    return [base for base in bases if _passes_on(base)][:1]


def _passes_on(base: Path) -> bool:
    for wanted in ("+memory +pids", "+cpu"):
        _optional(base / _PASSED_ON, wanted)
    _sweep(base)
    return {"memory.max", "pids.max"} <= set(_sample(base))


def _legacy_parents() -> list[Path]:
    found = {name: _legacy_parent(name) for name in ("memory", "cpu", "pids")}
    if not found["memory"] or not found["pids"]:
        return []
    return [parent for parent in found.values() if parent]


def _legacy_parent(controller: str) -> Path | None:
    """Our own group, or the top where that is not visible."""
    mount = _mounted("cgroup", controller)
    if mount is None:
        return None
    for parent in (mount / _own_group(controller).lstrip("/"), mount):
        _sweep(parent)
        if _sample(parent):
            return parent
    return None
