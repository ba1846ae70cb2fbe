"""The engine: one thread of a process that talks to one Redis about all jobs it waits for.

Callers on any thread or event loop post what they want. The engine gathers what was
posted and sends it as one pipeline: a thousand enqueues cost a few script calls. One
more connection is blocked on the process's own stream of notices, however many jobs
are outstanding.
"""

import atexit
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from redis.exceptions import RedisError

from ground import RedisTarget, SettingError, tagged
from limiter.answers import deliver
from limiter.inbox import Inbox
from limiter.wire import FINAL, PASSING, Wire
from worker.job_hash import SCRIPTS, Command
from worker.orders import Orders

log = logging.getLogger("penstock.queue")

_TIMEOUT = 5.0
_LONGEST_PAUSE = 1.0
_FAREWELL = 2.0  # seconds that an ending process spends on taking its jobs back
HEARTBEAT = 10.0
ALIVE = 60  # seconds after which a client without a heartbeat is dead

_engines: dict[RedisTarget, "ClientEngine"] = {}
_guard = threading.Lock()


def client_engine(target: RedisTarget) -> "ClientEngine":
    """This process's engine for a Redis; started on first use, and anew after a fork."""
    if target.kind == "cluster":
        raise SettingError("redis_url", "RQ needs one primary: queues cannot live on a Cluster")
    with _guard:
        engine = _engines.get(target)
        if engine is None or engine.stopped:
            engine = _engines[target] = ClientEngine(target)
        return engine


class ClientEngine:
    """See the module."""

    def __init__(self, target: RedisTarget) -> None:
        self.target = target
        self.stopped = False
        self.clock = time.monotonic
        client = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self._key = tagged("client", client)
        self._notices = tagged("client", client, "done")
        self.orders = Orders(client, self._notices)
        self._books = (
            threading.Lock()
        )  # held by whoever touches `orders`: never while Redis is asked
        self._posted: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._wire: Wire | None = None
        self._inbox: Inbox | None = None
        self._beat_at = 0.0
        self._pause = self._retry_at = 0.0
        self._down_since: float | None = None
        self._thread = threading.Thread(target=self._run, name="penstock-queue", daemon=True)
        self._thread.start()

    # For callers, from any thread

    def post(self, deed: Callable[[], None]) -> None:
        """Have the engine's thread do something, soon."""
        self._posted.put(deed)

    def stop(self) -> None:
        """Take back what would be run in vain, and end the thread."""
        if not self.stopped:
            self.stopped = True
            self._posted.put(None)
            self._thread.join(_FAREWELL + 1)

    # The thread

    def _run(self) -> None:
        try:
            while self._gather():
                self._work()
            self._farewell()
        except BaseException as failure:
            log.exception("the queue's engine failed; everyone who waits is refused")
            with self._books:
                self.orders.refuse(str(self.target), f"internal error: {failure}")
            self._deliver()
            raise
        finally:
            self.stopped = True
            self._disconnect()
            if self._inbox is not None:
                self._inbox.stop()

    def _gather(self) -> bool:
        """Wait for something to do, then do all that was posted; False at the end."""
        try:
            deed = self._posted.get(timeout=self._idle_for())
            while deed is not None:
                with self._books:
                    deed()
                deed = self._posted.get_nowait()
        except Empty:
            return True
        return False

    def _idle_for(self) -> float | None:
        due = self.orders.next_due()
        if self.orders.waiting:
            due = min(due, self._beat_at)
        if self._down_since is not None and due < float("inf"):
            due = max(due, self._retry_at)
        if due == float("inf"):
            return None
        return min(max(0.0, due - self.clock()), threading.TIMEOUT_MAX)

    def _work(self) -> None:
        with self._books:
            self.orders.tick(self.clock())
        self._exchange()
        self._deliver()

    def _exchange(self) -> None:
        """One pipeline with everything that is due; on failure it stays due."""
        now = self.clock()
        if self._down_since is not None and now < self._retry_at:
            return
        with self._books:
            work = [*self._heartbeat(now), *self.orders.exchange()]
        if not work:
            return
        try:
            replies = self._connected().converse([command for command, _ in work])
        except FINAL as refusal:
            self._disconnect()
            with self._books:
                self.orders.refuse(str(self.target), refusal)
        except PASSING as failure:
            with self._books:
                self._fail(failure)
        else:
            with self._books:
                if self._down_since is not None:
                    self._down_since, self._pause = None, 0.0
                    self.orders.check_now()
                self._digest(work, replies)
            self._listen()

    def _heartbeat(self, now: float) -> list[tuple[Command, Callable[[Any], None]]]:
        """While the key lives, so does this client, for those who would run its jobs."""
        if not self.orders.waiting or now < self._beat_at:
            return []

        def beaten(reply: Any) -> None:
            self._beat_at = now + HEARTBEAT

        return [
            (("HSET", self._key, "seen", f"{time.time():.3f}"), beaten),
            (("EXPIRE", self._key, ALIVE), beaten),
        ]

    def _connected(self) -> Wire:
        if self._wire is None:
            self._wire = Wire(self.target, _TIMEOUT, SCRIPTS)
        return self._wire

    def _digest(
        self, work: list[tuple[Command, Callable[[Any], None]]], replies: list[Any]
    ) -> None:
        for (_, digest), reply in zip(work, replies, strict=True):
            if isinstance(reply, RedisError):
                self.orders.refuse(str(self.target), reply)
                return
            digest(reply)

    def _fail(self, failure: BaseException) -> None:
        now = self.clock()
        self._disconnect()
        if self._down_since is None:
            self._down_since = now
            log.warning("queue: Redis at %s does not answer: %s", self.target, failure)
        self._pause = min(_LONGEST_PAUSE, max(0.02, self._pause * 2))
        self._retry_at = now + self._pause
        self._beat_at = 0.0
        self.orders.give_up(now, self._down_since, str(self.target), failure)

    def _listen(self) -> None:
        if self._inbox is None:
            self._inbox = Inbox(self.target, self._received)
            self._inbox.listen(self._notices, self.orders)

    def _received(self, orders: Orders, notices: list[dict[bytes, bytes]]) -> None:
        """Called by the inbox's thread, which wakes the callers itself: one wake-up less."""
        with self._books:
            for notice in notices:
                orders.read_notice(notice)
            due = orders.next_due() <= 0
        self._deliver()
        if due:
            self.post(lambda: None)  # it has only to see that there is something to send

    def _deliver(self) -> None:
        with self._books:
            settled, self.orders.settled = self.orders.settled, []
        deliver(settled)

    def _disconnect(self) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()

    def _farewell(self) -> None:
        """What nobody will wait for is not to be run."""
        with self._books:
            self.orders.leave()
        self._work()
        if self._wire is not None and self._down_since is None:
            try:
                self._wire.converse([("DEL", self._key, self._notices)])
            except (RedisError, OSError):
                log.debug("the client's keys will expire by themselves", exc_info=True)


def stop_all() -> None:
    for engine in list(_engines.values()):
        engine.stop()


def _forget_parent() -> None:
    """A forked child has none of its parent's threads, and none of its jobs."""
    global _guard
    _guard = threading.Lock()
    for engine in _engines.values():
        engine.stopped = True
    _engines.clear()


atexit.register(stop_all)
os.register_at_fork(after_in_child=_forget_parent)
