"""The sandboxes of dead owners are ended here, and their permits given back, registry by registry.
lua/claim.lua decides who is dead.

It acts on a record only with the fence that claiming it gave. So two reapers cannot both be right,
nor a reaper and an owner that wakes up. A sandbox that could not be ended is tried again without a
limit, and is never forgotten.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from ground import PenstockError, SettingError
from ground.backoff import backoff
from ground.complaint import Complaint
from ground.process import aside
from limiter import existing_gate
from worker.lifecycle.errors import shown
from worker.lifecycle.provider import Provider, Providers, SandboxRef
from worker.lifecycle.registry.records import Claimed, Record, StartingPermit
from worker.lifecycle.registry.registry import Registry
from worker.lifecycle.settings import LifecycleSettings
from worker.lifecycle.teardown import Guarded, guarded, terminated

log = logging.getLogger("penstock.worker")

MOST = 64  # records claimed at once
_LONGEST_PAUSE = 60.0
_BATCH_LEASE = 4  # teardown steps that a claim must last for


class NotYet(LookupError):
    """A sandbox that is not found, but may still come of its creation for this many seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"not found, and it may turn up for {seconds:.3g} s more")
        self.seconds = seconds


class OutOfReach(LookupError):
    """A sandbox that only others can end, or say anything of."""

    def __init__(self, scope: str) -> None:
        super().__init__(f"it is reached from {scope} alone; there a reaper ends it")


@dataclass
class Reaped:
    """The result of one look."""

    elected: bool = False
    ended: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    strays: list[str] = field(default_factory=list)
    young: list[str] = field(default_factory=list)
    due: float | None = None

    def __bool__(self) -> bool:
        return bool(self.ended or self.failed or self.strays)

    def is_due(self, seconds: float | None) -> None:
        """There is something to do by then at the latest."""
        if seconds is not None:
            self.due = seconds if self.due is None else min(self.due, seconds)


class Reaping:
    """The reaping of one registry, by one reaper."""

    def __init__(
        self, reaper: str, registry: Registry, providers: Providers, settings: LifecycleSettings
    ) -> None:
        self._reaper = reaper
        self._registry = registry
        self._providers = providers
        self._settings = settings

    async def due(
        self, reaped: Reaped, scope: str, *, in_office: float | None = None,
        names: Sequence[str] = (),
    ) -> Claimed:  # fmt: skip
        """Claim what is due in a scope, or of the sandboxes of these names, and end it."""
        settings = self._settings
        claimed = await aside(
            lambda: self._registry.claim(
                self._reaper, _BATCH_LEASE * settings.teardown_timeout, MOST,
                settings.sandbox_grace, scope=scope, in_office=in_office, names=names,
            )
        )  # fmt: skip
        await asyncio.gather(
            *(self._reap(record, claimed.now, reaped) for record in claimed.records)
        )
        return claimed

    async def all_due(self, reaped: Reaped, scope: str) -> None:
        """End all that is due, however many. Needs no office: each is claimed by its fence."""
        tried = set[str]()
        while True:
            claimed = await self.due(reaped, scope)
            names = {record.name for record in claimed.records}
            if len(names) < MOST or names & tried:
                return
            tried |= names

    async def free_permits(self) -> None:
        """Free STARTING permits whose sandbox is ready, has no record any more, or is nobody's and
        would have started by now: what can only be ended elsewhere keeps nobody waiting."""
        longest = self._settings.longest_start + self._settings.sandbox_grace
        for name, permits in (await aside(self._registry.permits)).items():
            found = await aside(partial(self._registry.starting, name, longest))
            if found == "held" or not await self._freed(permits):
                continue
            await aside(partial(self._registry.permit_freed, name))
            if found == "abandoned":
                log.info(
                    "reaper: sandbox %s has not started within %.3g s, and its owner is dead: its"
                    " STARTING permits are free; its record stays until it is ended", name, longest,
                )  # fmt: skip

    async def _reap(self, record: Record, now: float, reaped: Reaped) -> None:
        registry = self._registry
        ended = await self._ended(record, now)
        why = shown(ended.problem) if ended.problem else ""
        if not ended.ok and 0 < record.dies_at < now:
            log.warning("reaper: sandbox %s is past its time to live at the provider; its record"
                        " is removed: %s", record.name, why)  # fmt: skip
        elif not ended.ok:
            reaped.failed[record.name] = why
            log.warning("reaper: sandbox %s still exists; trying again: %s", record.name, why)
            pause = backoff(record.tries + 1, 0.5, _LONGEST_PAUSE)
            if isinstance(ended.problem, NotYet):
                pause = min(pause, ended.problem.seconds)
            await aside(lambda: registry.condemn(record.name, record.fence, why, wait=pause))
            return
        if record.permits and not await self._freed(record.permits):
            return  # the claim ends, and the next reaper gives them back
        await aside(lambda: registry.forget(record.name, record.fence, "ended"))
        reaped.failed.pop(record.name, None)  # of an earlier try
        reaped.ended.append(record.name)
        log.info("reaper: sandbox %s of %s has ended", record.name, record.provider or "nobody")

    async def _ended(self, record: Record, now: float) -> Guarded:
        if not record.provider:
            return Guarded()  # it was still in line for its permit
        try:
            provider = await self._providers.named(record.provider)
        except SettingError as missing:
            return Guarded(problem=missing)
        if record.scope not in ("", provider.scope):
            return Guarded(problem=OutOfReach(record.scope))  # and that it is not found, no proof
        seconds = self._settings.teardown_timeout
        if record.ref is not None:
            return await terminated(provider, record.ref.id, seconds)
        found = await guarded(provider.find(record.name), seconds)
        if not found.ok:
            return found
        if found.result is not None:
            return await terminated(provider, found.result.id, seconds)
        left = record.gone_after - now
        return Guarded(problem=NotYet(left) if left > 0 else None)

    async def _freed(self, permits: tuple[StartingPermit, ...]) -> bool:
        try:
            for permit in permits:
                gate = await asyncio.to_thread(existing_gate, self._registry.target, permit.gate)
                await gate.free(permit.id, permit.fence)
        except PenstockError as failure:
            log.warning("reaper: could not release the starting permits, trying again: %s", failure)
            return False
        return True


