"""What a process and one gate say to each other: commands written, replies and letters read.

Whatever got no reply stays in the ledger and is written again, which every script allows.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from limiter.commands import Command
from limiter.errors import LimitTimeout
from limiter.ledger import Ledger
from limiter.permit import Lease, Wait
from limiter.terms import Terms
from limiter.wishes import NEVER, Ask, Call

_CHUNK = 500  # requests in one script call: keeps a call below a millisecond or two
_T = TypeVar("_T")
Digest = Callable[[list[Any], float], None]  # the reply, and when we sent what it answers


class Turn(NamedTuple):
    """A command, and what reads its reply."""

    command: Command
    digest: Digest
    asks: Sequence[Ask] = ()
    released: Sequence[tuple[str, int]] = ()


def exchange(ledger: Ledger, now: float) -> list[Turn]:
    """Every command to send now, each with what reads its reply."""
    if ledger.beat_at <= now:
        ledger.take_over(now)
    elif ledger.fresh or ledger.tries or ledger.calls:
        ledger.releases.update(ledger.direct.given)  # whoever asks now gave them back before
    if not (ledger.line or ledger.leases or ledger.direct.watched):
        ledger.beat_at = NEVER
    beating = ledger.beat_at <= now
    turns: list[Turn] = []
    if beating or ledger.agreement.unsettled:
        turns += _introduction(ledger)
    if ledger.timeouts or ledger.cancels:
        turns += _cancellations(ledger)
    if beating:
        turns += _heartbeat(ledger)
    turns += give_and_take(ledger, list(ledger.fresh.values()), list(ledger.releases.items()))
    if ledger.tries:
        for chunk in _chunks(list(ledger.tries.values())):
            turns.append(_acquire(ledger, chunk, join=False))
    turns += (Turn(call.command, _reads_call(ledger, call)) for call in ledger.calls)
    if not turns and ledger.look_at <= now:
        turns.append(Turn(ledger.commands.sweep(), partial(_digest_time, ledger)))
    return turns


def give_and_take(
    ledger: Ledger, asks: list[Ask], released: list[tuple[str, int]]
) -> Iterator[Turn]:
    """Releases ride with the first acquire if it can hold them all, else go before it."""
    riding = released if asks and len(released) <= _CHUNK else []
    if not riding:
        for permits in _chunks(released):
            yield _release(ledger, permits)
    for chunk in _chunks(asks):
        yield _acquire(ledger, chunk, join=True, released=riding)
        riding = []


def exchanged(ledger: Ledger, now: float) -> None:
    """All of it was answered: a heartbeat that was due has been made."""
    if now >= ledger.give_back_at:
        ledger.refused_since = None
    if ledger.beat_at <= now:
        alive = ledger.line or ledger.leases or ledger.direct.watched
        ledger.beat_at = now + ledger.heartbeat if alive else NEVER


def _introduction(ledger: Ledger) -> Iterator[Turn]:
    """The gate is in use, and on these terms; said at first contact and with heartbeats."""
    for terms in ledger.agreement.to_enforce():
        whole = dict(zip(("limit", "rate", "burst"), terms.args(), strict=True))
        yield Turn(ledger.commands.configure(whole), _reads_enforcing(ledger, terms))
    yield Turn(ledger.commands.enlist(), ignore)


def _release(ledger: Ledger, released: list[tuple[str, int]]) -> Turn:
    digest = _reads_release(ledger, released)
    return Turn(ledger.commands.release(released), digest, released=released)


def _cancellations(ledger: Ledger) -> Iterator[Turn]:
    for counter, cancelled in (("timeouts", ledger.timeouts), ("cancelled", ledger.cancels)):
        for ids in _chunks(list(cancelled)):
            yield Turn(ledger.commands.cancel(counter, ids), _reads_cancel(ledger, ids))


def _heartbeat(ledger: Ledger) -> Iterator[Turn]:
    """Renew what we hold, and ask again for what we wait for: it may have been forgotten."""
    ledger.notice_losses(ledger.engine.clock())
    for leases in _chunks(list(ledger.leases.values())):
        permits = [(lease.id, lease.fence, lease.term_us) for lease in leases]
        yield Turn(ledger.commands.renew(permits, ledger.term_us), _reads_renewal(ledger, leases))
    for asks in _chunks(list(ledger.line.values())):
        yield _acquire(ledger, asks, join=True)


def _acquire(
    ledger: Ledger, asks: list[Ask], *, join: bool, released: Sequence[tuple[str, int]] = ()
) -> Turn:
    term = ledger.term_us
    rows = [(ask.id, ask.lane, ask.score, term + ask.hold_us, int(ask.sent > 0)) for ask in asks]
    now = ledger.engine.clock()
    for ask in asks:
        ask.sent = ask.sent or now
    command = ledger.commands.acquire(rows, term, join=join, released=released)
    return Turn(command, _reads_asks(ledger, asks, join, released), asks, released)


def is_plain(ledger: Ledger, turn: Turn, reply: list[Any], sent: float) -> bool:
    """Whether a shortcut may read it: all asked is granted, and nobody else is concerned."""
    _, wake, grants, *more = reply
    if grants or (wake >= 0 and not ledger.at_rest):
        return False
    if not turn.asks:
        return True
    known = int(more[0]) == ledger.agreement.made
    in_time = ledger.engine.clock() < sent + ledger.heartbeat
    return known and in_time and min(more[4::2]) > 0


def take_over(ledger: Ledger, turn: Turn, sent: float, reply: list[Any] | None) -> None:
    """Go on with what a shortcut began."""
    for ask in turn.asks:
        if ledger.direct.asked.pop(ask.id, None) is not None:
            ledger.ask(ask, join=True)
    if reply is not None:
        turn.digest(reply, sent)
        return
    for id, fence in turn.released:
        if ledger.direct.given.pop(id, None) is not None:
            ledger.releases[id] = fence


def ignore(reply: Any, sent: float) -> None:
    """What reads a reply that says nothing."""


def read_letter(ledger: Ledger, letter: dict[bytes, bytes]) -> None:
    """A message of somebody who freed a permit, from the inbox."""
    since = min(ledger.engine.clock(), int(letter[b"at"]) / 1e6 - ledger.server_ahead)
    _read_grants(ledger, letter.get(b"grants", b""), since)
    if b"wake" in letter:
        ledger.look_at = min(ledger.look_at, since + int(letter[b"wake"]) / 1e6)


def _read_grants(ledger: Ledger, grants: bytes, since: float) -> None:
    words = grants.decode().split()
    for id, fence in zip(words[::2], words[1::2], strict=True):
        ledger.granted(id, int(fence), since)


def _digest_time(ledger: Ledger, reply: list[Any], sent: float) -> None:
    """Every reply begins with the server's time, when to look again, and grants of ours."""
    # It read its clock after we sent: its time T is no earlier here than this says.
    ledger.server_ahead = int(reply[0]) / 1e6 - sent
    if reply[2]:
        _read_grants(ledger, reply[2], sent)
    wake = int(reply[1])
    ledger.look_at = sent + wake / 1e6 if wake >= 0 and ledger.line else NEVER


