"""The shortcut: an event loop's own connection for the requests of its own callers.

By the engine's thread a request costs four wake-ups, by the shortcut two: the server's and the
loop's. Requests of one tick go out together. A shortcut only saves time. The state is the
engine's, under its lock; if the connection fails, the engine sends the same commands again.
"""

import asyncio
import logging
import weakref
from collections import deque
from collections.abc import Callable
from threading import RLock
from typing import Any, Protocol

from ground.lua import Command
from ground.redis.loop_wire import LoopWire, open_for
from ground.redis.unit import Batch, Carrier, Unit, what_is_due
from ground.redis.url import RedisTarget
from ground.redis.wire import BROKEN, packed

log = logging.getLogger("penstock.redis")

WORTH_IT = 8  # requests after which a loop gets a connection of its own
LONGEST = 65536  # bytes in one write: a socket that does not take them all is broken
LATE = 1.0  # seconds after which the engine does what a loop has not


class Host(Protocol):
    """The part of an engine that a shortcut needs."""

    target: RedisTarget
    lock: RLock
    clock: Callable[[], float]
    stopped: bool
    asleep_until: float
    busy: dict[Unit, None]
    settled: list[Any]

    @property
    def is_down(self) -> bool: ...
    def wake(self) -> None: ...
    def wish(self, shortcut: "Shortcut") -> None: ...
    def deliver(self) -> None: ...
    def stir(self, due: float) -> None: ...


