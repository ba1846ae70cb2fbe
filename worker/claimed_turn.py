"""A code job's turn at the sandbox, where its permit came with its claim.

The first attempt runs under that permit, which ends with the execution, in one
script. Between attempts it goes back, and the next attempt takes one of its own,
at the place in line that the job had.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from redis.exceptions import RedisError

from limiter import Gate, Permit
from worker.running import Running

log = logging.getLogger("penstock.worker")


class ClaimedTurn:
    """A `worker.turn.Turn`."""

    def __init__(
        self,
        running: Running,
        gate: Gate,
        *,
        prolong: Callable[[Running], Awaitable[object]],
        give_back: Callable[[Running, int], Awaitable[object]],
    ) -> None:
        self._running = running
        self._gate = gate
        self._prolong = prolong
        self._give_back = give_back
        self._permit: Permit | None = None
        self._later: set[asyncio.Task[None]] = set()

    async def begin(self, outlives: float) -> None:
        self._running.hold = outlives
        if not self._running.permit:
            self._permit = await self._gate.acquire(
                ticket=self._running.ticket, orphan_hold=outlives
            )
        elif outlives > 0:
            await self._hold()

    async def _hold(self) -> None:
        """Said before the program can begin: should we die, its permit outlives us with it."""
        try:
            await self._prolong(self._running)
        except (RedisError, OSError) as failure:
            log.warning("a permit's hold is not written yet, the heartbeat will: %s", failure)

    async def pause(self, still_running: float) -> None:
        if self._permit is not None:
            self._release(self._permit, still_running)
            self._permit = None
            return
        fence, self._running.permit = self._running.permit, 0
        if not fence:
            return
        if still_running > 0:
            # Nobody renews it from here on: its hold, which is longer, keeps it alive.
            task = asyncio.create_task(self._return_claimed(fence, still_running))
            self._later.add(task)
            task.add_done_callback(self._later.discard)
        else:
            await self._return_claimed(fence, 0)

    def end(self, still_running: float) -> None:
        if self._permit is not None:
            self._release(self._permit, still_running)
            self._permit = None
        self._running.still_running = still_running

    def _release(self, permit: Permit, still_running: float) -> None:
        if still_running > 0:
            asyncio.get_running_loop().call_later(still_running, permit.release)
        else:
            permit.release()

    async def _return_claimed(self, fence: int, after: float) -> None:
        await asyncio.sleep(after)
        try:
            await self._give_back(self._running, fence)
        except (RedisError, OSError) as failure:
            log.warning("a permit will come back at its lease's end: %s", failure)
