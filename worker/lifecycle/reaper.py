"""Ends what nobody answers for any more: sandboxes whose owner's lease is over, and strays.

One process at a time reaps a registry, elected by lease. It acts on a record only with the
fence that claiming it gave, so that two reapers, or a reaper and an owner that wakes up,
cannot both be right. What could not be ended is tried again, for ever, and is never
forgotten.

    after a SIGKILL: live sandboxes return to 0 within
        lease (its end) + lease (a reaper newly elected waits) + interval + terminate
"""

import asyncio
import logging
import os
import socket
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from redis.exceptions import RedisError

from ground import AnyClient, PenstockError, RedisTarget, SettingError
from limiter import existing_gate
from worker.lifecycle.aside import aside
from worker.lifecycle.errors import shown
from worker.lifecycle.provider import Provider
from worker.lifecycle.providers import Providers, provider_named
from worker.lifecycle.records import Claimed, Record, StartingPermit
from worker.lifecycle.registry import Registry, described, runs
from worker.lifecycle.settings import LifecycleSettings
from worker.lifecycle.strays import Strays
from worker.lifecycle.teardown import Step, guarded, terminated

log = logging.getLogger("penstock.worker")

_MOST = 64  # records claimed at once
_LONGEST_PAUSE = 60.0
_BATCH_LEASE = 4  # teardown steps that a claim must last for


