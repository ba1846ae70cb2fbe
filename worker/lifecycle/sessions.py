"""Session sandboxes by instance id: opened once however many ask, used from any worker.

A ready session is leased by its use and its idle time, not by its opener. One that
idles for too long, or whose users all died, is the reaper's.
"""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from redis.exceptions import ConnectionError as NoConnection
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as NoAnswer

from ground.process import aside, on_process_loop
from ground.redis.connect import connect_async
from jail.errors import SandboxUnfit
from worker.lifecycle.box import Box, Phase, held
from worker.lifecycle.keeper import Keeper
from worker.lifecycle.provider import SandboxSpec
from worker.lifecycle.reaper.reaper import Reaper
from worker.lifecycle.registry.records import Opening, Record
from worker.lifecycle.sandbox import OpenSandbox


class Sessions:
    """The sessions of one lifecycle's run."""

    def __init__(self, keeper: Keeper, start: Callable[..., Awaitable[OpenSandbox]]) -> None:
        self._keeper, self._start = keeper, start
        self._registry = keeper.registry

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
        keeper, mine = self._keeper, f"opening-{uuid.uuid4().hex[:24]}"
        while True:
            asking = asyncio.ensure_future(
                aside(lambda: self._registry.session(instance, mine, keeper.owner, keeper.lease))
            )
            try:
                turn = await asyncio.shield(asking)
            except asyncio.CancelledError:
                await asyncio.shield(self._asked_in_vain(asking))
                raise
            if turn.what == "ready" and turn.record is not None:
                return self._joined(turn.record)
            if turn.what == "open":
                return await self._opened(turn, instance, spec)
            await self._until_opened(turn)

    async def _asked_in_vain(self, asking: asyncio.Future[Opening]) -> None:
        """Nobody opens it, if it is our turn: others are not to wait for that."""
        with contextlib.suppress(RedisError, OSError):
            turn = await asking
            if turn.what == "open":
                await self._settled(Box(turn.name, turn.fence))

    async def leave(self, sandbox: OpenSandbox) -> None:
        """The turn is over: the session idles from now on, or is given up where it is lost."""
        keeper, box = self._keeper, sandbox._box
        idle = keeper.settings.session_idle
        try:
            if box.lost:
                # It is dead, not only lost to us: the next caller must not get it.
                await self._tell(lambda: self._registry.condemn(box.name, box.fence, box.lost))
            else:
                await self._tell(lambda: self._registry.renew([(box.name, box.fence, idle)]))
        finally:
            keeper.drop(box)

    async def end(self, instance: str) -> bool:
        """End it, here and now or else by the reaper; whether there was one."""
        name = await aside(lambda: self._registry.session_of(instance))
        return bool(name) and await on_process_loop(self._ended(name))

    async def _ended(self, name: str) -> bool:
        keeper, registry = self._keeper, self._registry
        reaper = Reaper(registry.target, settings=keeper.settings, ours=keeper.provider)
        try:
            return bool(await reaper.end(registry.run, [name], "its session ended"))
        finally:
            await reaper.close()

    def _joined(self, record: Record) -> OpenSandbox:
        own = self._keeper.provider.scope
        if record.scope != own:
            raise SandboxUnfit(
                f"session {record.instance!r} is in a sandbox of {record.scope}, and this process"
                f" reaches only those of {own}: give all processes that share sessions one"
                " PENSTOCK_SESSION_PROVIDER; `local` serves one machine alone",
                reason="session_out_of_reach",
            )
        box = Box(record.name, record.fence, ref=record.ref, phase=Phase.OPEN)
        self._keeper.keep(box)
        return OpenSandbox(self._keeper.provider, box)

    async def _opened(self, turn: Opening, instance: str, spec: SandboxSpec) -> OpenSandbox:
        """Open it, since it is our turn. Waiters get a notice when it is open or has failed."""
        nobody = Box(turn.name, turn.fence)
        self._keeper.keep(nobody)
        sandbox = None
        try:
            sandbox = await self._start(spec, instance=instance, opening=turn.name)
            await self._settled(nobody)
        except BaseException:
            # Opened, and given to nobody: from now on it idles.
            ending = self._settled(nobody) if sandbox is None else self.leave(sandbox)
            await asyncio.shield(ending)
            raise
        return sandbox

    async def _settled(self, nobody: Box) -> None:
        self._keeper.drop(nobody)
        forget = aside(lambda: self._registry.forget(nobody.name, nobody.fence, "settled"))
        with contextlib.suppress(RedisError, OSError):  # its lease ends, with the same effect
            await asyncio.shield(forget)

    async def _until_opened(self, turn: Opening) -> None:
        """Wait until its opener is done, or may be dead."""
        registry = self._registry
        client: Any = connect_async(registry.target, timeout=None)
        try:
            async with asyncio.timeout(turn.seconds + 0.05):
                await client.xread({registry.opening_ended(turn.name): "0"}, block=0)
        except (TimeoutError, NoConnection, NoAnswer):
            return  # the registry is asked again, and is patient with a Redis that is away
        finally:
            await client.aclose()

    async def _tell(self, note: Any) -> None:
        with contextlib.suppress(RedisError, OSError):  # its lease ends by itself
            await aside(note)
