"""What lies in the folder of a local sandbox: its keeper and its users meet by it."""

import contextlib
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ABOUT = "about.json"  # the sandbox's description
PID = "pid"
SOCKET = "socket"
LOG = "log"
_MARK = ".mark"  # next to the sandboxes' folders


def put(file: Path, text: str) -> None:
    """Write the file whole: a reader at the same time sees the old text or the new."""
    new = file.with_name(f"{file.name}.{os.getpid()}")
    new.write_text(text)
    new.rename(file)


def mark_of(root: Path) -> str:
    """What no other folder has. A symbolic link that leads nowhere: it is made by the first
    who asks, and is whole at once. None where the folder cannot be used, as `create` says."""
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            (root / _MARK).symlink_to(uuid.uuid4().hex[:12])
        return str((root / _MARK).readlink())
    except OSError:
        return ""


@contextmanager
def short_path(folder: Path, name: str) -> Iterator[str]:
    """A path for a socket in a folder, however long the folder's: the kernel takes 108 bytes."""
    at = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{at}/{name}"
    finally:
        os.close(at)
