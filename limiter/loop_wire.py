"""A connection that an event loop reads and writes itself, never waiting for either.

It is opened by a thread that may wait, as any other wire is, and then is the loop's.
"""

import asyncio
import contextlib
import socket
import struct
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ground import RedisTarget
from limiter.commands import Command
from limiter.wire import Wire

try:
    from hiredis import Reader, pack_command
except ImportError:  # it is an extra
    Reader = pack_command = None  # type: ignore[assignment, misc]

_AT_ONCE = 16384  # bytes read at once, about 300 grants
_ABORT = struct.pack("ii", 1, 0)  # close without sending what has not been sent yet


def possible(target: RedisTarget) -> bool:
    """One socket that needs nobody's care: not those of a Cluster, not TLS; and hiredis."""
    return Reader is not None and target.kind in ("single", "sentinel") and not target.tls


def on_loop(kept: weakref.ref[asyncio.AbstractEventLoop], deed: Callable[[], None]) -> bool:
    """From any thread: have it done there; False where the loop will do nothing any more."""
    loop = kept()
    try:
        if loop is not None:
            loop.call_soon_threadsafe(deed)
    except RuntimeError:  # it is closed
        return False
    return loop is not None


class LoopWire:
    """See the module."""

    def __init__(self, loop: asyncio.AbstractEventLoop, wire: Wire) -> None:
        self._loop = weakref.ref(loop)  # which keeps us, and may be dropped without a word
        self._wire = wire
        self._socket: socket.socket = wire.socket
        self._reader = Reader()
        self._read = bytearray(_AT_ONCE)
        self._socket.setblocking(False)

    def watch(self, readable: Callable[[], None]) -> None:
        """On the loop, once it is kept where it will be hung up, whatever comes between.

        Raises `NotImplementedError` where a loop watches no sockets.
        """
        asyncio.get_running_loop().add_reader(self._socket.fileno(), readable)

    def send(self, commands: Iterable[Command]) -> None:
        data = b"".join(map(pack_command, commands))
        if self._socket.send(data) < len(data):
            raise ConnectionError("the server reads too slowly")

    def received(self) -> Iterator[Any]:
        """The replies that are there; an error is one."""
        try:
            size = self._socket.recv_into(self._read)
        except BlockingIOError:
            return
        if not size:
            raise ConnectionError("the server hung up")
        self._reader.feed(self._read, 0, size)  # type: ignore[arg-type] # takes any buffer
        while (reply := self._reader.gets()) is not False:
            yield reply

    def hang_up(self) -> None:
        """What has not been sent yet never will be: others ask again."""
        if self._socket.fileno() < 0:
            return
        loop = self._loop()
        if loop is not None and not loop.is_closed():
            loop.remove_reader(self._socket.fileno())
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
        self._wire.close()
