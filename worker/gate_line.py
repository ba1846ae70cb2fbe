"""A worker's gate, and its place in the line when that is shut.

There it waits, and sends nothing meanwhile.
"""

import asyncio
import logging
from collections.abc import Callable

from redis import Redis

from limiter import Gate, GateError, Permit, named_gate
from worker.settings import WorkerSettings

log = logging.getLogger("penstock.worker")


def gate_of(connection: Redis, settings: WorkerSettings) -> Gate | None:
    """The one that the settings name, made where it is missing and they say its limit."""
    if not settings.gate:
        return None
    # What a dead worker was granted while it waited comes back when its jobs do.
    lease = max(1.0, settings.job_lease)
    return named_gate(connection, settings.gate, settings.gate_limit, lease=lease)


class GateLine:
    """At most one waiter for one worker; what it is granted becomes the permit of its next job."""

    def __init__(self, gate: Gate, granted: Callable[[], object]) -> None:
        self._gate = gate
        self._granted = granted
        self._waiting: asyncio.Task[Permit | None] | None = None

    @property
    def waiting(self) -> bool:
        return self._waiting is not None and not self._waiting.done()

    def join(self) -> None:
        if self._waiting is None:
            self._waiting = asyncio.create_task(self._wait())

    def take(self) -> Permit | None:
        """What was granted, once."""
        if self._waiting is None or not self._waiting.done():
            return None
        task, self._waiting = self._waiting, None
        return task.result()

    async def leave(self) -> None:
        task, self._waiting = self._waiting, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled() and (permit := task.result()) is not None:
                permit.release()

    async def _wait(self) -> Permit | None:
        try:
            return await self._gate.acquire()
        except GateError as failure:
            log.warning("gate %r: %s", self._gate.name, failure)
            await asyncio.sleep(0.5)
            return None
        finally:
            asyncio.get_running_loop().call_soon(self._granted)
