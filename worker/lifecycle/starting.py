"""How a sandbox is started: permit, record, creation, readiness; retried if that may help.

At most `limit` sandboxes of the fleet are starting at any moment. A permit is taken, then
entrusted to the record, and freed when the sandbox is ready or confirmed dead, even if this
process dies. The budget runs only while a permit is held: queueing costs nothing of it.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic

from redis.exceptions import RedisError

from ground import tracing
from ground.backoff import backoff
from ground.process import aside
from ground.tasks import cancellations, heed_cancellation
from limiter import GateError, Permit, Report, StartingGate
from worker.lifecycle.box import Box, Phase, held, new_name
from worker.lifecycle.errors import SandboxLost, StartFailed, StartRefused
from worker.lifecycle.provider import Kind, Provider, SandboxRef, SandboxSpec, Verdict
from worker.lifecycle.registry.keeper import Keeper
from worker.lifecycle.registry.records import StartingPermit
from worker.lifecycle.registry.registry import Registry
from worker.lifecycle.settings import LifecycleSettings
from worker.lifecycle.teardown import Teardown


class AttemptFailed(Exception):
    """An attempt failed; `problem` is why."""

    def __init__(self, problem: BaseException) -> None:
        super().__init__(str(problem))
        self.problem = problem


class Attempts:
    """Makes the attempts of one lifecycle, and ends their sandboxes."""

    def __init__(
        self,
        provider: Provider,
        registry: Registry,
        keeper: Keeper,
        gates: Sequence[StartingGate],
        settings: LifecycleSettings,
        dispose: Teardown,
    ) -> None:
        self.provider = provider
        self._registry = registry
        self._keeper = keeper
        self._gates = gates
        self._settings = settings
        self._dispose = dispose
        self._endings: set[asyncio.Future[bool]] = set()

    async def carry_out(
        self, permits: list[Permit], spec: SandboxSpec, instance: str, left: float
    ) -> Box:
        """A sandbox that is ready. Raises `AttemptFailed` once what it made is ended, or the
        budget spent. A sandbox that is not returned is ended in any case."""
        loop, before = asyncio.get_running_loop(), cancellations()
        began, seconds = loop.time(), self._settings.attempt(left)
        box = self._new_box(permits, seconds, spec.name)
        try:
            lives_for = seconds + self._settings.ttl(spec.ttl) + self._settings.sandbox_grace
            await self._recorded(box, permits, instance, lives_for)
            await self._brought_up_within(seconds, box, spec)
        except (Exception, asyncio.CancelledError) as failure:
            box.report = self._report_of(failure)
            ending = self.let_go(box)
            heed_cancellation(before)  # nobody waits for the attempt: it ends in the background
            await asyncio.wait([ending], timeout=max(0.0, left - (loop.time() - began)))
            raise AttemptFailed(failure) from failure
        return box

    def _report_of(self, failure: BaseException) -> Report:
        if isinstance(failure, TimeoutError):
            return Report.OVERLOADED
        if isinstance(failure, (RedisError, GateError, SandboxLost, asyncio.CancelledError)):
            return Report.NOTHING
        verdict = self.provider.classify(failure)
        throttled = verdict.kind is Kind.THROTTLED
        return Report.throttled(verdict.retry_after) if throttled else Report.NOTHING

    def _new_box(self, permits: list[Permit], seconds: float, name: str) -> Box:
        now = asyncio.get_running_loop().time()
        return Box(
            name=name or new_name(),
            create_deadline=now + seconds,
            sure_until=now + self._keeper.lease,
            permits=tuple(
                StartingPermit(gate.name, permit.id, permit.fence)
                for gate, permit in zip(self._gates, permits, strict=True)
            ),
        )

    async def _recorded(
        self, box: Box, permits: list[Permit], instance: str, lives_for: float
    ) -> None:
        """Write the record, and entrust the permits to it."""
        writing = asyncio.ensure_future(self._record(box, permits, instance, lives_for))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await asyncio.wait([writing])  # without its fence the sandbox cannot be let go
            raise

    async def _record(
        self, box: Box, permits: list[Permit], instance: str, lives_for: float
    ) -> None:
        try:
            box.fence, box.fleet = await aside(
                lambda: self._registry.open(
                    box.name, self._keeper.owner, self._keeper.lease,
                    provider=self.provider.name, scope=self.provider.scope,
                    instance=instance, permits=box.permits, dies_after=lives_for,
                )
            )  # fmt: skip
            if not box.fence:
                raise SandboxLost(box.name, "a reaper took it over while its record was written")
            self._keeper.keep(box.name, box.fence, box.take)
            for permit in permits:
                await permit.entrust(lives_for)
        except (RedisError, OSError, GateError, SandboxLost):
            for permit in permits:
                permit.release()  # does nothing to one that is entrusted
            raise

    async def _brought_up_within(self, seconds: float, box: Box, spec: SandboxSpec) -> None:
        late = TimeoutError(f"not ready within {seconds:.3g} s")
        async with held(box):
            work = asyncio.create_task(self._bring_up(box, spec))
            try:
                in_time, _ = await asyncio.wait([work], timeout=seconds)
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

    async def _bring_up(self, box: Box, spec: SandboxSpec) -> None:
        provider, left = self.provider, self._clock_of(box)
        tags = {"penstock-fleet": box.fleet, "penstock-run": self._registry.run}
        if asyncio.get_running_loop().time() > box.sure_until:
            # A reaper may have looked for it by name already, and found nothing.
            raise SandboxLost(
                box.name,
                "this process was frozen for longer than its lease (PENSTOCK_SANDBOX_LEASE)",
            )
        box.phase = Phase.ASKED_FOR
        box.creating = asyncio.create_task(
            self._created(box, spec, tags, self._settings.ttl(spec.ttl))
        )
        # Shielded: a creation that is cancelled half-way leaves a sandbox without an id.
        box.ref = await asyncio.shield(box.creating)
        await self._advance(box, "STARTING")
        with tracing.span("ready"):
            await provider.wait_ready(box.ref, left())
            box.phase = Phase.OPEN
            box.ref = await provider.open_runtime(box.ref, left())
        await self._advance(box, "READY")
        box.report = Report.SUCCESS
        if await self._dispose.freed(box):
            await aside(lambda: self._registry.permit_freed(box.name))

    async def _created(
        self, box: Box, spec: SandboxSpec, tags: dict[str, str], ttl: float
    ) -> SandboxRef:
        try:
            with tracing.span("create"):
                return await self.provider.create(spec, name=box.name, tags=tags, ttl=ttl)
        except Exception as problem:
            verdict = self.provider.classify(problem)
            if verdict.nothing_made:
                box.phase = Phase.NOT_MADE
            if verdict.kind is Kind.EXISTS and (found := await self.provider.find(box.name)):
                return found  # made by an earlier try of this very request
            raise

    async def _advance(self, box: Box, state: str) -> None:
        ref = box.ref
        if not await aside(lambda: self._registry.advance(box.name, box.fence, state, ref)):
            raise SandboxLost(box.name, "a reaper or an operator took it over during its start")

    def _clock_of(self, box: Box) -> Callable[[], float]:
        loop = asyncio.get_running_loop()
        return lambda: max(0.0, box.create_deadline - loop.time())

    def let_go(self, box: Box) -> "asyncio.Future[bool]":
        """End a sandbox in the background, on the running loop; whether it is confirmed gone."""
        ending = asyncio.ensure_future(self._dispose(box))
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)
        return ending


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

    async def start(self, spec: SandboxSpec, instance: str, attempts: int | None = None) -> Box:
        """A sandbox that is ready. Raises `StartFailed`, `StartRefused` or a `GateError`."""
        with tracing.span(f"start sandbox {self._attempts.provider.name}") as span:
            box = await self._start(spec, instance, attempts)
            span.set("penstock.sandbox", box.name)
            return box

    async def _start(self, spec: SandboxSpec, instance: str, attempts: int | None) -> Box:
        budget = Budget(self._settings.init_wall_budget)
        # A name that is asked for is free again only once its first attempt is confirmed gone.
        most = 1 if spec.name else attempts or self._settings.start_attempts
        tickets = [""] * len(self._gates)
        made = 0
        while True:
            made += 1
            try:
                return await self._attempt(spec, instance, budget, tickets)
            except AttemptFailed as failed:
                wait = self._pause_after(failed, made, most, budget)
            with budget.spending(), tracing.span("backoff"):
                await asyncio.sleep(wait)

    def _pause_after(self, failed: AttemptFailed, made: int, most: int, budget: Budget) -> float:
        """Seconds until the next attempt; raises if there is none."""
        verdict = self._verdict(failed.problem)
        log.info("start %d of at most %d failed: %s", made, most, failed.problem)
        if verdict.kind is Kind.FATAL:
            raise StartRefused(
                self._attempts.provider.name, failed.problem, verdict.advice
            ) from failed.problem
        wait = max(verdict.retry_after, backoff(made, 1.0, self._settings.start_backoff))
        if made >= most or wait >= budget.left:
            raise StartFailed(
                self._attempts.provider.name, made, budget.spent, failed.problem
            ) from failed.problem
        return wait

    def _verdict(self, problem: BaseException) -> Verdict:
        known = TimeoutError | RedisError | GateError | SandboxLost | asyncio.CancelledError
        if isinstance(problem, known):
            return Verdict(Kind.RETRY)
        return self._attempts.provider.classify(problem)

    async def _attempt(
        self, spec: SandboxSpec, instance: str, budget: Budget, tickets: list[str]
    ) -> Box:
        with tracing.span("permit"):
            permits = await self._permits(tickets)
        with budget.spending(), tracing.span("attempt"):
            return await self._attempts.carry_out(permits, spec, instance, budget.left)

    async def _permits(self, tickets: list[str]) -> list[Permit]:
        """One of each gate, at the place in the queue that an earlier attempt had."""
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
