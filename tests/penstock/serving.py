"""A monitor for a test, as a process of its own, and a small fleet for it to show."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from tests.harness import commands
from tests.harness.servers import free_port, until


@contextmanager
def monitor(redis_url: str, **environment: str) -> Iterator[str]:
    """Its address."""
    port = environment.get("PENSTOCK_MONITOR_PORT") or str(free_port())
    url = f"http://127.0.0.1:{port}"
    env = {**os.environ, "PENSTOCK_REDIS_URL": redis_url, "PENSTOCK_MONITOR_PORT": port}
    process = commands.start(["monitor"], env=env | environment, stdout=subprocess.DEVNULL)

    def answers() -> bool:
        assert process.poll() is None, "it did not start"
        try:
            return httpx.get(f"{url}/healthz", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    try:
        until(answers, "the monitor", within=100)
        yield url
    finally:
        process.terminate()
        process.wait(100)
