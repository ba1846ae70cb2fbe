"""The ledger has what this process holds and waits for at one gate.

Touched under the engine's lock only. What is said to Redis about it, and how replies are read, is
in `exchange.py`. A signal handler may raise at any line that runs on an event loop. So nothing is
removed from one place before it is in the next.
"""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any, Protocol

from ground.lua import Command
from ground.recent import Recent
from ground.redis.answers import Answer, OnLoop, OnThread, closed_lock
from ground.redis.shortcut import LATE
from ground.redis.unit import Carrier, Exchange
from ground.redis.url import RedisTarget
from ground.timers import Timers
from limiter.commands import GateCommands
from limiter.errors import GateError, GateUnavailable, PermitLost, refused
from limiter.permit import TRUSTED, Lease, Report
from limiter.terms import Agreement, Manner, Terms

NEVER = math.inf
_ENTRUSTED = 1000  # how many entrusted permits are remembered: a late reply may name their grants
_REFUSED_PAUSE = 1.0  # seconds until a release that Redis refused is tried again
_BENEFIT_OF_DOUBT = 2.0  # seconds: on a busy machine the engine's thread may run late


class State(IntEnum):
    """How far an ask has got. Up to `IN_LINE` its caller waits for its outcome."""

    FRESH = 1  # not yet known to the server
    TRIED = 2  # of `try_acquire`: it joins no line
    IN_LINE = 3
    LATE = 4  # out of the line; it gets `LimitTimeout` when the server has cancelled it
    OVER = 5


@dataclass(frozen=True, slots=True)
class Wish:
    """A wish says what an ask is for, apart from who asks and when. Most asks of a gate object have
    the same."""

    row: int | str  # the lane, and the share if there is one, as the scripts read them
    share: str
    hold_us: int
    term: int | str  # for how long, in microseconds, and its cost
    charge: dict[str, int] | None  # what it costs, by amounts; None of a plain permit
    joins: bool  # the line
    special: bool = False  # whether it has a share or a cost


class Ask(Answer):
    """An ask is one caller's request for a permit, and receives its outcome."""

    __slots__ = ("began", "deadline", "id", "lease", "ledger", "score", "state", "wish")
    ledger: "Ledger"
    wish: Wish
    id: str
    began: float
    deadline: float
    score: int | bytes | str  # its place in line, as the server or its ticket said it
    state: State
    lease: Lease | None

    @property
    def wanted(self) -> bool:
        """Whether its caller still waits for its outcome."""
        return self.state <= State.IN_LINE

    def enter(self) -> None:
        """Among what its ledger asks for."""
        ledger = self.ledger
        (ledger.fresh if self.state is State.FRESH else ledger.tries)[self.id] = self
        if self.deadline < NEVER:
            ledger.deadlines.set(self.deadline, self)

    def seconds_left(self, now: float) -> float | None:
        """Seconds after which the caller stops believing that the engine will answer."""
        return None if self.deadline == NEVER else self.deadline - now + _BENEFIT_OF_DOUBT


class LoopAsk(OnLoop, Ask):
    """The ask of a coroutine."""

    __slots__ = ("future", "loop")
    loop: asyncio.AbstractEventLoop

    def __init__(
        self, ledger: "Ledger", wish: Wish, began: float, deadline: float, score: str
    ) -> None:
        self.outcome = self.lease = None
        self.loop = loop = asyncio.get_running_loop()
        self.future = loop.create_future()
        self.ledger, self.wish, self.id = ledger, wish, ledger.engine.new_id()
        self.began, self.deadline, self.score = began, deadline, score
        self.state = State.FRESH if wish.joins else State.TRIED


class ThreadAsk(OnThread, Ask):
    """The ask of a thread."""

    __slots__ = ("_closed",)

    def __init__(
        self, ledger: "Ledger", wish: Wish, began: float, deadline: float, score: str
    ) -> None:
        self.outcome = self.lease = None
        self._closed = closed_lock()
        self.ledger, self.wish, self.id = ledger, wish, ledger.engine.new_id()
        self.began, self.deadline, self.score = began, deadline, score
        self.state = State.FRESH if wish.joins else State.TRIED


class Call:
    """A question or change out of turn: status, configure, the renewal of one lease."""

    __slots__ = ("answer", "command", "deadline", "lease")

    def __init__(
        self,
        command: Command,
        answer: Answer,
        deadline: float,
        lease: Lease | None = None,
    ) -> None:
        self.command = command
        self.answer = answer
        self.deadline = deadline
        self.lease = lease


log = logging.getLogger("penstock.limiter")


