"""A reaper ends what nobody answers for any more: sandboxes whose owner's lease is over, sessions
that were idle for too long (sessions.py), and strays.

Each worker has one. They share the work by provider: of those that reach a provider's
sandboxes, one is elected.

    after a SIGKILL: live sandboxes return to 0 within
        lease (its end), or lease / 2 + interval + lease (a reaper that died with it is
        replaced, and the next one waits), + terminate
"""

import asyncio
import logging
import time
from collections.abc import Iterable
from functools import partial

from redis.exceptions import RedisError

from ground import PenstockError, SettingError
from ground.complaint import Complaint
from ground.keys import new_owner
from ground.lua import chunks
from ground.process import aside
from ground.redis.connect import AnyRedis, target_of
from ground.redis.connection import trouble
from ground.redis.url import RedisTarget
from worker.lifecycle.provider import Provider, Providers
from worker.lifecycle.reaper.dead_owners import MOST, Reaped, Reaping, Strays
from worker.lifecycle.registry.registry import Registry, runs
from worker.lifecycle.settings import LifecycleSettings

log = logging.getLogger("penstock.worker")


class Offices:
    """The offices that one reaper holds: for each, a lease that it keeps renewing."""

    def __init__(self, sandbox_lease: float, longest_look: float) -> None:
        self.reaper = new_owner()
        self.probation = sandbox_lease
        self._lease = sandbox_lease / 2
        self._held: set[tuple[Registry, str]] = set()
        self._longest = longest_look
        self._looked = time.monotonic()
        self._complaint = Complaint(log, "reaper: its election was not renewed")

    async def stand(self, registry: Registry, scope: str) -> float | None:
        """Stand for election. Seconds until the elected may act; None if another one is."""
        since = await aside(lambda: registry.elect(self.reaper, scope, self._lease))
        if since is None:
            self._held.discard((registry, scope))
            return None
        self._held.add((registry, scope))
        return max(0.0, self.probation - since)

    def leave(self, registry: Registry) -> None:
        """Leave a registry's offices for good: their leases end by themselves."""
        self._held = {held for held in self._held if held[0] is not registry}

    def looked(self) -> None:
        """The holder of the offices has finished one more round."""
        self._looked = time.monotonic()

    async def keep(self) -> None:
        """Renew the offices held, until cancelled: during a long look too, for a limited time."""
        self.looked()
        while True:
            await asyncio.sleep(self._lease / 3)
            if self._held and time.monotonic() - self._looked > self._longest:
                log.warning(
                    "reaper: a round has taken more than %g s; another reaper may take over",
                    self._longest,
                )
                self._held.clear()
            failed = False
            for registry, scope in list(self._held):
                try:
                    await self.stand(registry, scope)
                except (RedisError, OSError) as failure:
                    failed = True
                    self._complaint.of(failure)
                except Exception:  # nothing else keeps them: this continues
                    failed = True
                    log.exception("reaper: its election was not renewed")
            if self._held and not failed:
                self._complaint.over()


_STEPS = 20  # of a teardown, for which one look may last at most
_IDLE = 86_400.0  # seconds after which an empty registry is forgotten, at the earliest


