"""The process that keeps one local sandbox: its jail, a socket to reach it by, its time to live.

It outlives whoever made it, and ends by a word on its socket, by its time to live, or
with its jail. Run as `python -m worker.lifecycle.local.keeper FOLDER DOOR`: `about.json` in
the folder says what it is to be, and the door is a socket that listens already, so that
whoever asks too early waits for the answer.
"""

import asyncio
import base64
import contextlib
import importlib.resources
import json
import os
import shutil
import socket
import sys
from pathlib import Path
from typing import Any

from worker.lifecycle.local import wire
from worker.lifecycle.local.folder import ABOUT, PID, put
from worker.sandbox.local.errors import SandboxError
from worker.sandbox.local.jails import Jails
from worker.sandbox.local.limits import CAPS, MB, Limits
from worker.sandbox.local.session import Session, SessionEnded
from worker.sandbox.local.settings import SandboxSettings

_LONGEST = CAPS.wall


class Keeper:
    """One jail and its door."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        put(folder / PID, str(os.getpid()))  # should its maker die before it does
        self._about = json.loads((folder / ABOUT).read_text())
        self._begun: asyncio.Future[Session] = asyncio.get_running_loop().create_future()
        self._over = asyncio.Event()

    async def keep(self, door: socket.socket) -> None:
        """Until it is to end. Nothing of it is left behind."""
        server = await asyncio.start_unix_server(self._hear, sock=door, limit=1 << 20)
        try:
            await self._live()
        finally:
            server.close()  # not waited for: from Python 3.12 on, until the last caller is gone
            shutil.rmtree(self._folder, ignore_errors=True)

    async def _live(self) -> None:
        settings = SandboxSettings.load()
        limits = _limits(settings.limits(), self._about)
        try:
            async with Jails(settings.config()) as jails, jails.session(limits) as session:
                await session.run(_first_cell(), 30)
                if self._about["env"]:
                    await session.run(f"os.environ.update({self._about['env']!r})", 30)
                self._begun.set_result(session)
                await self._until_over(limits.wall)
        except (SandboxError, SessionEnded, OSError) as problem:
            if self._begun.done():
                return  # it was well, and its jail has ended
            self._begun.set_exception(problem)
            await self._until_over(5)  # whoever made it is told, if anybody asks

    async def _until_over(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._over.wait()

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):  # a caller that was killed
            header, body = await wire.receive(reader)
            answer, content = await self._answer(header, body)
            await wire.send(writer, answer, content)
        writer.close()

    async def _answer(self, asked: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        if asked["op"] == "end":
            self._over.set()
            return {}, b""
        try:
            session = await asyncio.shield(self._begun)
        except (SandboxError, SessionEnded, OSError) as problem:
            self._over.set()
            return {"unavailable": str(problem)}, b""
        if asked["op"] == "alive":
            return {"alive": session.alive}, b""
        try:
            return await self._in_the_jail(session, asked, body)
        except SessionEnded as problem:
            self._over.set()
            return {"gone": str(problem)}, b""

    async def _in_the_jail(
        self, session: Session, asked: dict[str, Any], body: bytes
    ) -> tuple[dict[str, Any], bytes]:
        op = asked.pop("op")
        given = {"exec": "stdin", "write": "content"}.get(op)
        if given:
            asked[given] = base64.b64encode(body).decode()
        within = min(_LONGEST, asked.get("timeout", 60.0) + 10.0)
        cell = await session.run(f"penstock_{op}({json.dumps(asked)!r})", within)
        if cell.error:
            return {"error": f"{cell.error[0]['ename']}: {cell.error[0]['evalue']}"}, b""
        try:
            return dict(json.loads(cell.stdout)), b""
        except (ValueError, TypeError, RecursionError):
            return {"error": f"its interpreter answered {cell.stdout[:100]!r}"}, b""


def _first_cell() -> str:
    return (importlib.resources.files("worker.lifecycle.local") / "inside.py").read_text()


def _limits(defaults: Limits, about: dict[str, Any]) -> Limits:
    asked = {**vars(defaults), "wall": min(about["ttl"], _LONGEST), "cpu": CAPS.cpu}
    if about["memory_mb"]:
        asked["memory"] = about["memory_mb"] * MB
    return Limits(**asked)


async def _main(folder: str, door: int) -> None:
    os.set_inheritable(door, False)
    await Keeper(Path(folder)).keep(socket.socket(fileno=door))


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], int(sys.argv[2])))
