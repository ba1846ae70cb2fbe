"""`bits/stdc++.h`, precompiled: four fifths of what most C++ programs of contests take to compile.

Made once, in a jail, from the machine's own headers and nothing of any program. Programs can read
it where every jail shows this folder, and nobody can write to it.
"""

import asyncio
import fcntl
import logging
import os
from dataclasses import replace
from pathlib import Path

from jail import languages
from jail.inside import janitor, wire
from jail.inside.root import HEADERS
from jail.jails import Jails, header_of
from jail.limits import DEFAULTS, MB

log = logging.getLogger(__name__)

ROOM = 160 * MB  # it has about 100
_NAME = "bits/stdc++.h"
_SOURCE = b"#include <bits/stdc++.h>\n"
_WORTH_IT = 2  # programs that ask for it
_LIMITS = replace(
    DEFAULTS, compile_wall=300.0, wall=1.0, disk=2 * ROOM, file_size=ROOM, fetched=ROOM
)


class Header:
    """A precompiled header in a folder of its own, which goes with the process. It is made beside
    the first programs."""

    def __init__(self, parent: str) -> None:
        janitor.sweep(parent)
        self.folder, self._lock = janitor.locked_folder(parent)
        os.chmod(self.folder, 0o755)  # noqa: S103  any program may read it
        self._asked = 0
        self._making: asyncio.Task[None] | None = None
        self.size = 0

    def options(self, language: languages.Language, code: bytes, jails: Jails) -> list[str]:
        """The options for a compiler of this code; none until it is made."""
        if language is not languages.LANGUAGES["cpp"] or _NAME.encode() not in code:
            return []
        self._asked += 1
        if self._asked == _WORTH_IT:
            self._making = asyncio.ensure_future(self._make(jails))
        return [f"-I{HEADERS if jails.level == 'ns' else self.folder}"] if self.size else []

    async def _make(self, jails: Jails) -> None:
        cpp = languages.LANGUAGES["cpp"]
        argv = [*languages.CPP, "-x", "c++-header", "main.hpp", "-o", "main"]
        step = {"argv": argv, "script": "", "wall": _LIMITS.compile_wall}
        header = header_of(_LIMITS, {"main.hpp": _SOURCE}, (), cpp.env, [step], made=("main",))
        outcome = await jails.exchange(wire.pack(header, [b"", _SOURCE]), _LIMITS, compiles=True)
        made = outcome.files.get("main")
        if made is None:
            log.warning("%s was not precompiled: %s", _NAME, outcome.error or outcome.stderr[:500])
            return
        try:
            await asyncio.to_thread(self._put, made)
        except OSError as problem:  # a full disk, for one: programs compile without it
            log.warning("%s was not precompiled: %s", _NAME, problem)
            return
        self.size = len(made)

    def _put(self, made: bytes) -> None:
        target = Path(self.folder) / f"{_NAME}.gch"
        target.parent.mkdir(mode=0o755)
        unfinished = target.with_suffix(".part")
        unfinished.write_bytes(made)
        unfinished.chmod(0o644)
        unfinished.replace(target)

    async def close(self) -> None:
        if self._making is not None:
            self._making.cancel()
            await asyncio.wait([self._making])
        janitor.remove(self.folder)
        fcntl.flock(self._lock, fcntl.LOCK_UN)
        os.close(self._lock)
