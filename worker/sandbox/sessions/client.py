"""`LocalSessions`: the session sandboxes of this machine, by its hub. Keeps `api.Sessions`.

Each call is a connection of its own, and none is kept between two. A call that is cancelled hangs
up, and the hub ends what that call alone had started.
"""

import asyncio
import contextlib
import errno
import json
import os
import uuid
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from worker.sandbox.local import errors as sandbox_errors
from worker.sandbox.local.errors import SandboxUnavailable
from worker.sandbox.local.settings import SandboxSettings
from worker.sandbox.sessions import errors, wire
from worker.sandbox.sessions.api import (
    Change,
    CommandRequest,
    Entry,
    Exit,
    Finished,
    Output,
    ProcessInfo,
    SessionInfo,
    SessionRequest,
    Stream,
    Terminal,
    Usage,
)
from worker.sandbox.sessions.errors import SessionError, SessionGone, SessionTrouble
from worker.sandbox.sessions.launch import Door, hub_of, hubs, short_path, sweep
from worker.sandbox.sessions.settings import SessionSettings
from worker.sandbox.sessions.wire import PIECE

MOST = 64 << 20  # bytes of one output that `run` keeps
_LAST_WORDS = 2.0  # seconds for what is said of a command that was killed
_TRIES = 5  # a hub may end in the moment in which it is asked
_MISSING = (FileNotFoundError, ConnectionRefusedError)

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class LocalSessions:
    """Made without any effort: the hub is started by the first `open`."""

    def __init__(
        self,
        sandbox: SandboxSettings | None = None,
        sessions: SessionSettings | None = None,
    ) -> None:
        self._door = Door(sandbox or SandboxSettings.load(), sessions or SessionSettings.load())
        self.folder: Path = self._door.folder
        self._tied: dict[str, asyncio.StreamWriter] = {}

    async def open(self, request: SessionRequest) -> "LocalSession":
        name = request.name or f"session-{uuid.uuid4().hex[:16]}"
        about = {**asdict(request), "name": name}
        for _ in range(_TRIES):
            try:
                reader, writer = await self._to_hub()
            except _MISSING:
                await asyncio.to_thread(self._door.open)
                continue
            try:
                await wire.send(writer, {"op": "open", "session": about})
                _value(await wire.receive(reader), "session")
            except (SessionGone, ConnectionError):
                writer.close()  # it ends: the next one is another
                await asyncio.to_thread(sweep, self.folder)
                continue
            except BaseException:
                writer.close()
                raise
            if request.tied:
                self._tied[name] = writer
            else:
                writer.close()
            return LocalSession(self.folder, self._door.socket, name)
        raise SessionTrouble(
            f"the hub of {self.folder} was started {_TRIES} times, and ended: "
            f"{self._door.last_words() or 'it left no message'}"
        )

    async def get(self, name: str) -> "LocalSession":
        session = self.named(name)
        await session.info()
        return session

    def named(self, name: str) -> "LocalSession":
        """As `get`, but its first call finds out whether it lives."""
        if (hub := hub_of(self.folder, name)) is None:
            raise SessionGone(f"no session {name!r:.100} lives on this machine. Open a new one")
        return LocalSession(self.folder, hub, name)

    async def list(self, tags: Mapping[str, str] | None = None) -> AsyncIterator[SessionInfo]:
        for hub in await asyncio.to_thread(hubs, self.folder):
            with contextlib.suppress(SessionGone):
                found = await _asked(self.folder, hub, "sessions", op="list", tags=dict(tags or {}))
                for session in found:
                    yield SessionInfo(**session)

    async def end(self, name: str) -> bool:
        try:
            await self.named(name).ended()
        except SessionGone:
            await asyncio.to_thread(sweep, self.folder)  # its hub may have been killed
            return False
        finally:
            if writer := self._tied.pop(name, None):
                writer.close()
        return True

    async def close(self) -> None:
        for name in list(self._tied):
            await self.end(name)

    async def _to_hub(self) -> Streams:
        return await _connect(self.folder, self._door.socket)


