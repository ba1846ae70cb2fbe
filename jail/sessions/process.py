"""A process of a session, in its caller's hands: what it writes, reads, and how it ends."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable
from dataclasses import asdict
from typing import Any

from jail.sessions import wire
from jail.sessions.api import (
    CommandRequest,
    Exit,
    Output,
    ProcessInfo,
    Stream,
    Terminal,
)
from jail.sessions.call import value
from jail.sessions.errors import SessionError, SessionTrouble
from jail.sessions.wire import PIECE


class LocalProcess:
    """A process of a session, as `api.Process` has it. `cut` says what it means that the connection
    ended before the exit."""

    def __init__(
        self, info: ProcessInfo, cut: Callable[[], Awaitable[SessionError]],
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter,
    ) -> None:  # fmt: skip
        self.info, self.pid = info, info.pid
        self._cut = cut
        self._reader, self._writer = reader, writer

    async def events(self) -> AsyncGenerator[Output | Exit, None]:
        with contextlib.suppress(ConnectionError):  # its streams are closed, or the hub is dead
            while True:
                header, body = frame = await wire.receive(self._reader)
                if "exit" in header:
                    end = Exit(**header["exit"])
                    if end.why == "failed":
                        raise SessionTrouble(f"a command could not be set up: {end.message}")
                    yield end
                else:
                    yield Output(value(frame, "stream"), body)

    async def wait(self) -> Exit:
        async with contextlib.aclosing(self.events()) as events:
            async for event in events:
                if isinstance(event, Exit):
                    return event
        raise await self._cut()

    async def feed(self, content: bytes | AsyncIterable[bytes]) -> None:
        """Write all of its input."""
        if isinstance(content, bytes):
            await self.write(content)
        else:
            async for piece in content:
                await self.write(piece)
        await self.close_stdin()

    def hang_up_if_failed(self, feeding: "asyncio.Future[None]") -> None:
        """Hang up after a failure, so that nobody waits for the rest."""
        if feeding.cancelled() or feeding.exception():
            self._writer.transport.abort()

    async def write(self, data: bytes) -> None:
        for piece in pieces(data):
            await self._say(piece)

    async def close_stdin(self) -> None:
        await self._say(last=True)

    async def signal(self, number: int) -> None:
        wire.check_signal(number)
        await self._say(signal=number)

    async def resize(self, terminal: Terminal) -> None:
        size = [terminal.columns, terminal.rows]
        wire.check_size(size)
        await self._say(resize=size)

    async def _say(self, body: bytes = b"", **header: Any) -> None:
        with contextlib.suppress(ConnectionError):  # its end is among the events
            await wire.send_call(self._writer, header, body)

    async def close(self) -> None:
        self._writer.close()


async def gathered(process: LocalProcess, found: dict[Stream, bytearray], room: int) -> Exit | None:
    """Gather what the process writes, until it has ended; None if its end was said before, or the
    hub is dead."""
    async with contextlib.aclosing(process.events()) as events:
        async for event in events:
            if isinstance(event, Exit):
                return event
            kept = found[event.stream]
            kept += event.data[: room - len(kept)]
    return None


def on_the_wire(command: CommandRequest) -> dict[str, Any]:
    size = command.terminal
    return {**asdict(command), "terminal": size and [size.columns, size.rows]}


def begun(frame: wire.Frame) -> ProcessInfo:
    return process_info(value(frame, "process"))


def process_info(said: dict[str, Any]) -> ProcessInfo:
    asked, end = said.pop("command"), said.pop("exit")
    command = CommandRequest([])  # of a call on files
    if "argv" in asked:
        size = asked.pop("terminal")
        command = CommandRequest(**asked, terminal=size and Terminal(*size))
    return ProcessInfo(command=command, exit=end and Exit(**end), **said)


def pieces(data: bytes) -> list[bytes]:
    return [data[at : at + PIECE] for at in range(0, len(data), PIECE)]
