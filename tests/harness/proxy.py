"""A TCP proxy in front of Redis that can be told to behave like a bad network.

Two threads carry each connection, one for each direction. Every socket is known from the
moment it is accepted, and `stop` returns when the last of them is closed.
"""

import contextlib
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Literal, Self

from ground.redis.url import RedisTarget

Direction = Literal["commands", "replies"]
_BOTH: tuple[Direction, ...] = ("commands", "replies")


class Proxy:
    """`with Proxy(target) as proxy: ground.connect(proxy.target)`"""

    def __init__(self, upstream: RedisTarget) -> None:
        self.upstream = upstream
        self._ways = {"commands": _Way(), "replies": _Way()}
        self._sought: bytes | None = None
        self.lost = 0  # replies to what `lose_reply_to` named
        self._open: set[socket.socket] = set()
        self._guard = threading.Lock()
        self._stopped = False
        proxy = self

        class Connection(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with contextlib.suppress(OSError):  # either end may go at any time
                    proxy._forward(self.request)

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Connection, False)
        self._server.request_queue_size = 1024
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    @property
    def target(self) -> RedisTarget:
        return replace(
            self.upstream, nodes=(("127.0.0.1", self._server.server_address[1]),), path=""
        )

    def cut(self) -> None:
        """Close the connections there are; new ones are welcome."""
        with self._guard:
            for end in self._open:
                _hang_up(end)

    def freeze(self, *directions: Direction) -> None:
        """Hold what is sent, both ways or the one named, without closing anything."""
        for direction in directions or _BOTH:
            self._ways[direction].freeze()

    def thaw(self) -> None:
        """Deliver what was held."""
        for way in self._ways.values():
            way.thaw()

    def delay(self, seconds: float, *directions: Direction) -> None:
        """Let everything sent take so much longer."""
        for direction in directions or _BOTH:
            self._ways[direction].delay = seconds

    def lose_replies(self, count: int = 1) -> None:
        """The next commands run, but each one's reply is lost and its connection closed."""
        self._ways["replies"].lose(count)

    @property
    def losing(self) -> int:
        """How many replies are still to be lost."""
        return self._ways["replies"].losing

    def lose_reply_to(self, sought: bytes) -> None:
        """As `lose_replies`, for the next command that has these bytes in it."""
        with self._guard:
            self._sought = sought

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        with self._guard:
            self._stopped = True
        self.cut()
        self.thaw()
        self._server.server_close()  # and waits for every connection's thread

    def __enter__(self) -> Self:
        self._server.server_bind()
        self._server.server_activate()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _forward(self, client: socket.socket) -> None:
        with dial(self.upstream) as server, self._known(client, server) as welcome:
            if not welcome:
                return
            doomed = threading.Event()
            replies = threading.Thread(
                target=self._ways["replies"].pump,
                args=(server, client, lambda _: doomed.is_set()),
            )
            replies.start()
            self._ways["commands"].pump(client, server, lambda sent: self._seeks(sent, doomed))
            replies.join()

    def _seeks(self, sent: bytes, doomed: threading.Event) -> bool:
        """The command itself is carried; it is its connection's next reply that is not."""
        with self._guard:
            if self._sought is not None and self._sought in sent:
                self._sought = None
                self.lost += 1
                doomed.set()
        return False

    @contextlib.contextmanager
    def _known(self, *ends: socket.socket) -> Iterator[bool]:
        """For as long as they are open, so that `cut` finds them; not after `stop`."""
        with self._guard:
            self._open.update(ends)
            welcome = not self._stopped
        try:
            yield welcome
        finally:
            with self._guard:
                self._open.difference_update(ends)


class _Way:
    """One direction, over all connections."""

    def __init__(self) -> None:
        self.delay = 0.0
        self._to_lose = 0
        self._frozen = False
        self._changed = threading.Condition()

    def freeze(self) -> None:
        with self._changed:
            self._frozen = True

    def thaw(self) -> None:
        with self._changed:
            self._frozen = False
            self._changed.notify_all()

    def lose(self, count: int) -> None:
        with self._changed:
            self._to_lose = count

    @property
    def losing(self) -> int:
        with self._changed:
            return self._to_lose

    def pump(
        self, source: socket.socket, sink: socket.socket, loses: Callable[[bytes], bool]
    ) -> None:
        """Carry until either end goes, or something is lost."""
        with contextlib.suppress(OSError):
            while (sent := source.recv(65536)) and not (self._loses() or loses(sent)):
                time.sleep(self.delay)
                self._send(sent, sink)
        _hang_up(source)
        _hang_up(sink)

    def _loses(self) -> bool:
        with self._changed:
            self._to_lose -= (loses := self._to_lose > 0)
            return loses

    def _send(self, sent: bytes, sink: socket.socket) -> None:
        # Under the lock: when `freeze` has returned, nothing passes.
        with self._changed:
            self._changed.wait_for(lambda: not self._frozen)
            sink.sendall(sent)


def dial(target: RedisTarget) -> socket.socket:
    """A connection to where a target is."""
    if not target.path:
        return socket.create_connection(target.nodes[0])
    line = socket.socket(socket.AF_UNIX)
    try:
        line.connect(target.path)
    except OSError:
        line.close()
        raise
    return line


def _hang_up(end: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it may be gone already
        end.shutdown(socket.SHUT_RDWR)
