"""A buffer server for a test: in this process, or as one of its own to be killed."""

import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import httpx

import ground
from buffer.http.app import Front, make_app
from buffer.settings import BufferSettings
from ground.redis.connect import target_of
from tests.harness import commands
from tests.harness.servers import free_port, until

JSON = {"Content-Type": "application/json"}


@asynccontextmanager
async def served(
    redis: ground.Client, run: str = "default", **settings: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server in this process."""
    settings.setdefault("write_patience", 0.0)
    settings.setdefault("input_folders", "/")
    app = make_app(target_of(redis), run, BufferSettings(**settings))
    front = app.app
    assert isinstance(front, Front)
    async with front.app.router.lifespan_context(front.app):
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://127.0.0.1", headers=JSON
        ) as client:
            yield client


class ServerProcess:
    """`with ServerProcess(redis_url) as server: httpx.get(server.url + "/healthz")`"""

    def __init__(self, redis_url: str, folder: Path, **environment: str) -> None:
        self.port = free_port()
        self.log = folder / f"buffer-{self.port}.log"
        self._environment = {
            **os.environ,
            "PENSTOCK_REDIS_URL": redis_url,
            "PENSTOCK_BUFFER_HOST": "127.0.0.1",
            "PENSTOCK_BUFFER_PORT": str(self.port),
            "PENSTOCK_INPUT_FOLDERS": str(folder.parent),  # where tests keep their data sets
            **environment,
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> Self:
        with self.log.open("ab") as log:
            self._process = commands.start(
                ["buffer", "serve"], env=self._environment, stdout=log, stderr=log
            )
        until(self._answers, f"the server; its log: {self.log}", 120)
        return self

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(100)
            self._process = None

    def stop(self) -> int:
        """SIGTERM, and its exit status."""
        assert self._process is not None
        self._process.terminate()
        status = self._process.wait(100)
        self._process = None
        return status

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log.read_text()
        try:
            return httpx.get(self.url + "/healthz", timeout=5).status_code == 200
        except httpx.TransportError:
            return False