@dataclass
class Swept:
    """The end of the strays at one provider."""

    ended: list[str] = field(default_factory=list)
    young: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


class Strays:
    """The strays that one reaper has seen."""

    def __init__(self, settings: LifecycleSettings) -> None:
        self._settings = settings
        self._seen: dict[tuple[str, str, str], float] = {}  # by run, provider and id
        self._complaints: dict[tuple[str, str], Complaint] = {}  # of those that cannot list

    async def sweep(
        self, registry: Registry, provider: Provider, fleet: str, *, at_once: bool
    ) -> Swept:
        """`at_once`: also those that have not been seen for the grace time."""
        swept, name = Swept(), provider.name
        tags = {"penstock-fleet": fleet, "penstock-run": registry.run}
        listed = await guarded(_listed(provider, tags), self._settings.teardown_timeout)
        here = registry.run, name
        if not listed.ok:
            what = f"reaper: provider {name} could not list its sandboxes"
            self._complaints.setdefault(here, Complaint(log, what)).of(listed.problem)
            return swept
        if complaint := self._complaints.pop(here, None):
            complaint.over()
        # The listing has only this run's, and does not show another run's.
        seen = {ref.id for ref in listed.result}
        self._seen = {
            key: at for key, at in self._seen.items() if key[:2] != here or key[2] in seen
        }
        await asyncio.gather(
            *(self._look_at(registry, provider, ref, swept, at_once) for ref in listed.result)
        )
        return swept

    async def _look_at(
        self, registry: Registry, provider: Provider, ref: SandboxRef, swept: Swept, at_once: bool
    ) -> None:
        key = (registry.run, provider.name, ref.id)
        first = self._seen.setdefault(key, time.monotonic())
        young = time.monotonic() - first < self._settings.sandbox_grace
        if await aside(lambda: registry.state(ref.name)):
            return
        if young and not at_once:
            swept.young.append(ref.name)
            return
        ended = await terminated(provider, ref.id, self._settings.teardown_timeout)
        if not ended.ok:
            swept.failed[ref.name] = shown(ended.problem) if ended.problem else ""
            return
        swept.ended.append(ref.name)
        await aside(lambda: registry.count("strays"))
        log.warning("reaper: ended sandbox %s (%s), which no registry has", ref.name, ref.id)


async def _listed(provider: Provider, tags: dict[str, str]) -> list[SandboxRef]:
    return [ref async for ref in provider.list(tags)]
