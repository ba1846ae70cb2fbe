"""Buffer servers as processes, Penstock's and slime's, and what they cost."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import httpx

from bench._buffer_load import item
from bench.peers import environment
from ground.server.keeper import free_port

_PEER_PACKAGES = [
    "fastapi==0.115.6", "uvicorn==0.34.0", "httptools==0.6.4", "uvloop==0.21.0",
    "openai==1.60.0", "requests==2.32.3", "tqdm==4.67.1", "matplotlib==3.10.0", "numpy==2.2.1",
    "sympy==1.13.3", "pylatexenc==2.10",
]  # fmt: skip
# Its /start_rollout would make the same object, and then run a generator beside the measurement.
# v0 has a largest size there, which makes each of its writes count all that it holds.
# What is pending is put in before it listens: over HTTP that would take minutes.
_PEER_PROGRAM = """
import json, sys, uvicorn, buffer
port, group_size, pending, item = *map(int, sys.argv[1:4]), sys.argv[4]
bound = {"max_size": buffer.MAX_SIZE} if hasattr(buffer, "MAX_SIZE") else {}
buffer.buffer = buffer.RolloutBuffer(group_size=group_size, task_type="math", **bound)
for n in range(pending):
    name = f"pending-{n}"
    buffer.buffer.write({**json.loads(item), "uid": name, "instance_id": name})
uvicorn.run(buffer.app, port=port, limit_concurrency=1000)
"""
_TICKS = os.sysconf("SC_CLK_TCK")


class Process:
    """A process by its id: what it has used so far."""

    def __init__(self, pid: int) -> None:
        self._place = Path(f"/proc/{pid}")

    @property
    def cpu_seconds(self) -> float:
        fields = (self._place / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    @property
    def memory_bytes(self) -> int:
        status = (self._place / "status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) * 1024


class Server:
    """A buffer server on a port of its own; it answers once this is made."""

    def __init__(self, command: Sequence[str], port: int, *, folder: Path | None, **env: str):
        self.url = f"http://127.0.0.1:{port}"
        self._process = subprocess.Popen(
            command, env={**os.environ, **env}, cwd=folder,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.used = Process(self._process.pid)
        deadline = time.monotonic() + 60
        while not self._answers():
            if time.monotonic() > deadline or self._process.poll() is not None:
                self.stop()
                raise RuntimeError(f"the server did not start: {command}")
            time.sleep(0.1)

    @classmethod
    def penstock(cls, redis_url: str) -> Self:
        port = free_port()
        return cls(
            [sys.executable, "-m", "penstock", "buffer", "serve"], port, folder=None,
            PENSTOCK_REDIS_URL=redis_url, PENSTOCK_LOG_LEVEL="WARNING",
            PENSTOCK_BUFFER_PORT=str(port), PENSTOCK_BUFFER_HOST="127.0.0.1",
        )  # fmt: skip

    @classmethod
    def slimes(cls, folder: Path, group_size: int, pending: int) -> Self:
        """Its `slime_plugins/rollout_buffer`, with the packages of its time, and with so many
        open groups of one item."""
        if not (folder / "buffer.py").is_file():
            raise RuntimeError(f"{folder} has no buffer.py: name slime_plugins/rollout_buffer")
        port = free_port()
        python = environment("slime", _PEER_PACKAGES)
        numbers = (str(number) for number in (port, group_size, pending))
        command = [str(python), "-c", _PEER_PROGRAM, *numbers, json.dumps(item("pending", 0))]
        return cls(command, port, folder=folder)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _answers(self) -> bool:
        try:
            httpx.get(self.url, timeout=2)
        except httpx.TransportError:
            return False
        return True
