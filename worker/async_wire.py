"""The worker's line to Redis: what is asked in one tick of the loop goes out in one write.

An error that is an answer is raised where the question was asked; one that breaks
the line is raised to all who wait on it, and the next question opens a new line.
Nothing is asked twice by itself.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from redis.exceptions import ConnectionError, NoScriptError, RedisError, ResponseError

from ground import RedisTarget, Script, connect_async
from limiter.wire import packed

Command = tuple[Any, ...]


class AsyncWire:
    """One connection of one event loop."""

    def __init__(self, target: RedisTarget, scripts: Mapping[str, Script], timeout: float) -> None:
        # redis-py's own timeouts cost a task for each write: one of ours spans the exchange.
        self._client: Any = connect_async(target, timeout=None)
        self._timeout = timeout
        self._fake = target.kind == "fake"
        self._scripts = scripts
        self._connection: Any = None
        self._waiting: list[tuple[Command, asyncio.Future[Any]]] = []
        self._flushing: asyncio.Task[None] | None = None

    async def ask(self, command: Command) -> Any:
        """The reply to one command."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((command, answer))
        if self._flushing is None:
            self._flushing = asyncio.create_task(self._flush())
        return await answer

    def break_off(self) -> None:
        """Wait no longer for what was asked; who asked it is told of a broken line."""
        if self._flushing is not None:
            self._flushing.cancel()

    async def close(self) -> None:
        if self._flushing is not None:
            await self._flushing
        await self._hang_up()
        await self._client.aclose()

    async def _flush(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            try:
                replies = await self._converse([command for command, _ in batch])
            except (RedisError, OSError) as failure:
                await self._hang_up()
                replies = [failure] * len(batch)
            except asyncio.CancelledError:
                await self._hang_up()
                replies = [ConnectionError("broken off")] * len(batch)
            for (_, answer), reply in zip(batch, replies, strict=True):
                _settle(answer, reply)
        self._flushing = None

    async def _converse(self, commands: list[Command]) -> list[Any]:
        replies = await self._exchange(commands)
        unknown = [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if unknown:
            whole = [self._with_source(commands[i]) for i in unknown]
            for i, reply in zip(unknown, await self._exchange(whole), strict=True):
                replies[i] = reply
        return replies

    async def _exchange(self, commands: list[Command]) -> list[Any]:
        if self._fake:
            return [await self._ask_fake(command) for command in commands]
        if self._connection is None:
            self._connection = await self._client.connection_pool.get_connection()
        line = self._connection
        async with asyncio.timeout(self._timeout):
            await line.send_packed_command(packed(line, commands))
            return [await _read(line) for _ in commands]

    async def _ask_fake(self, command: Command) -> Any:
        try:
            return await self._client.execute_command(*command)
        except ResponseError as refusal:
            return refusal

    def _with_source(self, command: Command) -> Command:
        return ("EVAL", self._scripts[command[1]].source, *command[2:])

    async def _hang_up(self) -> None:
        line, self._connection = self._connection, None
        if line is not None:
            await line.disconnect(nowait=True)
            await self._client.connection_pool.release(line)


async def _read(line: Any) -> Any:
    try:
        return await line.read_response()
    except ResponseError as refusal:
        return refusal


def _settle(answer: asyncio.Future[Any], reply: Any) -> None:
    if answer.done():
        return  # whoever asked was cancelled meanwhile
    if isinstance(reply, Exception):
        answer.set_exception(reply)
    else:
        answer.set_result(reply)
