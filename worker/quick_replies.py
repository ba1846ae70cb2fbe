"""Replies read where they arrive, in the event loop's own callback: no task is woken to read them.

redis-py opens the connection, whatever its kind, and closes it; in between its stream is ours.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from redis.exceptions import ConnectionError, InvalidResponse

try:
    from hiredis import Reader
except ImportError:  # it is an extra
    Reader = None  # type: ignore[assignment, misc]

possible = Reader is not None


class QuickReplies(asyncio.Protocol):
    """Takes over a connection that was just opened; an error that is a reply is one."""

    def __init__(
        self,
        connection: Any,
        heard: Callable[[Any], None],
        lost: Callable[[BaseException], None],
    ) -> None:
        self._heard, self._lost = heard, lost
        self._reader = Reader(
            protocolError=InvalidResponse, replyError=connection._parser.parse_error
        )
        self._transport = connection._writer.transport
        if self._transport.is_closing():  # its end was told to another, and will not be to us
            raise ConnectionError("the server hung up")
        self._theirs = self._transport.get_protocol()
        self._transport.set_protocol(self)

    def write(self, commands: bytes) -> None:
        """At once, as far as the server takes it; the rest as it does."""
        self._transport.write(commands)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not False:
                self._heard(reply)
        except InvalidResponse as nonsense:
            self._lost(nonsense)

    def connection_lost(self, failure: BaseException | None) -> None:
        self._theirs.connection_lost(failure)  # redis-py waits for it when it closes
        self._lost(failure or ConnectionError("the server hung up"))
