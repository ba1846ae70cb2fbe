"""The process behind `SharedSandbox`: keeps one embedded sandbox while anybody asks.

One connection is one program, and its end is the program's: what nobody waits for
any more is killed. After `IDLE` seconds without a connection the process ends.
"""

import asyncio
import socket
from contextlib import suppress
from pathlib import Path

from worker.errors import SandboxFailure
from worker.models import CodeRequest
from worker.sandbox.local.provider import LocalSandbox
from worker.sandbox.local.settings import SandboxSettings
from worker.sandbox.shared import locked, receive, send, told

IDLE = 60.0


class Keeper:
    """Serves a listening socket whose path is `path`."""

    def __init__(self, sandbox: LocalSandbox, path: Path, idle: float = IDLE) -> None:
        self._sandbox = sandbox
        self._path = path
        self._idle = idle
        self._callers: set[asyncio.Task[None]] = set()
        self._stirred = asyncio.Event()

    async def serve(self, listening: socket.socket) -> None:
        server = await asyncio.start_unix_server(self._call, sock=listening)
        try:
            await self._until_deserted()
            # Nobody finds it any more; whoever came in that moment is served still.
            await asyncio.to_thread(self._give_up_the_path)
            while self._callers:
                await asyncio.wait(self._callers)
        finally:
            server.close()
            await self._sandbox.close()

    async def _until_deserted(self) -> None:
        while True:
            self._stirred.clear()
            try:
                async with asyncio.timeout(self._idle):
                    await self._stirred.wait()
            except TimeoutError:
                if not self._callers:
                    return

    def _give_up_the_path(self) -> None:
        with locked(self._path):
            self._path.unlink(missing_ok=True)

    async def _call(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        caller = asyncio.current_task()
        assert caller is not None  # noqa: S101 - asyncio runs each caller in a task
        self._callers.add(caller)
        try:
            with suppress(EOFError, OSError):  # it went away, and there is nobody to tell
                await self._answer(CodeRequest.read(await receive(reader)), reader, writer)
        finally:
            self._callers.discard(caller)
            self._stirred.set()
            writer.close()

    async def _answer(
        self, request: CodeRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        run = asyncio.ensure_future(self._sandbox.run(request))
        gone = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait([run, gone], return_when=asyncio.FIRST_COMPLETED)
            if run.done():
                try:
                    await send(writer, run.result().dump())
                except SandboxFailure as failure:
                    await send(writer, {"failure": told(failure)})
        finally:
            for task in (run, gone):
                task.cancel()
            await asyncio.wait([run, gone])


def main(path: str, listening: int, settings: str) -> None:
    sandbox = LocalSandbox.from_settings(SandboxSettings.model_validate_json(settings))
    with socket.socket(fileno=listening) as at:
        asyncio.run(Keeper(sandbox, Path(path)).serve(at))
