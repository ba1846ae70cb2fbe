"""Sandboxes that carry a registry's tags at a provider, and that no registry knows.

One that was made a moment ago may be about to be written down, so each is first seen, and
ended only when it has been seen for the grace time, and is still in no registry at the
last moment before that.
"""

import asyncio
import logging
import time
from dataclasses import dataclass, field

from worker.lifecycle.aside import aside
from worker.lifecycle.errors import shown
from worker.lifecycle.provider import Provider, SandboxRef
from worker.lifecycle.registry import Registry
from worker.lifecycle.settings import LifecycleSettings
from worker.lifecycle.teardown import guarded, terminated

log = logging.getLogger("penstock.worker")


@dataclass
class Swept:
    """What became of the strays at one provider."""

    ended: list[str] = field(default_factory=list)
    young: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


class Strays:
    """What one reaper has seen of them."""

    def __init__(self, settings: LifecycleSettings) -> None:
        self._settings = settings
        self._seen: dict[tuple[str, str, str], float] = {}  # by run, provider and id

    async def sweep(
        self, registry: Registry, provider: Provider, fleet: str, *, at_once: bool
    ) -> Swept:
        """`at_once`: also those that have not been seen for the grace time."""
        swept, name = Swept(), provider.name
        tags = {"penstock-fleet": fleet, "penstock-run": registry.run}
        listed = await guarded(_listed(provider, tags), self._settings.teardown_timeout)
        if not listed.ok:
            log.warning("reaper: %s does not list its sandboxes: %s", name, listed.problem)
            return swept
        # The listing is of this run alone, and says nothing of what another run has there.
        here, seen = (registry.run, name), {ref.id for ref in listed.result}
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
        log.warning("reaper: sandbox %s (%s) was in no registry, and was ended", ref.name, ref.id)


async def _listed(provider: Provider, tags: dict[str, str]) -> list[SandboxRef]:
    return [ref async for ref in provider.list(tags)]
