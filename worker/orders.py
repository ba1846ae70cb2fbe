"""The jobs that this process waits for on one Redis.

Whoever touches it holds the engine's lock. It writes the commands of the next exchange
and reads their replies; what got no reply stays and is written again, which every
script allows.
"""

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from limiter.answers import Answer
from worker.errors import (
    DeadlineExceeded,
    JobCancelled,
    NoWorkers,
    QueueError,
    QueueUnavailable,
)
from worker.job_hash import Command, JobHash, look, withdraw
from worker.order import Order, outcome_of

CHECK_EVERY = 5.0  # seconds between looks at jobs of which no notice came
_CHUNK = 200  # jobs in one script call: keeps a call below a few milliseconds
_SOON = 0.001

Digest = Callable[[Any], None]


class Orders:
    """See the module."""

    def __init__(self, client: str, reply_to: str) -> None:
        self.settled: list[tuple[Answer, Any]] = []
        self.now = 0.0  # the engine's clock
        self.check_at = math.inf
        self._client, self._reply_to = client, reply_to
        self._every = CHECK_EVERY
        self._fresh: dict[str, Order] = {}
        self._open: dict[str, Order] = {}
        self._withdrawals: dict[str, Order] = {}
        self._timers: list[tuple[float, int, Order, bool]] = []  # True: its deadline
        self._looks: dict[str, Order] = {}
        self._sequence = itertools.count()
        self._alone_since: dict[JobHash, float] = {}

    # What the callers want

    def add(self, order: Order) -> None:
        self._fresh[order.id] = order
        self._every = min(self._every, order.hash.no_workers_after / 2)
        if order.deadline < math.inf:
            heapq.heappush(self._timers, (order.deadline, next(self._sequence), order, True))

    def watch(self, order: Order, answer: Answer) -> None:
        if order.outcome is None:
            order.answers.append(answer)
        else:
            self.settled.append((answer, order.outcome))

    def cancel(self, order: Order, ack: Answer | None) -> None:
        """The caller does not want it any more."""
        if order.outcome is None:
            self._give_up(order, JobCancelled(order.id, "cancelled by its caller"), stop=True)
        if ack is not None and order.id in self._withdrawals:
            order.acks.append(ack)
        elif ack is not None:
            self.settled.append((ack, None))

    def abandon(self, order: Order) -> None:
        """Nobody waits any more: dropped, or left to run, as was said when it was submitted."""
        if order.outcome is None:
            gone = JobCancelled(order.id, "abandoned by its caller")
            self._give_up(order, gone, stop=order.hash.abandon)

    def leave(self) -> None:
        """The process ends: everyone who waits is abandoned."""
        for order in (*self._fresh.values(), *self._open.values()):
            self.abandon(order)

    @property
    def waiting(self) -> bool:
        return bool(self._fresh or self._open)

    # What is due

    def next_due(self) -> float:
        if self._fresh or self._withdrawals or self._looks:
            return 0.0
        return min(self.check_at, self._timers[0][0] if self._timers else math.inf)

    def tick(self, now: float) -> None:
        """Deadlines that passed, and jobs to look at."""
        self.now = now
        while self._timers and self._timers[0][0] <= now:
            _, _, order, deadline = heapq.heappop(self._timers)
            if order.outcome is not None:
                continue
            if deadline:
                late = DeadlineExceeded(order.id, order.deadline - order.began)
                self._give_up(order, late, stop=order.hash.abandon)
            else:
                self._looks[order.id] = order
        if self.check_at <= now:
            self._looks.update(self._open)
            self.check_at = now + self._every if self._open else math.inf

    def check_now(self) -> None:
        """The server was away: notices may be missing."""
        if self._open:
            self.check_at = 0.0

    def give_up(self, now: float, down_since: float, where: str, why: object) -> None:
        """Redis does not answer: fail those whose patience is at its end."""
        for order in (*self._fresh.values(), *self._open.values()):
            if now >= max(down_since, order.began) + order.hash.patience:
                self._settle(order, QueueUnavailable(order.hash.queue, where, why))
        for order in self._withdrawals.values():
            self._acknowledge(order)

    def refuse(self, where: str, why: object) -> None:
        """Redis answers with an error that asking again would not mend."""
        withdrawn, self._withdrawals = self._withdrawals, {}
        for order in withdrawn.values():
            self._acknowledge(order)
        for order in (*self._fresh.values(), *self._open.values()):
            self._settle(order, QueueUnavailable(order.hash.queue, where, why))

    # One exchange

    def exchange(self) -> Iterator[tuple[Command, Digest]]:
        """Every command to send now, each with what reads its reply."""
        for hash, orders in _by_hash(self._fresh.values()):
            yield hash.enqueue(self._reply_to, self._client, orders), self._reads_enqueue(orders)
        for hash, orders in _by_hash(self._withdrawals.values()):
            ids = [order.id for order in orders]
            yield withdraw(hash, ids), self._reads_withdraw(orders)
        for hash, orders in _by_hash(self._looks.values()):
            ids = [order.id for order in orders]
            yield look(hash, ids), self._reads_look(hash, orders)

    def _reads_enqueue(self, orders: list[Order]) -> Digest:
        def digest(reply: list[bytes]) -> None:
            for order, status in zip(orders, reply, strict=True):
                self._fresh.pop(order.id, None)
                self._acknowledge(order)
                if order.outcome is not None:
                    continue  # given up in the meantime
                self._open[order.id] = order
                if status != b"new":
                    self._looks[order.id] = order
            self.check_at = min(self.check_at, self.now + self._every)

        return digest

    def _reads_withdraw(self, orders: list[Order]) -> Digest:
        def digest(reply: list[bytes]) -> None:
            for order in orders:
                self._withdrawals.pop(order.id, None)
                self._acknowledge(order)

        return digest

    def _reads_look(self, hash: JobHash, orders: list[Order]) -> Digest:
        def digest(reply: list[Any]) -> None:
            live, waiting = reply[:2]
            since = self._alone_since.setdefault(hash, self.now)
            if live:
                self._alone_since.pop(hash, None)
            for order, status, last in zip(orders, reply[2::2], reply[3::2], strict=True):
                self._looks.pop(order.id, None)
                outcome = outcome_of(order.id, status, last)
                alone = 0.0 if live else self.now - max(since, order.began)
                if outcome is None and status == b"queued" and alone >= hash.no_workers_after:
                    nobody = NoWorkers(hash.queue, waiting, alone)
                    self._give_up(order, nobody, stop=hash.abandon)
                elif outcome is not None:
                    self._settle(order, outcome)
                elif order.tries:
                    self._look_again(order)

        return digest

    # What came back

    def read_notice(self, notice: dict[bytes, bytes]) -> None:
        id = notice.get(b"job", b"").decode(errors="replace")
        # It may come before the reply to the enqueue is read.
        order = self._open.get(id) or self._fresh.get(id)
        if order is None:
            return  # a second notice, or one for somebody who gave up
        if result := notice.get(b"result"):
            self._settle(order, result)
        else:
            order.tries = 1
            self._looks[order.id] = order

    def _look_again(self, order: Order) -> None:
        """It is about to end: a stock worker tells before it stores."""
        wait = min(_SOON * 2**order.tries, CHECK_EVERY)
        order.tries += 1
        heapq.heappush(self._timers, (self.now + wait, next(self._sequence), order, False))

    def _give_up(self, order: Order, error: QueueError, *, stop: bool) -> None:
        if stop:
            self._withdrawals[order.id] = order
        self._settle(order, error)

    def _settle(self, order: Order, outcome: "bytes | QueueError") -> None:
        for orders in (self._fresh, self._open, self._looks):
            orders.pop(order.id, None)
        if order.outcome is not None:
            return  # the first one counts
        order.outcome = outcome
        self.settled.extend((answer, outcome) for answer in order.answers)
        order.answers = []
        order.data = b""
        if order.id not in self._withdrawals:
            self._acknowledge(order, outcome if isinstance(outcome, QueueError) else None)

    def _acknowledge(self, order: Order, error: QueueError | None = None) -> None:
        acks, order.acks = order.acks, []
        self.settled.extend((ack, error) for ack in acks)


def _by_hash(orders: Iterable[Order]) -> Iterator[tuple[JobHash, list[Order]]]:
    groups: dict[JobHash, list[Order]] = {}
    for order in orders:
        groups.setdefault(order.hash, []).append(order)
    for hash, group in groups.items():
        for i in range(0, len(group), _CHUNK):
            yield hash, group[i : i + _CHUNK]
