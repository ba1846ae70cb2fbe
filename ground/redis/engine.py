"""The engine: a process's one thread for one Redis, and the lock on all units.

Callers on any thread or event loop post changes to a unit, and wait for an answer. The engine
sends everything that is due as one pipeline, reads the replies, and wakes the callers: a hundred
requests cost one round trip. It sends heartbeats on time, even if an event loop is blocked by a
long computation.

While Redis is away it tries again, with longer and longer pauses (outage.py), and sends what is
still due. An event loop that asks often gets a shortcut, which bypasses this thread.

Units are read and changed under `lock` only. No thread holds it while it waits for Redis.
"""

import asyncio
import contextlib
import logging
import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from queue import Empty, SimpleQueue
from typing import Any, Literal

from redis.exceptions import RedisError

from ground.lua import Command, Script
from ground.redis import loop_wire
from ground.redis.answers import Answer, OnLoop, deliver
from ground.redis.connection import FINAL, PASSING, LastingConnection, is_passing, trouble
from ground.redis.inbox import Entries, Inbox, nudge
from ground.redis.outage import Outage
from ground.redis.shortcut import Shortcut
from ground.redis.unit import Batch, Carrier, Exchange, Unit, take_up, what_is_due
from ground.redis.url import RedisTarget

NEVER = math.inf
FAREWELL = 2.0  # seconds that an ending process spends on giving things back


