"""A wire that an event loop watches, never waiting for it.

A thread that may wait opens it; then it is the loop's. Any thread may hang it up.
"""

import asyncio
import logging
import socket
import threading
import weakref
from collections.abc import Callable
from functools import partial

from ground.redis.dial import dial
from ground.redis.url import RedisTarget
from ground.redis.wire import Wire

log = logging.getLogger("penstock.redis")

Loop = weakref.ref[asyncio.AbstractEventLoop]


def possible(target: RedisTarget) -> bool:
    """Whether a loop can have one: of a single server or a primary, of no Cluster and no fake."""
    return target.kind in ("single", "sentinel")


def on_loop(kept: Loop, work: Callable[[], None]) -> bool:
    """Have the loop run some work, from any thread. False if the loop is closed or gone."""
    loop = kept()
    try:
        if loop is not None:
            loop.call_soon_threadsafe(work)
    except RuntimeError:  # it is closed
        return False
    return loop is not None


def open_for(
    kept: Loop, target: RedisTarget, timeout: float, begin: Callable[..., None], number: int
) -> bool:
    """Dial some wires, and hand them to `begin` on the loop. Called on a thread that may wait, and
    has loaded the scripts. False if that failed: the engine continues with all the work."""
    opened: list[LoopWire] = []
    try:
        for _ in range(number):  # one by one: if the second fails the first must be closed
            opened += [dial(target, timeout, partial(LoopWire, kept))]
    except Exception as failure:  # noqa: BLE001 - whatever it is, the engine does the work
        log.debug("no wire of a loop's own to %s: %s", target, failure)
    else:
        if on_loop(kept, lambda: begin(*opened)):
            return True
    for wire in opened:
        wire.close()
    return False


def dial_for(
    kept: Loop, target: RedisTarget, timeout: float, done: "Callable[[LoopWire | Exception], None]"
) -> None:
    """Dial a wire on a thread of its own, and hand it, or what went wrong, to `done` on the loop.
    The threads of the loop's executor may all be taken, and the loop's end would wait for them."""

    def work() -> None:
        found: LoopWire | Exception
        try:
            found = dial(target, timeout, partial(LoopWire, kept))
        except Exception as failure:  # noqa: BLE001 - it is for who asked
            found = failure
        if not on_loop(kept, lambda: done(found)) and isinstance(found, LoopWire):
            found.close()

    threading.Thread(target=work, name="penstock-dial", daemon=True).start()


class LoopWire(Wire):
    """See the module."""

    def __init__(self, kept: Loop, opened: socket.socket) -> None:
        super().__init__(opened)
        self._loop = kept  # weak: the loop owns this, and may be collected without being closed
        self._watched = self._roomy = False

    def watch(self, readable: Callable[[], None]) -> bool:
        """Have the loop call `readable` when there is something to read. Call this on the loop,
        after the wire is stored where it will be hung up.

        False if the loop watches no sockets, as Windows' proactor does not.
        """
        self._watched = True
        try:
            asyncio.get_running_loop().add_reader(self.fileno(), readable)
        except NotImplementedError:
            self._watched = False
        return self._watched

    def watch_for_room(self, roomy: Callable[[], None] | None) -> None:
        """Have the loop call this as soon as the socket takes more bytes, until it is given
        None."""
        loop = asyncio.get_running_loop()
        if roomy is not None:
            self._roomy = True
            loop.add_writer(self.fileno(), roomy)
        elif self._roomy:
            self._roomy = False
            loop.remove_writer(self.fileno())

    def send_whole(self, data: bytes) -> None:
        if self.send(data) < len(data):
            raise ConnectionError("the server reads too slowly")

    def hang_up(self, *, abort: bool = True) -> None:
        """Close the wire, from any thread. If aborted, what has not been sent never will be."""
        if self.closed:
            return
        loop = self._loop()
        if not self._watched or loop is None or loop.is_closed():
            self.close(abort=abort)
        elif asyncio._get_running_loop() is loop:
            self._unwatch(abort)
        else:
            self.shut()
            if not on_loop(self._loop, lambda: self._unwatch(abort)):
                self.close(abort=abort)

    def _unwatch(self, abort: bool) -> None:
        loop = self._loop()
        if loop is not None and not self.closed:
            loop.remove_reader(self.fileno())
            if self._roomy:
                loop.remove_writer(self.fileno())
        self.close(abort=abort)
