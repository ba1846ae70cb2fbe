"""A fork server's configuration, and the start of its process."""

import contextlib
import glob
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jail.errors import SandboxUnavailable
from jail.inside import zygote
from jail.inside.users import Users
from jail.isolation.levels import Level

_MODULES = ("pytest",)  # what a language needs of the interpreter itself
START_TIMEOUT = 60.0
_SOURCE = str(Path(__file__).parent)
# By these a program's pytest, or its verl, would load what an editable install keeps where no
# program looks.
_OWN_PLUGINS = "lib*/python*/*-packages/penstock_rl-*.dist-info/entry_points.txt"
_OLDEST = (3, 10)  # whose language `inside/` is written in
_PREFIXES = (
    "import sys; print(*sys.version_info[:2], sep='.');"
    "print(sys.prefix, sys.base_prefix, sys.exec_prefix, sep='\\n')"
)


@dataclass(frozen=True)
class ServerConfig:
    """The configuration of a fork server: two that are equal share one."""

    python: str = sys.executable
    preload: tuple[str, ...] = ()
    expose: tuple[str, ...] = ()  # further files and folders that programs may read
    headers: str = ""  # a folder of precompiled ones, which no folder of a program shows
    uid: int = 65534  # who it becomes when it is started by root
    gid: int = 65534
    spares: int = 2  # jails made before their programs come
    level: Level = "ns"
    start_as: int | None = None  # from root: start as this ordinary user, in a user namespace
    users: Users | None = None  # of sessions from images; None: it serves none of them
    layers: str = ""  # the folder of those images' layers

    def __post_init__(self) -> None:
        """The interpreter is executed by its path, also if it is named as for a shell.

        A jail lacks a folder that is only on the way to it: `../.venv/bin`."""
        found = shutil.which(self.python) or self.python
        if "/" in found:
            object.__setattr__(self, "python", os.path.abspath(found))

    def on_the_wire(self, control: int) -> dict[str, Any]:
        prefixes = self._prefixes()
        return {
            "level": self.level,
            "control": control,
            "source": _SOURCE,
            "python": self.python,
            "preload": list(self.preload),
            "asked": list(_MODULES),
            "exposed": self._exposed(prefixes),
            "hidden": _own_plugins(prefixes),
            "headers": self.headers,
            "uid": self.uid,
            "spares": self.spares,
            "gid": self.gid,
            "scratch": tempfile.gettempdir(),
            "users": self.users,
            "layers": self.layers,
        }

    def _prefixes(self) -> list[str]:
        if self.python == os.path.abspath(sys.executable):
            return [sys.prefix, sys.base_prefix, sys.exec_prefix]
        return _prefixes_of(self.python)

    def _exposed(self, prefixes: list[str]) -> list[str]:
        """The interpreter's own folders, our code, and what the operator adds."""
        by_name = [self.headers] if self.headers and self.level != "ns" else []
        paths = [*prefixes, f"{_SOURCE}/inside", *self.expose, *by_name]
        if "/" in paths:
            raise SandboxUnavailable("the interpreter's prefix is /, and / cannot be shown")
        return list(dict.fromkeys(path for path in paths if not path.startswith("/usr/")))


def _own_plugins(prefixes: list[str]) -> list[str]:
    folders = map(glob.escape, {*prefixes, "/usr", "/usr/local"})
    return [path for folder in folders for path in glob.glob(f"{folder}/{_OWN_PLUGINS}")]


def launch(config: ServerConfig, control: int, complaints: int) -> "subprocess.Popen[bytes]":
    """The fork server gets its orders by `control`; what it complains of goes to `complaints`."""
    with _start_errors(config.python):
        return subprocess.Popen(  # noqa: S603
            zygote.command("launch", config.on_the_wire(control)),
            env={"LANG": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=complaints,
            pass_fds=(control,),
            user=config.start_as,
            group=config.start_as,
            extra_groups=None if config.start_as is None else [],
            start_new_session=True,  # Ctrl-C is for its client
            cwd="/",
        )


def _prefixes_of(python: str) -> list[str]:
    with _start_errors(python):
        asked = subprocess.run(  # noqa: S603
            [python, "-I", "-c", _PREFIXES],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT,
        )
    match asked.stdout.splitlines():
        case [version, *prefixes] if asked.returncode == 0 and len(prefixes) == 3:
            if tuple(map(int, version.split("."))) >= _OLDEST:
                return prefixes
            problem = f"programs run in Python 3.10 or newer, and this is {version}"
        case _:
            said = asked.stderr.strip().rsplit("\n", 1)[-1].rstrip(".") or "without a complaint"
            problem = f"it ended with status {asked.returncode}, {said}"
    raise SandboxUnavailable(f"{python} cannot be run: {problem}")


@contextlib.contextmanager
def _start_errors(python: str) -> Iterator[None]:
    try:
        yield
    except (OSError, subprocess.SubprocessError) as problem:
        raise SandboxUnavailable(f"{python} cannot be run: {problem}") from None
