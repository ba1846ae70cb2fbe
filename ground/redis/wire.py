"""A wire: one socket to one server, and the reader of its replies. It never waits.

The waiting is done with it from outside: a thread waits by `converse`, an event loop by watching it
(`loop_wire.py`). `dial.py` opens one. An error that is a reply is a value among the replies.
"""

import contextlib
import select
import socket
import ssl
import struct
import weakref
from collections.abc import Iterable
from typing import Any

from hiredis import Reader, pack_command
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    ConnectionError,
    InvalidResponse,
    MasterDownError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TimeoutError,
)

from ground.lua import Command

BROKEN = (OSError, RedisError)  # what a wire raises if it can no longer be used
_AT_ONCE = 65536  # bytes read at once, about 1,200 grants
_ABORT = struct.pack("ii", 1, 0)  # close without sending what has not been sent yet
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_ERRORS: dict[str, type[RedisError]] = {
    "CLUSTERDOWN": ClusterDownError,
    "LOADING": BusyLoadingError,
    "MASTERDOWN": MasterDownError,
    "NOAUTH": AuthenticationError,
    "NOPERM": NoPermissionError,
    "NOSCRIPT": NoScriptError,
    "OOM": OutOfMemoryError,
    "READONLY": ReadOnlyError,
    "WRONGPASS": AuthenticationError,
}

_NO_PASSWORD = ("AUTH <password> called without any password", "Client sent AUTH, but no password")


def packed(commands: Iterable[Command]) -> bytes:
    """The bytes of some commands."""
    return b"".join(map(pack_command, commands))


class Wire:
    """See the module."""

    def __init__(self, opened: socket.socket) -> None:
        opened.setblocking(False)
        self._socket = opened
        self._reader = Reader(protocolError=InvalidResponse, replyError=_error_of)
        self._read = bytearray(_AT_ONCE)
        # Its loop may have ended before it got this. A `__del__` may come after the socket's own
        # end, if both are in a circle of references.
        weakref.finalize(self, opened.close).atexit = False

    @property
    def closed(self) -> bool:
        return self._socket.fileno() < 0

    def send(self, data: bytes | memoryview) -> int:
        """Send without waiting; returns how many bytes the socket took."""
        try:
            return self._socket.send(data)
        except _NOT_NOW:
            return 0

    def received(self) -> list[Any]:
        """The replies that are there."""
        replies: list[Any] = []
        try:
            size = self._socket.recv_into(self._read)
            while size:
                self._reader.feed(self._read, 0, size)  # type: ignore[arg-type] # takes any buffer
                while (reply := self._reader.gets()) is not False:
                    replies.append(reply)
                if not (isinstance(self._socket, ssl.SSLSocket) and self._socket.pending()):
                    return replies
                size = self._socket.recv_into(self._read)  # no selector would tell of these
        except _NOT_NOW:
            return replies
        raise ConnectionError("the server hung up")

    def wait(self, timeout: float, *, for_room: bool = False) -> bool:
        """Block until replies are there, or room for more bytes if asked."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN | (select.POLLOUT if for_room else 0))
        return bool(poll.poll(max(0.0, timeout) * 1000))

    def converse(self, commands: list[Command], timeout: float) -> list[Any]:
        """Send these, and wait for the reply to each. The server may take so long for each part."""
        unsent = memoryview(packed(commands))
        replies: list[Any] = []
        while len(replies) < len(commands):
            taken = self.send(unsent) if unsent else 0
            unsent = unsent[taken:]
            new = self.received()
            replies += new
            if new and type(new[-1]) is ConnectionError:  # and none of its kinds, as LOADING is
                raise new[-1]  # it hangs up, and says why
            if not (taken or new or self.wait(timeout, for_room=bool(unsent))):
                raise TimeoutError(f"no reply within {timeout:g} s")
        return replies

    def shut(self) -> None:
        """End the connection from any thread: both sides see its end."""
        with contextlib.suppress(OSError):
            # The plain method: that of a TLS socket would take the keys from who is reading.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self, *, abort: bool = False) -> None:
        if abort:
            with contextlib.suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
        self._socket.close()

    def fileno(self) -> int:
        return self._socket.fileno()


def _error_of(said: str) -> RedisError:
    """The class that redis-py has for an error."""
    code, _, rest = said.partition(" ")
    if rest == "max number of clients reached":
        return ConnectionError(rest)
    if rest.startswith(_NO_PASSWORD):
        return AuthenticationError(rest)
    return _ERRORS[code](rest) if code in _ERRORS else ResponseError(said)
