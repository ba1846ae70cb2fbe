"""A gate's face for code that blocks its thread."""

from collections.abc import Callable
from typing import Any

from ground.redis.answers import ThreadAnswer
from limiter.client import GateClient
from limiter.ledger import Ask, Ledger
from limiter.permit import SyncPermit, Wait
from limiter.status import GateStatus, check_with, read_status
from limiter.terms import changes, check_terms


class SyncGate:
    """What `gate.sync` gives: every method as on `Gate`, but it blocks the calling thread."""

    def __init__(self, client: GateClient) -> None:
        self._client = client

    def acquire(
        self,
        *,
        timeout: float | None = None,
        lane: int = 0,
        ticket: str = "",
        orphan_hold: float | None = None,
    ) -> SyncPermit:
        ask = self._client.new_ask(ThreadAnswer(), timeout, lane, ticket, orphan_hold)
        permit: SyncPermit = self._granted(ask)
        return permit

    def try_acquire(self) -> SyncPermit | Wait:
        ask = self._client.new_ask(ThreadAnswer(), None, 0, join=False)
        answer: SyncPermit | Wait = self._granted(ask)
        return answer

    def status(self) -> GateStatus:
        return read_status(self._client.name, self._called(lambda ledger: ledger.commands.status()))

    def configure(
        self, *, limit: int | None = None, rate: float | None = None, burst: int | None = None
    ) -> None:
        check_terms(limit, rate, burst)
        if (rate is None) != (burst is None):
            check_with(self.status(), rate, burst)
        wanted = changes(limit=limit, rate=rate, burst=burst)
        self._called(lambda ledger: ledger.commands.configure(wanted))

    def pause(self) -> None:
        self._called(lambda ledger: ledger.commands.configure(changes(paused=True)))

    def resume(self) -> None:
        self._called(lambda ledger: ledger.commands.configure(changes(paused=False)))

    def free(self, permit: str, fence: int) -> None:
        self._called(lambda ledger: ledger.commands.release([(permit, fence)]))

    def _granted(self, ask: Ask) -> Any:
        client, answer = self._client, ask.answer
        assert isinstance(answer, ThreadAnswer)  # noqa: S101 - for the type checker
        try:  # a signal's handler may raise at any line of this
            client.ask(ask)
            if not answer.wait(client.patience(ask)):
                raise client.silent()
            outcome = answer.taken()
            return outcome if isinstance(outcome, Wait) else SyncPermit(outcome)
        except BaseException:
            client.abandon(ask)
            raise

    def _called(self, command: Callable[[Ledger], Any]) -> Any:
        answer = ThreadAnswer()
        self._client.call(command, answer)
        answer.wait(None)
        return answer.taken()
