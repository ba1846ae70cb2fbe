"""The process that keeps one local sandbox: its jail, a socket to reach it by, its time to live.

It outlives whoever made it, and ends by a word on its socket, by its time to live, or
with its jail. Run as `python -m worker.lifecycle.local.keeper FOLDER`, where `about.json`
says what it is to be.
"""

import asyncio
import base64
import contextlib
import importlib.resources
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from worker.lifecycle.local import wire
from worker.lifecycle.local.folder import ABOUT, PID, SOCKET, STATE, put, short_path
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
        self._session: Session | None = None
        self._over = asyncio.Event()

    async def keep(self) -> None:
        """Until it is to end. Nothing of it is left behind."""
        try:
            await self._serve()
        except (SandboxError, SessionEnded, OSError) as problem:
            self._tell("failed", str(problem))
            await asyncio.sleep(5)  # whoever made it reads that, if anybody does
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    async def _serve(self) -> None:
        settings = SandboxSettings.load()
        limits = _limits(settings.limits(), self._about)
        async with Jails(settings.config()) as jails, jails.session(limits) as session:
            self._session = session
            await session.run(_first_cell(), 30)
            if self._about["env"]:
                await session.run(f"os.environ.update({self._about['env']!r})", 30)
            with short_path(self._folder, SOCKET) as path:
                server = await asyncio.start_unix_server(self._hear, path, limit=1 << 20)
            try:
                self._tell("ready")
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(limits.wall):
                        await self._over.wait()
            finally:
                server.close()  # not waited for: from Python 3.12 on, until the last caller is gone

    def _tell(self, state: str, why: str = "") -> None:
        put(self._folder / STATE, json.dumps({"state": state, "why": why}))

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):  # a caller that was killed
            header, body = await wire.receive(reader)
            answer, content = await self._answer(header, body)
            await wire.send(writer, answer, content)
        writer.close()

    async def _answer(self, asked: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        assert self._session is not None  # noqa: S101 - the door opens after it
        if asked["op"] == "end":
            self._over.set()
            return {}, b""
        if asked["op"] == "alive":
            return {"alive": self._session.alive}, b""
        try:
            return await self._in_the_jail(self._session, asked, body)
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
        return json.loads(cell.stdout), b""


def _first_cell() -> str:
    return (importlib.resources.files("worker.lifecycle.local") / "inside.py").read_text()


def _limits(defaults: Limits, about: dict[str, Any]) -> Limits:
    asked = {**vars(defaults), "wall": min(about["ttl"], _LONGEST), "cpu": CAPS.cpu}
    if about["memory_mb"]:
        asked["memory"] = about["memory_mb"] * MB
    return Limits(**asked)


if __name__ == "__main__":
    asyncio.run(Keeper(Path(sys.argv[1])).keep())
