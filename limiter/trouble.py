"""What becomes of a gate's ledger when Redis is silent or refuses, or the process ends."""

from functools import partial

from limiter.errors import GateError, GateUnavailable
from limiter.ledger import Ledger
from limiter.wishes import NEVER

_REFUSED_PAUSE = 1.0  # seconds until a release that Redis refused is tried again


def give_up(ledger: Ledger, now: float, down_since: float, where: str, why: object) -> None:
    """Redis does not answer: fail those whose patience is at its end, and note what is lost."""
    impatient = now >= down_since + ledger.patience
    error = partial(GateUnavailable, ledger.name, where, why)
    for ask in ledger.wanted():
        if impatient or ask.deadline <= now:
            ledger.forget(ask)
            ledger.cancels[ask.id] = None
            ledger.answer(ask, error())
    for ask in [*ledger.timeouts.values()]:
        ledger.cancels[ask.id] = None
        ledger.answer(ask, error())
    ledger.timeouts.clear()
    for call in [call for call in ledger.calls if impatient or call.deadline <= now]:
        ledger.calls.remove(call)
        ledger.outcomes.append((call.answer, error()))
    notice_losses(ledger, now)


def notice_losses(ledger: Ledger, now: float) -> None:
    for lease in [lease for lease in ledger.leases.values() if lease.deadline <= now]:
        ledger.lose(lease)


def refuse(ledger: Ledger, error: GateError) -> None:
    """Redis answers with an error that asking again would not mend."""
    for asks in (ledger.line, ledger.fresh, ledger.tries, ledger.timeouts):
        for ask in asks.values():
            ledger.answer(ask, error)
            ledger.cancels[ask.id] = None  # the server may have put it in line
        asks.clear()
    ledger.outcomes.extend((call.answer, error) for call in ledger.calls)
    ledger.calls.clear()
    ledger.look_at = NEVER
    _give_back_later(ledger)


def _give_back_later(ledger: Ledger) -> None:
    """What is to be given back stays due, at a slow pace, until leases end it anyway."""
    now = ledger.engine.clock()
    ledger.give_back_at = now + _REFUSED_PAUSE
    if ledger.refused_since is None:
        ledger.refused_since = now
    elif now >= ledger.refused_since + ledger.lease_seconds:
        ledger.releases.clear()
        ledger.cancels.clear()


def close(ledger: Ledger, error: GateError) -> None:
    """Give back everything, and tell those who wait."""
    ledger.take_over(NEVER)
    for ask in ledger.wanted():
        ledger.answer(ask, error)
        ledger.cancels[ask.id] = None
    ledger.line, ledger.fresh, ledger.tries = {}, {}, {}
    for lease in [*ledger.leases.values()]:
        ledger.release(lease)
    ledger.beat_at = ledger.look_at = NEVER
