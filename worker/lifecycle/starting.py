"""How a sandbox is started: permit, record, creation, readiness; again where that may help.

At most `limit` sandboxes of the fleet are starting at any moment. A permit is taken, then
entrusted to the record, and freed when the sandbox is ready or confirmed dead: whatever
becomes of this process. The budget counts while a permit is held, so that waiting in
line costs nothing of it.
"""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import monotonic

from redis.exceptions import RedisError

from limiter import GateError, Permit, StartingGate
from worker.lifecycle.attempt import AttemptFailed, Attempts
from worker.lifecycle.box import Box
from worker.lifecycle.errors import SandboxLost, StartFailed, StartRefused
from worker.lifecycle.provider import Kind, SandboxSpec, Verdict
from worker.lifecycle.settings import LifecycleSettings

log = logging.getLogger("penstock.worker")


class Budget:
    """Seconds for one start, spent while it holds a permit or pauses after having held one."""

    def __init__(self, seconds: float) -> None:
        self.seconds = self.left = seconds

    @property
    def spent(self) -> float:
        return self.seconds - self.left

    @contextmanager
    def spending(self) -> Iterator[None]:
        began = monotonic()
        try:
            yield
        finally:
            self.left -= monotonic() - began


class Starter:
    """Starts the sandboxes of one lifecycle."""

    def __init__(
        self, attempts: Attempts, gates: Sequence[StartingGate], settings: LifecycleSettings
    ) -> None:
        self._attempts = attempts
        self._gates = gates
        self._settings = settings
        self._loose: set[asyncio.Future[Box]] = set()

    async def start(self, spec: SandboxSpec, instance: str, attempts: int | None = None) -> Box:
        """A sandbox that is ready. Raises `StartFailed`, `StartRefused` or a `GateError`."""
        budget = Budget(self._settings.init_wall_budget)
        most = attempts or self._settings.start_attempts
        tickets = [""] * len(self._gates)
        made = 0
        while True:
            made += 1
            try:
                return await self._attempt(spec, instance, budget, tickets)
            except AttemptFailed as failed:
                wait = self._pause_after(failed, made, most, budget)
            with budget.spending():
                await asyncio.sleep(wait)

    def _pause_after(self, failed: AttemptFailed, made: int, most: int, budget: Budget) -> float:
        """Seconds until the next attempt; raises where there is none."""
        verdict = self._verdict(failed.problem)
        log.info("start %d of at most %d failed: %s", made, most, failed.problem)
        if verdict.kind is Kind.FATAL:
            raise StartRefused(
                self._attempts.provider.name, failed.problem, verdict.advice
            ) from failed.problem
        wait = max(verdict.retry_after, min(self._settings.start_backoff, 2.0 ** (made - 1)))
        if made >= most or wait >= budget.left:
            raise StartFailed(
                self._attempts.provider.name, made, budget.spent, failed.problem
            ) from failed.problem
        return wait

    def _verdict(self, problem: BaseException) -> Verdict:
        ours = TimeoutError | RedisError | GateError | SandboxLost | asyncio.CancelledError
        if isinstance(problem, ours):
            return Verdict(Kind.RETRY)
        return self._attempts.provider.classify(problem)

    async def _attempt(
        self, spec: SandboxSpec, instance: str, budget: Budget, tickets: list[str]
    ) -> Box:
        permits = await self._permits(tickets)
        with budget.spending():
            box = Box()
            attempt = asyncio.ensure_future(
                self._attempts.carry_out(box, permits, spec, instance, budget.left)
            )
            try:
                return await asyncio.shield(attempt)
            except asyncio.CancelledError:
                self._abandon(box, attempt)
                raise

    async def _permits(self, tickets: list[str]) -> list[Permit]:
        """One of each gate, at the place in line that an earlier attempt had."""
        permits: list[Permit] = []
        try:
            for number, gate in enumerate(self._gates):
                permit = await gate.acquire(
                    timeout=self._settings.starting_timeout, ticket=tickets[number]
                )
                permits.append(permit)
                tickets[number] = permit.ticket
        except BaseException:
            for permit in permits:
                permit.release()
            raise
        return permits

    def _abandon(self, box: Box, attempt: "asyncio.Future[Box]") -> None:
        """Nobody waits any more: the attempt goes on by itself, to the end of its sandbox."""
        box.abandoned = True
        if box.work is not None:
            box.work.cancel()
        self._loose.add(attempt)
        attempt.add_done_callback(self._end_of_abandoned)

    def _end_of_abandoned(self, attempt: "asyncio.Future[Box]") -> None:
        self._loose.discard(attempt)
        if not attempt.cancelled() and attempt.exception() is None:
            self._attempts.let_go(attempt.result())
