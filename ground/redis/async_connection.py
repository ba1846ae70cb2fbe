"""A worker's connection to Redis: a request goes out at once, even if others are unanswered.

So the server and the worker work at the same time. Requests of one tick of the loop that find
others unanswered go out in one write. An error that is a reply is raised to its own caller. An
error that breaks the connection is raised to all callers that wait on it; the next request opens
a new one. Nothing is sent again by itself.

Replies are read in one of three ways: with hiredis by `QuickReplies`, as the bytes arrive; else
by a task that waits for each (`_read`); and with a fake server by one call for each request.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from redis.exceptions import (
    ConnectionError,
    InvalidResponse,
    NoScriptError,
    RedisError,
    ResponseError,
)

from ground import RedisTarget, Script, connect_async
from ground.lua import Command
from ground.redis.connection import is_passing, packed

try:
    from hiredis import Reader
except ImportError:  # it is an extra
    Reader = None  # type: ignore[assignment, misc]

possible = Reader is not None


class QuickReplies(asyncio.Protocol):
    """Takes over a connection that was just opened; an error that is a reply is one."""

    def __init__(
        self,
        connection: Any,
        replied: Callable[[Any], None],
        lost: Callable[[BaseException], None],
    ) -> None:
        self._replied, self._lost = replied, lost
        self._reader = Reader(
            protocolError=InvalidResponse, replyError=connection._parser.parse_error
        )
        self._transport = connection._writer.transport
        if (
            self._transport.is_closing()
        ):  # redis-py's protocol already got `connection_lost`; this one never would
            raise ConnectionError("the server hung up")
        self._redis_protocol = self._transport.get_protocol()
        self._transport.set_protocol(self)

    def write(self, commands: bytes) -> None:
        """Send now what the server takes; the transport sends the rest."""
        self._transport.write(commands)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not False:
                self._replied(reply)
        except InvalidResponse as nonsense:
            self._lost(nonsense)

    def connection_lost(self, failure: BaseException | None) -> None:
        self._redis_protocol.connection_lost(failure)  # redis-py waits for it when it closes
        self._lost(failure or ConnectionError("the server hung up"))


Request = tuple[Command, "asyncio.Future[Any]", float]  # and when it was asked


class Opened:
    """One connection to the server, and its requests that have no reply yet."""

    def __init__(self) -> None:
        self.connection: Any = None
        self.asked: deque[Request] = deque()
        self.replies: QuickReplies | None = None
        self.replied_at = 0.0  # by the loop's clock
        self.watched = False
        self.overdue: Request | None = None
        self.reading: asyncio.Task[None] | None = None  # without `QuickReplies`

    @property
    def due_since(self) -> float:
        """Since when the next reply is due: the server answers one request after the other."""
        return max(self.asked[0][2], self.replied_at)


def refuse(requests: Iterable[Request], failure: BaseException) -> None:
    """Fail the callers of these requests."""
    for _, answer, _ in requests:
        if not answer.done():
            answer.set_exception(failure)


_GOODBYE = 1.0  # seconds
_LOOK = 0.001


class AsyncConnection:
    """One connection of one event loop."""

    def __init__(self, target: RedisTarget, scripts: Mapping[str, Script], timeout: float) -> None:
        # redis-py's own timeouts cost a task for each write: `_watch` has one for all requests.
        self._client: Any = connect_async(target, timeout=None)
        self._timeout = timeout
        self._fake = target.kind == "fake"
        self._scripts = scripts
        self._opened: Opened | None = None
        self._unfinished: set[Opened] = set()  # that one, and older ones with requests unanswered
        self._new: list[Request] = []
        self._sending: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()

    async def ask(self, command: Command) -> Any:
        """The reply to one command."""
        (answer,) = self.asked(command)
        return await answer

    def asked(self, *commands: Command) -> "list[asyncio.Future[Any]]":
        """The replies to some commands, when they are there; sent together."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        requests = [(command, loop.create_future(), now) for command in commands]
        self._post(requests)
        return [answer for _, answer, _ in requests]

    def break_off(self) -> None:
        """Stop waiting for replies: all callers get a `ConnectionError`."""
        failure = ConnectionError("broken off")
        for task in self._at_work():
            task.cancel()
        self._sending = None
        refuse(self._taken(), failure)
        for opened in [*self._unfinished]:
            self._hang_up(opened, failure)

    async def close(self) -> None:
        while waiting := [*self._at_work(), *self._unanswered()]:
            await asyncio.wait(waiting)
        for opened in [*self._unfinished]:
            self._hang_up(opened, ConnectionError("closed"))
        if self._closing:
            await asyncio.wait(self._closing)
        await self._client.aclose()

    def _at_work(self) -> list["asyncio.Task[None]"]:
        tasks = (self._sending, *(opened.reading for opened in self._unfinished))
        return [task for task in tasks if task is not None]

    def _unanswered(self) -> "list[asyncio.Future[Any]]":
        asked = (answer for opened in self._unfinished for _, answer, _ in opened.asked)
        return [answer for answer in asked if not answer.done()]

    # Requests

    def _post(self, requests: list[Request]) -> None:
        self._new += requests
        if self._sending is not None:
            return
        opened = self._opened
        if opened is not None and opened.replies is not None and not opened.asked:
            self._put(opened, opened.replies)
        else:
            self._sending = asyncio.create_task(self._send())

    async def _send(self) -> None:
        failure: Exception = ConnectionError("broken off")
        try:
            while self._new:
                if self._opened is None:
                    self._opened = await self._open()
                elif self._opened.replies is not None:
                    self._put(self._opened, self._opened.replies)
                else:
                    await self._put_slowly(self._opened)
        except Exception as wrong:  # noqa: BLE001 - it is for those who asked
            failure = wrong
        finally:
            if self._sending is asyncio.current_task():  # else it was broken off
                self._sending = None
                refuse(self._taken(), failure)

    async def _open(self) -> Opened:
        opened = Opened()
        try:
            if not self._fake:
                async with asyncio.timeout(self._timeout):
                    opened.connection = await self._client.connection_pool.get_connection()
                if possible:
                    opened.replies = QuickReplies(
                        opened.connection,
                        partial(self._replied, opened),
                        partial(self._hang_up, opened),
                    )
        except BaseException as failure:
            self._hang_up(opened, failure)
            raise
        self._unfinished.add(opened)
        return opened

    def _taken(self) -> list[Request]:
        batch, self._new = self._new, []
        return batch

    def _packed(self, opened: Opened) -> list[bytes]:
        """The new requests as bytes, now unanswered there; or refused, if they cannot be packed."""
        batch = self._taken()
        data: list[bytes] = []
        try:
            if not self._fake:
                data = packed(opened.connection, [command for command, _, _ in batch])
        except Exception as wrong:  # noqa: BLE001 - it is for those who asked
            refuse(batch, wrong)
        else:
            opened.asked.extend(batch)
        return data

    def _put(self, opened: Opened, replies: QuickReplies) -> None:
        replies.write(b"".join(self._packed(opened)))
        if not opened.watched:
            self._watch(opened)

    async def _put_slowly(self, opened: Opened) -> None:
        data = self._packed(opened)
        try:
            if data:
                async with asyncio.timeout(self._timeout):
                    await opened.connection.send_packed_command(data)
        except (RedisError, OSError) as failure:
            self._hang_up(opened, failure)
        except asyncio.CancelledError as failure:
            self._hang_up(opened, failure)
            raise
        else:
            if opened.reading is None and opened.asked:
                opened.reading = asyncio.create_task(self._read(opened))

    # Replies

    def _replied(self, opened: Opened, reply: Any) -> None:
        opened.replied_at = asyncio.get_running_loop().time()
        if opened.asked:  # else it was closed meanwhile
            command, answer, _ = opened.asked.popleft()
            self._settle(command, answer, reply)
        if is_passing(reply) and self._opened is opened:
            self._opened = None  # a demoted primary, for example: open a new connection
        if self._opened is not opened and not opened.asked:
            self._hang_up(opened, ConnectionError("closed"))

    def _watch(self, opened: Opened) -> None:
        """While something is unanswered: the server may have fallen silent."""
        opened.watched = bool(opened.asked)
        if not opened.asked:
            return
        loop = asyncio.get_running_loop()
        left = opened.due_since + self._timeout - loop.time()
        if left > 0:
            loop.call_later(left, self._watch, opened)
        elif opened.overdue is not opened.asked[0]:
            opened.overdue = opened.asked[0]  # the loop may have been blocked: read first
            loop.call_later(_LOOK, self._watch, opened)
        else:
            self._hang_up(opened, TimeoutError(f"no reply within {self._timeout:g} s"))

    async def _read(self, opened: Opened) -> None:
        try:
            while opened.asked:
                self._replied(opened, await self._reply(opened, opened.asked[0][0]))
        except (RedisError, OSError, asyncio.CancelledError) as failure:
            self._hang_up(opened, failure)
        finally:
            opened.reading = None

    async def _reply(self, opened: Opened, command: Command) -> Any:
        try:
            if self._fake:
                return await self._client.execute_command(*command)
            async with asyncio.timeout(self._timeout):
                return await opened.connection.read_response()
        except ResponseError as refusal:
            return refusal

    def _settle(self, command: Command, answer: "asyncio.Future[Any]", reply: Any) -> None:
        if isinstance(reply, NoScriptError) and command[0] == "EVALSHA":
            whole = ("EVAL", self._scripts[command[1]].source, *command[2:])
            self._post([(whole, answer, asyncio.get_running_loop().time())])
        elif answer.done():
            return  # its caller was cancelled meanwhile
        elif isinstance(reply, Exception):
            answer.set_exception(reply)
        else:
            answer.set_result(reply)

    # The end of a connection

    def _hang_up(self, opened: Opened, failure: BaseException) -> None:
        self._unfinished.discard(opened)
        if self._opened is opened:
            self._opened = None
        if isinstance(failure, asyncio.CancelledError):
            failure = ConnectionError("broken off")
        asked, opened.asked = opened.asked, deque()
        if opened.connection is not None:
            closing = asyncio.get_running_loop().create_task(self._close(opened.connection))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
            opened.connection = None
        refuse(asked, failure)

    async def _close(self, connection: Any) -> None:
        with contextlib.suppress(RedisError, OSError):
            async with asyncio.timeout(_GOODBYE):  # TLS waits for the other side's goodbye
                await connection.disconnect()
        await self._client.connection_pool.release(connection)
