"""cgroup version 2 as a folder: what the kernel does when one makes, fills and removes groups."""

import errno
import os
from pathlib import Path

import pytest

from jail.cgroups import cgroups

_FILES = ("memory.events", "pids.events", "memory.max", "memory.swap.max", "memory.current",
          "memory.oom.group", "pids.max", "cpu.weight", "cgroup.procs",
          "cgroup.subtree_control")  # fmt: skip
_CONTROLLERS = ("memory", "pids", "cpu")


class FakeCgroups:
    """A hierarchy at `top`; this process is in the group `own`."""

    def __init__(self, folder: Path, own: str, patch: pytest.MonkeyPatch, peak: bool) -> None:
        self.top = folder / "cgroup"
        self._peak = peak
        self._mkdir, self._rmdir, self._write = os.mkdir, os.rmdir, Path.write_text
        self._mkdir(self.top)
        self._fill(self.top, "cpu memory pids")
        patch.setattr(os, "mkdir", lambda path, *mode: self.mkdir(Path(path), *mode))
        patch.setattr(os, "rmdir", lambda path: self.rmdir(Path(path)))
        patch.setattr(Path, "write_text", lambda path, text: self.write(path, text))
        group = self.top
        for part in own.strip("/").split("/") if own != "/" else ():
            group = group / part
            os.mkdir(group)
        (group / "cgroup.procs").write_text("1")
        mounts, membership = folder / "mounts", folder / "membership"
        mounts.write_text(f"none {self.top} cgroup2 rw 0 0\n")
        membership.write_text(f"0::{own}\n")
        patch.setattr(cgroups, "_MOUNTS", mounts)
        patch.setattr(cgroups, "_OWN", membership)

    def groups(self) -> list[str]:
        return sorted(str(p.relative_to(self.top)) for p in self.top.rglob("*") if p.is_dir())

    def pass_on(self, group: str, controllers: str) -> None:
        self._write(self.top / group / "cgroup.subtree_control", controllers)

    def mkdir(self, path: Path, *_: int) -> None:
        self._mkdir(path)
        if self._ours(path):
            self._fill(path, (path.parent / "cgroup.subtree_control").read_text())

    def _ours(self, path: Path) -> bool:
        return self.top in path.parents or path == self.top

    def _fill(self, path: Path, controllers: str) -> None:
        for name in (*_FILES, *(["memory.peak"] if self._peak else [])):
            if not name.startswith(_CONTROLLERS) or name.split(".")[0] in controllers:
                self._write(path / name, "")
        self._write(path / "cpu.stat", "usage_usec 0\n")  # whatever controllers it has
        self._write(path / "cgroup.controllers", controllers)

    def rmdir(self, path: Path) -> None:
        if self._ours(path):
            if (path / "cgroup.procs").read_text():
                raise OSError(errno.EBUSY, "processes")
            for file in [inner for inner in path.iterdir() if inner.is_file()]:
                file.unlink()
        self._rmdir(path)

    def write(self, path: Path, text: str) -> int:
        if self._ours(path) and not path.exists():
            raise FileNotFoundError(errno.ENOENT, "no such controller", str(path))
        if self._ours(path) and path.name == "cgroup.subtree_control":
            text = self._passed_on(path.parent, text)
        return self._write(path, text)

    def _passed_on(self, group: Path, asked: str) -> str:
        wanted = {name.lstrip("+") for name in asked.split()}
        if not wanted <= set((group / "cgroup.controllers").read_text().split()):
            raise OSError(errno.ENOENT, "not passed on to this group")
        if group != self.top and (group / "cgroup.procs").read_text():
            raise OSError(errno.EBUSY, "a group with processes of its own")
        return " ".join(
            sorted(wanted | set((group / "cgroup.subtree_control").read_text().split()))
        )