class Shortcut:
    """A shortcut belongs to one event loop. A signal handler may raise at any line of it that runs
    on the loop."""

    connections = 1

    def __init__(self, engine: Host, loop: weakref.ref[asyncio.AbstractEventLoop]) -> None:
        self._engine = engine
        self._loop = loop
        self._connection: LoopWire | None = None
        self._asked = 0
        self._wished = False
        self._touched: dict[Unit, None] = {}
        self._touched_at = 0.0
        self._flushing = False
        self._flight: deque[Batch] = deque()

    @property
    def open(self) -> bool:
        return self._connection is not None

    @property
    def over(self) -> bool:
        """Whether the loop will never run again."""
        loop = self._loop()
        return loop is None or loop.is_closed()

    # For the loop's callers

    def touch(self, unit: Unit) -> bool:
        """Carry what was posted there, soon; False leaves it to the engine."""
        if self._flushing and unit in self._touched:
            return True
        if self._connection is None:
            return False
        if not self._touched:
            self._touched_at = self._engine.clock()
        self._touched[unit] = None
        if self._engine.asleep_until > self._touched_at + LATE:
            self._engine.wake()  # so that it checks in time whether this was done
        if not self._flushing:
            self._flush_soon()
        return True

    def missed(self) -> None:
        """A request of this loop went by the engine's thread."""
        self._asked += 1
        if self._asked >= WORTH_IT and not self._wished:
            self._wished, self._asked = True, 0
            self._engine.wish(self)

    # The connection

    def connect(self, timeout: float) -> None:
        """Connect, on the engine's thread, which may block."""
        engine = self._engine
        if not open_for(self._loop, engine.target, timeout, self._begin, self.connections):
            self._wished = False

    def _begin(self, *opened: LoopWire) -> None:
        self._wished = False
        begun = False
        try:
            with self._engine.lock:
                if not (self._connection or self._engine.stopped or self._engine.is_down):
                    begun = self._watch(*opened)
        finally:
            if not begun:
                if self._connection in opened:
                    self._connection = None
                for each in opened:
                    each.hang_up()

    def _watch(self, connection: LoopWire) -> bool:
        if not connection.watch(self._readable):
            return False
        self._connection = connection
        return True

    def cut(self) -> None:
        """Leave everything to the engine. From any thread, under the lock."""
        self._flushing = False
        if self._connection is not None:
            self._connection.hang_up()
            self._connection = None
        while self._flight:
            batch = self._flight[0]
            self._engine.busy[batch.unit] = None
            batch.cut_off()
            self._flight.popleft()
        self._leave_touched()

    def _leave_touched(self) -> None:
        for unit in self._touched.copy():  # one by one: the loop may touch more meanwhile
            self._engine.busy[unit] = None
            self._touched.pop(unit, None)
        self._engine.wake()

    def _guarded(self, work: Callable[[float], None]) -> None:
        """Do it on the loop, under the lock; if it fails, the engine continues."""
        engine = self._engine
        try:
            with engine.lock:
                if self._connection is not None:
                    work(engine.clock())
                else:
                    self._leave_touched()
            if engine.settled:
                engine.deliver()
            if self._touched and not self._flushing and self._connection is not None:
                self._flush_soon()  # right after the callers that were woken, and may ask again
        except BROKEN:
            with engine.lock:
                self.cut()
        except BaseException:
            with engine.lock:
                self.cut()
            raise

    # Commands and replies

    def _flush_soon(self) -> None:
        asyncio.get_running_loop().call_soon(self._flush)
        self._flushing = True

    def _flush(self) -> None:
        self._flushing = False
        if self._touched:
            self._guarded(self._send)

    def _send(self, now: float) -> None:
        engine = self._engine
        batches: list[Batch] = []
        commands: list[Command] = []
        for unit in self._touched.copy():
            engine.busy[unit] = None
            self._touched.pop(unit, None)  # before the look: what is posted after it touches again
            batch = what_is_due(unit, now)
            if batch is not None:
                self._flight.append(batch)
                batch.begin(Carrier.SHORTCUT)  # afterwards, so that `cut` finds it
                batches.append(batch)
                commands += [exchange.command for exchange in batch.exchanges]
            elif unit.carrier is Carrier.NOBODY:
                engine.stir(unit.due())
            elif unit.carrier is Carrier.ENGINE:
                engine.wake()  # it continues with what was posted meanwhile; a shortcut does anyway
        if batches and self._connection is not None:
            data = packed(commands)
            if len(data) <= LONGEST:
                self._connection.send_whole(data)
            else:
                self._leave_to_engine(batches)

    def _leave_to_engine(self, batches: list[Batch]) -> None:
        """Leave these to the engine; nothing of them has been sent."""
        for batch in reversed(batches):
            batch.put_back()
            self._flight.pop()
        self._engine.wake()

    def _readable(self) -> None:
        self._guarded(self._read)

    def _read(self, now: float) -> None:
        for reply in self._connection.received() if self._connection is not None else ():
            if isinstance(reply, Exception):
                raise ConnectionError(str(reply))  # the engine meets it too, and handles it
            batch = self._flight[0]
            batch.exchanges[batch.answered].read(reply, batch.sent)
            batch.answered += 1
            if batch.answered == len(batch.exchanges):
                batch.end()
                if not self._flight:
                    return  # cut, as it was read
                self._flight.popleft()
                self._go_on(batch.unit, now)

    def _go_on(self, unit: Unit, now: float) -> None:
        """Continue at the next flush, if there is something to do: callers are woken, who may ask
        again. Or something was posted meanwhile, or is due by what was read."""
        if unit.carrier is not Carrier.NOBODY:
            return
        due = unit.due()
        if self._engine.settled or unit.posted or due <= now:
            self._touched_at = now
            self._touched[unit] = None
        if due < self._engine.asleep_until and not unit.pressing:
            self._engine.wake()  # this loop may be blocked when it is due

    # For the engine, under the lock

    def late_at(self) -> float:
        """The moment at which the loop, or the server, is late with something."""
        sent = self._flight[0].sent if self._flight else float("inf")
        touched = self._touched_at if self._touched else float("inf")
        return min(sent, touched) + LATE

    def look_after(self, now: float) -> None:
        """Do the work of a loop that is blocked, or will never run again, so that it delays no
        other caller. If the server is silent, or hung up, the engine finds out by itself."""
        if self.late_at() > now:
            return
        try:
            self._read(now)
        except Exception as failure:  # noqa: BLE001 - the loop's connection failed, not the engine
            log.debug("a shortcut is closed: %s", failure)
            self.cut()
        if self._flight and self._flight[0].sent + LATE <= now:
            self.cut()
        self._flushing = False  # it may have been interrupted as it began
        self._leave_touched()

    def drain(self, end: float) -> None:
        """Read the outstanding replies: late grants must be given back."""
        try:
            while self._flight and self._connection is not None:
                if not self._connection.wait(end - self._engine.clock()):
                    return
                self._read(self._engine.clock())
        except Exception as failure:  # noqa: BLE001 - as above
            log.debug("a shortcut is closed: %s", failure)
