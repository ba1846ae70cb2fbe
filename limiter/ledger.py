"""What this process holds and waits for at one gate.

Touched under the engine's lock only. What is said to Redis about it, and how replies are read, is
in `exchange.py`. A signal handler may raise at any line that runs on an event loop. So nothing is
removed from one place before it is in the next.
"""

import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from ground import RedisTarget
from ground.lua import Command
from ground.redis.answers import Answer
from ground.redis.shortcut import LATE
from ground.redis.unit import Exchange
from ground.timers import Timers
from limiter.commands import GateCommands
from limiter.errors import GateError, GateUnavailable, PermitLost
from limiter.permit import Lease, Report, with_cost
from limiter.terms import Agreement, Manner, Terms

NEVER = math.inf
_ENTRUSTED = 1000  # how many entrusted permits are remembered: a late reply may name their grants
_REFUSED_PAUSE = 1.0  # seconds until a release that Redis refused is tried again
_BENEFIT_OF_DOUBT = 2.0  # seconds: on a busy machine the engine's thread may run late


class Ask:
    """One caller's request for a permit."""

    __slots__ = (
        "answer", "began", "charge", "deadline", "hold_us", "id", "join", "lane", "lease",
        "ledger", "row", "score", "share",
    )  # fmt: skip

    def __init__(
        self,
        ledger: "Ledger",
        id: str,
        answer: Answer,
        *,
        began: float,
        deadline: float,
        lane: int,
        hold_us: int,
        score: str = "",
        join: bool = True,
        charge: dict[str, int] | None = None,
        share: str = "",
    ) -> None:
        self.ledger = ledger
        self.id = id
        self.answer = answer
        self.began = began
        self.deadline = deadline
        self.lane = lane
        self.share = share
        self.row: int | str = f"{lane} {share}" if share else lane  # as the scripts read both
        self.hold_us = hold_us
        self.score = score
        self.join = join  # the line; `try_acquire` does not
        self.lease: Lease | None = None
        self.charge = charge  # what it costs, by amounts; None of a plain permit

    def term(self, lease_us: int) -> int | str:
        """For how long it asks, in microseconds, and its cost."""
        return with_cost(lease_us + self.hold_us, self.charge)

    def patience(self, now: float) -> float | None:
        """Seconds after which the caller stops believing that the engine will answer."""
        return None if self.deadline == NEVER else self.deadline - now + _BENEFIT_OF_DOUBT


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
    return not ask.ledger.wants(ask)


def _outlived(lease: Lease, lease_us: int) -> bool:
    """Whether it has an orphan hold: what it is for may go on after this process."""
    return lease.term_us > lease_us


class Host(Protocol):
    """What a ledger needs of its engine."""

    target: RedisTarget
    process: str
    clock: Callable[[], float]
    stopped: bool
    settled: list[tuple[Answer, Any]]

    def new_id(self) -> str: ...
    def wake(self) -> None: ...
    def post(self, unit: Any, change: Callable[[], None], answer: Answer | None = None) -> None: ...
    def request(self, unit: Any, change: Callable[[], None], answer: Answer) -> None: ...


