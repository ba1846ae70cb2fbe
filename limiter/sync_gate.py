"""A gate has this face for code that blocks its thread; what it does is `client.py`'s, as for
coroutines."""

from collections.abc import Callable, Mapping
from typing import Any

from ground.redis.answers import ThreadAnswer
from limiter.client import GateClient
from limiter.ledger import Ledger, ThreadAsk
from limiter.permit import Report, SyncPermit, Wait, receipt_of
from limiter.status import (
    Change,
    GateStatus,
    LeaseStatus,
    check_configured,
    read_revoked,
    read_status,
)
from limiter.terms import Adaptive, Cost, changes


class SyncGate:
    """A gate's methods for threads, as `gate.sync` has them: each blocks the calling thread."""

    def __init__(self, client: GateClient) -> None:
        self._client = client

    def acquire(
        self,
        *,
        timeout: float | None = None,
        lane: int = 0,
        ticket: str = "",
        orphan_hold: float | None = None,
        cost: Cost | None = None,
        share: str = "",
    ) -> SyncPermit:
        ask = self._client.new_ask(ThreadAsk, timeout, ticket, lane, orphan_hold, cost, share)
        permit: SyncPermit = self._granted(ask)
        return permit

    def try_acquire(self, *, cost: Cost | None = None, share: str = "") -> SyncPermit | Wait:
        ask = self._client.new_ask(ThreadAsk, cost=cost, share=share, joins=False)
        answer: SyncPermit | Wait = self._granted(ask)
        return answer

    def status(self) -> GateStatus:
        return read_status(self._client.name, self._called(lambda ledger: ledger.commands.status()))

    def configure(
        self,
        *,
        limit: int | Adaptive | None = None,
        rate: float | Adaptive | None = None,
        burst: int | None = None,
        min: float | None = None,
        max: float | None = None,
        adapt: bool | None = None,
        rates: Mapping[str, float] | None = None,
        bursts: Mapping[str, int] | None = None,
        passing: int | None = None,
        weights: Mapping[str, float | None] | None = None,
    ) -> None:
        change = Change(limit, rate, burst, min, max, adapt, rates, bursts, passing, weights)
        wanted = change.fields(self.status() if change.is_relative else None)
        check_configured(self._called(lambda ledger: ledger.commands.configure(wanted)))

    def pause(self) -> None:
        self._called(lambda ledger: ledger.commands.configure(changes(paused=True)))

    def resume(self) -> None:
        self._called(lambda ledger: ledger.commands.configure(changes(paused=False)))

    def free(self, permit: str, fence: int, report: Report = Report.NOTHING) -> None:
        receipt = receipt_of(fence, report)
        self._called(lambda ledger: ledger.commands.give_back(permit, receipt))

    def revoke(self, permit: str) -> LeaseStatus:
        reply = self._called(lambda ledger: ledger.commands.revoke(permit, ledger.engine.new_id()))
        return read_revoked(self._client.name, permit, reply)

    def _granted(self, ask: ThreadAsk) -> Any:
        client = self._client
        try:  # a signal's handler may raise at any line of this
            client.ask(ask)
            if not ask.wait(client.seconds_left(ask)):
                raise client.silent()
            outcome = ask.taken()
            return outcome if isinstance(outcome, Wait) else SyncPermit(outcome)
        except BaseException:
            client.abandon(ask)
            raise

    def _called(self, command: Callable[[Ledger], Any]) -> Any:
        answer = ThreadAnswer()
        self._client.call(command, answer)
        answer.wait(None)
        return answer.taken()