class Engine:
    """The engine of one Redis. A subclass says what there is beside the units: see the hooks at the
    end."""

    name: str  # of its thread, and in its log

    def __init__(
        self, target: RedisTarget, scripts: Mapping[str, Script], log: logging.Logger
    ) -> None:
        self.target = target
        self.clock = time.monotonic
        self.stopped = False
        self.lock = threading.RLock()  # a signal handler may need it while its thread holds it
        self.busy: dict[Unit, None] = {}
        self.settled: list[tuple[Answer, Any]] = []
        self.asleep_until = 0.0
        self.connection = LastingConnection(target, 5.0, scripts)
        self._log = log
        self._bell: SimpleQueue[Unit | Literal[False] | None] = SimpleQueue()
        self._wished: SimpleQueue[Shortcut] = SimpleQueue()
        self._shortcuts: dict[int, Shortcut] = {}  # by the loop's id, which goes with the loop
        self._inbox: Inbox | None = None
        self._over: deque[Shortcut] = deque()
        self._shortcuts_possible = loop_wire.possible(target)
        self._outage = Outage()
        thread = f"penstock-{self.name}"
        self._thread = threading.Thread(target=self._run, name=thread, daemon=True)
        self._thread.start()

    # For callers, from any thread, and from a signal handler: nothing here takes the lock

    def post(self, unit: Unit, change: Callable[[], None], answer: Answer | None = None) -> None:
        """Apply a change to the unit, soon; for a caller who waits for that answer."""
        unit.posted.append(change)
        shortcut = self._shortcuts.get(id(asyncio._get_running_loop()))
        if shortcut is not None and shortcut.touch(unit):
            return
        self._bell.put(unit)
        if self._shortcuts_possible and isinstance(answer, OnLoop):
            (shortcut or self._new_shortcut(answer.loop)).missed()

    def request(self, unit: Unit, change: Callable[[], None], answer: Answer) -> None:
        """Post for a caller who waits: raises if no answer would come."""
        self.post(unit, change, answer)
        if self.stopped:  # set before the last look at what was posted
            raise self._ended_error()

    def wake(self) -> None:
        """Have the thread look at everything."""
        self._bell.put(None)

    def stop(self) -> None:
        """Give everything back and end the thread. Callers that wait are refused."""
        if not self.stopped:
            try:
                self.stopped = True
            finally:
                self._bell.put(False)
            self._thread.join(FAREWELL + 1)

    @property
    def is_down(self) -> bool:
        return self._outage.since is not None

    def deliver(self) -> None:
        """Wake the callers whose outcome is there, without the lock."""
        settled: list[tuple[Answer, Any]] = []
        try:
            with self.lock:
                settled, self.settled = self.settled, []
            for orphan in deliver(settled):
                self._unclaimed(orphan.outcome)
        except BaseException:  # a signal handler may raise anywhere: the thread does it again
            with self.lock:
                self.settled[:0] = settled
            self.wake()
            raise

    # For those that have a connection, under the lock

    def stir(self, due: float) -> None:
        """Wake the thread if something is due before it would look."""
        if due < self.asleep_until:
            self.wake()

    # The thread

    def _run(self) -> None:
        try:
            while self._wait():
                self._turn()
                if self._retires():
                    break
            self._leave()
        except BaseException:
            self._log.exception("%s failed; everyone who waits is refused", self.name)
            self.stopped = True
            self._refuse_rest("internal error, see the log")
            raise
        finally:
            self.stopped = True
            with self.lock:
                self._cut_shortcuts()
            self._hang_up()

    def _wait(self) -> bool:
        """Wait until there is something to do; False at the end."""
        try:
            rung = self._bell.get(timeout=self._sleep())
            while True:
                if rung is False:
                    return False
                if rung is not None:
                    self.busy[rung] = None
                rung = self._bell.get_nowait()
        except Empty:
            return True

    def _sleep(self) -> float | None:
        with self.lock:
            self.asleep_until = NEVER  # first: a change that comes later wakes this thread
            free = [unit for unit in self.busy.copy() if unit.carrier is Carrier.NOBODY]
            due = min((unit.due() for unit in free), default=NEVER)
            if self.is_down and due < NEVER:
                due = max(due, self._outage.retry_at)
            for shortcut in self._shortcuts.copy().values():
                due = min(due, shortcut.late_at())
            self.asleep_until = due = min(due, self._due_by_time())
        if due == NEVER:
            return None
        return min(max(0.0, due - self.clock()), threading.TIMEOUT_MAX)

    def _turn(self) -> None:
        with self.lock:
            while self._over:
                self._over.popleft().cut()
            for shortcut in self._shortcuts.copy().values():
                shortcut.look_after(self.clock())
            batches = self._batches(self.clock())
        if batches:
            self._exchange(batches)
        with self.lock:
            self._tick(self.clock())
            for unit in self.busy.copy():
                if unit.carrier is Carrier.NOBODY and not unit.posted and unit.idle:
                    del self.busy[unit]
        self._listen()
        self.deliver()
        if not (self._wished.empty() or self.is_down or self.stopped):
            self._wished.get().connect(self.connection.timeout)  # one a turn: it may take long
            if not self._wished.empty():
                self.wake()

    def _batches(self, now: float) -> list[Batch]:
        """Everything that is due; nothing while Redis is silent."""
        outage = self._outage
        if outage.since is not None and now < outage.retry_at:
            for unit in self.busy.copy():
                take_up(unit)
                unit.give_up(now, outage.since, outage.cause)
            return []
        due = [what_is_due(unit, now) for unit in self.busy.copy()]
        batches = [batch for batch in due if batch is not None]
        for batch in batches:
            batch.begin(Carrier.ENGINE)
        return batches

    def _exchange(self, batches: list[Batch]) -> None:
        """Send all batches as one pipeline, and read the replies. What Redis refuses for a while
        stays due; on failure, all of it."""
        try:
            self.connection.connect()  # before `sent`, which is compared with Redis's clock
            sent = self.clock()
            replies = iter(self.converse([c for batch in batches for c in batch.commands]))
        except RedisError as failure:
            self._fail(batches, failure, final=not isinstance(failure, PASSING))
        except PASSING as failure:
            self._fail(batches, failure)
        except Exception:  # noqa: BLE001 - a command that cannot be packed
            self.connection.close()
            if len(batches) == 1:
                self._refuse_alone(batches[0])
            else:
                for batch in batches:
                    self._exchange([batch])
        else:
            put_off: dict[Batch, RedisError] = {}
            with self.lock:
                for batch in batches:
                    batch.sent = sent
                    if (error := self._read(batch, replies)) is not None:
                        put_off[batch] = error
                if not put_off:
                    self._outage.over()
            if put_off:
                self._fail([*put_off], next(iter(put_off.values())))
            self.deliver()

    def _read(self, batch: Batch, replies: Iterator[Any]) -> RedisError | None:
        """Hand each exchange its reply. Those that Redis may take later are left in the batch, and
        their error is returned. The others count all the same: a full Redis renews leases."""
        refused: list[tuple[RedisError, Exchange]] = []
        put_off: list[tuple[RedisError, Exchange]] = []
        failed = False
        for exchange in batch.exchanges:
            reply = next(replies)
            if isinstance(reply, RedisError):
                (put_off if is_passing(reply) else refused).append((reply, exchange))
                continue
            try:
                exchange.read(reply, batch.sent)
            except Exception:  # noqa: BLE001 - the other units go on
                self._log.exception("%s: a reply cannot be read", self.name)
                failed = True
        for error, exchange in refused:  # last: no reply concerns a caller that was refused
            batch.unit.refuse(error, exchange)
        if failed:
            batch.unit.refuse("internal error, see the log")
        if not put_off:
            batch.end()
            return None
        batch.exchanges = [exchange for _, exchange in put_off]
        return put_off[0][0]

    def _refuse_alone(self, batch: Batch) -> None:
        """Refuse the callers of one unit, whose commands cannot be sent. The others go on."""
        self._log.exception("%s: a command cannot be sent", self.name)
        with self.lock:
            batch.unit.refuse("internal error, see the log")
            batch.end()
        self.deliver()

    def converse(self, commands: list[Command]) -> list[Any]:
        """Ask on this thread; return the reply to each command, or its error."""
        return self.connection.replies(commands)

    def _send(self, commands: list[Command]) -> None:
        """Send commands whose replies are not needed."""
        try:
            self.converse(commands)
        except PASSING as failure:
            self._fail([], failure)

    def _fail(self, batches: list[Batch], failure: BaseException, *, final: bool = False) -> None:
        now = self.clock()
        self.connection.close()
        if not self.is_down:
            self._log.warning("%s: %s", self.name, trouble(failure, self.target))
        since = self._outage.failed(now, failure, self.connection.timeout)
        with self.lock:
            for batch in batches:
                batch.cut_off()
            self._cut_shortcuts()  # they may still be connected to a server that was replaced
            for unit in self.busy.copy():
                if final or isinstance(failure, FINAL):
                    unit.refuse(failure)
                unit.unsettle()
                unit.give_up(now, since, failure)

    # The inbox

    def _listen(self) -> None:
        """Have the inbox read the streams that have no reader yet."""
        for unit in self.busy.copy():
            if not unit.awaits_entries or unit.listening or self.is_down:
                continue
            if self._inbox is None:
                self._inbox = Inbox(self.target, self._received)
            unit.listening = True
            busy_reading = self._inbox.listen(unit.stream, unit)
            if busy_reading is not None:
                self._send(nudge(busy_reading))

    def _received(self, unit: Unit, entries: Entries) -> None:
        """Take in a stream's entries on the inbox's thread, which wakes the callers itself: one
        wake-up fewer."""
        with self.lock:
            unit.read_entries(entries)
            self.busy[unit] = None
            self.stir(unit.due())
        self.deliver()

    # Shortcuts

    def wish(self, shortcut: Shortcut) -> None:
        """Wish for a connection: the engine opens it soon."""
        self._wished.put(shortcut)
        self.wake()

    def shortcut_of(self, loop: asyncio.AbstractEventLoop) -> Shortcut | None:
        return self._shortcuts.get(id(loop))

    def _new_shortcut(self, loop: asyncio.AbstractEventLoop) -> Shortcut:
        for key, old in self._shortcuts.copy().items():
            if old.over:
                self._forget_shortcut(key)
        key = id(loop)
        forget = weakref.ref(loop, lambda _: self._forget_shortcut(key))
        shortcut = self._make_shortcut(forget)
        self._shortcuts[key] = shortcut
        return shortcut

    def _forget_shortcut(self, key: int) -> None:
        """A shortcut's loop has ended. The garbage collector calls this too, so it must not take a
        lock."""
        if (shortcut := self._shortcuts.pop(key, None)) is not None:
            self._over.append(shortcut)
            self.wake()

    def _cut_shortcuts(self) -> None:
        for shortcut in self._shortcuts.copy().values():
            shortcut.cut()

    # The end

    def _leave(self) -> None:
        """Make the last exchange: permits and jobs go back now, and not when their leases end."""
        self.connection.timeout = min(self.connection.timeout, FAREWELL)
        with self.lock:
            end = self.clock() + FAREWELL / 2
            for shortcut in self._shortcuts.copy().values():
                shortcut.drain(end)
            self._cut_shortcuts()
            for unit in self.busy.copy():
                take_up(unit)
                unit.leave()
        self._turn()
        self._refuse_rest("the process is ending")

    def _hang_up(self) -> None:
        with contextlib.suppress(RedisError, *PASSING):  # what stays in Redis expires
            if self._inbox is not None:
                self._inbox.end(None if self.is_down else self.converse, FAREWELL)
            if not self.is_down and (last := self._last_commands()):
                self.converse(last)
        self.connection.close()

    def _refuse_rest(self, why: str) -> None:
        with contextlib.suppress(Empty):
            while True:
                rung = self._bell.get_nowait()
                if rung:
                    self.busy[rung] = None
        with self.lock:
            self._cut_shortcuts()
            for unit in self.busy.copy():
                self._take_up_all(unit)
                unit.refuse(why)
        self.deliver()

    def _take_up_all(self, unit: Unit) -> None:
        while unit.posted:
            try:
                take_up(unit)
            except Exception:  # noqa: BLE001 - perhaps why the engine failed; refuse the others
                self._log.exception("%s: a request failed and is dropped", self.name)
                unit.posted.popleft()

    # Hooks

    def _make_shortcut(self, loop: weakref.ref[asyncio.AbstractEventLoop]) -> Shortcut:
        return Shortcut(self, loop)

    def _ended_error(self) -> Exception:
        """The error of a request that comes after the end."""
        raise NotImplementedError

    def _due_by_time(self) -> float:
        """The moment at which `_tick` has something to do."""
        return NEVER

    def _tick(self, now: float) -> None:
        """The subclass does here what is due by time, apart from the units."""

    def _last_commands(self) -> list[Command]:
        """The last commands of all."""
        return []

    def _unclaimed(self, outcome: Any) -> None:
        """Take an outcome whose caller's event loop is closed."""

    def _retires(self) -> bool:
        """Whether no caller can reach this engine any more, so that it may end."""
        return False