class LocalSession:
    """Keeps `api.Session`."""

    def __init__(self, folder: Path, hub: str, name: str) -> None:
        self._folder, self._hub, self.name = folder, hub, name

    async def _ask(self, wanted: str, op: str, body: bytes = b"", **given: Any) -> Any:
        call = {"op": op, "name": self.name, **given}
        return await _asked(self._folder, self._hub, wanted, body, **call)

    async def info(self) -> SessionInfo:
        return SessionInfo(**await self._ask("session", "info"))

    async def usage(self) -> Usage:
        return Usage(**await self._ask("usage", "usage"))

    async def keep(self, *, ttl: float | None = None, idle: float | None = None) -> SessionInfo:
        return SessionInfo(**await self._ask("session", "keep", ttl=ttl, idle=idle))

    # Commands.

    async def run(
        self, command: CommandRequest, *, stdin: bytes = b"", most: int | None = None
    ) -> Finished:
        room = MOST if most is None else min(most, MOST)
        found: dict[Stream, bytearray] = {
            "stdout": bytearray(),
            "stderr": bytearray(),
            "pty": bytearray(),
        }
        asked = {**_on_the_wire(command), "stdin": bool(stdin) or command.stdin}
        async with self._begun("start", asked, stdin) as process:
            end = await _gathered(process, found, room)
            if end and end.why == "timeout":  # a session's interpreter, say, is interrupted by it
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LAST_WORDS):
                        await _gathered(process, found, room)
        if end is None:
            raise self._lost()
        out = bytes(found["stdout"] or found["pty"])
        return Finished(end, out, bytes(found["stderr"]))

    async def start(self, command: CommandRequest) -> "LocalProcess":
        async with self._connected() as (reader, writer):
            header = {"op": "start", "name": self.name, "command": _on_the_wire(command)}
            await wire.send(writer, header)
            return LocalProcess(_process(await wire.receive(reader)), self.name, reader, writer)

    async def attach(self, which: int | str) -> "LocalProcess":
        async with self._connected() as (reader, writer):
            await wire.send(writer, {"op": "attach", "name": self.name, "which": which})
            return LocalProcess(_process(await wire.receive(reader)), self.name, reader, writer)

    async def processes(self) -> list[ProcessInfo]:
        return [_process_info(each) for each in await self._ask("processes", "processes")]

    async def write_stdin(self, which: int | str, data: bytes) -> None:
        for piece in _pieces(data):
            await self._ask("", "input", piece, which=which)

    async def close_stdin(self, which: int | str) -> None:
        await self._ask("", "input", which=which, last=True)

    async def signal(self, which: int | str, number: int) -> None:
        await self._ask("", "signal", which=which, number=number)

    async def resize(self, which: int | str, terminal: Terminal) -> None:
        await self._ask("", "resize", which=which, size=[terminal.columns, terminal.rows])

    # Files.

    async def read(self, path: str, *, user: str = "") -> AsyncGenerator[bytes, None]:
        async with self._called("read", path, user, path=path) as events:
            async for piece in events:
                yield piece

    async def write(
        self,
        path: str,
        content: bytes | AsyncIterable[bytes],
        *,
        user: str = "",
        mode: int | None = None,
    ) -> Entry:
        size = len(content) if isinstance(content, bytes) else None
        given = {"path": path, "size": size, "mode": mode}
        return Entry(**await self._value("write", path, user, content, **given))

    async def stat(self, path: str, *, user: str = "") -> Entry:
        return Entry(**await self._value("stat", path, user, path=path))

    async def list(self, path: str, *, depth: int = 1, user: str = "") -> list[Entry]:
        found = await self._value("list", path, user, path=path, depth=depth)
        return [Entry(**entry) for entry in found]

    async def make_folder(self, path: str, *, user: str = "") -> bool:
        return bool(await self._value("make", path, user, path=path))

    async def move(self, path: str, to: str, *, user: str = "") -> Entry:
        return Entry(**await self._value("move", path, user, path=path, to=to))

    async def remove(self, path: str, *, user: str = "") -> None:
        await self._value("remove", path, user, path=path)

    async def watch(
        self, path: str, *, recursive: bool = False, user: str = ""
    ) -> AsyncGenerator[Change | None, None]:
        rest = b""
        async with self._called("watch", path, user, path=path, recursive=recursive) as events:
            async for piece in events:
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    change = json.loads(line)
                    yield change and Change(**change)

    async def fork(self, request: SessionRequest) -> "LocalSession":
        name = request.name or f"session-{uuid.uuid4().hex[:16]}"
        await self._ask("session", "fork", session={**asdict(request), "name": name})
        return LocalSession(self._folder, self._hub, name)

    async def end(self) -> None:
        with contextlib.suppress(SessionGone):
            await self.ended()

    async def ended(self) -> None:
        """As `end`, but raises `SessionGone` where it had ended."""
        await self._ask("", "end")

    async def _value(
        self, call: str, about: str, user: str,
        content: bytes | AsyncIterable[bytes] = b"", **given: Any,
    ) -> Any:  # fmt: skip
        said = _Said(about)
        async with self._called(call, about, user, content, said=said, **given) as events:
            async for _ in events:
                pass
        return said.value

    @asynccontextmanager
    async def _called(
        self, call: str, about: str, user: str, content: bytes | AsyncIterable[bytes] = b"",
        said: "_Said | None" = None, **given: Any,
    ) -> AsyncIterator[AsyncIterator[bytes]]:  # fmt: skip
        asked = {"call": call, "given": given, "user": user, "stdin": call == "write"}
        async with self._begun("call", asked, content) as process:
            yield self._content(process, said or _Said(about))

    async def _content(self, process: "LocalProcess", said: "_Said") -> AsyncGenerator[bytes, None]:
        words = b""
        async with contextlib.aclosing(process.events()) as events:
            async for event in events:
                if isinstance(event, Exit):
                    said.read(words, event)
                    return
                if event.stream == "stderr":
                    words += event.data
                else:
                    yield event.data
        raise self._lost()

    # The wire.

    @asynccontextmanager
    async def _begun(
        self, op: str, asked: dict[str, Any], content: bytes | AsyncIterable[bytes]
    ) -> AsyncIterator["LocalProcess"]:
        """A process of this call alone, which is given this content."""
        whole = isinstance(content, bytes) and len(content) <= PIECE
        header = {"op": op, "name": self.name, "command": asked, "last": whole}
        async with self._connected() as (reader, writer):
            await wire.send(writer, header, content if whole else b"")  # type: ignore[arg-type]
            process = LocalProcess(_process(await wire.receive(reader)), self.name, reader, writer)
            feeding = None if whole else asyncio.ensure_future(process.feed(content))
            if feeding:
                feeding.add_done_callback(process.hang_up_if_failed)
            try:
                yield process
            finally:
                if feeding:
                    feeding.cancel()
                    await asyncio.wait([feeding])
                    if not feeding.cancelled() and (problem := feeding.exception()):
                        raise problem
                await process.close()

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Streams]:
        """Closed where what is done with it fails."""
        try:
            reader, writer = await _connect(self._folder, self._hub)
        except _MISSING:
            raise self._lost() from None
        try:
            yield reader, writer
        except ConnectionError:
            writer.close()
            raise self._lost() from None
        except BaseException:
            writer.close()
            raise

    def _lost(self) -> SessionGone:
        return SessionGone(f"session {self.name} ended with its hub. Open a new one")