def _reads_asks(
    ledger: Ledger, asks: list[Ask], join: bool, released: Sequence[tuple[str, int]]
) -> Digest:
    def digest(reply: list[Any], sent: float) -> None:
        _gave_back(ledger, released)
        ledger.agreement.see(int(reply[3]))
        if ledger.agreement.unsettled:
            ledger.agreement.compare(reply[4:7])
        for ask, verdict, score in zip(asks, reply[7::2], reply[8::2], strict=True):
            if (number := int(verdict)) > 0:
                ask.score = ask.score or _text(score)
                ledger.granted(ask.id, number, sent)
            elif not ledger.wants(ask):
                pass  # a shortcut's: the engine heard more of it than this
            elif join:
                ask.score = _text(score)
                ledger.line[ask.id] = ask  # before it leaves the others: see `at_rest`
                ledger.fresh.pop(ask.id, None)
            else:
                ledger.tries.pop(ask.id, None)
                wait = int(reply[1])
                ledger.answer(ask, Wait(wait / 1e6 if wait >= 0 else math.inf))
        if ledger.line:
            ledger.beat_at = min(ledger.beat_at, sent + ledger.heartbeat)
        _digest_time(ledger, reply, sent)

    return digest


def _reads_enforcing(ledger: Ledger, terms: Terms) -> Digest:
    def digest(reply: list[Any], sent: float) -> None:
        ledger.agreement.enforced(terms)
        _digest_time(ledger, reply, sent)

    return digest


def _reads_renewal(ledger: Ledger, leases: list[Lease]) -> Digest:
    def digest(reply: list[Any], sent: float) -> None:
        deadline = ledger.deadline(sent)
        # One that has been lost by our own clock stays lost, whatever the server says.
        ledger.agreement.see(int(reply[3]))
        for lease, held in zip(leases, reply[4:], strict=True):
            if int(held) and ledger.engine.clock() < lease.deadline:
                lease.deadline = deadline
            elif lease.id in ledger.leases:
                ledger.lose(lease)
        _digest_time(ledger, reply, sent)

    return digest


def _gave_back(ledger: Ledger, released: Sequence[tuple[str, int]]) -> None:
    for id, _ in released:
        ledger.releases.pop(id, None)
        ledger.direct.given.pop(id, None)


def _reads_release(ledger: Ledger, released: list[tuple[str, int]]) -> Digest:
    def digest(reply: list[Any], sent: float) -> None:
        _gave_back(ledger, released)
        _digest_time(ledger, reply, sent)

    return digest


def _reads_cancel(ledger: Ledger, ids: list[str]) -> Digest:
    def digest(reply: list[Any], sent: float) -> None:
        limit, in_flight, holders = reply[3].decode() or "any", int(reply[4]), reply[5].decode()
        for id, place in zip(ids, reply[7:], strict=True):
            ledger.cancels.pop(id, None)
            if (ask := ledger.timeouts.pop(id, None)) is not None:
                waited = ledger.engine.clock() - ask.began
                ledger.answer(
                    ask,
                    LimitTimeout(
                        ledger.name, waited=waited, limit=limit, in_flight=in_flight,
                        place=int(place), holders=sorted(set(holders.split())),
                        paused=bool(int(reply[6])),
                    ),
                )  # fmt: skip
        _digest_time(ledger, reply, sent)

    return digest


def _reads_call(ledger: Ledger, call: Call) -> Digest:
    def digest(reply: list[Any], sent: float) -> None:
        if call in ledger.calls:  # else it was answered meanwhile
            ledger.calls.remove(call)
            ledger.outcomes.append((call.answer, reply))
        if call.lease is None:
            _digest_time(ledger, reply, sent)
        else:
            _reads_renewal(ledger, [call.lease])(reply, sent)

    return digest


def _text(score: bytes | int) -> str:
    return score.decode() if isinstance(score, bytes) else str(score)


def _chunks(items: list[_T]) -> Iterator[list[_T]]:
    return (items[i : i + _CHUNK] for i in range(0, len(items), _CHUNK))
