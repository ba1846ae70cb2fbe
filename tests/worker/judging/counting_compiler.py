"""An embedded sandbox whose C compiler counts: each program that it makes prints another name."""

import os
import sys
from pathlib import Path

from jail import LocalSandbox
from jail.launch import ServerConfig
from worker.settings import WorkerSettings

FOLDER = "TEST_COUNTING_COMPILER"
BUILT = "#include <stdio.h>\nint main() { puts(BUILT); }"
_WRAPPER = """\
#!/bin/sh
exec /usr/bin/gcc "-DBUILT=\\"$(cat /proc/sys/kernel/random/uuid)\\"" "$@"
"""


def install(folder: Path) -> None:
    """Beside an interpreter: there the sandbox looks first."""
    folder.chmod(0o755)
    (folder / "python3").symlink_to(os.path.realpath(sys.executable))
    (folder / "gcc").write_text(_WRAPPER)
    (folder / "gcc").chmod(0o755)


class CountingSandbox(LocalSandbox):
    """With the compiler in that folder."""

    def __init__(self, _: WorkerSettings | None = None) -> None:
        folder = os.environ[FOLDER]
        super().__init__(ServerConfig(python=f"{folder}/python3", expose=(folder,)))
