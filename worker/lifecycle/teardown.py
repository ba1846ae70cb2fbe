"""How a sandbox is ended: step by step, none of which can keep the next from being taken.

    close the runtime → terminate → terminate again → leave it to the reaper

It never raises and never forgets: what is not confirmed gone stays in the registry, and
its STARTING permits with it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from redis.exceptions import RedisError

from ground import PenstockError
from ground.process import aside
from limiter import Report
from worker.lifecycle.box import Box, Phase
from worker.lifecycle.errors import shown
from worker.lifecycle.provider import Provider
from worker.lifecycle.registry.keeper import Keeper
from worker.lifecycle.registry.records import StartingPermit
from worker.lifecycle.registry.registry import Registry
from worker.lifecycle.settings import LifecycleSettings

log = logging.getLogger("penstock.worker")

Free = Callable[[StartingPermit, Report], Awaitable[None]]


class Step:
    """What happened to one guarded step."""

    def __init__(self, result: Any = None, problem: BaseException | None = None) -> None:
        self.result = result
        self.problem = problem

    @property
    def ok(self) -> bool:
        return self.problem is None


async def guarded(work: Awaitable[Any], seconds: float) -> Step:
    """Even if it hangs, or cancels itself, we continue within this many seconds."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([task], timeout=seconds)
    finally:
        if not task.done():
            task.cancel()
            task.add_done_callback(_look_at)
    if not task.done():
        return Step(problem=TimeoutError(f"no answer within {seconds:g} s"))
    if task.cancelled():
        return Step(problem=asyncio.CancelledError("it was cancelled from inside"))
    return Step(problem=task.exception()) if task.exception() else Step(task.result())


def _look_at(task: "asyncio.Future[Any]") -> None:
    if not task.cancelled() and (problem := task.exception()):
        log.info("a teardown step that had timed out failed later: %s", shown(problem))


async def terminated(provider: Provider, id: str, seconds: float) -> Step:
    """Twice, where the first try fails."""
    first = await guarded(provider.terminate(id), seconds)
    return first if first.ok else await guarded(provider.terminate(id), seconds)


class Teardown:
    """Ends the boxes of one lifecycle."""

    def __init__(
        self,
        provider: Provider,
        registry: Registry,
        keeper: Keeper,
        settings: LifecycleSettings,
        free: Free,
    ) -> None:
        self._provider = provider
        self._registry = registry
        self._keeper = keeper
        self._settings = settings
        self._free = free

    async def __call__(self, box: Box) -> bool:
        """Whether it is confirmed gone; else the reaper has it."""
        try:
            return await self._torn_down(box)
        finally:
            self._keep_no_more(box)

    async def _torn_down(self, box: Box) -> bool:
        await self._noted(lambda: self._registry.advance(box.name, box.fence, "TERMINATING"))
        seconds = self._settings.teardown_timeout
        await self._await_creation(box)
        if box.ref is not None and box.phase is Phase.OPEN:
            closed = await guarded(self._provider.close_runtime(box.ref), seconds)
            if not closed.ok:
                log.info("sandbox %s: its runtime did not close: %s", box.name, closed.problem)
        ended = await self._end(box, seconds)
        if ended.ok:
            return await self._forget(box)
        why = shown(ended.problem) if ended.problem else ""
        log.warning("sandbox %s is left to the reaper: %s", box.name, why)
        missing = box.ref is None
        self._keep_no_more(box)
        await self._noted(
            lambda: self._registry.condemn(
                box.name, box.fence, why,
                wait=min(1.0, self._settings.sandbox_grace) if missing else 0.0,
                gone_after=self._settings.sandbox_grace if missing else None,
            )
        )  # fmt: skip
        return False

    async def _await_creation(self, box: Box) -> None:
        """A creation under way cannot be called back: only its answer says what to end."""
        if box.creating is None or box.ref is not None:
            return
        left = box.create_deadline - asyncio.get_running_loop().time()
        await asyncio.wait([box.creating], timeout=max(0.0, left))
        if not box.creating.done():
            box.creating.cancel()
        elif not box.creating.cancelled() and box.creating.exception() is None:
            box.ref = box.creating.result()

    async def _end(self, box: Box, seconds: float) -> Step:
        if box.phase is Phase.NOT_MADE:
            return Step()
        if box.ref is None:
            found = await guarded(self._provider.find(box.name), seconds)
            if not found.ok:
                return found
            if found.result is None:
                return Step(problem=LookupError("its creation failed, and it was not found so far"))
            box.ref = found.result
        return await terminated(self._provider, box.ref.id, seconds)

    async def _forget(self, box: Box) -> bool:
        if await self.freed(box):
            self._keep_no_more(box)
            await self._noted(lambda: self._registry.forget(box.name, box.fence, "ended"))
        return True

    def _keep_no_more(self, box: Box) -> None:
        """Before its record is given up: a heartbeat after that would take it for lost."""
        self._keeper.drop(box.name, box.take)

    async def freed(self, box: Box) -> bool:
        """Its STARTING permits, back at their gates. Where that fails, its record keeps them."""
        try:
            for permit in box.permits:
                await self._free(permit, box.report)
        except PenstockError as failure:
            log.warning("sandbox %s: could not release its starting permits: %s", box.name, failure)
            return False
        box.permits = ()
        return True

    async def _noted(self, note: Callable[[], bool]) -> None:
        try:
            await aside(note)
        except (RedisError, OSError) as failure:
            # The lease ends by itself, and the reaper finds the record as it is.
            log.warning("a teardown could not be recorded in Redis: %s", failure)
