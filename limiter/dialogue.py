"""What a process says to one gate: every command that is due, and what is to read its reply.

Whatever got no reply stays in the ledger and is written again, which every script allows.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from ground import chunks
from limiter import replies, trouble
from limiter.commands import Command
from limiter.ledger import Ledger
from limiter.wishes import NEVER, Ask

_CHUNK = 500  # requests in one script call: keeps a call below a millisecond or two


class Turn(NamedTuple):
    """A command, and what reads its reply."""

    command: Command
    digest: replies.Digest
    asks: Sequence[Ask] = ()
    released: Sequence[tuple[str, int]] = ()


def exchange(ledger: Ledger, now: float) -> list[Turn]:
    """Every command to send now, each with what reads its reply."""
    _hear_of_shortcuts(ledger, now)
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
    for chunk in chunks(list(ledger.tries.values()), _CHUNK):
        turns.append(_acquire(ledger, chunk, join=False))
    for call in ledger.calls:
        turns.append(Turn(call.command, partial(replies.read_call, ledger, call)))
    if not turns and ledger.look_at <= now:
        turns.append(Turn(ledger.commands.sweep(), partial(replies.read_time, ledger)))
    return turns


def _hear_of_shortcuts(ledger: Ledger, now: float) -> None:
    """Take over what event loops left to the engine, before anything is written."""
    if ledger.beat_at <= now:
        ledger.take_over(now)
    elif ledger.catch_up_at <= now:
        ledger.catch_up(now)
    if ledger.fresh or ledger.tries or ledger.calls:
        ledger.releases.update(ledger.direct.given)  # whoever asks now gave them back before


def give_and_take(ledger: Ledger, asks: list[Ask], released: list[tuple[str, int]]) -> list[Turn]:
    """Releases ride with the first acquire if it can hold them all, else go before it."""
    riding = released if asks and len(released) <= _CHUNK else []
    turns = [] if riding else [_release(ledger, permits) for permits in chunks(released, _CHUNK)]
    for chunk in chunks(asks, _CHUNK):
        turns.append(_acquire(ledger, chunk, join=True, released=riding))
        riding = []
    return turns


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
        yield Turn(ledger.commands.configure(whole), partial(replies.read_enforcing, ledger, terms))
    yield Turn(ledger.commands.enlist(), replies.ignore)


def _release(ledger: Ledger, released: list[tuple[str, int]]) -> Turn:
    digest = partial(replies.read_release, ledger, released)
    return Turn(ledger.commands.release(released), digest, released=released)


def _cancellations(ledger: Ledger) -> Iterator[Turn]:
    for counter, cancelled in (("timeouts", ledger.timeouts), ("cancelled", ledger.cancels)):
        for ids in chunks(list(cancelled), _CHUNK):
            command = ledger.commands.cancel(counter, ids)
            yield Turn(command, partial(replies.read_cancel, ledger, ids))


def _heartbeat(ledger: Ledger) -> Iterator[Turn]:
    """Renew what we hold, and ask again for what we wait for: it may have been forgotten."""
    trouble.notice_losses(ledger, ledger.engine.clock())
    kept = [lease for lease in ledger.leases.values() if not lease.handed_in]
    for leases in chunks(kept, _CHUNK):
        permits = [(lease.id, lease.fence, lease.term_us) for lease in leases]
        command = ledger.commands.renew(permits, ledger.term_us)
        yield Turn(command, partial(replies.read_renewal, ledger, leases))
    for asks in chunks(list(ledger.line.values()), _CHUNK):
        yield _acquire(ledger, asks, join=True)


def _acquire(
    ledger: Ledger, asks: list[Ask], *, join: bool, released: Sequence[tuple[str, int]] = ()
) -> Turn:
    term = ledger.term_us
    rows = [(ask.id, ask.lane, ask.score, term + ask.hold_us) for ask in asks]
    now = ledger.engine.clock()
    for ask in asks:
        ask.sent = ask.sent or now
    command = ledger.commands.acquire(rows, term, join=join, released=released)
    digest = partial(replies.read_asks, ledger, asks, join, released)
    return Turn(command, digest, asks, released)


def is_plain(ledger: Ledger, turn: Turn, reply: list[Any], sent: float) -> bool:
    """Whether a shortcut may read it: all asked is granted, and nobody else is concerned."""
    wake, grants = reply[1:3]
    if grants or (wake >= 0 and not ledger.at_rest):
        return False
    if not turn.asks:
        return True
    known = int(reply[3]) == ledger.agreement.made
    in_time = ledger.engine.clock() < sent + ledger.heartbeat
    return known and in_time and min(reply[7::2]) > 0


def take_over(ledger: Ledger, turn: Turn, sent: float, reply: list[Any] | None) -> None:
    """Go on with what a shortcut began."""
    for ask in turn.asks:
        if ledger.direct.asked.pop(ask.id, None) is not None:
            ledger.ask(ask, join=True)
    if reply is not None:
        look_at = ledger.look_at  # as the engine has heard, perhaps after this reply was written
        turn.digest(reply, sent)
        ledger.look_at = min(look_at, ledger.look_at)
        return
    for id, fence in turn.released:
        if ledger.direct.given.pop(id, None) is not None:
            ledger.releases[id] = fence
