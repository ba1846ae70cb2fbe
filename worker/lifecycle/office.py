"""Who reaps: of the processes that reach a scope's sandboxes one at a time, elected by lease.

That lease is half an owner's. So an outage of Redis that ends the leases of owners who live
has ended the office too, and whoever is elected next waits until they have renewed theirs.
"""

import asyncio
import logging
import time

from redis.exceptions import RedisError

from ground import new_owner
from worker.lifecycle.aside import aside
from worker.lifecycle.registry import Registry

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

    async def stand(self, registry: Registry, scope: str) -> float | None:
        """Stand for election. Seconds until the elected may act; None where another one is."""
        since = await aside(lambda: registry.elect(self.reaper, scope, self._lease))
        if since is None:
            self._held.discard((registry, scope))
            return None
        self._held.add((registry, scope))
        return max(0.0, self.probation - since)

    def leave(self, registry: Registry) -> None:
        """For good: what it holds there ends by itself."""
        self._held = {held for held in self._held if held[0] is not registry}

    def looked(self) -> None:
        """Whoever holds them has come round once more."""
        self._looked = time.monotonic()

    async def keep(self) -> None:
        """Renew the offices held, until cancelled: also during a long look, but not for ever."""
        self.looked()
        while True:
            await asyncio.sleep(self._lease / 3)
            if self._held and time.monotonic() - self._looked > self._longest:
                log.warning("reaper: a look has not ended for %g s; others may act", self._longest)
                self._held.clear()
            for registry, scope in list(self._held):
                try:
                    await self.stand(registry, scope)
                except (RedisError, OSError) as failure:
                    log.warning("reaper: an office is not kept: %s", failure)
                except Exception:  # nothing else keeps them: this goes on
                    log.exception("reaper: an office is not kept")
