"""An execution's right to use the sandbox, and what a worker knows of the job it runs.

Penstock's worker claims a job together with its permit and says so by setting
`job_at_hand`; under any other worker the job takes the permit itself. Either
way no permit is held between two attempts, and none is given back while a program
that nobody waits for may still be running.
"""

import asyncio
import logging
import math
from collections.abc import Coroutine
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ground import RedisTarget
from limiter import Gate, GateError, Permit

if TYPE_CHECKING:
    from worker.settings import WorkerSettings

log = logging.getLogger("penstock.worker")


class Turn(Protocol):
    """One execution's permit, over all of its attempts."""

    async def begin(self, outlives: float) -> None:
        """Return when the program may run. After a `pause`: at the original place in line.
        For `outlives` seconds the program may go on, should this process die."""

    async def pause(self, still_running: float) -> None:
        """Another attempt will follow. The permit goes back now; or in `still_running` seconds,
        for so long the sandbox may be busy with this one."""

    def end(self, still_running: float) -> Coroutine[Any, Any, None] | None:
        """No attempt will follow. Call it also if `begin` failed or was cancelled.
        Returns a coroutine to await, or None if nothing is left to do."""


class Unlimited:
    """No gate."""

    async def begin(self, outlives: float) -> None: ...

    async def pause(self, still_running: float) -> None: ...

    def end(self, still_running: float) -> None: ...


class GateTurn:
    """A permit taken here, by the job itself."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._permit: Permit | None = None
        self._ticket = ""

    async def begin(self, outlives: float) -> None:
        self._permit = await self._gate.acquire(ticket=self._ticket, orphan_hold=outlives)
        self._ticket = self._permit.ticket

    async def pause(self, still_running: float) -> None:
        permit, self._permit = self._permit, None
        if permit is not None and still_running > 0:
            asyncio.get_running_loop().call_later(still_running, permit.release)
        elif permit is not None:
            permit.release()

    async def end(self, still_running: float) -> None:
        if self._permit is None or still_running > 0:
            return await self.pause(still_running)
        try:
            # A forked worker's process ends after the job, without a word to Redis.
            await self._permit.give_back()
        except GateError as failure:
            log.warning("the permit will come back at its lease's end: %s", failure)


@dataclass(frozen=True)
class JobAtHand:
    """What the worker knows of the job at hand."""

    turn: Turn = field(default_factory=Unlimited)
    queued_seconds: float = 0.0
    seconds: float = math.inf
    """From now until the worker would break the job off."""
    settings: "WorkerSettings | None" = None
    """The worker's own; None where only the environment can say."""
    deaths: int = 0
    """Workers that died while they ran it, as far as is known."""
    target: RedisTarget | None = None
    """The Redis that the job came from."""


job_at_hand: ContextVar[JobAtHand | None] = ContextVar("penstock_job_at_hand", default=None)