class NotYet(LookupError):
    """A sandbox that cannot be found, and that may be on its way for so many seconds more."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"not found, and it may turn up for {seconds:.3g} s more")
        self.seconds = seconds


@dataclass
class Reaped:
    """What one look did."""

    elected: bool = False
    ended: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    strays: list[str] = field(default_factory=list)
    young: list[str] = field(default_factory=list)
    due: float | None = None

    def __bool__(self) -> bool:
        return bool(self.ended or self.failed or self.strays)


class Reaper:
    """Reaps every run's registry on one Redis, or the one named."""

    def __init__(
        self,
        redis: AnyClient | RedisTarget | str,
        *,
        run: str | None = None,
        settings: LifecycleSettings | None = None,
        provider: Callable[[str], Provider] = provider_named,
    ) -> None:
        self.target = described(redis)
        self._run = run
        self._settings = settings or LifecycleSettings.load()
        self._me = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self._registries: dict[str, Registry] = {}
        self._providers = Providers(provider)
        self._strays = Strays(self._settings)

    async def work(self) -> None:
        """Look, and look again, until cancelled."""
        pause = 0.0
        while True:
            await asyncio.sleep(pause)
            pause = self._settings.reap_interval
            try:
                for look in (await self.look()).values():
                    # A record that comes due is not waited for longer than need be.
                    soon = self._settings.sandbox_lease / 3 if look.due is None else look.due
                    pause = min(pause, max(0.05, soon))
            except (RedisError, OSError, PenstockError) as failure:
                log.warning("reaper: Redis at %s does not answer: %s", self.target, failure)
            except Exception:
                log.exception("reaper: a look failed; it looks again")

    async def look(self, *, strays_now: bool = False, wait: bool = True) -> dict[str, Reaped]:
        """One look at each registry. `wait`: as the elected one, one lease after the election;
        else as a person who knows what they do."""
        found = {}
        names = [self._run] if self._run else await aside(lambda: runs(self.target))
        for run in names:
            look = self._in_office(run) if wait else self.look_at(run, strays_now=strays_now)
            found[run] = await look
        return found

    async def end(self, run: str, names: Iterable[str], why: str) -> Reaped:
        """End these, whoever uses them; their owners hear of it with their next heartbeat.

        What is neither in `ended` nor in `failed` was not registered.
        """
        registry, settings = self._registry(run), self._settings
        # A creation that an owner waits for goes on until that one has heard.
        unheard = settings.startup_timeout + settings.sandbox_grace
        condemn = partial(registry.condemn, fence="", why=why, gone_after=unheard)
        found, asked = Reaped(), sorted(set(names))
        for start in range(0, len(asked), _MOST):
            batch = asked[start : start + _MOST]
            doomed = [name for name in batch if await aside(partial(condemn, name))]
            if not doomed:
                continue
            # Nothing else: that a lease is over proves nothing to whoever holds no office.
            await self._reap_due(registry, found, doomed)
            for name in doomed:
                if name not in found.ended:
                    found.failed.setdefault(name, "left to the reaper")
        return found

    async def close(self) -> None:
        await self._providers.close()
        self.close_registries()

    def close_registries(self) -> None:
        for registry in self._registries.values():
            registry.close()

    async def look_at(self, run: str, *, strays_now: bool = False, once: bool = False) -> Reaped:
        """One look at one registry, by whoever it may be: a record is claimed by its fence.

        `once`: no more than can be claimed at once; the rest is due at the next look.
        """
        registry, reaped, tried = self._registry(run), Reaped(), set[str]()
        await self._free_permits(registry)
        while True:
            claimed = await self._reap_due(registry, reaped)
            names = {record.name for record in claimed.records}
            if once or len(names) < _MOST or names & tried:
                break
            tried |= names
        reaped.due = 0.0 if claimed.records else claimed.due  # there may be more
        seen = await aside(lambda: registry.look(0))
        if seen.age >= self._settings.sandbox_grace or strays_now:
            await self._sweep(registry, seen.facts, reaped, strays_now)
        return reaped

    async def _in_office(self, run: str) -> Reaped:
        registry, settings = self._registry(run), self._settings
        lease = max(settings.sandbox_lease, 3 * settings.reap_interval)
        since = await aside(lambda: registry.elect(self._me, lease))
        if since is None:
            return Reaped()
        if since < settings.sandbox_lease:
            # After an outage every lease has ended. Owners that live renew theirs first.
            await self._free_permits(registry)
            return Reaped(elected=True, due=settings.sandbox_lease - since)
        reaped = await self.look_at(run, once=True)
        reaped.elected = True
        return reaped

    # What is due

    async def _reap_due(
        self, registry: Registry, reaped: Reaped, names: Sequence[str] = ()
    ) -> Claimed:
        """Claim what is due, or what is of these, and end it."""
        hold, grace = _BATCH_LEASE * self._settings.teardown_timeout, self._settings.sandbox_grace
        claimed = await aside(lambda: registry.claim(self._me, hold, _MOST, grace, names))
        await asyncio.gather(
            *(self._reap(registry, record, claimed.now, reaped) for record in claimed.records)
        )
        return claimed

    async def _reap(self, registry: Registry, record: Record, now: float, reaped: Reaped) -> None:
        ended = await self._ended(record, now)
        why = shown(ended.problem) if ended.problem else ""
        if not ended.ok and 0 < record.dies_at < now:
            log.warning("reaper: sandbox %s has outlived what its provider gives it, and is"
                        " forgotten: %s", record.name, why)  # fmt: skip
        elif not ended.ok:
            reaped.failed[record.name] = why
            log.warning("reaper: sandbox %s is not gone yet: %s", record.name, why)
            pause = min(_LONGEST_PAUSE, 0.5 * 2.0 ** min(record.tries, 8))
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

    async def _ended(self, record: Record, now: float) -> Step:
        if not record.provider:
            return Step()  # it was still in line for its permit
        try:
            provider = self._providers.named(record.provider)
        except SettingError as missing:
            return Step(problem=missing)
        seconds = self._settings.teardown_timeout
        if record.ref is not None:
            return await terminated(provider, record.ref.id, seconds)
        found = await guarded(provider.find(record.name), seconds)
        if not found.ok:
            return found
        if found.result is not None:
            return await terminated(provider, found.result.id, seconds)
        left = record.gone_after - now
        return Step(problem=NotYet(left) if left > 0 else None)

    async def _sweep(
        self, registry: Registry, facts: Mapping[str, str], reaped: Reaped, now: bool
    ) -> None:
        for name in (key.partition(":")[2] for key in facts if key.startswith("provider:")):
            try:
                provider = self._providers.named(name)
            except SettingError as missing:
                log.info("reaper: strays of %s are left to those who have it: %s", name, missing)
                continue
            swept = await self._strays.sweep(registry, provider, facts["fleet"], now=now)
            reaped.strays += swept.ended
            reaped.young += swept.young
            reaped.failed |= swept.failed

    # Permits that were not given back

    async def _free_permits(self, registry: Registry) -> None:
        """Of sandboxes that are ready, or past the life that their provider gives them."""
        for name, permits in (await aside(registry.permits)).items():
            state = await aside(partial(registry.state, name))
            if state in ("READY", "") and await self._freed(permits):
                await aside(partial(registry.permit_freed, name))

    async def _freed(self, permits: tuple[StartingPermit, ...]) -> bool:
        try:
            for permit in permits:
                gate = await asyncio.to_thread(existing_gate, self.target, permit.gate)
                await gate.free(permit.id, permit.fence)
        except PenstockError as failure:
            log.warning("reaper: permits go back later: %s", failure)
            return False
        return True

    def _registry(self, run: str) -> Registry:
        if run not in self._registries:
            self._registries[run] = Registry(self.target, run, fleet=self._settings.fleet)
        return self._registries[run]


async def reap_sandboxes(target: RedisTarget) -> None:
    """What a worker does beside its jobs, until it is cancelled."""
    reaper = Reaper(target)
    try:
        await reaper.work()
    finally:
        await reaper.close()
