"""An execution's right to use the sandbox, and what a worker knows of the job it runs.

Penstock's worker claims a job together with its permit and says so by setting `job_at_hand`. Under
any other worker the job takes the permit itself. Either way no permit is held between two attempts.
None is given back while a program that nobody waits for may still be running.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Sized
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ground.redis.url import RedisTarget
from limiter import Gate, GateError, Permit, Report

if TYPE_CHECKING:
    from worker.settings import WorkerSettings

log = logging.getLogger("penstock.worker")


class Turn(Protocol):
    """A turn is one execution's permit, over all of its attempts."""

    async def begin(self, outlives: float) -> None:
        """Wait until the program may run. After a `pause` it has its original place in line. For
        `outlives` seconds the program may continue, should this process die."""

    def report(self, report: Report) -> None:
        """Take what the latest attempt says of the service, for a gate that adapts."""

    async def pause(self, still_running: float) -> None:
        """Another attempt will follow. The permit goes back now; or in `still_running` seconds,
        for so long the sandbox may be busy with this one."""

    def end(self, still_running: float) -> Coroutine[Any, Any, None] | None:
        """No attempt will follow. Call it also if `begin` failed or was cancelled.
        Returns a coroutine to await, or None if nothing is left to do."""

    def another(self) -> "Turn | None":
        """The turn of another program of the same job, beside this one. It begins behind all jobs
        that have no permit yet; wait for it only while this one is at work. None: there is never
        room."""


class Room:
    """The room of a worker without a gate: for its jobs, and beside them for these jobs' programs.

    Jobs come first: they start even if the room is full.
    """

    def __init__(self, most: int, jobs: Sized) -> None:
        self._most, self._jobs = most, jobs
        self._beside = 0
        self._changed = asyncio.Event()

    async def enter(self) -> None:
        while len(self._jobs) + self._beside >= self._most:
            self._changed.clear()
            await self._changed.wait()
        self._beside += 1

    def leave(self, count: int) -> None:
        self._beside -= count
        self.look_again()

    def look_again(self) -> None:
        """A job may have ended."""
        self._changed.set()


class Unlimited:
    """No gate. Without a `room` a job's programs run one by one: a stock worker has only one."""

    def __init__(self, room: Room | None = None) -> None:
        self._room = room

    async def begin(self, outlives: float) -> None: ...

    def report(self, report: Report) -> None: ...

    async def pause(self, still_running: float) -> None: ...

    def end(self, still_running: float) -> None: ...

    def another(self) -> "Turn | None":
        return _Beside(self._room) if self._room else None


class _Beside:
    """A place in the room."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._taken = 0

    async def begin(self, outlives: float) -> None:
        await self._room.enter()
        self._taken = 1

    def report(self, report: Report) -> None: ...

    async def pause(self, still_running: float) -> None:
        self.end(still_running)

    def end(self, still_running: float) -> None:
        taken, self._taken = self._taken, 0
        self._room.leave(taken)

    def another(self) -> None: ...


LAST_LANE = 511


def cost_or_none(cost: int) -> int | None:
    """The cost as `acquire` takes it: a job that costs 1 is no reason for a gate to weigh."""
    return cost if cost > 1 else None


async def give_back(permit: Permit, still_running: float) -> None:
    """Have Redis free it after so many seconds, whatever happens to this process meanwhile."""
    try:
        await permit.give_back(after=still_running)
    except GateError as failure:
        log.warning("the permit will come back at its lease's end: %s", failure)


class GateTurn:
    """A permit taken here, by the job itself."""

    def __init__(self, gate: Gate, lane: int = 0, *, cost: int = 1) -> None:
        self._gate, self._lane, self._cost = gate, lane, cost
        self._permit: Permit | None = None
        self._ticket = ""

    async def begin(self, outlives: float) -> None:
        self._permit = await self._gate.acquire(
            lane=self._lane,
            ticket=self._ticket,
            orphan_hold=outlives,
            cost=cost_or_none(self._cost),
        )
        self._ticket = self._permit.ticket

    def another(self) -> "GateTurn":
        return GateTurn(self._gate, LAST_LANE, cost=self._cost)

    def report(self, report: Report) -> None:
        if self._permit is not None:
            self._permit.report(report)

    async def pause(self, still_running: float) -> None:
        permit, self._permit = self._permit, None
        if permit is not None and still_running > 0:
            await give_back(permit, still_running)
        elif permit is not None:
            permit.release()

    async def end(self, still_running: float) -> None:
        permit, self._permit = self._permit, None
        if permit is not None:
            # A forked worker's process ends after the job, without a word to Redis.
            await give_back(permit, still_running)


@dataclass(frozen=True)
class JobAtHand:
    """The worker's knowledge of its current job."""

    turn: Turn = field(default_factory=Unlimited)
    queued_seconds: float = 0.0
    seconds: float = math.inf
    """From now until the worker would break the job off."""
    settings: "WorkerSettings | None" = None
    """The worker's own; None if only the environment can say."""
    deaths: int = 0
    """Workers that died while they ran it, as far as is known."""
    target: RedisTarget | None = None
    """The Redis that the job came from."""
    runs_once: Callable[[], object] = lambda: None
    """Call it for a job that must not run again, even if it has no outcome."""


job_at_hand: ContextVar[JobAtHand | None] = ContextVar("penstock_job_at_hand", default=None)
