"""An idle worker parks here: it waits for a job in its queue, or for a permit at its gate.

It parks at a queue with a blocking command, on one connection per queue: so each new job wakes
one worker, and Redis moves its id to that worker's hand. The claim is sent along with the
blocking command and runs as soon as that returns, before the worker has read anything. An id
that could not be claimed stays in the hand; it is claimed next, or returned to the queue's front.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from ground.complaint import Complaint
from ground.redis.async_connection import AsyncConnection
from ground.redis.connect import connect_async
from ground.redis.url import RedisTarget
from limiter import Gate, GateError, Permit, named_gate
from worker.concurrent.commands import SCRIPTS, Claim, WorkCommands, read_claim
from worker.settings import WorkerSettings

log = logging.getLogger("penstock.worker")

# Longest time that one command blocks, in seconds: we notice a silent server soon after it. Also at
# most a third of a lease: a frozen worker no longer blocks when others get its jobs, long before
# the end of the minute for which `reap.lua` looks into its hand.
_BLOCK = 15.0
_GRACE = 5.0


class Parking:
    """The parking at one queue."""

    def __init__(
        self, target: RedisTarget, commands: WorkCommands, woken: Callable[[], object]
    ) -> None:
        self.wanted = 0  # jobs that its claim may bring: 0 or 1
        self.unclaimed = False  # whether a job came that it was not to claim
        self.unanswered = False  # whether a claim may have been made whose reply got lost
        self._target = target
        self._commands = commands
        self._woken = woken
        self._connection = AsyncConnection(target, SCRIPTS, _BLOCK + _GRACE)
        self._block = min(_BLOCK, commands.lease / 3)
        self._id = 0
        self._leaving = False
        self._brought: Claim | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def taken(self) -> bool:
        """Whether the worker is parked here. Then the queue and the hand are empty."""
        return self._task is not None

    def park(self, wanted: int) -> None:
        if self._task is None:
            self.wanted = wanted
            self._task = asyncio.create_task(self._wait())
            self._task.add_done_callback(self._left)

    def brought(self) -> Claim | None:
        """The claim that came here since the last call."""
        claim, self._brought = self._brought, None
        return claim

    async def leave(self) -> None:
        """Leave the parking, and wait until Redis can no longer move a job to the hand."""
        self._leaving = True
        try:
            while (task := self._task) is not None:
                if self._target.kind == "fake":
                    self._connection.break_off()
                elif self._id:
                    await self._unblock()
                await asyncio.wait([task], timeout=0.1)
        finally:
            self._leaving = False

    async def close(self) -> None:
        await self.leave()
        await self._connection.close()

    async def _wait(self) -> None:
        try:
            await asyncio.sleep(0)  # first send the ends of jobs that were just started
            if not self._id and self._target.kind != "fake":
                self._id = int(await self._connection.ask(("CLIENT", "ID")))
            if not self._leaving:
                await self._block_and_claim()
        except (RedisError, OSError) as failure:
            log.debug("parked at %s: %s", self._commands.jobs, failure)
            self._id = 0
            self.unanswered = True
            if not self._leaving:
                await asyncio.sleep(0.2)
        finally:
            self._left(self._task)

    def _left(self, task: "asyncio.Task[None] | None") -> None:
        """Take in the end of the task: it says so itself, unless it was cancelled before its first
        step."""
        if self._task is task:
            self._task = None
            self.wanted = 0
            self._woken()

    async def _block_and_claim(self) -> None:
        here = self._commands
        asked = [("BLMOVE", here.jobs, here.hand, "LEFT", "RIGHT", self._block)]
        if self.wanted:
            asked.append(here.claim(self.wanted))
        sent = time.monotonic()
        answers = self._connection.asked(*asked)
        try:
            with contextlib.suppress(Exception):  # it is read below, as the others are
                await answers[-1]  # replies come in the order of requests
        finally:
            for answer in answers:
                answer.cancel()
        moved, *claims = [answer.exception() or answer.result() for answer in answers]
        for claim in claims:
            if not isinstance(claim, BaseException):
                self._brought = read_claim(claim, sent)
        for reply in (moved, *claims):
            if isinstance(reply, BaseException):
                raise reply
        self.unclaimed = moved is not None and not claims

    async def _unblock(self) -> None:
        client: Any = connect_async(self._target)
        try:
            await client.execute_command("CLIENT", "UNBLOCK", self._id)
        except (RedisError, OSError):
            log.debug("parked at %s: not unblocked", self._commands.jobs, exc_info=True)
        finally:
            await client.aclose()


class ParkingLot:
    """The parking at all queues of one worker."""

    def __init__(
        self,
        target: RedisTarget,
        commands: dict[str, WorkCommands],
        woken: Callable[[], object],
    ) -> None:
        self._places = {name: Parking(target, each, woken) for name, each in commands.items()}

    @property
    def wanted(self) -> int:
        """Jobs that may come from here: the worker keeps room for them."""
        return sum(place.wanted for place in self._places.values())

    def taken(self, queue: str) -> bool:
        """Whether the worker is parked at this queue."""
        return self._places[queue].taken

    def park(self, room: int, *, but: Collection[str] = ()) -> None:
        """Park at every queue `but` some; `room` is the number of jobs that may be claimed
        there."""
        for name, place in self._places.items():
            if not place.taken and name not in but:
                place.park(wanted=min(1, room))
                room -= place.wanted

    def take_unclaimed(self) -> list[str]:
        """Queues where a job came when the room was kept for another queue: it is in the hand."""
        found = [queue for queue, place in self._places.items() if place.unclaimed]
        for queue in found:
            self._places[queue].unclaimed = False
        return found

    def take_unanswered(self) -> list[str]:
        """Queues where a claim may have been made whose reply got lost."""
        found = [queue for queue, place in self._places.items() if place.unanswered]
        for queue in found:
            self._places[queue].unanswered = False
        return found

    def brought(self) -> dict[str, Claim]:
        claims = {queue: place.brought() for queue, place in self._places.items()}
        return {queue: claim for queue, claim in claims.items() if claim is not None}

    async def leave(self) -> None:
        for place in self._places.values():
            await place.leave()

    async def close(self) -> None:
        for place in self._places.values():
            await place.close()


def gate_of(connection: Redis, settings: WorkerSettings) -> Gate | None:
    """The gate that the settings name; created if it is missing and they give its limit."""
    if not settings.gate:
        return None
    # A permit granted to a dead worker that still waited for it returns when its jobs do.
    lease = max(1.0, settings.job_lease)
    return named_gate(connection, settings.gate, settings.gate_limit, lease=lease)


async def standing(gate: Gate, wanted: int | None) -> str:
    """Say which limit is in force, and warn if this worker names another."""
    try:
        now = await gate.status()
    except GateError as outage:
        return f"gate {gate.name} (its limit is not known: {outage})"
    kept = now.limit
    if wanted is not None and kept != wanted:
        log.warning(
            "gate %r has the limit %s, which applies. This worker's --gate-limit (or "
            "PENSTOCK_GATE_LIMIT) is %d, and only for a gate that does not exist yet. To change "
            "it: penstock limits set %s --gate-limit %d",
            gate.name, "none" if kept is None else kept, wanted, gate.name, wanted,
        )  # fmt: skip
    limit = "no limit" if kept is None else f"limit {kept}"
    return f"gate {gate.name} ({limit}{', paused' if now.paused else ''})"


class GateWaiter:
    """A gate's waiter waits at the gate once per worker; the granted permit is for the worker's
    next job."""

    def __init__(self, gate: Gate, granted: Callable[[], object]) -> None:
        self._gate = gate
        self._granted = granted
        self._complaint = Complaint(log, "waiting for a permit")
        self._waiting: asyncio.Task[Permit | None] | None = None

    @property
    def waiting(self) -> bool:
        return self._waiting is not None and not self._waiting.done()

    def join(self) -> None:
        if self._waiting is None:
            self._waiting = asyncio.create_task(self._wait())

    def take(self) -> Permit | None:
        """The granted permit, once."""
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
            permit = await self._gate.acquire()
        except GateError as failure:
            self._complaint.of(failure)
            await asyncio.sleep(0.5)
            return None
        else:
            self._complaint.over()
            return permit
        finally:
            asyncio.get_running_loop().call_soon(self._granted)
