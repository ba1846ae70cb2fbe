"""The guarded steps of an end: none of them can keep the next from being taken."""

import asyncio
import logging
from collections.abc import Awaitable
from typing import Any

from worker.lifecycle.errors import shown
from worker.lifecycle.provider import Provider

log = logging.getLogger("penstock.worker")


class Guarded:
    """The outcome of one guarded step."""

    def __init__(self, result: Any = None, problem: BaseException | None = None) -> None:
        self.result = result
        self.problem = problem

    @property
    def ok(self) -> bool:
        return self.problem is None


async def guarded(work: Awaitable[Any], seconds: float) -> Guarded:
    """Do some work for at most this many seconds. Even if it hangs, or cancels itself, its caller
    continues then."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([task], timeout=seconds)
    finally:
        if not task.done():
            task.cancel()
            task.add_done_callback(_look_at)
    if not task.done():
        return Guarded(problem=TimeoutError(f"no answer within {seconds:g} s"))
    if task.cancelled():
        return Guarded(problem=asyncio.CancelledError("it was cancelled from inside"))
    return Guarded(problem=task.exception()) if task.exception() else Guarded(task.result())


def _look_at(task: "asyncio.Future[Any]") -> None:
    if not task.cancelled() and (problem := task.exception()):
        log.info("a teardown step that had timed out failed later: %s", shown(problem))


async def terminated(provider: Provider, id: str, seconds: float) -> Guarded:
    """Terminate a sandbox, and once more if that fails."""
    first = await guarded(provider.terminate(id), seconds)
    return first if first.ok else await guarded(provider.terminate(id), seconds)
