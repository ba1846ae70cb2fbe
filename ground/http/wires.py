"""A lean HTTP/1.1 client, for servers that are asked again and again.

Connections are kept, for one request after the other. An answer comes in pieces, as it arrives.
What is sent twice is for the caller to say: `fresh` tells whether a connection was used before.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from functools import cache
from urllib.parse import urlsplit

import httptools

Headers = list[tuple[bytes, bytes]]

_PIECE = 1 << 16
_MOST_KEPT = 256  # of one server
_UNSIZED = {b"content-length", b"transfer-encoding"}


class Cut(ConnectionError):
    """The server hung up before its answer was whole, or speaks no HTTP."""


class Wires:
    """Connections to servers, by their URL. They belong to one event loop.

    kept        seconds for which an idle connection is used again: fewer than the server keeps it
    connecting  seconds that a connection may take to come about
    """

    def __init__(self, *, kept: float, connecting: float = 5.0) -> None:
        self._kept, self._connecting = kept, connecting
        self._idle: dict[str, deque[tuple[Wire, float]]] = {}
        self._closed = False

    async def take(self, url: str, *, fresh: bool = False) -> Wire:
        """A connection to this server; `fresh`: one that was not used before. `OSError` if none
        comes about."""
        idle = self._idle.get(url, ())
        while idle and not fresh:
            wire, since = idle.pop()
            if time.monotonic() - since < self._kept and wire.quiet:
                wire.fresh = False
                return wire
            wire.close()
        at = urlsplit(url)
        tls = _authorities() if at.scheme == "https" else None
        try:
            async with asyncio.timeout(self._connecting):
                reader, writer = await asyncio.open_connection(
                    at.hostname, at.port or (443 if tls else 80), ssl=tls
                )
        except TimeoutError:
            raise TimeoutError("no connection in time") from None
        except UnicodeError as wrong:  # a name that no host can have
            raise OSError(str(wrong)) from None
        return Wire(reader, writer)

    def give_back(self, url: str, wire: Wire) -> None:
        """Keep a connection for the next request, once its answer is whole."""
        self._drop_old()
        idle = self._idle.setdefault(url, deque())
        if wire.lasting and len(idle) < _MOST_KEPT and not self._closed:
            idle.append((wire, time.monotonic()))
        else:
            wire.close()

    def _drop_old(self) -> None:
        """Drop the connections of servers that are gone, which nobody asks any more."""
        oldest = time.monotonic() - self._kept
        for url, idle in list(self._idle.items()):
            while idle and idle[0][1] < oldest:
                idle.popleft()[0].close()
            if not idle:
                del self._idle[url]

    def close(self) -> None:
        """Close those that are idle, and from now on each that is given back."""
        self._closed = True
        for idle in self._idle.values():
            for wire, _ in idle:
                wire.close()
        self._idle.clear()


class Wire:
    """A connection, and the answer that is being read from it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.status = 0
        self.headers: Headers = []
        self.lasting = False
        self.fresh = True
        self.begun = False
        """A byte of the answer has come."""
        self.fed = False
        """The whole request has been sent, if it is sent in pieces."""
        self._parts: list[bytes] = []
        self._whole = self._headed = False

    @property
    def quiet(self) -> bool:
        """Whether the server has said nothing since the last answer, and has not hung up."""
        unread = self.reader._buffer  # type: ignore[attr-defined] # asyncio tells it nowhere else
        return not (unread or self.reader.at_eof())

    async def answer(self, method: str, patience: float | None = None) -> AsyncIterator[bytes]:
        """The answer's body in pieces; `status` and `headers` are there before the first, which may
        be empty. `Cut` if it ends early, `TimeoutError` after `patience` seconds without a byte."""
        self.status, self.headers, self._parts = 0, [], []
        self._whole = self._headed = self.begun = self.lasting = False
        parser = self._parser = httptools.HttpResponseParser(self)
        told = False
        while not self._whole:
            try:
                async with asyncio.timeout(patience):
                    data = await self.reader.read(_PIECE)
            except TimeoutError:
                raise TimeoutError(f"no byte in {patience:g} s") from None
            if not data:
                if self._headed and not _UNSIZED & {name for name, _ in self.headers}:
                    return  # its end says that it is whole
                raise Cut("the connection was closed")
            self.begun = True
            try:
                parser.feed_data(data)
            except (httptools.HttpParserError, httptools.HttpParserUpgrade) as odd:
                raise Cut(f"this is no HTTP: {odd!r}") from None
            if self._headed and method == "HEAD":
                self.lasting, self._whole = False, True
            if self._headed and not told:
                told = True
                if not self._parts:
                    yield b""
            parts, self._parts = self._parts, []
            for part in parts:
                yield part

    async def read(self, method: str, patience: float | None = None) -> bytes:
        """The answer's whole body."""
        return b"".join([piece async for piece in self.answer(method, patience)])

    # What the parser calls.

    def on_message_begin(self) -> None:
        if self._whole:
            self.lasting = False  # what comes behind an answer belongs to nobody

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._whole:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if not self._whole:
            self.status, self._headed = self._parser.get_status_code(), True

    def on_body(self, body: bytes) -> None:
        if not self._whole:
            self._parts.append(body)

    def on_message_complete(self) -> None:
        if self._whole:
            return
        if 100 <= self.status < 200:  # the answer itself is still to come
            self.status, self.headers, self._headed = 0, [], False
        else:
            self.lasting, self._whole = self._parser.should_keep_alive(), True

    @contextlib.contextmanager
    def closed_on_failure(self) -> Iterator[None]:
        """An answer that is not read to its end leaves nothing that may be used again."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Cut the connection."""
        self.writer.transport.abort()


@cache
def _authorities() -> ssl.SSLContext:
    """The system's; to load them takes 40 ms."""
    return ssl.create_default_context()
