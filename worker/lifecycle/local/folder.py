"""The mark of the folder in which a machine keeps its session sandboxes."""

import contextlib
import uuid
from pathlib import Path

_MARK = ".mark"  # next to the sandboxes


def mark_of(root: Path) -> str:
    """A mark that no other folder has. A symbolic link that leads nowhere: it is made by the first
    who asks, and is whole at once. None if the folder cannot be used, as `create` says."""
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            (root / _MARK).symlink_to(uuid.uuid4().hex[:12])
        return str((root / _MARK).readlink())
    except OSError:
        return ""
