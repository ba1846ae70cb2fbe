"""A keeper answers for a lifecycle's sandboxes in this process: for their records, leases and
permits, and for their end.

A sandbox that nobody in this process answers for any more is not kept: its lease ends,
and the reaper takes it. A process that dies keeps nothing, and so leaks nothing. Leases are
renewed off everybody's event loop. A failed step does not stop an end:

    close the runtime; terminate, and once more if that fails; else leave it to the reaper

It never raises and never forgets: what is not confirmed gone stays in the registry, and
its STARTING permits with it.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from redis.exceptions import RedisError

from ground import PenstockError
from ground.complaint import Complaint
from ground.keys import new_owner
from ground.process import aside, in_forked_child, process_loop
from ground.tasks import cancellations, heed_cancellation
from limiter import GateError, Permit, Report, StartingGate
from worker.lifecycle.box import Box, Phase, new_name
from worker.lifecycle.errors import SandboxLost, shown
from worker.lifecycle.provider import Kind, Provider, SandboxRef
from worker.lifecycle.registry.records import StartingPermit
from worker.lifecycle.registry.registry import Registry
from worker.lifecycle.settings import LifecycleSettings
from worker.lifecycle.teardown import Guarded, guarded, terminated

log = logging.getLogger("penstock.worker")


@dataclass
class _Kept:
    fence: str
    boxes: list[Box]


class Keeper:
    """A keeper beats every third of a lease while there is something to keep."""

    def __init__(
        self,
        provider: Provider,
        registry: Registry,
        gates: Sequence[StartingGate],
        settings: LifecycleSettings,
    ) -> None:
        self.provider = provider
        self.registry = registry
        self.gates = gates
        self.settings = settings
        self.lease = settings.sandbox_lease
        self._endings: set[asyncio.Future[bool]] = set()
        self._forget_parent()
        in_forked_child(self._forget_parent)

    def _forget_parent(self) -> None:
        """Begin as another owner, in a forked child: it keeps nothing of its parent's."""
        self._kept: dict[str, _Kept] = {}
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None
        self.owner = new_owner()

    # How one begins.

    async def permits(self, tickets: list[str] | None = None) -> list[Permit]:
        """A permit of each gate, at the place in the queue that an earlier attempt had. `tickets`
        are its places, and become this one's."""
        places = [""] * len(self.gates) if tickets is None else tickets
        permits: list[Permit] = []
        try:
            for number, gate in enumerate(self.gates):
                permit = await gate.acquire(
                    timeout=self.settings.starting_timeout, ticket=places[number]
                )
                permits.append(permit)
                places[number] = permit.ticket
        except BaseException:
            for permit in permits:
                permit.release()
            raise
        return permits

    @asynccontextmanager
    async def recorded(
        self, permits: Sequence[Permit], *, name: str, instance: str, seconds: float,
        ttl: float | None, patience: float, opening: str = "",
    ) -> AsyncIterator[Box]:  # fmt: skip
        """Record the making of a sandbox, which takes at most so many seconds. The body sets the
        box's `ref`. The record is written before it, and gets the permits.

        After the body the sandbox is ready, and its permits are free. If the body fails, what it
        has made is ended: the failure goes on once that is done, or after `patience` seconds, or
        at once if the caller was cancelled.
        """
        began, before = time.monotonic(), cancellations()
        box = Box(
            name=name or new_name(),
            create_deadline=began + seconds,
            sure_until=began + self.lease,
            permits=tuple(
                StartingPermit(gate.name, permit.id, permit.fence)
                for gate, permit in zip(self.gates, permits, strict=True)
            ),
        )
        try:
            lives_for = seconds + self.settings.ttl(ttl) + self.settings.sandbox_grace
            writing = asyncio.ensure_future(
                self._record(box, permits, instance, opening, lives_for)
            )
            try:
                await asyncio.shield(writing)
            except asyncio.CancelledError:
                while not writing.done():  # without its fence the sandbox cannot be let go
                    with contextlib.suppress(asyncio.CancelledError):
                        await asyncio.wait([writing])
                raise
            yield box
            await self.advance(box, "READY")
            box.report = Report.SUCCESS
            if await self._freed(box):
                await aside(lambda: self.registry.permit_freed(box.name))
        except (Exception, asyncio.CancelledError) as failure:
            box.report = self._report_of(failure)
            ending = self.let_go(box)
            heed_cancellation(before)  # nobody waits for it: it ends in the background
            spent = time.monotonic() - began
            await asyncio.wait([ending], timeout=max(0.0, patience - spent))
            raise

    async def _record(
        self, box: Box, permits: Sequence[Permit], instance: str, opening: str, lives_for: float
    ) -> None:
        """Write the record, and entrust the permits to it."""
        try:
            box.fence, fleet = await aside(
                lambda: self.registry.open(
                    box.name, self.owner, self.lease,
                    provider=self.provider.name, scope=self.provider.scope,
                    instance=instance, opening=opening, permits=box.permits, dies_after=lives_for,
                )
            )  # fmt: skip
            if not box.fence:
                raise SandboxLost(box.name, "a reaper took it over while its record was written")
            box.tags = {"penstock-fleet": fleet, "penstock-run": self.registry.run}
            self.keep(box)
            for permit in permits:
                await permit.entrust(lives_for)
        except (RedisError, OSError, GateError, SandboxLost):
            for permit in permits:
                permit.release()  # does nothing to one that is entrusted
            raise

    async def advance(self, box: Box, state: str) -> None:
        """Note in its record how far its start has come. Raises `SandboxLost`, and `SessionEnded`
        if it was started for a session that was ended meanwhile."""
        ref = box.ref
        if not await aside(lambda: self.registry.advance(box.name, box.fence, state, ref)):
            raise SandboxLost(box.name, "a reaper or an operator took it over during its start")

    def refused(self, box: Box, problem: Exception) -> bool:
        """Note if the provider has made nothing. Whether something of that name was there."""
        verdict = self.provider.classify(problem)
        if verdict.nothing_made:
            box.phase = Phase.NOT_MADE
        return verdict.kind is Kind.EXISTS

    async def failed(self, box: Box, problem: Exception) -> None:
        """A block of the caller's own has failed. What it raised may be of a step behind the
        creation, so the provider is asked whether there is a sandbox."""
        before = box.phase
        if self.refused(box, problem):
            box.phase = Phase.NOT_MADE
        elif box.phase is Phase.NOT_MADE:
            box.phase = before
            found = await guarded(self.provider.find(box.name), self.settings.teardown_timeout)
            if found.ok and found.result is None:
                box.phase = Phase.NOT_MADE

    def _report_of(self, failure: BaseException) -> Report:
        if isinstance(failure, TimeoutError):
            return Report.OVERLOADED
        if isinstance(failure, (RedisError, GateError, SandboxLost, asyncio.CancelledError)):
            return Report.NOTHING
        verdict = self.provider.classify(failure)
        throttled = verdict.kind is Kind.THROTTLED
        return Report.throttled(verdict.retry_after) if throttled else Report.NOTHING

    # How it is kept.

    def keep(self, box: Box) -> None:
        """Renew its lease from now on, until everybody who asked for that has dropped it."""
        with self._guard:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="penstock-sandboxes", daemon=True)
                thread.start()  # it waits for the guard; there may be no room for it
                self._thread = thread
            kept = self._kept.setdefault(box.name, _Kept(box.fence, []))
            kept.fence = box.fence
            kept.boxes.append(box)

    def drop(self, box: Box) -> None:
        """Answer for a sandbox no longer: the reverse of `keep`. Harmless when it was lost or
        dropped before."""
        with self._guard:
            kept = self._kept.get(box.name)
            if kept is not None and box in kept.boxes:
                kept.boxes.remove(box)
                if not kept.boxes:
                    del self._kept[box.name]

    def _run(self) -> None:
        pause = self.lease / 3
        complaint = Complaint(log, "the leases of this process's sandboxes were not renewed")
        while True:
            time.sleep(pause)
            pause = self.lease / 3
            with self._guard:
                if not self._kept:
                    self._thread = None
                    return
                rows = [(name, kept.fence, self.lease) for name, kept in self._kept.items()]
            try:
                self._digest(rows, self.registry.renew(rows))
                complaint.over()
            except (RedisError, OSError) as failure:
                # Late renewals count: no reaper acts in its first lease after an outage. After
                # one too short for that, what was missed is made good at once.
                pause = min(1.0, self.lease / 12)
                complaint.of(failure)
            except Exception:  # no other thread takes over: this one continues
                log.exception("the leases of this process's sandboxes were not renewed")

    def _digest(self, rows: list[tuple[str, str, float]], held: list[bool]) -> None:
        for (name, fence, _), is_held in zip(rows, held, strict=True):
            if is_held:
                continue
            with self._guard:
                kept = self._kept.get(name)
                if kept is None or kept.fence != fence:
                    continue
                del self._kept[name]
            log.warning("sandbox %s was taken over by a reaper, or killed", name)
            for box in kept.boxes:
                try:
                    box.take()
                except Exception:  # one's trouble keeps no other from hearing of it
                    log.exception(
                        "sandbox %s: a user of it could not be notified of its loss", name
                    )

    # How it ends.

    def let_go(self, box: Box) -> "asyncio.Future[bool]":
        """End it in the background, on the process's loop, as everything that a provider does. The
        result says whether it is confirmed gone; else the reaper has it."""
        ended = asyncio.run_coroutine_threadsafe(self._ended(box), process_loop())
        ending = asyncio.wrap_future(ended)
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)
        return ending

    async def _ended(self, box: Box) -> bool:
        try:
            return await self._torn_down(box)
        finally:
            self.drop(box)

    async def _torn_down(self, box: Box) -> bool:
        await self._noted(lambda: self.registry.advance(box.name, box.fence, "TERMINATING"))
        seconds = self.settings.teardown_timeout
        await box.answered()
        if box.ref is not None and box.phase is Phase.OPEN:
            closed = await guarded(self.provider.close_runtime(box.ref), seconds)
            if not closed.ok:
                log.info("sandbox %s: its runtime did not close: %s", box.name, closed.problem)
        ended = await self._terminated(box, seconds)
        if ended.ok:
            if await self._freed(box):
                # Before its record is given up: a heartbeat after that would take it for lost.
                self.drop(box)
                await self._noted(lambda: self.registry.forget(box.name, box.fence, "ended"))
            return True
        why = shown(ended.problem) if ended.problem else ""
        log.warning("sandbox %s is left to the reaper: %s", box.name, why)
        missing = box.ref is None
        self.drop(box)
        await self._noted(
            lambda: self.registry.condemn(
                box.name, box.fence, why,
                wait=min(1.0, self.settings.sandbox_grace) if missing else 0.0,
                gone_after=self.settings.sandbox_grace if missing else None,
            )
        )  # fmt: skip
        return False

    async def _terminated(self, box: Box, seconds: float) -> Guarded:
        if box.phase is Phase.NOT_MADE:
            return Guarded()
        if box.ref is None:
            found = await guarded(self.provider.find(box.name), seconds)
            if not found.ok:
                return found
            if found.result is None:
                return Guarded(
                    problem=LookupError("its creation failed, and it was not found so far")
                )
            box.ref = found.result
        return await terminated(self.provider, box.ref.id, seconds)

    async def _freed(self, box: Box) -> bool:
        """Give the record's STARTING permits back to their gates. If that fails, its record keeps
        them."""
        try:
            for permit in box.permits:
                await self._gate(permit.gate).free(permit.id, permit.fence, box.report)
        except PenstockError as failure:
            log.warning("sandbox %s: could not release its starting permits: %s", box.name, failure)
            return False
        box.permits = ()
        return True

    def _gate(self, name: str) -> StartingGate:
        for gate in self.gates:
            if gate.name == name:
                return gate
        raise GateError(f"gate {name!r} is not one of this lifecycle's")

    async def _noted(self, note: Callable[[], bool]) -> None:
        try:
            await aside(note)
        except (RedisError, OSError) as failure:
            # The lease ends by itself, and the reaper finds the record as it is.
            log.warning("a teardown could not be recorded in Redis: %s", failure)

    # What lives at the provider, whichever process opened it.

    async def found_again(self, name: str, seconds: float) -> Box | None:
        """A sandbox that has so many seconds left, if no other process starts or ends it. One whose
        record was lost with Redis's data gets a new record."""
        if record := await aside(lambda: self.registry.record(name)):
            usable = record.state == "READY" and record.scope == self.provider.scope
            return Box(name, record.fence, ref=record.ref, phase=Phase.OPEN) if usable else None
        ref: SandboxRef | None = await self.provider.find(name)
        if ref is None:  # it has ended meanwhile
            return None
        # As ready from the first: whoever is stopped here, the next finds a sandbox that lives.
        fence, _ = await aside(
            lambda: self.registry.open(
                name, self.owner, self.lease, provider=self.provider.name,
                scope=self.provider.scope, instance="", permits=(),
                dies_after=seconds + self.settings.sandbox_grace, ref=ref,
            )
        )  # fmt: skip
        ready = await aside(lambda: self.registry.advance(name, fence, "READY", ref))
        return Box(name, fence, ref=ref, phase=Phase.OPEN) if ready else None
