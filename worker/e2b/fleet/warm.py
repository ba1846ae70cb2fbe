"""Sandboxes that are ready before they are asked for, refilled as they are taken."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

from redis.exceptions import RedisError

from ground import PenstockError
from ground.backoff import backoff
from ground.complaint import Complaint
from jail.sessions import LocalSessions, SessionRequest
from worker.e2b.boxes import OUR_ROOTS

log = logging.getLogger("penstock.worker")

_LONGEST_PAUSE = 30.0  # seconds before a pool that cannot be filled is tried again
_TROUBLES = (PenstockError, RedisError, OSError)
Leave = Callable[[], AbstractAsyncContextManager[Any]]


@asynccontextmanager
async def kept_warm(
    sessions: LocalSessions, sizes: Mapping[str, int], leave: Leave
) -> AsyncIterator[None]:
    """Keep so many sandboxes of each template ready for the length of the block. `leave` is entered
    around each start."""
    tasks = [
        asyncio.create_task(_Warm(sessions, template, leave).keep(size))
        for template, size in sizes.items()
        if size
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Warm:
    """The sandboxes of one template that are kept ready."""

    def __init__(self, sessions: LocalSessions, template: str, leave: Leave) -> None:
        self._sessions, self._leave = sessions, leave
        self._template = template
        self._complaint = Complaint(log, f"template {template}")

    async def keep(self, size: int) -> None:
        image = "" if self._template in OUR_ROOTS else self._template
        loop, failures = asyncio.get_running_loop(), 0
        while True:
            began = loop.time()
            try:
                await self._sessions.warm(SessionRequest(image=image), size, self._patiently)
            except _TROUBLES as problem:
                self._complaint.of(f"no sandbox is kept ready for now: {problem}")
            failures = 1 if loop.time() - began > _LONGEST_PAUSE else failures + 1
            await asyncio.sleep(backoff(failures, 0.2, _LONGEST_PAUSE))

    @asynccontextmanager
    async def _patiently(self) -> AsyncIterator[None]:
        """Wait until there is leave: what is ready stays ready meanwhile, also without a Redis."""
        failures = 0
        while True:
            async with AsyncExitStack() as held:
                try:
                    await held.enter_async_context(self._leave())
                except _TROUBLES as problem:
                    self._complaint.of(f"none is started for now: {problem}")
                else:
                    yield
                    self._complaint.over()
                    return
            failures += 1
            await asyncio.sleep(backoff(failures, 0.2, _LONGEST_PAUSE))