class LocalProcess:
    """Keeps `api.Process`."""

    def __init__(
        self, info: ProcessInfo, session: str,
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter,
    ) -> None:  # fmt: skip
        self.info, self.pid = info, info.pid
        self._session = session
        self._reader, self._writer = reader, writer

    async def events(self) -> AsyncGenerator[Output | Exit, None]:
        with contextlib.suppress(ConnectionError):  # its streams are closed, or the hub is dead
            while True:
                header, body = await wire.receive(self._reader)
                if "exit" in header:
                    end = Exit(**header["exit"])
                    if end.why == "failed":
                        raise SessionTrouble(f"a command could not be set up: {end.message}")
                    yield end
                else:
                    yield Output(header["stream"], body)

    async def wait(self) -> Exit:
        async with contextlib.aclosing(self.events()) as events:
            async for event in events:
                if isinstance(event, Exit):
                    return event
        raise SessionGone(f"session {self._session} ended with its hub. Open a new one")

    async def feed(self, content: bytes | AsyncIterable[bytes]) -> None:
        """All of its input."""
        if isinstance(content, bytes):
            await self.write(content)
        else:
            async for piece in content:
                await self.write(piece)
        await self.close_stdin()

    def hang_up_if_failed(self, feeding: "asyncio.Future[None]") -> None:
        """So that nobody waits for the rest of it."""
        if feeding.cancelled() or feeding.exception():
            self._writer.transport.abort()

    async def write(self, data: bytes) -> None:
        for piece in _pieces(data):
            await self._say(piece)

    async def close_stdin(self) -> None:
        await self._say(last=True)

    async def signal(self, number: int) -> None:
        await self._say(signal=number)

    async def resize(self, terminal: Terminal) -> None:
        await self._say(resize=[terminal.columns, terminal.rows])

    async def _say(self, body: bytes = b"", **header: Any) -> None:
        with contextlib.suppress(ConnectionError):  # its end is among the events
            await wire.send(self._writer, header, body)

    async def close(self) -> None:
        self._writer.close()