def _has_outcome(ask: Ask) -> bool:
    return not ask.wanted


def _outlived(lease: Lease, lease_us: int) -> bool:
    """Whether it has an orphan hold: what it is for may go on after this process."""
    return lease.term_us > lease_us


class Host(Protocol):
    """A ledger needs these things of its engine."""

    target: RedisTarget
    process: str
    clock: Callable[[], float]
    stopped: bool
    settled: list[tuple[Answer, Any]]
    new_id: Callable[[], str]

    def wake(self) -> None: ...
    def post(self, unit: Any, change: Callable[[], None], answer: Answer | None = None) -> None: ...
    def request(self, unit: Any, change: Callable[[], None], answer: Answer) -> None: ...


class Ledger:
    """A ledger is this process's side of one gate."""

    def __init__(self, engine: Host, name: str, terms: Terms, manner: Manner) -> None:
        self.name = name
        self.lease_seconds = manner.lease
        self.trusted = manner.lease * TRUSTED
        self.term_us = int(manner.lease * 1_000_000)
        self.heartbeat = manner.heartbeat
        self.patience = manner.patience
        self.commands = GateCommands(name, terms, engine.process)
        self.engine = engine
        self.posted: deque[Callable[[], None]] = deque()
        self.carrier = Carrier.NOBODY
        self.listening = False
        self.stream = self.commands.inbox
        self.server_time = 0  # the server's clock, in microseconds, in the latest reply
        self.server_ahead = 0.0  # at least its clock minus this process's
        self.agreement = Agreement(name, manner)
        # Asks by their state, and there by their ids; `OVER` has none.
        self.fresh: dict[str, Ask] = {}
        self.tries: dict[str, Ask] = {}
        self.line: dict[str, Ask] = {}
        self.timeouts: dict[str, Ask] = {}  # those that are late
        # What is held, and what has to be sent to the server.
        self.leases: dict[str, Lease] = {}
        self.releases: dict[str, int | str] = {}  # each with its fence, and a report
        self.cancels: dict[str, None] = {}
        # Asks that were sent and not answered when their connection ended. Redis may run them late,
        # after a cancellation that came by another connection.
        self._in_doubt: dict[str, None] = {}
        self.calls: list[Call] = []
        self.deadlines = Timers(_has_outcome)
        # When to send something though nobody asks; by the engine's clock.
        self.beat_at = NEVER  # the next heartbeat
        self.look_at = NEVER  # when time alone may admit the first in line
        # Not given back if a late reply names their grant.
        self._entrusted = Recent[None](_ENTRUSTED)
        self.doubt_ends_at = NEVER  # when the asks in doubt are cancelled once more
        self.give_back_at = 0.0  # no sooner are releases repeated that Redis refused
        self.refused_since: float | None = None

    # For permits, from any thread

    def hand_back(self, lease: Lease) -> None:
        if not self.engine.stopped:
            self.engine.post(self, partial(self.release, lease))

    def abandon_lease(self, lease: Lease) -> None:
        """The lease's permit was dropped. That protects nothing any more, unless work outlives
        it."""
        if _outlived(lease, self.term_us):
            self.leave_in_redis(lease)
        else:
            self.hand_back(lease)

    def hand_back_and_answer(self, lease: Lease, answer: Answer) -> None:
        """Release it, and answer when Redis has done so: for a process that then ends."""
        command = self.commands.give_back(lease.id, lease.receipt)
        call = Call(command, answer, lease.deadline)

        def give_back() -> None:
            if lease.stays_us:
                self.entrust(lease)
            self.leases.pop(lease.id, None)
            self.call(call)

        self.engine.request(self, give_back, answer)

    def leave_in_redis(self, lease: Lease) -> None:
        """Stop renewing it, and do not give it back: another process will, or its time."""
        if not self.engine.stopped:
            self.engine.post(self, partial(self.entrust, lease))

    def renew_now(self, lease: Lease, answer: Answer) -> None:
        """Renew one lease out of turn."""
        call = Call(self._renewal(lease), answer, lease.deadline, lease)

        def renew() -> None:
            if lease.id in self.leases:
                self.call(call)
            else:
                self.settle(answer, PermitLost(self.name, lease.id))

        self.engine.request(self, renew, answer)

    def renew_again(self, lease: Lease, ends_at: float) -> None:
        """The lease has another term again: what was to be renewed now, or was sent, is for the
        former one. Redis may have that one, so until its renewal the lease may end by then."""

        def shorten() -> None:
            lease.deadline = min(lease.deadline, ends_at)

        def renew() -> None:
            shorten()  # once more: a reply may have come meanwhile
            for call in self.calls:
                if call.lease is lease:
                    call.command = self._renewal(lease)
            self.unsettle()

        shorten()
        if not self.engine.stopped:
            self.engine.post(self, renew)

    def _renewal(self, lease: Lease) -> Command:
        return self.commands.renew([(lease.id, lease.fence, lease.term)], self.term_us)

    # What the callers want, under the lock

    def meet(self, terms: Terms, manner: Manner) -> None:
        """Record a gate object's terms; a process may have several objects for one gate."""
        if manner.enforce:
            was_full = not self.commands.plain
            self.commands = GateCommands(self.name, terms, self.engine.process)
            if was_full:
                self.commands.use_full()
        self.agreement.meet(terms, manner)

    def call(self, call: Call) -> None:
        if call not in self.calls:
            self.calls.append(call)

    def release(self, lease: Lease) -> None:
        if lease.id not in self.leases:
            return
        self.releases[lease.id] = lease.receipt
        # A renewal sent after the release would take the permit again.
        for call in [call for call in self.calls if call.lease is lease] if self.calls else ():
            self.settle(call.answer, PermitLost(self.name, lease.id))
            self.calls.remove(call)
        self.leases.pop(lease.id, None)

    def entrust(self, lease: Lease) -> None:
        """Entrust a lease to Redis: it is not renewed here any more, and not released."""
        self._entrusted.put(lease.id, None)
        self.leases.pop(lease.id, None)

    def abandon(self, ask: Ask) -> None:
        """The caller waits no longer: cancel the ask, or release what it got."""
        if ask.lease is not None:
            ask.lease.report = Report.NOTHING
            self.release(ask.lease)
        if ask.wanted:
            self.cancels[ask.id] = None
            self.end(ask)

    def end(self, ask: Ask) -> None:
        """The ask has its outcome, or nobody wants it."""
        id = ask.id
        if self.fresh.pop(id, None) is None or ask.state is not State.FRESH:
            for asks in (self.line, self.tries, self.timeouts):
                asks.pop(id, None)
        ask.state = State.OVER

    # What is due

    @property
    def pressing(self) -> bool:
        """Whether callers want something that has not been sent."""
        return bool(self.fresh or self.tries or self.timeouts or self.calls)

    def due(self) -> float:
        """The moment at which there is something to send: at once for what callers want, else by
        the clock."""
        if self.fresh or self.tries or self.timeouts or self.calls:
            return 0.0
        due = min(self.beat_at, self.look_at, self.doubt_ends_at, self.deadlines.first)
        owed = self.releases or self.cancels or self.agreement.enforcing
        return min(due, self.give_back_at) if owed else due

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do, to wait for or to renew: it may be forgotten."""
        return not (
            self.line or self.fresh or self.tries or self.leases or self.releases
            or self.cancels or self.timeouts or self.calls or self._in_doubt
            or self.agreement.enforcing
        )  # fmt: skip

    def wanted(self) -> list[Ask]:
        """Every ask that waits for its outcome."""
        return [*self.line.values(), *self.fresh.values(), *self.tries.values()]

    def refuse(self, why: BaseException | str, exchange: Exchange | None = None) -> None:
        """Asking again will not help: an error of the gate's keys fails every caller."""
        if exchange is not None:
            why = f"{self.engine.target} answered: {why}"
        error = (
            refused(self.name, why)
            if isinstance(why, str)
            else GateUnavailable(self.name, str(self.engine.target), why)
        )
        for asks in (self.line, self.fresh, self.tries, self.timeouts):
            for ask in [*asks.values()]:
                self.settle(ask, error)
                self.cancels[ask.id] = None  # the server may have put it in line
                self.end(ask)
        for call in self.calls:
            self.settle(call.answer, error)
        self.calls.clear()
        self.look_at = NEVER
        self._give_back_later()

    def _give_back_later(self) -> None:
        """Repeat the releases and cancellations slowly, until the leases would have ended."""
        now = self.engine.clock()
        self.give_back_at = now + _REFUSED_PAUSE
        if self.refused_since is None:
            self.refused_since = now
        elif now >= self.refused_since + self.lease_seconds:
            self.releases.clear()
            self.cancels.clear()

    def give_up(self, now: float, down_since: float, why: object) -> None:
        """Redis does not answer: fail callers who have waited too long, and find lost leases."""
        impatient = now >= down_since + self.patience
        error = GateUnavailable(self.name, str(self.engine.target), why)
        for ask in self.wanted():
            if impatient or ask.deadline <= now:
                self.cancels[ask.id] = None
                self.settle(ask, error)
                self.end(ask)
        for ask in [*self.timeouts.values()]:
            self.cancels[ask.id] = None
            self.settle(ask, error)
            self.end(ask)
        for call in [call for call in self.calls if impatient or call.deadline <= now]:
            self.settle(call.answer, error)
            self.calls.remove(call)
        self.notice_losses(now)

    def notice_losses(self, now: float) -> None:
        for lease in [lease for lease in self.leases.copy().values() if lease.deadline <= now]:
            self.lose(lease)

    def leave(self) -> None:
        """The process ends: give everything back but what has an orphan hold, and fail all
        callers."""
        error = GateError(f"gate {self.name!r}: the process is ending")
        self.commands.use_full()  # there is no second turn for what a gate of another kind refuses
        for ask in self.wanted():
            self.settle(ask, error)
            self.cancels[ask.id] = None
            self.end(ask)
        for lease in [*self.leases.values()]:
            if _outlived(lease, self.term_us):
                self.entrust(lease)
                continue
            lease.report = lease.report or Report.NOTHING
            self.release(lease)
        self.beat_at = self.look_at = self.doubt_ends_at = NEVER

    def time_out(self, ask: Ask) -> None:
        """The ask's time is up: remove it from the line. An ask that Redis has not answered yet is
        tried first: a timeout of 0 is one try."""
        if ask.state is State.IN_LINE:
            self.timeouts[ask.id] = ask
            self.line.pop(ask.id, None)
            ask.state = State.LATE

    def unsettle(self) -> None:
        """Renew and ask everything again at the next exchange: the server may have lost it."""
        if self.line or self.leases:
            self.beat_at = 0.0

    def cut_off(self, exchanges: Sequence[Exchange]) -> None:
        """Take in that asks and releases were cut off: Redis may run them yet, or not. Redis may
        run them yet, or not."""
        for exchange in exchanges:
            self._in_doubt.update((ask.id, None) for ask in exchange.asks)
        if self._in_doubt:
            self.doubt_ends_at = self.engine.clock() + LATE
        self.unsettle()  # the reply may have said who was granted a permit

    def end_doubt(self) -> None:
        """Cancel once more the asks that no caller wants."""
        for id in self._in_doubt:
            known = (self.line, self.fresh, self.tries, self.leases, self._entrusted)
            if not any(id in ids for ids in known):
                self.cancels[id] = None
        self._in_doubt, self.doubt_ends_at = {}, NEVER

    # What came back

    def granted(self, id: str, fence: int, since: float) -> None:
        """Take a grant that a message or a reply names."""
        ask = self.fresh.get(id) or self.line.get(id) or self.tries.get(id)
        if ask is not None:
            self.grant(ask, fence, since)
            return
        known = (self.leases, self.cancels, self.timeouts, self._entrusted)
        if not any(id in ids for ids in known):  # a late command ran after its cancellation
            self.releases[id] = f"{fence} {Report.NOTHING}"

    def grant(self, ask: Ask, fence: int, since: float) -> None:
        """Give a permit to one who waits, granted no earlier than `since` on this process's
        clock."""
        id, lease = ask.id, ask.lease
        if lease is None or id not in self.leases:  # it may be read twice: see `granted`
            now, deadline = self.engine.clock(), since + self.trusted
            if deadline <= now:
                self.unsettle()  # the process stood still until it expired: ask again
                return
            if lease is None:
                wish = ask.wish
                lease = ask.lease = Lease(
                    self, id, fence, self.term_us + wish.hold_us, deadline, now - ask.began,
                    ask.score, wish.charge,
                )  # fmt: skip
                if wish.charge is not None and ask.state is State.IN_LINE:
                    lease.turn = (int(ask.score) >> 43, wish.share)
            if since + self.heartbeat < self.beat_at:
                self.beat_at = since + self.heartbeat
            self.leases[id] = lease
        self.engine.settled.append((ask, lease))
        self.end(ask)

    def lose(self, lease: Lease) -> None:
        lease.report = Report.NOTHING
        self.release(lease)  # in case Redis still has it
        log.warning("gate %r: permit %s was lost", self.name, lease.id)
        lease.lost = True
        self.settle(_Loss(lease), None)

    def settle(self, answer: Answer, outcome: Any) -> None:
        self.engine.settled.append((answer, outcome))


class _Loss(Answer):
    """This answer notifies the holder of a lost permit, after the lock is released."""

    __slots__ = ("_lease",)

    def __init__(self, lease: Lease) -> None:
        super().__init__()
        self._lease = lease

    def settle(self) -> None:
        self._lease.notify_holder()
