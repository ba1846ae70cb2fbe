"""The jobs that one client waits for on one Redis.

Touched under the engine's lock only. It writes the commands of the next exchange and reads their
replies. What got no reply stays due and is sent again: every script is idempotent. A signal handler
may raise at any line that runs on an event loop. So nothing is removed from one place before it is
in the next.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, Protocol

from ground import tracing
from ground.backoff import backoff
from ground.keys import tagged
from ground.redis.answers import Answer
from ground.redis.inbox import Entries
from ground.redis.unit import Carrier, Exchange
from ground.redis.url import RedisTarget
from ground.timers import Timers
from ground.tracing.spans import OFF
from worker.errors import (
    DeadlineExceeded,
    JobCancelled,
    NoWorkers,
    QueueError,
    QueueUnavailable,
    TrainingPaused,
)
from worker.queue.order import JobHash, Order, Stage, by_hash, look, outcome_of, withdraw

CHECK_EVERY = 5.0  # seconds between looks at jobs without a notice
_SOON = 0.001
_PATIENT = 1.0  # seconds until a job that should have ended is stopped, or sent, once more
_BEAT = 10.0
_ALIVE = 30  # seconds after which a client without a heartbeat is dead


class Host(Protocol):
    """Orders need this of their engine."""

    target: RedisTarget
    clock: Callable[[], float]
    stopped: bool
    settled: list[tuple[Answer, Any]]

    def wake(self) -> None: ...
    def post(self, unit: Any, change: Callable[[], None], answer: Answer | None = None) -> None: ...


class Reader(Protocol):
    """An event loop that reads its own notices."""

    @property
    def reads(self) -> bool: ...
    def ask(self) -> None: ...


class Waiting:
    """The orders that wait for an outcome, by the ids of their jobs."""

    def __init__(self) -> None:
        self._by_job: dict[str, list[Order]] = {}

    def add(self, order: Order) -> None:
        if order not in self.of(order.id):
            self._by_job.setdefault(order.id, []).append(order)

    def remove(self, order: Order) -> None:
        if others := self.others(order):
            self._by_job[order.id] = others
        else:
            self._by_job.pop(order.id, None)

    def others(self, order: Order) -> list[Order]:
        """The other orders for the same job."""
        return [other for other in self.of(order.id) if other is not order]

    def of(self, job: str) -> list[Order]:
        return self._by_job.get(job, [])

    def __iter__(self) -> Iterator[Order]:
        return (order for orders in self._by_job.copy().values() for order in orders)

    def __bool__(self) -> bool:
        return bool(self._by_job)


class Orders:
    """The orders of one client: of a process, or of an event loop that reads its own notices."""

    def __init__(self, engine: Host, client: str, reader: "Reader | None" = None) -> None:
        self.client = client
        self.reader = reader  # of a loop's notices
        self.key = tagged("client", client)
        self.stream = tagged("client", client, "done")
        self.posted: deque[Callable[[], None]] = deque()
        self.carrier = Carrier.NOBODY
        self.waiting = Waiting()
        self.listening = False
        self.engine = engine
        self._due: dict[Order, None] = {}  # with something to send, if its stage still says so
        self._check_at = math.inf
        self._check_every = CHECK_EVERY
        self._beat_at = -math.inf
        self._beating = False  # in the exchange that is under way
        self._beat_at_once = False
        self._submissions = 0
        self._timers = Timers[Order](lambda order: order.stage is Stage.OVER)
        self._alone_since: dict[JobHash, float] = {}

    # What the callers want

    def add(self, order: Order) -> None:
        """Put its job on its queue."""
        if order.outcome is not None:
            return
        self._submissions += 1
        order.submission = self._submissions
        self.waiting.add(order)
        self._check_every = min(self._check_every, order.hash.no_workers_after / 2)
        if order.deadline < math.inf:
            self._timers.set(order.deadline, order)
        self._next(order, Stage.SEND)

    def watch(self, order: Order, answer: Answer) -> None:
        if order.outcome is None:
            order.answers.append(answer)
        else:
            self.engine.settled.append((answer, order.outcome))

    def cancel(self, order: Order, ack: Answer | None) -> None:
        """End the job, even if other callers wait for it."""
        if order.outcome is None:
            for one in (*self.waiting.others(order), order):
                self._give_up(one, JobCancelled(one.id, "cancelled by its caller"), "cancel")
        if ack is not None and order.stage is Stage.WITHDRAW:
            order.acks.append(ack)
        elif ack is not None:
            self.engine.settled.append((ack, None))

    def abandon(self, order: Order) -> None:
        """The order's caller waits no longer: cancel the job, or let it run, by its queue's
        `abandon`."""
        if order.outcome is None:
            gone = JobCancelled(order.id, "abandoned by its caller")
            self._give_up(order, gone, "abandon")

    def leave(self) -> None:
        """The process ends: abandon every order."""
        for order in self.waiting:
            self.abandon(order)

    # What is due

    @property
    def pressing(self) -> bool:
        return bool(self._due)

    @property
    def idle(self) -> bool:
        return not (self.waiting or self._due) and self._timers.first == math.inf

    @property
    def awaits_entries(self) -> bool:
        """Notices come by the inbox, if no loop reads them."""
        return bool(self.waiting) and not (self.reader is not None and self.reader.reads)

    def due(self) -> float:
        if self._due:
            return 0.0
        due = min(self._check_at, self._timers.first)
        return min(due, self._beat_at) if self.waiting else due

    def unsettle(self) -> None:
        """The server was away: notices may be missing, and it may take this client for dead."""
        self._beat_at = -math.inf
        if self.waiting:
            self._check_at = 0.0

    def give_up(self, now: float, down_since: float, why: object) -> None:
        """Redis does not answer: fail the callers who have waited too long."""
        for order in self.waiting:
            if order.deadline <= now:
                self._be_too_late(order)
            elif now >= max(down_since, order.began) + order.hash.patience:
                self._settle(order, self._unavailable(order, why))
        for order in self._due:
            if order.stage is Stage.WITHDRAW:
                self._acknowledge(order)

    def refuse(self, why: BaseException | str, exchange: Exchange | None = None) -> None:
        """Redis answered these, or all, with an error that would come again."""
        orders = [*self._due, *self.waiting] if exchange is None else exchange.asks
        for order in orders:
            if order.stage is Stage.WITHDRAW:
                self._acknowledge(order)
                order.stage = Stage.OVER
                self._done(order)
            elif order.outcome is None:
                self._settle(order, self._unavailable(order, why))

    def cut_off(self, exchanges: Sequence[Exchange]) -> None:
        """All of it is due still; what Redis runs late it knows by its submission."""

    def exchanged(self, now: float) -> None:
        """After an exchange, set the time of the next beat if this one was refused, and have the
        notices read on. Answered orders left `_due` as their reply was read."""
        if self._beating and self._beat_at <= now and not self._beat_at_once:
            self._beat_at = now + _BEAT  # not before another would be due
        self._beating = self._beat_at_once = False
        if self.reader is not None and self.reader.reads:
            self.reader.ask()
        elif self.waiting and not self.listening:
            self.engine.wake()  # so that the inbox reads the notices

    def _unavailable(self, order: Order, why: object) -> QueueUnavailable:
        return QueueUnavailable(order.hash.queue, str(self.engine.target), why)

    # One exchange

    def exchange(self, now: float) -> list[Exchange]:
        """Every command to send now, whom it concerns, and what reads its reply."""
        self._pass_time(now)
        by_stage: dict[Stage, list[Order]] = {}
        for order in self._due.copy():
            self._done(order)  # perhaps interrupted as it got there
            by_stage.setdefault(order.stage, []).append(order)
        exchanges = self._heartbeat() if self._beat_at <= now and self.waiting else []
        for hash, orders in by_hash(by_stage.pop(Stage.SEND, ())):
            for order in orders:
                order.sent = True
            enqueue = hash.enqueue(self.stream, self.client, orders)
            exchanges.append(Exchange(enqueue, partial(self._arrived, orders), orders))
        if not by_stage:
            return exchanges
        for hash, orders in by_hash(by_stage.get(Stage.WITHDRAW, ())):
            command = withdraw(hash, self.stream, [(each, each.withdrawal) for each in orders])
            exchanges.append(Exchange(command, partial(self._withdrawn, orders), orders))
        for hash, orders in by_hash(by_stage.get(Stage.LOOK, ())):
            command = look(hash, [each.id for each in orders])
            exchanges.append(Exchange(command, partial(self._looked_at, hash, orders), orders))
        return exchanges

    def _heartbeat(self) -> list[Exchange]:
        """Renew the client's key: while it exists, its jobs are wanted."""

        def made(_: Any, sent: float) -> None:
            self._beat_at = sent + _BEAT

        self._beating = True
        seen = ("HSET", self.key, "seen", f"{time.time():.3f}")
        return [Exchange(seen, made), Exchange(("EXPIRE", self.key, _ALIVE), made)]

    def _pass_time(self, now: float) -> None:
        """Jobs to look at, at their deadlines too."""
        for order in self._timers.passed(now):
            if order.stage is Stage.STOPPING:
                order.withdrawal = "again"
                self._next(order, Stage.WITHDRAW)
            elif order.outcome is not None:
                continue
            elif order.deadline <= now and not order.sent:
                self._be_too_late(order)
            elif order.stage is Stage.HELD:
                self._next(order, Stage.SEND)
            else:  # its loop may be blocked, with the outcome unread
                self._next(order, Stage.LOOK)
        if self._check_at <= now:
            self._check_at = now + self._check_every if self.waiting else math.inf
            for order in self.waiting:
                if order.stage is Stage.SENT:
                    self._next(order, Stage.LOOK)

    def _next(self, order: Order, stage: Stage) -> None:
        self._due[order] = None
        order.stage = stage

    def _done(self, order: Order) -> None:
        """Take an order off those that are due, unless its stage has moved on to something that
        is."""
        if order.stage not in (Stage.SEND, Stage.LOOK, Stage.WITHDRAW):
            self._due.pop(order, None)

    def _arrived(self, orders: list[Order], reply: list[bytes], sent: float) -> None:
        """Note that these jobs are on their queues."""
        for order, status in zip(orders, reply, strict=True):
            if order.stage is Stage.SEND:
                if status == b"stopping":  # to be sent again at the notice of its end, or soon
                    self._timers.set(self.engine.clock() + _PATIENT, order)
                    order.stage = Stage.HELD
                else:
                    self._acknowledge(order)
                    known = status == b"new" and not order.tries  # no notice came before this
                    if order.span is not OFF:
                        self._show_sending(order)
                    order.stage = Stage.SENT if known else Stage.LOOK
            self._done(order)
        self._check_at = min(self._check_at, self.engine.clock() + self._check_every)

    def _withdrawn(self, orders: list[Order], reply: list[bytes], sent: float) -> None:
        for order, status in zip(orders, reply, strict=True):
            self._acknowledge(order)
            if status == b"started":  # its worker may not have got the command
                self._set_timer(order, _PATIENT)
                order.stage = Stage.STOPPING
            else:
                order.stage = Stage.OVER
            self._done(order)

    def _looked_at(self, hash: JobHash, orders: list[Order], reply: list[Any], sent: float) -> None:
        now = self.engine.clock()
        live, waiting = reply[:2]
        paused_by, trial = "", False
        if hash.raises:
            paused_by = reply.pop().decode()
            trial = reply.pop().startswith(b"half") and live > 0  # what runs was let through
        since = self._alone_since.setdefault(hash, now)
        if live:
            self._alone_since.pop(hash, None)
        for order, status, last in zip(orders, reply[2::2], reply[3::2], strict=True):
            if order.stage is not Stage.LOOK:
                continue
            outcome = outcome_of(order.id, status, last)
            alone = 0.0 if live else now - max(since, order.began)
            if outcome is not None and (status or order.deadline > now):
                self._settle(order, outcome)
            elif status == b"orphaned" and order.deadline > now:
                order.tries = 0
                self._beat_at_once = True
                self._beat_at = -math.inf  # first, or a job that is queued again is dropped again
                self._next(order, Stage.SEND)  # it is still wanted
            elif order.deadline <= now:
                self._be_too_late(order, unattended=status == b"queued" and not live)
            elif paused_by and not (trial and status == b"started"):
                paused = TrainingPaused(f"queue {hash.queue!r}", paused_by)
                self._give_up(order, paused, "abandon")
            elif status == b"queued" and alone >= hash.no_workers_after:
                self._give_up(order, NoWorkers(hash.queue, waiting, alone), "abandon")
            else:
                if order.tries:  # about to end: RQ's own worker sends its notice before it stores
                    self._set_timer(order, _SOON)
                order.stage = Stage.SENT
            self._done(order)

    # What came back

    def read_entries(self, entries: Entries) -> None:
        for notice in entries:
            id = notice.get(b"job", b"").decode(errors="replace")
            # It may come before the reply to the enqueue. A second one finds no order.
            for order in list(self.waiting.of(id)):
                if result := notice.get(b"result"):
                    self._settle(order, result)
                elif order.stage is Stage.HELD:
                    self._next(order, Stage.SEND)
                else:
                    order.tries = 1
                    if order.stage is Stage.SENT:
                        self._next(order, Stage.LOOK)

    def _set_timer(self, order: Order, first: float) -> None:
        """Twice as late each time; none beside one that is set already."""
        now = self.engine.clock()
        if order.due > now:
            return
        order.tries += 1
        order.due = now + backoff(order.tries, first, CHECK_EVERY)
        self._timers.set(order.due, order)

    def _be_too_late(self, order: Order, *, unattended: bool = False) -> None:
        queue = order.hash.queue if unattended else ""
        late = DeadlineExceeded(order.id, order.deadline - order.began, queue)
        self._give_up(order, late, "abandon")

    def _give_up(self, order: Order, error: QueueError, how: Literal["cancel", "abandon"]) -> None:
        unwanted = how == "cancel" or order.hash.abandon
        if unwanted and not self.waiting.others(order):
            order.submission = self._submissions  # it covers all until now
            order.tries, order.due = 0, 0.0
            order.withdrawal = how
        self._settle(order, error)

    def _settle(self, order: Order, outcome: "bytes | QueueError") -> None:
        if order.outcome is None:  # the first one counts
            order.outcome = outcome
            if order.span is not OFF:
                self._end_span(order, outcome)
        outcome = order.outcome
        self.engine.settled.extend((answer, outcome) for answer in order.answers)
        order.answers = []
        order.data = b""
        if not order.withdrawal:
            self._acknowledge(order, outcome if isinstance(outcome, QueueError) else None)
        self.waiting.remove(order)
        if order.withdrawal:
            self._next(order, Stage.WITHDRAW)
        else:
            order.stage = Stage.OVER
            self._done(order)

    def _show_sending(self, order: Order) -> None:
        """Redis has it. It may have been sent more than once until then."""
        now, queue = time.time(), order.hash.queue
        tracing.record(
            f"send {queue}", now - (self.engine.clock() - order.began), now,
            tracing.message("send", queue, order.id), kind="client", parent=order.span,
        )  # fmt: skip

    def _end_span(self, order: Order, outcome: "bytes | QueueError") -> None:
        if isinstance(outcome, QueueError):
            order.span.failed(type(outcome).__name__)
        order.span.end()

    def _acknowledge(self, order: Order, error: QueueError | None = None) -> None:
        self.engine.settled.extend((ack, error) for ack in order.acks)
        order.acks = []