class Reaper:
    """A reaper reaps every run's registry on one Redis, or the one named."""

    def __init__(
        self,
        redis: AnyRedis,
        *,
        run: str | None = None,
        settings: LifecycleSettings | None = None,
        ours: Provider | None = None,
    ) -> None:
        self.target = target_of(redis)
        self._run = run
        self._settings = settings or LifecycleSettings.load()
        self._registries: dict[str, Registry] = {}
        self._providers = Providers(ours)
        longest = self._settings.reap_interval + _STEPS * self._settings.teardown_timeout
        self._offices = Offices(self._settings.sandbox_lease, longest)
        self._strays = Strays(self._settings)
        self._missing: dict[str, str] = {}  # providers that cannot be made here, and why

    async def work(self) -> None:
        """Look, and look again, until cancelled."""
        async with asyncio.TaskGroup() as both:
            both.create_task(self._offices.keep())
            both.create_task(self._look_on())

    async def _look_on(self) -> None:
        pause, complaint = 0.0, Complaint(log, "reaper")
        while True:
            await asyncio.sleep(pause)
            pause = self._settings.reap_interval
            try:
                for look in (await self.look()).values():
                    # A record that comes due is not waited for longer than need be.
                    soon = self._settings.sandbox_lease / 3 if look.due is None else look.due
                    pause = min(pause, max(0.05, soon))
                complaint.over()
            except (RedisError, OSError, PenstockError) as failure:
                complaint.of(trouble(failure, self.target))
            except Exception:
                log.exception("reaper: a round failed; the next one follows")
            self._offices.looked()

    async def look(self, *, strays_now: bool = False, wait: bool = True) -> dict[str, Reaped]:
        """Look at each registry once, whatever happens to the others. With `wait` only where this
        reaper is elected, and has been for a lease; without, at once: a person asked for it."""
        names = [self._run] if self._run else await aside(lambda: runs(self.target))
        for run in self._registries.keys() - set(names):
            self._offices.leave(registry := self._registries.pop(run))
            registry.close()
        looks = [
            self._in_office(run) if wait else self.look_at(run, strays_now=strays_now)
            for run in names
        ]
        seen = await asyncio.gather(*looks, return_exceptions=True)
        for problem in seen:
            if isinstance(problem, BaseException):
                raise problem
        return {run: one for run, one in zip(names, seen, strict=True) if isinstance(one, Reaped)}

    async def look_at(self, run: str, *, strays_now: bool = False) -> Reaped:
        """Look at one registry once. Any process may look: a record is claimed by its fence."""
        registry, reaped = self._registry(run), Reaped()
        reaping = self._reaping(registry)
        await reaping.free_permits()
        for scope, provider in await self._scopes(registry):
            await reaping.all_due(reaped, scope)
            await self._sweep(registry, provider, reaped, strays_now)
        return reaped

    async def _in_office(self, run: str) -> Reaped:
        registry, reaped = self._registry(run), Reaped()
        reaping, probation = self._reaping(registry), self._offices.probation
        for scope, provider in await self._scopes(registry):
            wait = await self._offices.stand(registry, scope)
            if wait is None:
                continue
            reaped.elected = True
            if not scope:
                await reaping.free_permits()
            if wait > 0:
                reaped.is_due(wait)
                continue
            claimed = await reaping.due(reaped, scope, in_office=probation)
            reaped.is_due(0.0 if claimed.records else claimed.due)  # there may be more
            await self._sweep(registry, provider, reaped, at_once=False)
        if reaped.elected:
            idle = max(_IDLE, 2 * self._settings.sandbox_ttl)
            await aside(lambda: registry.retire(idle))
        return reaped

    async def end(self, run: str, names: Iterable[str], why: str) -> Reaped:
        """End these, also if they are in use; their owners learn it with their next heartbeat.

        What is neither in `ended` nor in `failed` was not registered.
        """
        registry, settings = self._registry(run), self._settings
        # A creation that an owner waits for continues until that one has heard.
        unheard = settings.startup_timeout + settings.sandbox_grace
        condemn = partial(registry.condemn, fence="", why=why, gone_after=unheard)
        found, asked = Reaped(), sorted(set(names))
        for batch in chunks(asked, MOST):
            doomed = [name for name in batch if await aside(partial(condemn, name))]
            if not doomed:
                continue
            # Nothing else: a lease that is over proves nothing without holding the office.
            await self._reaping(registry).due(found, "", names=doomed)
            for name in doomed:
                if name not in found.ended:
                    found.failed.setdefault(name, "left to the reaper")
        return found

    async def close(self) -> None:
        await self._providers.close()
        for registry in self._registries.values():
            registry.close()

    async def _scopes(self, registry: Registry) -> list[tuple[str, Provider | None]]:
        """The scopes of the providers that can be made here; and "", that of the records without
        a provider: its sandbox was not made, so far or for good."""
        found: list[tuple[str, Provider | None]] = [("", None)]
        for fact in await aside(registry.facts):
            kind, _, name = fact.partition(":")
            try:
                provider = await self._providers.named(name) if kind == "provider" else None
            except SettingError as missing:
                if self._missing.get(name) != (words := str(missing)):  # not at every look
                    log.info(
                        "reaper: provider %s cannot be made here; its sandboxes are left to other"
                        " reapers: %s", name, words,
                    )  # fmt: skip
                self._missing[name] = words
                continue
            if provider is not None:
                found.append((provider.scope, provider))
        return found

    async def _sweep(
        self, registry: Registry, provider: Provider | None, reaped: Reaped, at_once: bool
    ) -> None:
        if provider is None:
            return
        seen = await aside(lambda: registry.look(0))
        if seen.age < self._settings.sandbox_grace and not at_once:
            return
        swept = await self._strays.sweep(registry, provider, seen.facts["fleet"], at_once=at_once)
        reaped.strays += swept.ended
        reaped.young += swept.young
        reaped.failed |= swept.failed

    def _reaping(self, registry: Registry) -> Reaping:
        return Reaping(self._offices.reaper, registry, self._providers, self._settings)

    def _registry(self, run: str) -> Registry:
        if run not in self._registries:
            self._registries[run] = Registry(self.target, run, fleet=self._settings.fleet)
        return self._registries[run]


async def reap_sandboxes(target: RedisTarget) -> None:
    """Reap until cancelled: a worker does so besides its jobs."""
    reaper = Reaper(target)
    try:
        await reaper.work()
    finally:
        await reaper.close()
