"""The worker's line to Redis: what is asked in one tick of the loop goes out in one write.

It goes out at once, whatever is unanswered yet, so that the server works while we do.
An error that is an answer is raised where the question was asked; one that breaks the
line is raised to all who wait on it, and the next question opens a new line. Nothing is
asked twice by itself.
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any

from redis.exceptions import ConnectionError, NoScriptError, RedisError, ResponseError

from ground import RedisTarget, Script, connect_async
from limiter.wire import is_passing, packed

Command = tuple[Any, ...]
Question = tuple[Command, "asyncio.Future[Any]"]


class _Line:
    """A connection, and what was asked on it and is not answered yet."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.asked: deque[Question] = deque()
        self.reading: asyncio.Task[None] | None = None


class AsyncWire:
    """One connection of one event loop."""

    def __init__(self, target: RedisTarget, scripts: Mapping[str, Script], timeout: float) -> None:
        # redis-py's own timeouts cost a task for each write: ours span a write, and a reply.
        self._client: Any = connect_async(target, timeout=None)
        self._timeout = timeout
        self._fake = target.kind == "fake"
        self._scripts = scripts
        self._line: _Line | None = None
        self._new: list[Question] = []
        self._sending: asyncio.Task[None] | None = None

    async def ask(self, command: Command) -> Any:
        """The reply to one command."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._post((command, answer))
        return await answer

    def break_off(self) -> None:
        """Wait no longer for what was asked; who asked it is told of a broken line."""
        for task in self._at_work():
            task.cancel()

    async def close(self) -> None:
        while tasks := self._at_work():
            await asyncio.wait(tasks)
        if self._line is not None:
            await self._hang_up(self._line, ConnectionError("closed"))
        await self._client.aclose()

    def _at_work(self) -> list["asyncio.Task[None]"]:
        tasks = (self._sending, self._line.reading if self._line else None)
        return [task for task in tasks if task is not None]

    def _post(self, question: Question) -> None:
        self._new.append(question)
        if self._sending is None:
            self._sending = asyncio.create_task(self._send())

    async def _send(self) -> None:
        try:
            while self._new:
                batch, self._new = self._new, []
                await self._write(batch)
        finally:
            self._sending = None

    async def _write(self, batch: list[Question]) -> None:
        fresh = self._line is None
        line = self._line or _Line(None)
        line.asked.extend(batch)
        try:
            if not self._fake:
                await self._put(line, [command for command, _ in batch])
        except (RedisError, OSError, asyncio.CancelledError) as failure:
            await self._hang_up(line, failure)
            return
        if fresh:
            self._line = line
        if line.reading is None and line.asked:
            line.reading = asyncio.create_task(self._read(line))

    async def _put(self, line: _Line, commands: list[Command]) -> None:
        async with asyncio.timeout(self._timeout):
            if line.connection is None:
                line.connection = await self._client.connection_pool.get_connection()
            await line.connection.send_packed_command(packed(line.connection, commands))

    async def _read(self, line: _Line) -> None:
        try:
            while line.asked:
                reply = await self._reply(line, line.asked[0][0])
                if line.asked:  # else it was hung up meanwhile
                    self._settle(*line.asked.popleft(), reply)
                if is_passing(reply) and self._line is line:
                    self._line = None  # a primary that was demoted, for one: ask elsewhere
            if self._line is not line:
                await self._hang_up(line, ConnectionError("closed"))
        except (RedisError, OSError, asyncio.CancelledError) as failure:
            await self._hang_up(line, failure)
        finally:
            line.reading = None

    async def _reply(self, line: _Line, command: Command) -> Any:
        try:
            if self._fake:
                return await self._client.execute_command(*command)
            async with asyncio.timeout(self._timeout):
                return await line.connection.read_response()
        except ResponseError as refusal:
            return refusal

    def _settle(self, command: Command, answer: "asyncio.Future[Any]", reply: Any) -> None:
        if isinstance(reply, NoScriptError) and command[0] == "EVALSHA":
            self._post((("EVAL", self._scripts[command[1]].source, *command[2:]), answer))
        elif answer.done():
            return  # whoever asked was cancelled meanwhile
        elif isinstance(reply, Exception):
            answer.set_exception(reply)
        else:
            answer.set_result(reply)

    async def _hang_up(self, line: _Line, failure: BaseException) -> None:
        if self._line is line:
            self._line = None
        if isinstance(failure, asyncio.CancelledError):
            failure = ConnectionError("broken off")
        asked, line.asked = line.asked, deque()
        connection, line.connection = line.connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)
            await self._client.connection_pool.release(connection)
        for _, answer in asked:
            if not answer.done():
                answer.set_exception(failure)
