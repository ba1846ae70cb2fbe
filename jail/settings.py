"""The operator's side of the embedded sandbox, from the environment."""

import os
import shutil
import sys

from pydantic import Field, field_validator

from ground.settings import Settings
from jail.isolation.levels import Level
from jail.launch import ServerConfig
from jail.limits import CACHE_MB, CAPS, DEFAULTS, MB, Limits


class SandboxSettings(Settings):
    """The settings of programs: what they run in, and what each may use unless its request says
    otherwise."""

    sandbox_level: Level = Field(
        "ns",
        description="Isolation of programs: `ns`, `landlock` (weaker) or `none`. It is never"
        " lowered automatically.",
    )
    sandbox_python: str | None = Field(
        None, description="The Python (3.10 or newer) that programs run in. Unset: Penstock's own."
    )
    sandbox_preload: str | None = Field(
        None, description="Modules that are imported once, before any program: `numpy,pandas`."
    )
    sandbox_expose: str | None = Field(
        None, description="More folders and files that programs may read: `/opt/go,/srv/data`."
    )
    sandbox_concurrency: int | None = Field(
        None, ge=1, description="Programs that run at once. Unset: four per core."
    )
    sandbox_memory_mb: int = Field(
        DEFAULTS.memory // MB,
        ge=1,
        le=CAPS.memory // MB,
        description="Memory of one program with all its processes, in MB. A request may name"
        " another, up to 8,192.",
    )
    sandbox_processes: int = Field(
        DEFAULTS.processes,
        ge=1,
        le=CAPS.processes,
        description="Processes and threads of one program.",
    )
    sandbox_disk_mb: int = Field(
        DEFAULTS.disk // MB,
        ge=1,
        le=CAPS.disk // MB,
        description="What one program may write to its folders, in MB.",
    )
    sandbox_output_mb: int = Field(
        DEFAULTS.output // MB,
        ge=1,
        le=CAPS.output // MB,
        description="What one program may print, in MB.",
    )
    sandbox_cache_mb: int = Field(
        CACHE_MB,
        ge=0,
        description="Compiled programs that are kept for their next judging. "
        "From 160 on also a precompiled `bits/stdc++.h`, which takes 100.",
    )
    sandbox_uid: int = Field(
        65534,
        ge=1,
        le=2**32 - 2,
        description="User that the sandbox switches to when root starts it. Never 0.",
    )

    @field_validator("sandbox_expose")
    @classmethod
    def _paths_are_absolute(cls, paths: str | None) -> str | None:
        if relative := [path for path in _names(paths) if not path.startswith("/")]:
            raise ValueError(f"paths must be absolute, not {relative[0]!r}")
        if "/" in map(os.path.realpath, _names(paths)):
            raise ValueError("/ as a whole cannot be shown; name folders in it")
        if missing := [path for path in _names(paths) if not os.path.exists(path)]:
            raise ValueError(f"there is no {missing[0]}")
        return paths

    @field_validator("sandbox_python")
    @classmethod
    def _python_is_there(cls, python: str | None) -> str | None:
        if python is not None and shutil.which(python) is None:
            raise ValueError("names no file that can be executed")
        return python

    def config(self) -> ServerConfig:
        return ServerConfig(
            level=self.sandbox_level,
            python=self.sandbox_python or sys.executable,
            preload=_names(self.sandbox_preload),
            expose=_names(self.sandbox_expose),
            uid=self.sandbox_uid,
            gid=self.sandbox_uid,
        )

    def limits(self) -> Limits:
        return Limits(
            memory=self.sandbox_memory_mb * MB,
            processes=self.sandbox_processes,
            disk=self.sandbox_disk_mb * MB,
            output=self.sandbox_output_mb * MB,
        )


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())
