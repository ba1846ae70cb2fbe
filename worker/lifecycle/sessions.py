"""Session sandboxes by instance id: opened once however many ask, used from any worker.

A ready session is leased by its use and its idle time, not by its opener. One that
idles for too long, or whose users all died, is the reaper's.
"""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol

from redis.exceptions import RedisError

from ground import RedisTarget, connect_async
from ground.process import aside, on_process_loop
from jail.errors import SandboxUnfit
from worker.lifecycle.box import Box, held
from worker.lifecycle.provider import Provider, SandboxSpec
from worker.lifecycle.reaper.reaper import Reaper
from worker.lifecycle.registry.keeper import Keeper
from worker.lifecycle.registry.records import Record, Turn
from worker.lifecycle.registry.registry import Registry
from worker.lifecycle.sandbox import OpenSandbox
from worker.lifecycle.settings import LifecycleSettings


class Lifecycle(Protocol):
    """What sessions need of the lifecycle whose they are."""

    settings: LifecycleSettings
    provider: Provider
    run: str
    target: RedisTarget
    registry: Registry
    keeper: Keeper

    async def start(
        self, spec: SandboxSpec | None = None, *, attempts: int | None = None, instance: str = ""
    ) -> OpenSandbox: ...


class Sessions:
    """The sessions of one lifecycle's run."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle

    @asynccontextmanager
    async def use(self, instance: str, spec: SandboxSpec) -> AsyncIterator[OpenSandbox]:
        """The session, for one turn: leased while it is used, and idle from its end on."""
        sandbox = await self.enter(instance, spec)
        try:
            async with held(sandbox._box):
                yield sandbox
        finally:
            await self.leave(sandbox)

    async def enter(self, instance: str, spec: SandboxSpec) -> OpenSandbox:
        """Join the session, or open it if nobody has; it is kept until `leave`."""
        life = self._lifecycle
        mine = f"opening-{uuid.uuid4().hex[:24]}"
        while True:
            turn = await aside(
                lambda: life.registry.session(instance, mine, life.keeper.owner, life.keeper.lease)
            )
            if turn.what == "ready" and turn.record is not None:
                return self._joined(turn.record)
            if turn.what == "open":
                return await self._opened(turn, instance, spec)
            await self._until_opened(turn)

    async def leave(self, sandbox: OpenSandbox) -> None:
        """The turn is over: the session idles from now on, or is given up where it is lost."""
        life, box = self._lifecycle, sandbox._box
        idle = life.settings.session_idle
        try:
            if box.lost:
                # It is dead, not only lost to us: the next caller must not get it.
                await self._tell(lambda: life.registry.condemn(box.name, box.fence, box.lost))
            else:
                await self._tell(lambda: life.registry.renew([(box.name, box.fence, idle)]))
        finally:
            life.keeper.drop(box.name, box.take)

    async def end(self, instance: str) -> bool:
        """End it, here and now or else by the reaper; whether there was one."""
        registry = self._lifecycle.registry
        name = await aside(lambda: registry.session_of(instance))
        return bool(name) and await on_process_loop(self._ended(name))

    async def _ended(self, name: str) -> bool:
        life = self._lifecycle
        reaper = Reaper(life.target, settings=life.settings, ours=life.provider)
        try:
            return bool(await reaper.end(life.run, [name], "its session ended"))
        finally:
            await reaper.close()

    def _joined(self, record: Record) -> OpenSandbox:
        own = self._lifecycle.provider.scope
        if record.scope != own:
            raise SandboxUnfit(
                f"session {record.instance!r} is in a sandbox of {record.scope}, and this process"
                f" reaches only those of {own}: give all processes that share sessions one"
                " PENSTOCK_SESSION_PROVIDER; `local` serves one machine alone",
                reason="session_out_of_reach",
            )
        box = Box(record.name, record.fence, ref=record.ref)
        self._lifecycle.keeper.keep(box.name, box.fence, box.take)
        return OpenSandbox(self._lifecycle.provider, box)

    async def _opened(self, turn: Turn, instance: str, spec: SandboxSpec) -> OpenSandbox:
        """Open it, since it is our turn. Waiters get a notice when it is open or has failed."""
        life, nobody = self._lifecycle, Box(turn.name, turn.fence)
        life.keeper.keep(turn.name, turn.fence, nobody.take)
        sandbox = None
        try:
            sandbox = await life.start(spec, instance=instance)
            await self._settled(turn, nobody)
        except BaseException:
            # Opened, and given to nobody: from now on it idles.
            ending = self._settled(turn, nobody) if sandbox is None else self.leave(sandbox)
            await asyncio.shield(ending)
            raise
        return sandbox

    async def _settled(self, turn: Turn, nobody: Box) -> None:
        life = self._lifecycle
        life.keeper.drop(turn.name, nobody.take)
        forget = aside(lambda: life.registry.forget(turn.name, turn.fence, "settled"))
        with contextlib.suppress(RedisError, OSError):  # its lease ends, with the same effect
            await asyncio.shield(forget)

    async def _until_opened(self, turn: Turn) -> None:
        """Until its opener is done, or may be dead."""
        registry = self._lifecycle.registry
        client: Any = connect_async(registry.target, timeout=None)
        try:
            async with asyncio.timeout(turn.seconds + 0.05):
                await client.xread({registry.opening_ended(turn.name): "0"}, block=0)
        except TimeoutError:
            return
        finally:
            await client.aclose()

    async def _tell(self, note: Any) -> None:
        with contextlib.suppress(RedisError, OSError):  # its lease ends by itself
            await aside(note)
