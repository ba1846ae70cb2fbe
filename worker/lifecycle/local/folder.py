"""The folder of a machine's session sandboxes: its mark, and what earlier releases left there."""

import contextlib
import os
import shutil
import signal
import uuid
from pathlib import Path

_MARK = ".mark"  # next to the sandboxes


def mark_of(root: Path) -> str:
    """What no other folder has. A symbolic link that leads nowhere: it is made by the first
    who asks, and is whole at once. None if the folder cannot be used, as `create` says."""
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            (root / _MARK).symlink_to(uuid.uuid4().hex[:12])
        return str((root / _MARK).readlink())
    except OSError:
        return ""


def end_earlier(folder: Path) -> None:
    """A sandbox that an earlier release keeps: a folder of its own, with its process's number.

    Its jail dies with that process. Its command line names the folder, as that of no later process
    with its number does.
    """
    if folder.is_symlink() or not folder.is_dir():
        return
    with contextlib.suppress(OSError, ValueError):
        process = int((folder / "pid").read_text())
        words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
        if str(folder).encode() in words:
            ended = os.pidfd_open(process)
            try:
                signal.pidfd_send_signal(ended, signal.SIGKILL)
            finally:
                os.close(ended)
    shutil.rmtree(folder, ignore_errors=True)
