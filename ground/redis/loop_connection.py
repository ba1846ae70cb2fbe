"""A connection that an event loop reads and writes itself, never waiting for either.

A thread that may wait opens it; then it is the loop's.
"""

import asyncio
import contextlib
import logging
import select
import socket
import struct
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from ground.lua import Command
from ground.redis.connection import Connection
from ground.redis.url import RedisTarget

try:
    from hiredis import Reader, pack_command
except ImportError:  # it is an extra
    Reader = pack_command = None  # type: ignore[assignment, misc]

log = logging.getLogger("penstock.limiter")

_AT_ONCE = 16384  # bytes read at once, about 300 grants
_ABORT = struct.pack("ii", 1, 0)  # close without sending what has not been sent yet


def possible(target: RedisTarget) -> bool:
    """One plain socket, and hiredis: not a Cluster, not TLS."""
    return Reader is not None and target.kind in ("single", "sentinel") and not target.tls


def packed(commands: Iterable[Command]) -> bytes:
    """As they are sent."""
    return b"".join(map(pack_command, commands))


def on_loop(kept: weakref.ref[asyncio.AbstractEventLoop], work: Callable[[], None]) -> bool:
    """From any thread: run it there; False if the loop is closed or gone."""
    loop = kept()
    try:
        if loop is not None:
            loop.call_soon_threadsafe(work)
    except RuntimeError:  # it is closed
        return False
    return loop is not None


class LoopConnection:
    """See the module."""

    @classmethod
    def open(
        cls,
        kept: weakref.ref[asyncio.AbstractEventLoop],
        target: RedisTarget,
        timeout: float,
        begin: Callable[..., None],
        *,
        number: int = 1,
    ) -> bool:
        """On a thread that may wait, and has loaded the scripts: open connections, and hand them to
        `begin` on the loop. False if that failed: the engine continues with all the work."""
        opened: list[Connection] = []
        try:
            for _ in range(number):  # one by one: if the second fails the first must be closed
                opened += [Connection(target, timeout, scripts={})]
        except Exception as failure:  # noqa: BLE001 - whatever it is, the engine does the work
            log.debug("no connection of a loop's own to %s: %s", target, failure)
        else:
            if on_loop(kept, lambda: begin(*opened)):
                return True
        for connection in opened:
            connection.close()
        return False

    def __init__(self, kept: weakref.ref[asyncio.AbstractEventLoop], opened: Connection) -> None:
        self._loop = kept  # weak: the loop owns this, and may be collected without being closed
        self._watched = False
        self._opened = opened
        self._socket: socket.socket = opened.socket
        self._reader = Reader()
        self._read = bytearray(_AT_ONCE)
        self._socket.setblocking(False)

    def watch(self, readable: Callable[[], None]) -> bool:
        """Called on the loop, after the connection is stored where it will be hung up.

        False if the loop watches no sockets, as Windows' proactor does not.
        """
        self._watched = True
        try:
            asyncio.get_running_loop().add_reader(self._socket.fileno(), readable)
        except NotImplementedError:
            self._watched = False
        return self._watched

    def send(self, data: bytes) -> None:
        if self._socket.send(data) < len(data):
            raise ConnectionError("the server reads too slowly")

    def received(self) -> list[Any]:
        """The replies that are there; an error is one."""
        try:
            size = self._socket.recv_into(self._read)
        except BlockingIOError:
            return []
        if not size:
            raise ConnectionError("the server hung up")
        self._reader.feed(self._read, 0, size)  # type: ignore[arg-type] # takes any buffer
        replies = []
        while (reply := self._reader.gets()) is not False:
            replies.append(reply)
        return replies

    def wait(self, timeout: float) -> bool:
        """Block until a reply is there; for the engine's thread, in the loop's place."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(max(0.0, timeout) * 1000))

    def hang_up(self) -> None:
        """From any thread. What has not been sent never will be: the engine asks again."""
        if self._socket.fileno() < 0:
            return
        loop = self._loop()
        if not self._watched or loop is None or loop.is_closed():
            self._close()
        elif asyncio._get_running_loop() is loop:
            self._unwatch()
        else:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            if not on_loop(self._loop, self._unwatch):
                self._close()

    def _unwatch(self) -> None:
        loop = self._loop()
        if loop is not None and self._socket.fileno() >= 0:
            loop.remove_reader(self._socket.fileno())
        self._close()

    def _close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
        self._opened.close()
