"""The exchange sends a gate every command that is due, and reads its reply.

What got no reply stays in the ledger and is sent again: every script is idempotent.
"""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from ground.lua import as_text, chunks
from ground.redis.inbox import Entries
from ground.redis.unit import Exchange
from limiter.commands import NOT_PLAIN
from limiter.errors import LimitTimeout
from limiter.ledger import NEVER, Ask, Call, Ledger, State, log
from limiter.permit import Lease, Wait
from limiter.terms import Terms

_CHUNK = 500  # requests in one script call: keeps a call below a millisecond or two

Permits = Sequence[tuple[str, int | str]]  # each an id and its fence, with what it reports


class GateUnit(Ledger):
    """The ledger of a gate, as the engine and event loops bring it to Redis."""

    def exchange(self, now: float) -> list[Exchange]:
        """Every command to send now, each with what reads its reply."""
        if self.doubt_ends_at <= now:
            self.end_doubt()
        if self.deadlines.first <= now:
            for ask in self.deadlines.passed(now):
                self.time_out(ask)
        beating = self.beat_at <= now
        if beating and not (self.line or self.leases):
            self.beat_at, beating = NEVER, False
        turns: list[Exchange] = []
        if self.timeouts or self.cancels:
            turns += self._cancellations()
        if beating:
            turns += self._heartbeat()
        released = list(self.releases.items())
        if released and (len(released) > _CHUNK or not self.fresh):
            turns += map(self._release, chunks(released, _CHUNK))
            released = []
        for asks in chunks(list(self.fresh.values()), _CHUNK):
            turns.append(self._acquire(asks, released))  # releases ride with the first
            released = []
        if self.tries:
            turns += map(self._acquire, chunks(list(self.tries.values()), _CHUNK))
        for call in self.calls:
            turns.append(Exchange(call.command, partial(self.read_call, call)))
        if not turns and self.look_at <= now:
            turns.append(Exchange(self.commands.sweep(), self.read_time))
        agreement = self.agreement
        if beating or (agreement.unsettled and (turns or agreement.enforcing)):
            return [*self._enforcing(), *turns, self._enlisting()]
        return turns

    def exchanged(self, now: float) -> None:
        """All that was due then was answered: a heartbeat, too."""
        if now >= self.give_back_at:
            self.refused_since = None
        if self.beat_at <= now:
            alive = self.line or self.leases
            self.beat_at = now + self.heartbeat if alive else NEVER

    def _enforcing(self) -> Iterator[Exchange]:
        """The terms on which the gate is in use: sent at first, and after a loss of data."""
        for terms in self.agreement.to_enforce():
            yield Exchange(
                self.commands.configure(terms.fields()), partial(self.read_enforcing, terms)
            )

    def _enlisting(self) -> Exchange:
        """The gate is in use: last, since a full Redis refuses this and renews leases, and on a
        Cluster nothing is sent after a refusal."""
        return Exchange(self.commands.enlist(), ignore)

    def _release(self, released: Permits) -> Exchange:
        return Exchange(self.commands.release(released), partial(self.read_release, released))

    def _cancellations(self) -> Iterator[Exchange]:
        for counter, cancelled in (("timeouts", self.timeouts), ("cancelled", self.cancels)):
            for ids in chunks(list(cancelled), _CHUNK):
                command = self.commands.cancel(counter, ids)
                yield Exchange(command, partial(self.read_cancel, ids))

    def _heartbeat(self) -> Iterator[Exchange]:
        """Renew the leases, and ask again for what callers wait for: Redis may have lost it."""
        self.notice_losses(self.engine.clock())
        kept = [lease for lease in self.leases.copy().values() if not lease.handed_in]
        kept.sort(key=lambda lease: lease.charge is None)
        for leases in chunks(kept, _CHUNK):
            permits = [(lease.id, lease.fence, lease.term) for lease in leases]
            command = self.commands.renew(permits, self.term_us)
            yield Exchange(command, partial(self.read_renewal, leases))
        for asks in chunks(list(self.line.values()), _CHUNK):
            yield self._acquire(asks, beating=True)

    def _acquire(
        self, asks: list[Ask], released: Permits = (), *, beating: bool = False
    ) -> Exchange:
        """All of them join the line, or none does."""
        rows = [(ask.id, ask.wish.row, ask.score, ask.wish.term) for ask in asks]
        weighs = shares = False
        if special := [ask.wish for ask in asks if ask.wish.special]:
            weighs = any(wish.charge is not None for wish in special)
            shares = any(wish.share for wish in special)
        command = self.commands.acquire(
            rows, self.term_us, join=asks[0].wish.joins, released=released,
            weighs=weighs, shares=shares, any_kind=beating,
        )  # fmt: skip
        return Exchange(command, partial(self.read_asks, asks, released), asks)

    # What came back

    @property
    def awaits_entries(self) -> bool:
        """Grants come by the inbox to those in line."""
        return bool(self.line)

    def read_entries(self, entries: Entries) -> None:
        for entry in entries:
            self._read_entry(entry)

    def _read_entry(self, entry: dict[bytes, bytes]) -> None:
        """Read a message of the process that freed a permit, from the inbox."""
        try:
            at, wake = int(entry[b"at"]), int(entry.get(b"wake", 0))
            grants = _grants_in(entry.get(b"grants", b""))
        except (KeyError, ValueError) as wrong:  # any process may have written it
            log.warning("gate %r: an entry that cannot be read is ignored: %s", self.name, wrong)
            return
        since = min(self.engine.clock(), at / 1e6 - self.server_ahead)
        self.server_time = max(self.server_time, at)
        for id, fence in grants:
            self.granted(id, fence, since)
        if b"wake" in entry:
            self.look_at = min(self.look_at, since + wake / 1e6)

    def refused_form(self, reply: Any) -> bool:
        """Whether the gate needs the full form of the scripts, which is used from now on. Nothing
        has changed in Redis, and what was asked is still due."""
        if reply != NOT_PLAIN:
            return False
        self.commands.use_full()
        return True

    def read_time(self, reply: list[Any], sent: float) -> None:
        """Read the beginning of a reply, unless it refuses the plain form."""
        if not self.refused_form(reply):
            self._read_beginning(reply, sent)

    def _read_beginning(self, reply: list[Any], sent: float) -> None:
        """The server's time, when to look again, and this process's grants."""
        # The server read its clock after `sent`. So its time T is no earlier here than this says.
        at, wake, grants = int(reply[0]), int(reply[1]), reply[2]
        self.server_ahead = at / 1e6 - sent
        for id, fence in _grants_in(grants) if grants else ():
            self.granted(id, fence, sent)
        look_at = sent + wake / 1e6 if wake >= 0 and self.line else NEVER
        if at >= self.server_time:
            self.look_at, self.server_time = look_at, at
        elif look_at < self.look_at:  # the inbox has brought later news
            self.look_at = look_at

    def read_asks(self, asks: list[Ask], released: Permits, reply: list[Any], sent: float) -> None:
        if self.refused_form(reply):
            return
        self.agreement.see(int(reply[3]))
        if self.agreement.unsettled:
            self.agreement.compare(reply[4:7])
        for ask, verdict, score in zip(asks, reply[7::2], reply[8::2], strict=True):
            if verdict > 0 and ask.wanted:
                ask.score = ask.score or score
                self.grant(ask, verdict, sent)
            elif verdict > 0:
                self.granted(ask.id, verdict, sent)
            elif not ask.wanted:
                continue  # cancelled meanwhile: the next exchange cancels it in Redis
            elif ask.wish.joins:
                self._join(ask, as_text(score))
            else:
                self._refuse_try(ask, int(reply[1]))
        if self.line:
            self.beat_at = min(self.beat_at, sent + self.heartbeat)
            if not self.listening:
                self.engine.wake()  # so that the inbox reads the grants to those in line
        self._read_released(released, reply, sent)

    def _join(self, ask: Ask, score: str) -> None:
        ask.score = score
        ask.state = State.IN_LINE
        self.line[ask.id] = ask
        self.fresh.pop(ask.id, None)
        if ask.deadline <= self.engine.clock():
            self.time_out(ask)

    def _refuse_try(self, ask: Ask, wait_us: int) -> None:
        self.settle(ask, Wait(wait_us / 1e6 if wait_us >= 0 else math.inf))
        self.end(ask)

    def read_enforcing(self, terms: Terms, reply: list[Any], sent: float) -> None:
        self.agreement.enforced(terms)
        self.read_time(reply, sent)

    def read_renewal(self, leases: list[Lease], reply: list[Any], sent: float) -> None:
        deadline = sent + self.trusted
        # A lease that has ended by this process's clock stays lost, whatever the server says.
        self.agreement.see(int(reply[3]))
        for lease, held in zip(leases, reply[4:], strict=True):
            if int(held) and self.engine.clock() < lease.deadline:
                lease.deadline = deadline
            elif lease.id in self.leases and not lease.handed_in:
                self.lose(lease)
        self.read_time(reply, sent)

    def read_release(self, released: Permits, reply: list[Any], sent: float) -> None:
        if not self.refused_form(reply):
            self._read_released(released, reply, sent)

    def _read_released(self, released: Permits, reply: list[Any], sent: float) -> None:
        for id, _ in released:
            self.releases.pop(id, None)
        self._read_beginning(reply, sent)

    def read_cancel(self, ids: list[str], reply: list[Any], sent: float) -> None:
        limit, in_flight, holders = reply[3].decode() or "any", int(reply[4]), reply[5].decode()
        for id, place in zip(ids, reply[7:], strict=True):
            if (ask := self.timeouts.get(id)) is not None:
                late = LimitTimeout(
                    self.name, waited=self.engine.clock() - ask.began, limit=limit,
                    in_flight=in_flight, place=int(place), holders=sorted(set(holders.split())),
                    paused=bool(int(reply[6])),
                )  # fmt: skip
                self.settle(ask, late)
                self.end(ask)
            self.cancels.pop(id, None)
        self.read_time(reply, sent)

    def read_call(self, call: Call, reply: list[Any], sent: float) -> None:
        if call in self.calls:  # else it was answered meanwhile
            self.settle(call.answer, reply)
            self.calls.remove(call)
        if call.lease is None:
            self.read_time(reply, sent)
        else:
            self.read_renewal([call.lease], reply, sent)


def ignore(reply: Any, sent: float) -> None:
    """The reader of a reply that says nothing."""


def _grants_in(grants: bytes) -> list[tuple[str, int]]:
    words = grants.decode().split()
    return [(id, int(fence)) for id, fence in zip(words[::2], words[1::2], strict=True)]
