"""What lies in the folder of a local sandbox: its keeper and its users meet by it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ABOUT = "about.json"  # what it is to be
PID = "pid"
SOCKET = "socket"
LOG = "log"


def put(file: Path, text: str) -> None:
    """Whole, for whoever reads at the same time."""
    new = file.with_name(f"{file.name}.{os.getpid()}")
    new.write_text(text)
    new.rename(file)


@contextmanager
def short_path(folder: Path, name: str) -> Iterator[str]:
    """A path for a socket in a folder, however long the folder's: the kernel takes 108 bytes."""
    at = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{at}/{name}"
    finally:
        os.close(at)
