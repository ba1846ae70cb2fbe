"""A session, in its caller's hands. Each call is a connection of its own, and none is kept."""

import asyncio
import contextlib
import errno
import json
import uuid
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jail.sessions import wire
from jail.sessions.api import (
    Change,
    CommandRequest,
    Entry,
    Exit,
    Finished,
    Network,
    ProcessInfo,
    SessionInfo,
    SessionRequest,
    Stream,
    Terminal,
    Usage,
)
from jail.sessions.call import MISSING, Streams, ask, connect, cut, value
from jail.sessions.errors import (
    SessionError,
    SessionGone,
    SessionTrouble,
    TooManySessions,
)
from jail.sessions.layers import LayerWriter
from jail.sessions.process import (
    LocalProcess,
    begun,
    gathered,
    on_the_wire,
    pieces,
    process_info,
)
from jail.sessions.wire import PIECE

MOST = 64 << 20  # bytes of one output that `run` keeps
_FED = ("write", "place")  # calls that are given content
_LISTED = 32 << 20  # bytes of a folder's entries
_MOST_SAID = 1 << 16  # bytes of what came of a call
_LAST_WORDS = 2.0  # seconds for what is said of a command that was killed


class LocalSession:
    """An open session, as `api.Session` has it."""

    def __init__(self, folder: Path, hub: str, name: str) -> None:
        self._folder, self._hub, self.name = folder, hub, name

    async def _ask(self, wanted: str, op: str, body: bytes = b"", **given: Any) -> Any:
        call = {"op": op, "name": self.name, **given}
        return await ask(self._folder, self._hub, wanted, body, **call)

    async def info(self) -> SessionInfo:
        return session_info(await self._ask("session", "info"))

    async def usage(self) -> Usage:
        return Usage(**await self._ask("usage", "usage"))

    async def keep(self, *, ttl: float | None = None, idle: float | None = None) -> SessionInfo:
        return session_info(await self._ask("session", "keep", ttl=ttl, idle=idle))

    async def connect(self, network: Network | None) -> SessionInfo:
        asked = network and asdict(network)
        return session_info(await self._ask("session", "connect", network=asked))

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
        asked = {**on_the_wire(command), "stdin": bool(stdin) or command.stdin}
        async with self._begun("start", asked, stdin) as process:
            end = await gathered(process, found, room)
            if end and end.why == "timeout":  # a session's interpreter, say, is interrupted by it
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LAST_WORDS):
                        await gathered(process, found, room)
        if end is None:
            raise await self._cut()
        out = bytes(found["stdout"] or found["pty"])
        return Finished(end, out, bytes(found["stderr"]))

    async def start(self, command: CommandRequest) -> LocalProcess:
        async with self._connected() as (reader, writer):
            header = {"op": "start", "name": self.name, "command": on_the_wire(command)}
            await wire.send_call(writer, header)
            return LocalProcess(begun(await wire.receive(reader)), self._cut, reader, writer)

    async def attach(self, which: int | str) -> LocalProcess:
        async with self._connected() as (reader, writer):
            await wire.send_call(writer, {"op": "attach", "name": self.name, "which": which})
            return LocalProcess(begun(await wire.receive(reader)), self._cut, reader, writer)

    async def processes(self) -> list[ProcessInfo]:
        return [process_info(each) for each in await self._ask("processes", "processes")]

    async def write_stdin(self, which: int | str, data: bytes) -> None:
        for piece in pieces(data):
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
        wire.check_mode(mode)
        size = len(content) if isinstance(content, bytes) else None
        given = {"path": path, "size": size, "mode": mode}
        return Entry(**await self._value("write", path, user, content, **given))

    async def stat(self, path: str, *, user: str = "") -> Entry:
        return Entry(**await self._value("stat", path, user, path=path))

    async def list(self, path: str, *, depth: int = 1, user: str = "") -> list[Entry]:
        found: list[Entry] = []
        room, rest = _LISTED, b""
        async with self._called("list", path, user, path=path, depth=depth) as events:
            async for piece in events:
                if (room := room - len(piece)) < 0:
                    why = f"more than {_LISTED:,} bytes of entries; list less of them"
                    raise OSError(errno.E2BIG, why, path)
                *lines, rest = (rest + piece).split(b"\n")
                found += [Entry(**json.loads(line)) for line in lines]
        return found

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
        try:
            async with self._called("watch", path, user, path=path, recursive=recursive) as events:
                async for piece in events:
                    *lines, rest = (rest + piece).split(b"\n")
                    for line in lines:
                        change = json.loads(line)
                        yield change and Change(**change)
        except OSError as problem:
            if problem.errno == errno.EMFILE:
                raise TooManySessions(f"{path}: {problem.strerror}") from None
            raise

    async def place(self, packed: AsyncIterable[bytes]) -> None:
        """Places, as the session's root, files, folders and links, packed one after the other
        (`packing.head`)."""
        await self._value("place", "its files", "0", packed)

    async def layer(self, path: Path, most: int) -> int:
        """Write what it has changed since its image as a layer: a tar. How many entries."""
        with path.open("wb") as file:
            writer = LayerWriter(file, most)
            async with self._called("pack", "its files", "0", over=True) as events:
                async for piece in events:
                    writer.feed(piece)
            return writer.close()

    async def fork(self, request: SessionRequest) -> "LocalSession":
        name = request.name or f"session-{uuid.uuid4().hex[:16]}"
        about = {**asdict(request), "name": name}
        async with self._connected() as (reader, writer):
            call = {"op": "fork", "name": self.name, "session": about}
            await wire.send_call(writer, call)
            value(await wire.receive(reader), "session")
            writer.write(wire.KNOWN)
        writer.close()
        return LocalSession(self._folder, self._hub, name)

    async def end(self) -> None:
        with contextlib.suppress(SessionGone):
            await self.ended()

    async def ended(self) -> None:
        """End the session as `end` does, but raise `SessionGone` where it had ended."""
        await self._ask("", "end")

    async def _value(
        self, call: str, about: str, user: str,
        content: bytes | AsyncIterable[bytes] = b"", **given: Any,
    ) -> Any:  # fmt: skip
        said = _CallOutcome(about)
        async with self._called(call, about, user, content, said=said, **given) as events:
            async for _ in events:
                pass
        return said.value

    @asynccontextmanager
    async def _called(
        self, call: str, about: str, user: str, content: bytes | AsyncIterable[bytes] = b"",
        said: "_CallOutcome | None" = None, **given: Any,
    ) -> AsyncIterator[AsyncIterator[bytes]]:  # fmt: skip
        asked = {"call": call, "given": given, "user": user, "stdin": call in _FED}
        async with self._begun("call", asked, content) as process:
            yield self._content(process, said or _CallOutcome(about))

    async def _content(
        self, process: LocalProcess, said: "_CallOutcome"
    ) -> AsyncGenerator[bytes, None]:
        words = b""
        async with contextlib.aclosing(process.events()) as events:
            async for event in events:
                if isinstance(event, Exit):
                    said.read(words, event)
                    return
                if event.stream == "stderr":
                    words = (words + event.data)[:_MOST_SAID]
                else:
                    yield event.data
        raise await self._cut()

    # The wire.

    @asynccontextmanager
    async def _begun(
        self, op: str, asked: dict[str, Any], content: bytes | AsyncIterable[bytes]
    ) -> AsyncIterator[LocalProcess]:
        """A process of this call alone, which is given this content."""
        whole = isinstance(content, bytes) and len(content) <= PIECE
        header = {"op": op, "name": self.name, "command": asked, "last": whole}
        async with self._connected() as (reader, writer):
            await wire.send_call(writer, header, content if whole else b"")  # type: ignore[arg-type]
            process = LocalProcess(begun(await wire.receive(reader)), self._cut, reader, writer)
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
        """Connect to the hub for a `with` block. If what is done there fails, the connection is
        closed."""
        try:
            reader, writer = await connect(self._folder, self._hub)
        except MISSING:
            raise SessionGone(f"session {self.name} ended with its hub. Open a new one") from None
        try:
            yield reader, writer
        except ConnectionError:
            writer.close()
            raise await self._cut() from None
        except BaseException:
            writer.close()
            raise

    async def _cut(self) -> SessionError:
        return await cut(self._folder, self._hub, f"session {self.name}")


class _CallOutcome:
    """The outcome of a call on files."""

    def __init__(self, about: str) -> None:
        self._about = about
        self.value: Any = None

    def read(self, words: bytes, end: Exit) -> None:
        """Read the outcome. Raises what `open` would have raised, `SessionGone` if its session
        ended, or `SessionTrouble` if the call was ended. A program that killed or stopped it is an
        `InterruptedError`."""
        if not words and end.signal and not end.why:
            why = "a program in its session killed or stopped what was to do this"
            raise InterruptedError(errno.EINTR, why, self._about)
        if not words and end.why == "session_ended":
            raise SessionGone(f"{self._about}: its session ended during the call. Open a new one")
        if not words:
            raise SessionTrouble(f"{self._about}: the call was ended, {end.why or end}")
        said = json.loads(words)
        if "errno" in said:
            raise OSError(said["errno"], said["why"], self._about)
        self.value = said["value"]


def session_info(said: dict[str, Any]) -> SessionInfo:
    found = said.pop("network")
    network = found and Network(tuple(found["allow"]), tuple(found["deny"]))
    return SessionInfo(**said, network=network)
