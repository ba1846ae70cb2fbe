"""What this process holds and waits for at one gate.

Touched by the engine's thread only, but for `direct`. What is said to Redis about it is
in `dialogue`, what Redis answers in `replies`.
"""

import logging
from collections import deque
from typing import Any

from limiter.agreement import Agreement
from limiter.answers import Answer
from limiter.commands import GateCommands
from limiter.direct import Direct
from limiter.errors import GateError, GateUnavailable, PermitLost
from limiter.permit import Lease
from limiter.terms import Manner, Terms
from limiter.wishes import NEVER, Ask, Call

log = logging.getLogger("penstock.limiter")

_REFUSED_PAUSE = 1.0  # seconds until a release that Redis refused is tried again

Outcome = tuple[Answer, Any]


class Ledger:
    """This process's side of one gate."""

    def __init__(self, engine: Any, name: str, terms: Terms, manner: Manner) -> None:
        self.name = name
        self.lease = manner.lease
        self.heartbeat = manner.heartbeat
        self._manner = manner
        self.commands = GateCommands(name, terms, engine.process)
        self.outcomes: list[Outcome] = []
        self.engine = engine
        self.server_ahead = 0.0  # its clock minus ours, never less than it really is
        self.agreement = Agreement(name, manner)
        self.direct = Direct()
        self.posted: deque[None] = deque()  # for each deed that the engine has yet to do here
        self.line: dict[str, Ask] = {}  # in line, or about to be
        self.fresh: dict[str, Ask] = {}  # not yet known to the server
        self.tries: dict[str, Ask] = {}
        self.leases: dict[str, Lease] = {}
        self.releases: dict[str, int] = {}
        self.cancels: dict[str, Ask | None] = {}
        self.timeouts: dict[str, Ask] = {}
        self.calls: list[Call] = []
        self.beat_at = NEVER
        self.look_at = NEVER
        self.refused_since: float | None = None
        self.give_back_at = 0.0

    # What the callers want

    def meet(self, terms: Terms, manner: Manner) -> None:
        """A gate object of this process, one of several perhaps, says what it was made with."""
        if manner.enforce:
            self.commands = GateCommands(self.name, terms, self.engine.process)
        self.agreement.meet(terms, manner)

    def ask(self, ask: Ask, *, join: bool) -> None:
        (self.fresh if join else self.tries)[ask.id] = ask
        self.engine.deadlines.add(self, ask)

    def take_over(self, now: float) -> None:
        """What event loops asked, hold and gave back by themselves is the engine's from now on."""
        self.direct.watched = False  # before the look: who puts something in after it says so
        for ask in self.direct.take_asked(now):
            self.ask(ask, join=True)
        for lease in self.direct.take_held():
            self.leases[lease.id] = lease
        self.releases.update(self.direct.given)

    def lend(self, lease: Lease) -> None:
        """To the loop that was granted it, until the next heartbeat."""
        if self.leases.pop(lease.id, None) is not None:
            self.direct.watched = True
            self.direct.held[lease.id] = lease

    def call(self, call: Call) -> None:
        self.calls.append(call)

    def release(self, lease: Lease) -> None:
        if self._drop(lease):
            self.releases[lease.id] = lease.fence
            # A renewal sent after the release would take the permit in again.
            for call in [call for call in self.calls if call.lease is lease]:
                self.calls.remove(call)
                self.outcomes.append((call.answer, PermitLost(self.name, lease.id)))

    def forget_lease(self, lease: Lease) -> None:
        """It is somebody else's to give back."""
        self._drop(lease)

    def _drop(self, lease: Lease) -> bool:
        """Whether it was ours, or a loop's."""
        known = [held.pop(lease.id, None) for held in (self.leases, self.direct.held)]
        return any(known)

    def give_back(self, lease: Lease, answer: Answer) -> None:
        """Release with an answer: for a process that ends as soon as it has come."""
        self._drop(lease)
        command = self.commands.release([(lease.id, lease.fence)])
        self.calls.append(Call(command, answer, lease.deadline))

    def abandon(self, ask: Ask) -> None:
        """The caller does not wait any more, wherever its wish has got to."""
        if ask.lease is not None:
            self.release(ask.lease)
        elif self._forget(ask):
            self.cancels[ask.id] = None

    def _forget(self, ask: Ask) -> bool:
        """Whether the server may know of the ask and must be told."""
        places = (self.line, self.fresh, self.tries, self.direct.asked)
        known = [asks.pop(ask.id, None) for asks in places]
        return any(known)

    # What is due

    @property
    def waiting(self) -> bool:
        return bool(self.line)

    def next_due(self) -> float:
        """When there is something to send: at once for what callers want, else by the clock."""
        if self.fresh or self.tries or self.timeouts or self.calls:
            return 0.0
        due = min(self.beat_at, self.look_at)
        owed = self.releases or self.cancels or self.agreement.enforcing
        return min(due, self.give_back_at) if owed else due

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do, to wait for or to renew: it may be forgotten."""
        return not (
            self.line or self.fresh or self.tries or self.leases or self.releases
            or self.cancels or self.timeouts or self.calls or self.outcomes
            or self.agreement.enforcing or self.direct.watched
        )  # fmt: skip

    @property
    def at_rest(self) -> bool:
        """Whether the engine has nothing to do here that a shortcut might overtake."""
        return not (
            self.posted or self.fresh or self.line or self.tries or self.releases
            or self.cancels or self.timeouts or self.agreement.unsettled
        )  # fmt: skip

    def wants(self, ask: Ask) -> bool:
        """Whether it still waits for its outcome."""
        return any(ask.id in asks for asks in (self.line, self.fresh, self.tries))

    def time_out(self, ask: Ask) -> None:
        """Its time is up: if it still waits, take it out of the line."""
        if self._forget(ask):
            self.timeouts[ask.id] = ask

    def give_up(self, now: float, down_since: float, where: str, why: object) -> None:
        """Redis does not answer: fail those whose patience is at its end, and note what is lost."""
        impatient = now >= down_since + self._manner.patience
        for ask in (*self.line.values(), *self.fresh.values(), *self.tries.values()):
            if impatient or ask.deadline <= now:
                self._forget(ask)
                self.cancels[ask.id] = None
                self.answer(ask, GateUnavailable(self.name, where, why))
        for ask in [*self.timeouts.values()]:
            self.cancels[ask.id] = None
            self.answer(ask, GateUnavailable(self.name, where, why))
        self.timeouts.clear()
        for call in [call for call in self.calls if impatient or call.deadline <= now]:
            self.calls.remove(call)
            self.outcomes.append((call.answer, GateUnavailable(self.name, where, why)))
        self.notice_losses(now)

    def refuse(self, error: GateError) -> None:
        """Redis answers with an error that asking again would not mend."""
        for asks in (self.line, self.fresh, self.tries, self.timeouts):
            for ask in asks.values():
                self.answer(ask, error)
                self.cancels[ask.id] = None  # the server may have put it in line
            asks.clear()
        self.outcomes.extend((call.answer, error) for call in self.calls)
        self.calls.clear()
        self.look_at = NEVER
        self._give_back_later()

    def _give_back_later(self) -> None:
        """What is to be given back stays due, at a slow pace, until leases end it anyway."""
        now = self.engine.clock()
        self.give_back_at = now + _REFUSED_PAUSE
        if self.refused_since is None:
            self.refused_since = now
        elif now >= self.refused_since + self.lease:
            self.releases.clear()
            self.cancels.clear()

    def beat_now(self) -> None:
        """Renew and ask everything again at the next exchange: the server may have forgotten."""
        if self.line or self.leases or self.direct.watched:
            self.beat_at = 0.0

    def renew(self, lease: Lease, answer: Answer) -> None:
        """Renew one lease out of turn."""
        if self.direct.held.pop(lease.id, None) is not None:
            self.leases[lease.id] = lease
            self.beat_at = min(self.beat_at, self.engine.clock() + self.heartbeat)
        if lease.id not in self.leases:
            self.outcomes.append((answer, PermitLost(self.name, lease.id)))
            return
        command = self.commands.renew([(lease.id, lease.fence, lease.term_us)], self.term_us)
        self.calls.append(Call(command, answer, lease.deadline, lease))

    def close(self, error: GateError) -> None:
        """Give back everything, and tell those who wait."""
        self.take_over(NEVER)
        for ask in (*self.line.values(), *self.fresh.values(), *self.tries.values()):
            self.answer(ask, error)
            self.cancels[ask.id] = None
        self.line, self.fresh, self.tries = {}, {}, {}
        for lease in [*self.leases.values()]:
            self.release(lease)
        self.beat_at = self.look_at = NEVER

    def notice_losses(self, now: float) -> None:
        for lease in [lease for lease in self.leases.values() if lease.deadline <= now]:
            self.lose(lease)

    # What came back

    def granted(self, id: str, fence: int, since: float) -> None:
        """A permit of ours, granted no earlier than `since` on this process's clock."""
        if id in self.leases or id in self.direct.held:
            return  # told twice, by a reply and by a letter
        now, deadline = self.engine.clock(), self.deadline(since)
        ask = self.line.get(id) or self.fresh.get(id) or self.tries.get(id)
        if ask is None and (ask := self.direct.asked.pop(id, None)) is not None:
            self.ask(ask, join=True)  # its loop has yet to hear that it stands in line
        if ask is None:
            if id not in self.cancels and id not in self.timeouts:
                self.releases[id] = fence  # an old command came through after its cancellation
            return
        if deadline <= now:
            self.beat_now()  # we were frozen until it was over: ask again, from the same place
            return
        self._forget(ask)
        self.leases[id] = ask.lease = self.new_lease(ask, fence, since)
        self.beat_at = min(self.beat_at, since + self.heartbeat)
        self.answer(ask, ask.lease)

    def new_lease(self, ask: Ask, fence: int, since: float) -> Lease:
        waited = max(0.0, self.engine.clock() - ask.began)
        term_us = self.term_us + ask.hold_us
        return Lease(ask.id, fence, term_us, self.deadline(since), waited, ask.score)

    def lose(self, lease: Lease) -> None:
        self.release(lease)  # should it still be there, it is not wanted
        log.warning("gate %r: permit %s was lost", self.name, lease.id)
        lease.lose()

    def answer(self, ask: Ask, outcome: Any) -> None:
        self.outcomes.append((ask.answer, outcome))

    @property
    def term_us(self) -> int:
        return int(self.lease * 1_000_000)

    def deadline(self, since: float) -> float:
        # A sixth of the lease is the margin for clocks that run apart and for our own delay.
        return since + self.lease * 5 / 6
