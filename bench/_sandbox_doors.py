"""Our sandbox behind the two doors that programs come through: HTTP, and the queue."""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx
import uvicorn

from ground import EmbeddedServer
from ground.http import listen
from ground.server.binary import bundled_server
from jail.jails import Jails
from jail.limits import DEFAULTS
from jail.serve import App, Line
from worker import CodeQueue


class Served:
    """Our HTTP server in this process, on a thread of its own, and one keep-alive client."""

    def __init__(self, jails: Jails) -> None:
        self._client: httpx.AsyncClient | None = None
        self._jails = jails
        self._server: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None

    async def post(self, code: str) -> bytes:
        client = self._client or await self._start()
        answer = await client.post("/run_code", json={"code": code, "language": "python"})
        return str(answer.json()["run_result"]["stdout"]).encode()

    async def _start(self) -> httpx.AsyncClient:
        listening = listen("127.0.0.1", 0, "--port")
        app = App(self._jails, DEFAULTS, Line(8, 64, 30.0))
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
        self._serving = asyncio.ensure_future(self._server.serve([listening]))
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        self._client = httpx.AsyncClient(base_url=url, timeout=60)
        return self._client

    async def stop(self) -> None:
        if self._server and self._serving and self._client:
            await self._client.aclose()
            self._server.should_exit = True
            await self._serving


class Queued:
    """A job on the queue, and a worker process with a sandbox of its own."""

    def __init__(self, python: Path) -> None:
        self._folder = tempfile.mkdtemp(prefix="penstock-bench-")
        self._server = EmbeddedServer(self._folder, binary=bundled_server())
        self._queue = CodeQueue(self._server.url, "bench", no_workers_after=60)
        self._worker = subprocess.Popen(
            [sys.executable, "-m", "penstock", "worker", "bench", "--sandbox", "local"],
            env={**os.environ, "PENSTOCK_REDIS_URL": self._server.url,
                 "PENSTOCK_SANDBOX_PYTHON": str(python)},
            stderr=subprocess.DEVNULL,
        )  # fmt: skip

    async def run(self, code: str) -> bytes:
        return (await self._queue.run(code, timeout=60)).stdout.encode()

    async def stop(self) -> None:
        self._worker.terminate()
        await asyncio.to_thread(self._worker.wait)
        self._server.stop()
        shutil.rmtree(self._folder)