async def _gathered(
    process: LocalProcess, found: dict[Stream, bytearray], room: int
) -> Exit | None:
    """What it writes, until it has ended; None where that was said before, or the hub is dead."""
    async with contextlib.aclosing(process.events()) as events:
        async for event in events:
            if isinstance(event, Exit):
                return event
            kept = found[event.stream]
            kept += event.data[: room - len(kept)]
    return None


class _Said:
    """What came of a call on files."""

    def __init__(self, about: str) -> None:
        self._about = about
        self.value: Any = None

    def read(self, words: bytes, end: Exit) -> None:
        """Raises what `open` would have raised, or `SessionTrouble` where the call was ended."""
        if not words:
            raise SessionTrouble(f"{self._about}: the call was ended, {end.why or end}")
        said = json.loads(words)
        if "errno" in said:
            raise OSError(said["errno"], said["why"], self._about)
        self.value = said["value"]


def _on_the_wire(command: CommandRequest) -> dict[str, Any]:
    size = command.terminal
    return {**asdict(command), "terminal": size and [size.columns, size.rows]}


def _process(frame: wire.Frame) -> ProcessInfo:
    return _process_info(_value(frame, "process"))


def _process_info(said: dict[str, Any]) -> ProcessInfo:
    asked, end = said.pop("command"), said.pop("exit")
    command = CommandRequest([])  # of a call on files
    if "argv" in asked:
        size = asked.pop("terminal")
        command = CommandRequest(**asked, terminal=size and Terminal(*size))
    return ProcessInfo(command=command, exit=end and Exit(**end), **said)


def _value(frame: wire.Frame, wanted: str) -> Any:
    """Raises what the hub says went wrong."""
    header, _ = frame
    if "errno" in header:
        raise OSError(header["errno"] or errno.EIO, header["why"] or os.strerror(errno.EIO))
    if "error" not in header:
        return header[wanted] if wanted else None
    if header["error"] == "SandboxUnavailable":
        raise SandboxUnavailable(header["message"], header["remedy"])
    kind = getattr(errors, header["error"], None) or getattr(sandbox_errors, header["error"], None)
    raise (kind or SessionError)(header["message"])


def _pieces(data: bytes) -> list[bytes]:
    return [data[at : at + PIECE] for at in range(0, len(data), PIECE)]


async def _connect(folder: Path, hub: str) -> Streams:
    with short_path(folder, hub) as path:
        return await asyncio.open_unix_connection(path, limit=1 << 20)


async def _asked(folder: Path, hub: str, wanted: str, body: bytes = b"", **call: Any) -> Any:
    """One answer to one call. Raises `SessionGone` where the hub is not there any more."""
    try:
        reader, writer = await _connect(folder, hub)
    except _MISSING:
        raise SessionGone("the hub of this session is not there any more") from None
    try:
        await wire.send(writer, call, body)
        return _value(await wire.receive(reader), wanted)
    except ConnectionError:
        raise SessionGone("the hub of this session ended during the call") from None
    finally:
        writer.close()
