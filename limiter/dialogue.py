"""What a process and one gate say to each other: commands written, replies and letters read.

Whatever got no reply stays in the ledger and is written again, which every script allows.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from limiter.commands import Command
from limiter.errors import LimitTimeout
from limiter.ledger import Ledger
from limiter.permit import Lease, Wait
from limiter.terms import Terms
from limiter.wishes import NEVER, Ask, Call

_CHUNK = 500  # requests in one script call: keeps a call below a millisecond or two
_T = TypeVar("_T")
Digest = Callable[[list[Any]], None]
Turn = tuple[Command, Digest]


def exchange(ledger: Ledger, now: float) -> list[Turn]:
    """Every command to send now, each with what reads its reply."""
    if not (ledger.line or ledger.leases):
        ledger.beat_at = NEVER
    beating = ledger.beat_at <= now
    turns: list[Turn] = []
    if beating or ledger.agreement.unsettled:
        turns += _introduction(ledger)
    released = list(ledger.releases.items())
    together = 0 < len(released) <= _CHUNK and 0 < len(ledger.fresh) <= _CHUNK
    if released and not together:
        turns += (_release(ledger, chunk) for chunk in _chunks(released))
    if ledger.timeouts or ledger.cancels:
        turns += _cancellations(ledger)
    if beating:
        turns += _heartbeat(ledger)
    if ledger.fresh:
        riding = released if together else ()
        for chunk in _chunks(list(ledger.fresh.values())):
            turns.append(_acquire(ledger, chunk, join=True, released=riding))
    if ledger.tries:
        for chunk in _chunks(list(ledger.tries.values())):
            turns.append(_acquire(ledger, chunk, join=False))
    turns += ((call.command, _reads_call(ledger, call)) for call in ledger.calls)
    if not turns and ledger.look_at <= now:
        turns.append((ledger.commands.sweep(), lambda reply: _digest_time(ledger, reply)))
    return turns


def exchanged(ledger: Ledger, now: float) -> None:
    """All of it was answered: a heartbeat that was due has been made."""
    if now >= ledger.give_back_at:
        ledger.refused_since = None
    if ledger.beat_at <= now:
        ledger.beat_at = now + ledger.heartbeat if ledger.line or ledger.leases else NEVER


def _introduction(ledger: Ledger) -> Iterator[Turn]:
    """The gate is in use, and on these terms; said at first contact and with heartbeats."""
    for terms in ledger.agreement.to_enforce():
        whole = dict(zip(("limit", "rate", "burst"), terms.args(), strict=True))
        yield ledger.commands.configure(whole), _reads_enforcing(ledger, terms)
    yield ledger.commands.enlist(), lambda reply: None


def _release(ledger: Ledger, released: list[tuple[str, int]]) -> Turn:
    return ledger.commands.release(released), _reads_release(ledger, released)


def _cancellations(ledger: Ledger) -> Iterator[Turn]:
    for counter, cancelled in (("timeouts", ledger.timeouts), ("cancelled", ledger.cancels)):
        for ids in _chunks(list(cancelled)):
            yield ledger.commands.cancel(counter, ids), _reads_cancel(ledger, ids)


def _heartbeat(ledger: Ledger) -> Iterator[Turn]:
    """Renew what we hold, and ask again for what we wait for: it may have been forgotten."""
    ledger.notice_losses(ledger.engine.clock())
    for leases in _chunks(list(ledger.leases.values())):
        permits = [(lease.id, lease.fence, lease.term_us) for lease in leases]
        yield ledger.commands.renew(permits, ledger.term_us), _reads_renewal(ledger, leases)
    for asks in _chunks(list(ledger.line.values())):
        yield _acquire(ledger, asks, join=True)


def _acquire(
    ledger: Ledger, asks: list[Ask], *, join: bool, released: Sequence[tuple[str, int]] = ()
) -> Turn:
    term = ledger.term_us
    rows = [(ask.id, ask.lane, ask.score, term + ask.hold_us, ask.sent) for ask in asks]
    for ask in asks:
        ask.sent = 1
    command = ledger.commands.acquire(rows, term, join=join, released=released)
    return command, _reads_asks(ledger, asks, join, released)


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


def _digest_time(ledger: Ledger, reply: list[Any]) -> None:
    """Every reply begins with the server's time, when to look again, and grants of ours."""
    sent = ledger.engine.contact.sent_at
    # It read its clock after we sent: its time T is no earlier here than this says.
    ledger.server_ahead = int(reply[0]) / 1e6 - sent
    if reply[2]:
        _read_grants(ledger, reply[2], sent)
    wake = int(reply[1])
    ledger.look_at = sent + wake / 1e6 if wake >= 0 and ledger.line else NEVER


