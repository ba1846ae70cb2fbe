"""How much and how long a client may send before it is answered or hung up on.

It holds before a request reaches the guard, and so for those who have no token: a request's head
has a size and a time, its body a time that grows with what has come. What a body may hold is the
application's to say.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

HEAD_BYTES = 64 * 1024
"""Of the request's line and headers, beyond what came with the first packet."""
HEAD_SECONDS = 20.0
BODY_SECONDS = 30.0
BODY_PACE = 1_000_000  # bytes a second, with which a body earns more time

_HEAD, _BODY, _WHOLE = "head", "body", "whole"


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's, with these bounds. One timer a connection, which is set again only when it is
    over: a request costs it two looks at the clock."""

    _expects = _HEAD
    _since = 0.0
    _head = 0
    _body = 0
    _between = 0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect(_HEAD)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._expects is _WHOLE:
            self._expect(_HEAD)
        before = self._body
        super().data_received(data)
        if self._expects is _HEAD:
            self._head += len(data)
        elif self._expects is _BODY:  # a chunked body's trailers are headers too
            self._between = self._between + len(data) if self._body == before else 0
        if self._head > HEAD_BYTES or self._between > HEAD_BYTES:
            self._hang_up(431, f"a request's headers are at most {HEAD_BYTES} bytes")

    def on_message_begin(self) -> None:
        self._expect(_HEAD)
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._expect(_BODY)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._body += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._expects = _WHOLE
        super().on_message_complete()

    def _expect(self, part: str) -> None:
        self._expects, self._since = part, self.loop.time()
        self._head = self._body = self._between = 0
        if self._timer is None:
            self._timer = self.loop.call_later(HEAD_SECONDS, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._expects is _WHOLE or self.transport.is_closing():
            return
        now = self.loop.time()
        if self.flow.read_paused:
            self._since = now  # it is the application that does not read
        due = self._since + self._allowed()
        if now < due:
            self._timer = self.loop.call_later(due - now, self._look)
        else:
            self._hang_up(408, f"the request's {self._expects} did not come in time")

    def _allowed(self) -> float:
        return HEAD_SECONDS if self._expects is _HEAD else BODY_SECONDS + self._body / BODY_PACE

    def _hang_up(self, status: int, reason: str) -> None:
        """The connection ends with an answer, unless another is on its way."""
        if self.transport.is_closing():
            return
        self._head = self._between = 0
        cycle: Any = self.cycle
        of_this = self._expects is _BODY and not cycle.response_started
        if of_this or cycle is None or (self._expects is _HEAD and cycle.response_complete):
            said = reason.encode()
            self.transport.write(
                b"%sconnection: close\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n%s"
                % (STATUS_LINE[status], len(said), said)
            )
        self.transport.close()
