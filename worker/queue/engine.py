"""The engines of this process for the jobs that it waits for: one for each Redis.

A process is one client of a Redis: its jobs' notices come to one stream. An event loop with a
shortcut is a client of its own, and reads its own stream. By the inbox's thread a notice would
cost two more wake-ups.
"""

import asyncio
import logging
import weakref
from functools import partial

from ground import SettingError
from ground.keys import new_owner
from ground.lua import Command
from ground.process import PerProcess
from ground.redis.answers import Answer, OnLoop
from ground.redis.engine import NEVER, Engine
from ground.redis.inbox import SILENCE, read_streams, reading
from ground.redis.loop_wire import LoopWire
from ground.redis.shortcut import LATE, Shortcut
from ground.redis.url import RedisTarget
from ground.redis.wire import BROKEN, packed
from worker.errors import QueueError
from worker.queue.client_orders import Orders, Reader
from worker.queue.order import SCRIPTS, Order

log = logging.getLogger("penstock.queue")


class JobEngine(Engine):
    """The engine of all jobs that a process waits for on one Redis."""

    name = "queue"

    def __init__(self, target: RedisTarget) -> None:
        self.orders = Orders(self, new_owner())
        self._clients: weakref.WeakSet[Orders] = weakref.WeakSet([self.orders])
        super().__init__(target, SCRIPTS, log)

    def client_for(self, answer: Answer) -> Orders:
        """The client for an order whose outcome only this answer awaits."""
        if isinstance(answer, OnLoop):
            shortcut = self.shortcut_of(answer.loop)
            if isinstance(shortcut, JobShortcut) and shortcut.reads:
                return shortcut.orders
        return self.orders

    def submit(self, order: Order, answer: Answer) -> None:
        """Put a job on its queue, for a caller who waits for that answer."""
        self.request(order.client, partial(order.client.add, order), answer)

    def new_client(self, reader: Reader) -> Orders:
        client = Orders(self, new_owner(), reader)
        self._clients.add(client)
        return client

    # Hooks of `Engine`

    def _ended_error(self) -> Exception:
        return QueueError(f"{self.target}: the process is ending, and asks for no more jobs")

    def _make_shortcut(self, loop: weakref.ref[asyncio.AbstractEventLoop]) -> Shortcut:
        return JobShortcut(self, loop)

    def _last_commands(self) -> list[Command]:
        keys = [key for client in [*self._clients] for key in (client.key, client.stream)]
        return [("DEL", *keys)]


class JobShortcut(Shortcut):
    """A loop's, with a second connection by which it reads its own notices."""

    connections = 2

    def __init__(self, engine: JobEngine, loop: weakref.ref[asyncio.AbstractEventLoop]) -> None:
        super().__init__(engine, loop)
        self._jobs = engine
        self._reader: LoopWire | None = None
        self._asked_at: float | None = None
        self._pinged_at: float | None = None
        self._replied_at = 0.0
        self._since = "0-0"
        self.orders = engine.orders

    @property
    def reads(self) -> bool:
        """Whether notices are read here."""
        return self._reader is not None

    def _watch(self, connection: LoopWire, reader: LoopWire | None = None) -> bool:
        if reader is None or not reader.watch(lambda: self._guarded(self._read_notices)):
            return False
        if not super()._watch(connection):
            return False
        self.orders = self._jobs.new_client(self)  # the inbox continues with the one before
        self._since, self._asked_at, self._replied_at = "0-0", None, self._jobs.clock()
        self._pinged_at = None
        self._reader = reader
        return True

    def cut(self) -> None:
        if self._reader is not None:
            self.orders.reader = None  # the inbox reads for them
            self._jobs.busy[self.orders] = None
            self._reader.hang_up()
            self._reader = self._asked_at = self._pinged_at = None
        super().cut()

    def ask(self) -> None:
        """Start reading the next notices, if jobs wait. From any thread, under the lock."""
        try:
            self._ask(self._jobs.clock())
        except BROKEN:
            self.cut()

    def _send(self, now: float) -> None:
        super()._send(now)
        self._ask(now)

    def _ask(self, now: float) -> None:
        if self._reader is not None and self._asked_at is None and self.orders.waiting:
            commands = [reading({self.orders.stream: self._since})]
            if now > self._replied_at + SILENCE:  # an idle connection may be dead
                commands.insert(0, ("PING",))
                self._pinged_at = now
            self._reader.send_whole(packed(commands))
            self._asked_at = now

    def _read_notices(self, now: float) -> None:
        for reply in self._reader.received() if self._reader is not None else ():
            if isinstance(reply, Exception):
                raise ConnectionError(str(reply))
            self._replied_at = now
            if self._pinged_at is not None:
                self._pinged_at = None  # this answers it
                continue
            for _, last, notices in read_streams(reply):
                self.orders.read_entries(notices)
                self._since = last
            self._asked_at = None
        self._ask(now)
        self._go_on(self.orders, now)

    def late_at(self) -> float:
        return min(super().late_at(), self._silent_at())

    def look_after(self, now: float) -> None:
        if self._silent_at() <= now:
            self.cut()
        super().look_after(now)

    def _silent_at(self) -> float:
        """When the reader has waited for too long."""
        if self._pinged_at is not None:
            return self._pinged_at + LATE
        return self._asked_at + SILENCE if self._asked_at is not None else NEVER


_engines = PerProcess[RedisTarget, JobEngine]()
stop_all = _engines.stop_all


def client_engine(target: RedisTarget) -> JobEngine:
    """This process's engine for a Redis; started on first use, and again after a fork."""
    if target.kind == "cluster":
        raise SettingError(
            "redis_url",
            "RQ needs one primary: queues cannot live on a Cluster; name a single Redis for them",
        )
    return _engines.get(target, lambda: JobEngine(target))