class Ledger:
    """This process's side of one gate."""

    def __init__(self, engine: Host, name: str, terms: Terms, manner: Manner) -> None:
        self.name = name
        self.lease_seconds = manner.lease
        # A sixth of the lease is the margin for clock drift and for this process's own delay.
        self.trusted = manner.lease * 5 / 6
        self.term_us = int(manner.lease * 1_000_000)
        self.heartbeat = manner.heartbeat
        self.patience = manner.patience
        self.commands = GateCommands(name, terms, engine.process)
        self.engine = engine
        self.posted: deque[Callable[[], None]] = deque()
        self.carrier: object | None = None
        self.listening = False
        self.stream = self.commands.inbox
        self.server_time = 0  # the server's clock, in microseconds, in the latest reply
        self.server_ahead = 0.0  # at least its clock minus this process's
        self.agreement = Agreement(name, manner)
        # What callers wait for, by the ask's id.
        self.fresh: dict[str, Ask] = {}  # not yet known to the server
        self.line: dict[str, Ask] = {}  # in line, or about to be
        self.tries: dict[str, Ask] = {}  # of `try_acquire`, which joins no line
        # What is held, and what has to be sent to the server.
        self.leases: dict[str, Lease] = {}
        self.releases: dict[str, int | str] = {}  # each with its fence, and a report
        self.cancels: dict[str, None] = {}
        # Asks that were sent and not answered when their connection ended. Redis may run them late,
        # after a cancellation that came by another connection.
        self._in_doubt: dict[str, None] = {}
        self.timeouts: dict[str, Ask] = {}  # get `LimitTimeout` when the server has cancelled them
        self.calls: list[Call] = []
        self.deadlines = Timers(_has_outcome)
        # When to send something though nobody asks; by the engine's clock.
        self.beat_at = NEVER  # the next heartbeat
        self.look_at = NEVER  # when time alone may admit the first in line
        self._entrusted: dict[str, None] = {}  # not given back if a late reply names their grant
        self.doubt_ends_at = NEVER  # when the asks in doubt are cancelled once more
        self.give_back_at = 0.0  # no sooner are releases repeated that Redis refused
        self.refused_since: float | None = None

    # For permits, from any thread

    def hand_back(self, lease: Lease) -> None:
        if not self.engine.stopped:
            self.engine.post(self, partial(self.release, lease))

    def abandon_lease(self, lease: Lease) -> None:
        """Its permit was dropped. That protects nothing any more, unless work outlives it."""
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
        command = self.commands.renew([(lease.id, lease.fence, lease.term)], self.term_us)
        call = Call(command, answer, lease.deadline, lease)

        def renew() -> None:
            if lease.id in self.leases:
                self.call(call)
            else:
                self.settle(answer, PermitLost(self.name, lease.id))

        self.engine.request(self, renew, answer)

    # What the callers want, under the lock

    def meet(self, terms: Terms, manner: Manner) -> None:
        """Record a gate object's terms; a process may have several objects for one gate."""
        if manner.enforce:
            self.commands = GateCommands(self.name, terms, self.engine.process)
        self.agreement.meet(terms, manner)

    def ask(self, ask: Ask) -> None:
        (self.fresh if ask.join else self.tries)[ask.id] = ask
        if ask.deadline < NEVER:
            self.deadlines.set(ask.deadline, ask)

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
        """To Redis: it is not renewed here any more, and not released."""
        self._entrusted[lease.id] = None
        self.leases.pop(lease.id, None)
        while len(self._entrusted) > _ENTRUSTED:
            del self._entrusted[next(iter(self._entrusted))]

    def abandon(self, ask: Ask) -> None:
        """The caller waits no longer: cancel the ask, or release what it got."""
        if ask.lease is not None:
            ask.lease.report = Report.NOTHING
            self.release(ask.lease)
        if self.wants(ask):
            self.cancels[ask.id] = None
            self.forget(ask)

    def forget(self, ask: Ask) -> None:
        self.fresh.pop(ask.id, None)
        self.line.pop(ask.id, None)
        self.tries.pop(ask.id, None)

    # What is due

    @property
    def pressing(self) -> bool:
        """Whether callers want something that has not been sent."""
        return bool(self.fresh or self.tries or self.timeouts or self.calls)

    def due(self) -> float:
        """When there is something to send: at once for what callers want, else by the clock."""
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
        if isinstance(why, str):
            error: GateError = GateError(f"gate {self.name!r}: {why}")
        else:
            error = GateUnavailable(self.name, str(self.engine.target), why)
        for asks in (self.line, self.fresh, self.tries, self.timeouts):
            for ask in asks.values():
                self.settle(ask.answer, error)
                self.cancels[ask.id] = None  # the server may have put it in line
            asks.clear()
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
                self.settle(ask.answer, error)
                self.forget(ask)
        for ask in [*self.timeouts.values()]:
            self.cancels[ask.id] = None
            self.settle(ask.answer, error)
        self.timeouts.clear()
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
        for ask in self.wanted():
            self.settle(ask.answer, error)
            self.cancels[ask.id] = None
        self.line, self.fresh, self.tries = {}, {}, {}
        for lease in [*self.leases.values()]:
            if _outlived(lease, self.term_us):
                self.entrust(lease)
                continue
            lease.report = lease.report or Report.NOTHING
            self.release(lease)
        self.beat_at = self.look_at = self.doubt_ends_at = NEVER

    def wants(self, ask: Ask) -> bool:
        """Whether it still waits for its outcome."""
        return ask.id in self.line or ask.id in self.fresh or ask.id in self.tries

    def time_out(self, ask: Ask) -> None:
        """Its time is up: remove it from the line. An ask that Redis has not answered yet is
        tried first: a timeout of 0 is one try."""
        if ask.id in self.line:
            self.timeouts[ask.id] = ask
            self.forget(ask)

    def unsettle(self) -> None:
        """Renew and ask everything again at the next exchange: the server may have lost it."""
        if self.line or self.leases:
            self.beat_at = 0.0

    def cut_off(self, exchanges: Sequence[Exchange]) -> None:
        """Their connection ended before a reply came. Redis may run them yet, or not."""
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
        """A permit of this process, granted no earlier than `since` on its clock."""
        ask = self.fresh.get(id) or self.line.get(id) or self.tries.get(id)
        if ask is None:
            known = (self.leases, self.cancels, self.timeouts, self._entrusted)
            if not any(id in ids for ids in known):
                self.releases[id] = (
                    f"{fence} {Report.NOTHING}"  # a late command ran after its cancellation
                )
            return
        if id not in self.leases:  # it may be read twice: from a reply and from the inbox
            now, deadline = self.engine.clock(), since + self.trusted
            if deadline <= now:
                self.unsettle()  # the process stood still until it expired: ask again
                return
            if ask.lease is None:
                term_us = self.term_us + ask.hold_us
                ask.lease = Lease(
                    self, self.name, id, fence, term_us, deadline, now - ask.began, ask.score,
                    ask.charge, self.turn_of(ask),
                )  # fmt: skip
            if since + self.heartbeat < self.beat_at:
                self.beat_at = since + self.heartbeat
            self.leases[id] = ask.lease
        self.engine.settled.append((ask.answer, self.leases[id]))
        self.forget(ask)

    def turn_of(self, ask: Ask) -> tuple[int, str] | None:
        """The lane and the share that it waited in."""
        return (int(ask.score) >> 43, ask.share) if ask.id in self.line else None

    def lose(self, lease: Lease) -> None:
        lease.report = Report.NOTHING
        self.release(lease)  # in case Redis still has it
        log.warning("gate %r: permit %s was lost", self.name, lease.id)
        lease.lost = True
        self.settle(_Loss(lease), None)

    def settle(self, answer: Answer, outcome: Any) -> None:
        self.engine.settled.append((answer, outcome))


class _Loss(Answer):
    """Notifies the holder of a lost permit, after the lock is released."""

    __slots__ = ("_lease",)

    def __init__(self, lease: Lease) -> None:
        super().__init__()
        self._lease = lease

    def settle(self) -> None:
        self._lease.notify_holder()
