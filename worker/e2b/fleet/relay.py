"""Requests that are passed on to another machine's server, as they come: no piece waits for more.

Connections are kept, for one request after the other. Nothing is sent twice: what fails once a
connection stood has failed, and the client's SDK knows what may be repeated.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable
from typing import Any
from urllib.parse import urlsplit

import httptools

from ground.http.guard import Message, Receive, Scope, Send
from worker.e2b.fleet.machines import Machine
from worker.e2b.problems import Problem

FORWARDED, TARGET = b"x-penstock-forwarded", b"x-penstock-machine"
_PIECE = 1 << 16
_CONNECTING = 5.0  # seconds
_KEPT = 30.0  # seconds for which an idle connection is used again; servers keep them for 75
_MOST_KEPT = 64  # of one machine
_NOT_PASSED_ON = {
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te", b"trailer",
    b"transfer-encoding", b"upgrade", b"expect", b"host", b"origin", b"date", b"server",
    FORWARDED, TARGET,
}  # fmt: skip

Headers = list[tuple[bytes, bytes]]


class Unreachable(Problem):
    """No connection came about, so nothing was asked."""

    def __init__(self, machine: Machine, why: object) -> None:
        super().__init__(
            "unavailable", f"the server of {machine.id} does not answer; try again: {why}"
        )


class Relay:
    """The connections of one server to all others. `secret` is the fleet's, as it is now."""

    def __init__(self) -> None:
        self.secret = ""
        self._idle: dict[str, deque[tuple[_Line, float]]] = {}

    async def ask(
        self, machine: Machine, method: str, path: str, headers: Headers, body: bytes = b""
    ) -> tuple[int, Headers, bytes]:
        """A whole answer to a whole request."""
        line = await self._line(machine)
        with line.closed_on_failure():
            sized = [*headers, (b"content-length", b"%d" % len(body))]
            line.writer.write(self._head(machine, method, path.encode(), sized) + body)
            parts = [piece async for piece in line.answer(method)]
        self._give_back(machine, line)
        return line.status, line.headers, b"".join(parts)

    async def pass_on(self, machine: Machine, scope: Scope, receive: Receive, send: Send) -> None:
        """One request of a client, and its answer."""
        headers = _passed(scope["headers"])
        chunked = any(name == b"transfer-encoding" for name, _ in scope["headers"])
        if chunked:
            headers.append((b"transfer-encoding", b"chunked"))
        path = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
        head = self._head(machine, scope["method"], path, headers)
        line = await self._line(machine)
        feeding = asyncio.ensure_future(_feed(line, head, chunked, receive))
        begun = False
        try:
            with line.closed_on_failure():
                async for piece in line.answer(scope["method"]):
                    if not begun:
                        begun = True
                        await send(_start(line))
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                if not begun:
                    begun = True
                    await send(_start(line))
            await send({"type": "http.response.body", "body": b""})
        except (OSError, EOFError, httptools.HttpParserError) as cut:
            if feeding.done() and not feeding.cancelled() and feeding.result() is None:
                return  # the client went away, and nobody hears the answer
            if begun:
                raise  # the client's connection is cut as this one was
            raise Problem("unavailable", f"the server of {machine.id} hung up: {cut!r}") from None
        finally:
            feeding.cancel()
            await asyncio.wait([feeding])
        # A body that was answered before its end leaves the rest of it on the way.
        if line.fed:
            self._give_back(machine, line)
        else:
            line.close()

    def _head(self, machine: Machine, method: str, path: bytes, headers: Headers) -> bytes:
        host = urlsplit(machine.address).netloc.encode()
        own = [(b"host", host), (FORWARDED, self.secret.encode()), (TARGET, machine.id.encode())]
        lines = b"".join(b"%s: %s\r\n" % pair for pair in (*own, *headers))
        return b"%s %s HTTP/1.1\r\n%s\r\n" % (method.encode(), path, lines)

    async def _line(self, machine: Machine) -> "_Line":
        idle = self._idle.get(machine.address, deque())
        while idle:
            line, since = idle.pop()
            if time.monotonic() - since < _KEPT and not line.reader.at_eof():
                return line
            line.close()
        at = urlsplit(machine.address)
        try:
            async with asyncio.timeout(_CONNECTING):
                reader, writer = await asyncio.open_connection(at.hostname, at.port or 80)
        except (OSError, ValueError) as why:  # TimeoutError is one of them
            raise Unreachable(machine, why or "no connection in time") from None
        return _Line(reader, writer)

    def _give_back(self, machine: Machine, line: "_Line") -> None:
        self._drop_old()
        idle = self._idle.setdefault(machine.address, deque())
        if line.lasting and len(idle) < _MOST_KEPT:
            idle.append((line, time.monotonic()))
        else:
            line.close()

    def _drop_old(self) -> None:
        """Drops the connections of machines that are gone, whom nobody asks any more."""
        oldest = time.monotonic() - _KEPT
        for address, idle in list(self._idle.items()):
            while idle and idle[0][1] < oldest:
                idle.popleft()[0].close()
            if not idle:
                del self._idle[address]

    def close(self) -> None:
        for idle in self._idle.values():
            for line, _ in idle:
                line.close()
        self._idle.clear()


class _Line:
    """One connection, and the answer that is being read from it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.status = 0
        self.headers: Headers = []
        self.lasting = self.fed = False
        self._parts: list[bytes] = []
        self._whole = self._headed = False

    async def answer(self, method: str) -> AsyncIterator[bytes]:
        """The answer's body in pieces; `status` and `headers` are there before the first, which may
        be empty."""
        self.status, self.headers, self._parts = 0, [], []
        self._whole = self._headed = False
        self._parser = httptools.HttpResponseParser(self)
        told = False
        while not self._whole:
            data = await self.reader.read(_PIECE)
            if not data:
                raise EOFError("the connection was closed")
            self._parser.feed_data(data)
            if self._headed and method == "HEAD":
                self.lasting, self._whole = False, True
            if self._headed and not told:
                told = True
                if not self._parts:
                    yield b""
            parts, self._parts = self._parts, []
            for part in parts:
                yield part

    # What the parser calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.status, self._headed = self._parser.get_status_code(), True

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)

    def on_message_complete(self) -> None:
        self.lasting, self._whole = self._parser.should_keep_alive(), True

    @contextlib.contextmanager
    def closed_on_failure(self) -> Any:
        try:
            yield
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.writer.transport.abort()


async def _feed(line: _Line, head: bytes, chunked: bool, receive: Receive) -> None:
    """The request's head with the first piece of its body, and the rest as it comes. Returns when
    the client has gone, by which it cuts the connection."""
    line.fed = False
    before = head
    more = True
    while more:
        message: Message = await receive()
        if message["type"] == "http.disconnect":
            line.close()
            return
        piece, more = message.get("body", b""), message.get("more_body", False)
        if chunked:
            piece = (b"%x\r\n%s\r\n" % (len(piece), piece)) if piece else b""
            piece += b"" if more else b"0\r\n\r\n"
        if before or piece:
            line.writer.write(before + piece)
            before = b""
            with contextlib.suppress(ConnectionError):  # seen where the answer is read
                await line.writer.drain()
    line.fed = True
    while (await receive())["type"] != "http.disconnect":
        pass
    line.close()


def _start(line: _Line) -> Message:
    return {
        "type": "http.response.start", "status": line.status, "headers": _passed(line.headers),
    }  # fmt: skip


def _passed(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    return [(name, value) for name, value in headers if name not in _NOT_PASSED_ON]
