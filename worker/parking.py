"""Where an idle worker waits: blocked on its queue, until a job is put into its hand.

One connection a queue, and one waiter a push: each job wakes one worker. An id in
the hand is claimed next, or goes back to the front of the queue.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from redis.exceptions import RedisError

from ground import RedisTarget, connect_async

log = logging.getLogger("penstock.worker")

# Seconds of one blocked command; a server that fell silent is noticed soon after. Well below the
# minute for which `reap.lua` looks into a dead worker's hand.
_BLOCK = 15.0
_GRACE = 5.0


class Parking:
    """The place before one queue."""

    def __init__(
        self, target: RedisTarget, jobs: str, hand: str, woken: Callable[[], object]
    ) -> None:
        self._target = target
        self._jobs = jobs
        self._hand = hand
        self._woken = woken
        self._client: Any = None
        self._line: Any = None
        self._id = 0  # the line's, at the server
        self._leaving = False
        self._task: asyncio.Task[None] | None = None

    @property
    def taken(self) -> bool:
        """Whether the worker is parked here: then the queue is empty, and so is the hand."""
        return self._task is not None

    def park(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._wait())

    async def leave(self) -> None:
        """Return when nothing can fall into the hand any more."""
        self._leaving = True
        try:
            while (task := self._task) is not None:
                if self._target.kind == "fake":
                    task.cancel()
                elif self._id:
                    await self._unblock()
                await asyncio.wait([task], timeout=0.1)
        finally:
            self._leaving = False

    async def close(self) -> None:
        await self.leave()
        await self._hang_up()

    async def _wait(self) -> None:
        block = ("BLMOVE", self._jobs, self._hand, "LEFT", "RIGHT", _BLOCK)
        try:
            if self._client is None:
                self._client = connect_async(self._target, timeout=_BLOCK + _GRACE)
            if self._target.kind == "fake":
                await self._client.execute_command(*block)
            else:
                await self._block_on_our_line(block)
        except (RedisError, OSError) as failure:
            log.debug("parked at %s: %s", self._jobs, failure)
            await self._hang_up()
            await asyncio.sleep(0.2)
        finally:
            self._task = None
            self._woken()

    async def _block_on_our_line(self, block: tuple[Any, ...]) -> None:
        """To leave it must be known by its id: redis-py would change a broken one unseen."""
        if self._line is None:
            self._line = await self._client.connection_pool.get_connection()
            self._id = int(await self._ask("CLIENT", "ID"))
        if not self._leaving:
            await self._ask(*block)

    async def _ask(self, *command: Any) -> Any:
        await self._line.send_command(*command)
        return await self._line.read_response()

    async def _hang_up(self) -> None:
        client, self._client = self._client, None
        line, self._line, self._id = self._line, None, 0
        with contextlib.suppress(RedisError, OSError):  # it may be broken: that is why
            if line is not None:
                await line.disconnect(nowait=True)
                await client.connection_pool.release(line)
            if client is not None:
                await client.aclose()

    async def _unblock(self) -> None:
        client: Any = connect_async(self._target)
        try:
            await client.execute_command("CLIENT", "UNBLOCK", self._id)
        except (RedisError, OSError):
            log.debug("parked at %s: not unblocked", self._jobs, exc_info=True)
        finally:
            await client.aclose()
