"""The embedded server as it stands, looked at without touching it."""

import re
import subprocess
from pathlib import Path

import redis

from ground import RedisTarget, connect, parse_redis_url
from ground.keeper import URL_FILE


def running_server(folder: Path) -> RedisTarget | None:
    """The server that runs on this data directory, if one does."""
    try:
        target = parse_redis_url((folder / URL_FILE).read_text().strip())
    except OSError:
        return None
    client = connect(target, timeout=2.0)
    try:
        client.ping()
    except redis.RedisError:
        return None  # a keeper killed on the way leaves the file; its server is gone
    finally:
        client.close()
    return target


def server_version(binary: Path) -> str:
    """What the binary says of itself, e.g. `Valkey 9.1.0`."""
    said = subprocess.run(  # noqa: S603
        [binary, "--version"], capture_output=True, text=True, timeout=10, check=False
    ).stdout
    software = "Valkey" if "valkey" in said.lower() else "Redis"
    version = re.search(r"v=([\d.]+)", said)
    return f"{software} {version[1] if version else 'of unknown version'}"
