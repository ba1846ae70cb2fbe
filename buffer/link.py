"""A buffer's way to Redis: one connection per event loop, and patience with outages.

Every script of a buffer may be repeated without harm. So a call that got no answer
is sent again until `patience` has passed. That is what carries writers and readers
over a restart of Redis. What blocks on the server, and all of a Cluster, goes by redis-py's client.
"""

import asyncio
import contextlib
import math
import re
import time
import weakref
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

import redis.exceptions

from ground import RedisFull, RedisUnavailable
from ground.backoff import backoff
from ground.lua import Command, Script
from ground.redis.async_connection import AsyncConnection
from ground.redis.connect import AnyRedis, AsyncClient, connect_async, target_of
from ground.redis.connection import is_full

T = TypeVar("T")
_OUTAGE = (
    redis.exceptions.ConnectionError,
    redis.exceptions.TimeoutError,
    redis.exceptions.BusyLoadingError,
    redis.exceptions.ReadOnlyError,
    redis.exceptions.ClusterDownError,
    redis.exceptions.RedisClusterException,
    OSError,
)
# Its disk is full, too few replicas follow it, or somebody's script runs: that may be over soon.
# Or it is the primary no more: scripts of Redis 6.2 say so in words, and blocked commands end.
_NOT_NOW = re.compile(r"\b(MISCONF|NOREPLICAS|BUSY|READONLY|UNBLOCKED) ")
_LATE = 1.0  # seconds that a blocked command's reply may be on its way


class Link:
    """The way to one server, for whichever event loop asks."""

    def __init__(self, where: AnyRedis, *, patience: float = 15.0, timeout: float = 5.0) -> None:
        self.target = target = target_of(where)
        self._patience = patience
        self._scripts: dict[str, Script] = {}
        scripts = self._scripts  # nothing below refers to this object: it ends when its users do
        self._connections = _PerLoop(lambda: AsyncConnection(target, scripts, timeout))
        self._clients = _PerLoop(lambda: connect_async(target, timeout=timeout))
        self._blocking = _PerLoop(lambda: connect_async(target, timeout=None))

    def client(self) -> AsyncClient:
        """This loop's client, for what redis-py reads."""
        return self._clients.here()

    async def run(self, script: Script, keys: Sequence[str], args: Sequence[Any] = ()) -> Any:
        """Run a script, outlasting an outage."""
        if self.target.kind == "cluster":
            return await self.outlast(lambda: script.call_async(self.client(), keys, args))
        self._scripts[script.sha] = script
        command = script.command(keys, args)
        return await self.outlast(lambda: self._connections.here().ask(command))

    async def command(self, *parts: Any) -> Any:
        """Send one plain command that may be repeated."""
        if self.target.kind == "cluster":
            return await self.outlast(lambda: self.client().execute_command(*parts))
        return await self.outlast(lambda: self._connections.here().ask(parts))

    async def now(self) -> float:
        """The time by the server's clock."""
        seconds, micros = await self.command("TIME")
        return int(seconds) + int(micros) / 1e6

    async def commands(self, commands: Sequence[Command]) -> list[Any]:
        """Send plain commands that may be repeated, all at once."""

        async def replies() -> list[Any]:
            if self.target.kind != "cluster":
                return await asyncio.gather(*self._connections.here().asked(*commands))
            async with self.client().pipeline(transaction=False) as pipe:
                for command in commands:
                    pipe.execute_command(*command)
                return list(await pipe.execute())

        return await self.outlast(replies) if commands else []

    async def rung(self, bell: str, seconds: float) -> None:
        """Wait for a bell, for so many seconds at most."""
        await self.block(seconds, "BLPOP", bell, max(seconds, 0.01))

    async def block(self, seconds: float, *parts: Any) -> None:
        """Send a command that blocks on the server for so many seconds. By our own clock, too: when
        the server's goes back, it blocks as much longer."""

        async def blocked() -> None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds + _LATE):
                    await self._blocking.here().execute_command(*parts)

        await self.outlast(blocked)

    async def outlast(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat a call until it is answered or patience ends."""
        deadline = time.monotonic() + self._patience
        failures = 0
        while True:
            try:
                return await call()
            except (*_OUTAGE, redis.exceptions.ResponseError) as outage:
                if not isinstance(outage, _OUTAGE) and not _NOT_NOW.search(str(outage)):
                    if is_full(outage):
                        raise RedisFull(
                            f"maxmemory: {self.target} is out of memory; raise maxmemory, or lower "
                            "PENSTOCK_MAX_BUFFER_BYTES below it"
                        ) from None
                    raise
                failures += 1
                pause = backoff(failures, 0.02, 1.0)
                if time.monotonic() + pause > deadline:
                    why = str(outage) or type(outage).__name__  # a timeout has no words
                    waited = f" for {self._patience:g} s" if self._patience else ""
                    raise RedisUnavailable(
                        f"PENSTOCK_REDIS_URL: {self.target} did not answer{waited}: {why}"
                    ) from None
            await asyncio.sleep(pause)

    async def aclose(self) -> None:
        """Close this loop's connections."""
        if connection := self._connections.taken_here():
            connection.break_off()
            await connection.close()
        for client in (self._clients.taken_here(), self._blocking.taken_here()):
            if client is not None:
                await client.aclose()


class _PerLoop(Generic[T]):
    """A thing for each event loop, made when that first asks for it."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: weakref.WeakKeyDictionary[Any, T] = weakref.WeakKeyDictionary()

    def here(self) -> T:
        loop = asyncio.get_running_loop()
        made = self._made.get(loop)
        if made is None:
            for each in self._made.keyrefs():  # other threads make theirs meanwhile
                if (ended := each()) is not None and ended.is_closed():
                    self._made.pop(ended, None)  # it refers to its loop, which would stay, too
            made = self._made[loop] = self._make()
        return made

    def taken_here(self) -> T | None:
        """Take away this loop's, if there is one."""
        return self._made.pop(asyncio.get_running_loop(), None)


def deadline_in(wait: float) -> float:
    """The moment at which the time of someone who waits is over."""
    if math.isnan(wait):
        raise ValueError("wait must be a number of seconds, not NaN")
    return time.monotonic() + wait


def scored(rows: list[Any]) -> list[tuple[bytes, float]]:
    """redis-py gives pairs for RESP3, a flat list for RESP2."""
    if rows and isinstance(rows[0], list | tuple):
        return [(name, float(score)) for name, score in rows]
    return [(name, float(score)) for name, score in zip(rows[::2], rows[1::2], strict=True)]
