"""An event loop's link to the server: when it is worth having, how it begins and ends.

It is opened on the engine's thread, which may wait for the server, and then belongs to the
loop. Any thread may ask for its end.
"""

import asyncio
import logging
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from limiter.commands import Command
from limiter.loop_wire import LoopWire, on_loop
from limiter.wire import Wire

if TYPE_CHECKING:
    from limiter.engine import Engine

log = logging.getLogger("penstock.limiter")

_WORTH_IT = 8  # asks after which a loop gets a connection of its own


class LoopLink:
    """See the module."""

    def __init__(
        self,
        engine: "Engine",
        loop: weakref.ref[asyncio.AbstractEventLoop],
        readable: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._loop = loop
        self._readable = readable
        self._missed = 0
        self._opening = False
        self.wire: LoopWire | None = None

    @property
    def open(self) -> bool:
        return self.wire is not None

    @property
    def over(self) -> bool:
        """Whether the loop will never run again."""
        loop = self._loop()
        return loop is None or loop.is_closed()

    def missed(self) -> None:
        """Somebody asked, and went the long way."""
        self._missed += 1
        if self._missed % _WORTH_IT == 0 and not self._opening:
            self._opening = True
            self._engine.post(self._open)

    def _open(self) -> None:
        """On the engine's thread."""
        try:
            if not self._engine.contact.lost:
                # The engine has loaded the scripts, and sees to those that the server forgets.
                wire = Wire(self._engine.target, self._engine.contact.timeout, scripts={})
                if not on_loop(self._loop, lambda: self._begin(wire)):
                    wire.close()
        except (RedisError, OSError) as failure:
            log.debug("gates: no shortcut to %s: %s", self._engine.target, failure)
        finally:
            self._opening = False

    def _begin(self, wire: Wire) -> None:
        if self.wire is not None or self._engine.stopped or self._engine.contact.lost:
            return wire.close()
        try:
            self.wire = LoopWire(asyncio.get_running_loop(), wire)
            self.wire.watch(self._readable)
        except NotImplementedError:  # Windows' proactor
            self.wire = None
            wire.close()
        return None

    def send(self, commands: list[Command]) -> None:
        if self.wire is None:
            raise ConnectionError("it ended meanwhile")
        self.wire.send(commands)

    def end(self, farewell: Callable[[], None]) -> None:
        """From any thread: have the loop bid farewell, or hang up where it will not run again."""
        if self.wire is not None and not on_loop(self._loop, farewell):
            self.hang_up()

    def hang_up(self) -> None:
        if self.wire is not None:
            self.wire.hang_up()
            self.wire = None
