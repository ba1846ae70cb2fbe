"""How a sandbox is started: permit, record, creation, readiness; retried if that may help.

At most `limit` sandboxes of the fleet are starting at any moment. A permit is taken, then entrusted
to the record. It is freed when the sandbox is ready or confirmed dead, even if this process dies.
The budget runs only while a permit is held: queueing costs nothing of it.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

from redis.exceptions import RedisError

from ground import tracing
from ground.backoff import backoff
from ground.tasks import cancellations, heed_cancellation
from limiter import GateError, Permit
from worker.lifecycle.box import Box, Phase, held
from worker.lifecycle.errors import SandboxLost, SessionEnded, StartFailed, StartRefused
from worker.lifecycle.keeper import Keeper
from worker.lifecycle.provider import Kind, SandboxRef, SandboxSpec, Verdict

log = logging.getLogger("penstock.worker")


class Start:
    """A start runs on the process's loop; its caller may stop waiting at any moment."""

    def __init__(
        self, keeper: Keeper, spec: SandboxSpec, instance: str = "", attempts: int | None = None,
        opening: str = "",
    ) -> None:  # fmt: skip
        settings = keeper.settings
        self._keeper, self._settings = keeper, settings
        self._spec, self._instance, self._opening = spec, instance, opening
        # A name that is asked for is free again only once its first attempt is confirmed gone.
        self._most = 1 if spec.name else attempts or settings.start_attempts
        self._left = settings.init_wall_budget
        self._tickets = [""] * len(keeper.gates)
        self._task: asyncio.Task[Any] | None = None
        self._box: Box | None = None
        self._abandoned = False

    async def run(self) -> Box:
        """A sandbox that is ready. Raises `StartFailed`, `StartRefused` or a `GateError`."""
        self._task = asyncio.current_task()
        if self._abandoned:
            raise asyncio.CancelledError
        with tracing.span(f"start sandbox {self._keeper.provider.name}") as span:
            self._box = await self._ready_box()
            span.set("penstock.sandbox", self._box.name)
        if self._abandoned:
            self._keeper.let_go(self._box)
        return self._box

    def abandon(self) -> None:
        """Nobody waits for it any more. Called on the loop."""
        self._abandoned = True
        if self._box is not None:
            self._keeper.let_go(self._box)
        elif self._task is not None:
            self._task.cancel()

    async def _ready_box(self) -> Box:
        before, made = cancellations(), 0
        while True:
            made += 1
            with tracing.span("permit"):
                permits = await self._keeper.permits(self._tickets)
            try:
                with self._spending(), tracing.span("attempt"):
                    return await self._attempt(permits)
            except (Exception, asyncio.CancelledError) as failure:  # noqa: BLE001 - it is classified
                heed_cancellation(before)
                wait = self._pause_after(failure, made)
            with self._spending(), tracing.span("backoff"):
                await asyncio.sleep(wait)

    @contextmanager
    def _spending(self) -> Iterator[None]:
        """The budget is spent while the start holds a permit, or pauses after having held one."""
        began = monotonic()
        try:
            yield
        finally:
            self._left -= monotonic() - began

    def _pause_after(self, failure: BaseException, made: int) -> float:
        """Seconds until the next attempt; raises if there is none."""
        if isinstance(failure, SessionEnded):
            raise failure
        verdict, name = self._verdict(failure), self._keeper.provider.name
        log.info("start %d of at most %d failed: %s", made, self._most, failure)
        if verdict.kind is Kind.FATAL:
            raise StartRefused(name, failure, verdict.advice) from failure
        wait = max(verdict.retry_after, backoff(made, 1.0, self._settings.start_backoff))
        if made >= self._most or wait >= self._left:
            spent = self._settings.init_wall_budget - self._left
            raise StartFailed(name, made, spent, failure) from failure
        return wait

    def _verdict(self, failure: BaseException) -> Verdict:
        known = TimeoutError | RedisError | GateError | SandboxLost | asyncio.CancelledError
        if isinstance(failure, known):
            return Verdict(Kind.RETRY)
        return self._keeper.provider.classify(failure)

    async def _attempt(self, permits: list[Permit]) -> Box:
        """A sandbox that is not returned is ended in any case."""
        seconds = self._settings.attempt(self._left)
        async with self._keeper.recorded(
            permits, name=self._spec.name, instance=self._instance, seconds=seconds,
            ttl=self._spec.ttl, patience=self._left, opening=self._opening,
        ) as box, held(box):  # fmt: skip
            await self._brought_up_within(seconds, box)
        return box

    async def _brought_up_within(self, seconds: float, box: Box) -> None:
        late = TimeoutError(f"not ready within {seconds:.3g} s")
        work = asyncio.create_task(self._bring_up(box))
        try:
            in_time, _ = await asyncio.wait([work], timeout=box.left())
        finally:
            if not work.done():  # a provider may take its time over a cancellation
                work.cancel()
                await asyncio.wait([work], timeout=self._settings.teardown_timeout)
        box.check()
        if not in_time:
            raise late
        if work.cancelled():
            raise asyncio.CancelledError("it was cancelled from inside")  # by the provider
        try:
            work.result()
        except TimeoutError as problem:
            raise problem if str(problem) else late from None

    async def _bring_up(self, box: Box) -> None:
        provider = self._keeper.provider
        box.is_asked_for()
        box.creating = asyncio.create_task(self._created(box))
        # Shielded: a creation that is cancelled half-way leaves a sandbox without an id.
        box.ref = await asyncio.shield(box.creating)
        await self._keeper.advance(box, "STARTING")
        with tracing.span("ready"):
            await provider.wait_ready(box.ref, box.left())
            box.phase = Phase.OPEN
            box.ref = await provider.open_runtime(box.ref, box.left())

    async def _created(self, box: Box) -> SandboxRef:
        provider, ttl = self._keeper.provider, self._settings.ttl(self._spec.ttl)
        try:
            with tracing.span("create"):
                return await provider.create(self._spec, name=box.name, tags=box.tags, ttl=ttl)
        except Exception as problem:
            if self._keeper.refused(box, problem) and (found := await provider.find(box.name)):
                return found  # made by an earlier try of this very request
            raise