def _reads_asks(
    ledger: Ledger, asks: list[Ask], join: bool, released: Sequence[tuple[str, int]]
) -> Digest:
    def digest(reply: list[Any]) -> None:
        _gave_back(ledger, released)
        ledger.agreement.see(int(reply[3]))
        if ledger.agreement.unsettled:
            ledger.agreement.compare(reply[4:7])
        sent = ledger.engine.contact.sent_at
        for ask, verdict, score in zip(asks, reply[7::2], reply[8::2], strict=True):
            if (number := int(verdict)) > 0:
                ask.score = ask.score or _text(score)
                ledger.granted(ask.id, number, sent)
            elif join:
                ledger.fresh.pop(ask.id, None)
                ask.score = _text(score)
                ledger.line[ask.id] = ask
            else:
                ledger.tries.pop(ask.id, None)
                wait = int(reply[1])
                ledger.answer(ask, Wait(wait / 1e6 if wait >= 0 else math.inf))
        if ledger.line:
            ledger.beat_at = min(ledger.beat_at, sent + ledger.heartbeat)
        _digest_time(ledger, reply)

    return digest


def _reads_enforcing(ledger: Ledger, terms: Terms) -> Digest:
    def digest(reply: list[Any]) -> None:
        ledger.agreement.enforced(terms)
        _digest_time(ledger, reply)

    return digest


def _reads_renewal(ledger: Ledger, leases: list[Lease]) -> Digest:
    def digest(reply: list[Any]) -> None:
        deadline = ledger.deadline(ledger.engine.contact.sent_at)
        # One that has been lost by our own clock stays lost, whatever the server says.
        ledger.agreement.see(int(reply[3]))
        for lease, held in zip(leases, reply[4:], strict=True):
            if int(held) and ledger.engine.clock() < lease.deadline:
                lease.deadline = deadline
            elif lease.id in ledger.leases:
                ledger.lose(lease)
        _digest_time(ledger, reply)

    return digest


def _gave_back(ledger: Ledger, released: Sequence[tuple[str, int]]) -> None:
    for id, _ in released:
        ledger.releases.pop(id, None)


def _reads_release(ledger: Ledger, released: list[tuple[str, int]]) -> Digest:
    def digest(reply: list[Any]) -> None:
        _gave_back(ledger, released)
        _digest_time(ledger, reply)

    return digest


def _reads_cancel(ledger: Ledger, ids: list[str]) -> Digest:
    def digest(reply: list[Any]) -> None:
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
        _digest_time(ledger, reply)

    return digest


def _reads_call(ledger: Ledger, call: Call) -> Digest:
    def digest(reply: list[Any]) -> None:
        if call in ledger.calls:  # else it was answered meanwhile
            ledger.calls.remove(call)
            ledger.outcomes.append((call.answer, reply))
        if call.lease is None:
            _digest_time(ledger, reply)
        else:
            _reads_renewal(ledger, [call.lease])(reply)

    return digest


def _text(score: bytes | int) -> str:
    return score.decode() if isinstance(score, bytes) else str(score)


def _chunks(items: list[_T]) -> Iterator[list[_T]]:
    return (items[i : i + _CHUNK] for i in range(0, len(items), _CHUNK))
