"""This machine's E2B sandboxes in the lifecycle: capped, registered, kept, reaped.

The hub is what knows which of them live; the registry follows it. A server that was killed and
started again takes up what lives. What happens while Redis is down is noted afterwards.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from redis.exceptions import RedisError

from ground.redis.connect import AnyRedis
from jail.sessions import LocalSessions, SessionInfo
from limiter import GateError
from worker.e2b.problems import Problem
from worker.lifecycle import (
    LifecycleSettings,
    OpenSandbox,
    SandboxLifecycle,
    SandboxLost,
)
from worker.lifecycle.local import LocalProvider

log = logging.getLogger("penstock.worker")

_LONGEST_START = 60.0  # seconds: the SDK waits no longer


class Registered:
    """The sandboxes that the servers of this machine keep, in the registry of one run."""

    def __init__(
        self, redis: AnyRedis, run: str, sessions: LocalSessions, patience: float,
        changed: Callable[[], None],
    ) -> None:  # fmt: skip
        settings = LifecycleSettings.load(
            starting_timeout=patience,
            startup_timeout=_LONGEST_START,
            init_wall_budget=_LONGEST_START,
        )
        provider = LocalProvider(sessions=sessions)
        self.lifecycle = SandboxLifecycle(redis, provider, run=run, settings=settings)
        self._changed = changed  # what to call when there is one more, or one less
        self._kept: dict[str, OpenSandbox] = {}
        self._opening: set[str] = set()
        self._notes: set[asyncio.Task[Any]] = set()

    @asynccontextmanager
    async def started(self, name: str, ttl: float) -> AsyncIterator[Mapping[str, str]]:
        """Register the opening of a session with this name; give the tags that it must have. Raises
        `Problem` if no permit came, or no record could be written."""
        self._opening.add(name)
        self._changed()
        try:
            async with self.lifecycle.recorded(name, ttl=ttl) as sandbox:
                yield sandbox.tags
            self._kept[name] = sandbox
        except (GateError, RedisError) as problem:
            raise Problem("unavailable", f"no sandbox could start in time: {problem}") from None
        except (SandboxLost, TimeoutError) as problem:
            raise Problem("unavailable", f"it ended as it started: {problem}") from None
        finally:
            self._opening.discard(name)
            self._changed()

    @asynccontextmanager
    async def starting(self) -> AsyncIterator[None]:
        """A STARTING permit for a session that is registered by nobody. Raises `Problem`."""
        async with AsyncExitStack() as permit:
            try:
                await permit.enter_async_context(self.lifecycle.starting())
            except GateError as problem:
                raise Problem("unavailable", f"nothing can start for now: {problem}") from None
            yield

    @property
    def count(self) -> int:
        """How many sandboxes live, or are about to."""
        return len(self._kept) + len(self._opening)

    def prolonged(self, name: str, seconds: float) -> None:
        if sandbox := self._kept.get(name):
            self._note(self.lifecycle.prolong(sandbox, seconds))

    def ended(self, name: str) -> None:
        if sandbox := self._kept.pop(name, None):
            self._changed()
            self._note(self.lifecycle.stop(sandbox))

    async def follow(self, listing: AsyncIterator[SessionInfo]) -> None:
        """Bring the registry to what lives on this machine, of which `listing` is begun here."""
        before, opening = dict(self._kept), set(self._opening)
        living = {info.name: info async for info in listing}
        for name, sandbox in before.items():
            if self._kept.get(name) is not sandbox:
                continue  # meanwhile it has ended, and there may be another of its name
            if name not in living:
                self.ended(name)
            elif sandbox.lost:
                del self._kept[name]  # taken over; or Redis has lost its record
        missing = living.keys() - self._kept.keys() - opening - self._opening
        now = time.time()
        left = {name: max(1.0, living[name].ends - now) for name in missing}
        for sandbox in await self.lifecycle.take_up(left):
            self._kept[sandbox.name] = sandbox

    def _note(self, work: Coroutine[Any, Any, bool]) -> None:
        """Note it in the registry, without anybody waiting for it: Redis may be down."""
        task = asyncio.ensure_future(_quietly(work))
        self._notes.add(task)
        task.add_done_callback(self._notes.discard)

    async def close(self) -> None:
        """Close the lifecycle; living sandboxes stay registered, for as long as their lease."""
        if self._notes:
            await asyncio.wait(self._notes)
        await self.lifecycle.close()


async def _quietly(work: Coroutine[Any, Any, bool]) -> None:
    try:
        await work
    except (RedisError, OSError) as problem:
        log.warning("a change to a sandbox was not recorded in the registry: %s", problem)
