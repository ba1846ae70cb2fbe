"""The process that keeps one local sandbox: its jail, a socket to reach it by, its time to live.

It outlives the process that made it, and ends by a word on its socket, by its time to live, or
with its jail. Run as `python -m worker.lifecycle.local.keeper FOLDER DOOR`: `about.json` in
the folder describes the sandbox. The door is a socket that listens already, so a client
that asks too early waits for the answer.
"""

import asyncio
import base64
import contextlib
import errno
import importlib.resources
import json
import os
import shutil
import socket
import sys
from pathlib import Path
from typing import Any, Self

from worker.lifecycle.local import wire
from worker.lifecycle.local.folder import ABOUT, PID, put
from worker.lifecycle.local.inside import MOST
from worker.sandbox.local.errors import SandboxError
from worker.sandbox.local.inside import wire as jail_wire
from worker.sandbox.local.jails import Jails
from worker.sandbox.local.limits import CAPS, MB, Limits
from worker.sandbox.local.session import Session, SessionEnded
from worker.sandbox.local.settings import SandboxSettings

_LONGEST = CAPS.wall
_START = 30.0
Blobs = tuple[bytes, ...]
NO_BLOB: Blobs = (b"",)
_GRACE = 10.0  # beyond a command's own time
# What can come of a conversation with a process that is the program's own.
_LIES = (
    OSError, EOFError, TimeoutError, ValueError, TypeError, LookupError, AttributeError,
    RecursionError,
)  # fmt: skip


class Commands:
    """What runs commands in the jail: the program's own process, believed about nothing but it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._turn = asyncio.Lock()

    @classmethod
    async def begin(cls, session: Session) -> Self:
        """Raises `SandboxError` where no command can be run in this jail."""
        channel = await session.hand_over(_the_cell())
        commands = cls(*await asyncio.open_unix_connection(sock=channel, limit=1 << 20))
        trial = {"op": "exec", "argv": ["true"], "cwd": "", "env": {}, "timeout": _START}
        ended, _, said = await commands.order(trial, b"", _START)
        if ended.get("exit_code") != 0:
            raise SandboxError(f"it cannot run commands: {said.decode(errors='replace') or ended}")
        return commands

    async def order(
        self, asked: dict[str, Any], body: bytes, within: float
    ) -> tuple[dict[str, Any], bytes, bytes]:
        """How it ended, and what was read. Raises `SessionEnded` where no whole answer comes."""
        async with self._turn:
            try:
                async with asyncio.timeout(within + _GRACE):
                    self._writer.write(jail_wire.pack(asked, [body]))
                    await self._writer.drain()
                    return await self._answer(asked)
            except _LIES as problem:
                self._writer.close()  # out of step from here on
                raise SessionEnded(f"the jail gave no answer: {problem!r}") from None

    async def _answer(self, asked: dict[str, Any]) -> tuple[dict[str, Any], bytes, bytes]:
        streams = bytearray(), bytearray()
        while True:
            said, piece = await wire.receive_piece(self._reader)
            if "stream" not in said:
                if asked["op"] == "exec" and not {"exit_code", "timed_out"} <= set(said):
                    raise ValueError(f"a command that ended as {said!r:.200}")
                return said, bytes(streams[0]), bytes(streams[1])
            stream = streams[bool(said["stream"])]
            stream += piece
            if len(stream) > MOST:
                raise ValueError(f"more than {MOST:,} bytes of one stream")


class Keeper:
    """One jail and its door."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        put(folder / PID, str(os.getpid()))  # should its maker die before it does
        self._about = json.loads((folder / ABOUT).read_text())
        self._begun: asyncio.Future[Commands] = asyncio.get_running_loop().create_future()
        self._over = asyncio.Event()
        self._level = ""

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
        self._level = settings.sandbox_level
        try:
            async with Jails(settings.config()) as jails, jails.session(limits) as session:
                self._begun.set_result(await Commands.begin(session))
                session.on_end(self._over.set)
                await self._until_over(limits.wall)
        except (SandboxError, SessionEnded, OSError) as problem:
            if self._begun.done():
                return  # it was well, and its jail has ended
            self._begun.set_exception(problem)
            await self._until_over(5)  # its maker gets the problem, if it asks

    async def _until_over(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._over.wait()

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):  # a caller that was killed
            header, (body,) = await wire.receive(reader)
            answer, blobs = await self._answer(header, body)
            await wire.send(writer, answer, *blobs)
        writer.close()

    async def _answer(self, asked: dict[str, Any], body: bytes) -> tuple[dict[str, Any], Blobs]:
        if asked["op"] == "end":
            self._over.set()
            return {}, NO_BLOB
        try:
            commands = await asyncio.shield(self._begun)
        except (SandboxError, SessionEnded, OSError) as problem:
            self._over.set()
            return {"unavailable": str(problem)}, NO_BLOB
        if asked["op"] == "alive":
            return {"alive": not self._over.is_set(), "isolation": self._level}, NO_BLOB
        if asked["op"] == "exec":
            asked["env"] = self._about["env"] | asked["env"]
        within = min(_LONGEST, asked.get("timeout", 60.0))
        try:
            ended, out, err = await commands.order(asked, body, within)
        except SessionEnded as problem:
            self._over.set()
            return {"gone": str(problem)}, NO_BLOB
        return (ended, (out, err)) if asked.get("raw") else (_in_json(ended, out, err), NO_BLOB)


def _in_json(ended: dict[str, Any], out: bytes, err: bytes) -> dict[str, Any]:
    """For a caller of an earlier version, which may share the machine with this one."""
    if ended.get("errno") == errno.ENOENT:
        return {"missing": ended["why"]}
    if "errno" in ended:
        return {"error": ended["why"]}
    fields = {"stdout": out, "stderr": err, "content": out}
    return ended | {name: base64.b64encode(content).decode() for name, content in fields.items()}


def _the_cell() -> str:
    """The jail's wire format, what runs commands there, and its start."""
    sources = (
        importlib.resources.files("worker.sandbox.local.inside") / "wire.py",
        (importlib.resources.files("worker.lifecycle.local") / "inside.py"),
    )
    return "\n".join([*(source.read_text() for source in sources), "penstock_serve()"])


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
