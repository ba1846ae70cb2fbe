"""A worker's connection to Redis: a request goes out at once, even if others are unanswered.

So the server and the worker work at the same time. Requests of one tick of the loop that find
others unanswered go out in one write. An error that is a reply is raised to its own caller. An
error that breaks the connection is raised to all callers that wait on it; the next request opens
a new one. Nothing is sent again by itself.

`AsyncConnection` opens connections and keeps the requests without replies. A `Transport` sends and
reads: `FastTransport` with hiredis, else `SlowTransport`.
"""

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol

from redis.exceptions import (
    ConnectionError,
    InvalidResponse,
    NoScriptError,
    RedisError,
    ResponseError,
)

from ground.lua import Command, Script
from ground.redis.connect import connect_async
from ground.redis.connection import is_passing, packed
from ground.redis.url import RedisTarget

try:
    from hiredis import Reader
except ImportError:  # it is an extra
    Reader = None  # type: ignore[assignment, misc]


class Transport(Protocol):
    """A connection that was just opened. It calls `replied` for each reply, in order, an error that
    is a reply too; and `lost` when it ends."""

    moved_at: float  # by the loop's clock: when bytes last came, or left to make room for others

    def send(self, commands: list[Command]) -> None:
        """Send them as soon as the server takes them; raises if they cannot be packed."""

    def end(self) -> None:
        """Call nothing any more."""


Replied = Callable[[Any], None]
Lost = Callable[[BaseException], None]

_PIECE = 256 << 10  # bytes that are sent at once: a long request shows that it moves


def pieces(connection: Any, commands: list[Command]) -> Iterator[memoryview]:
    """The bytes of some commands, in parts."""
    data = memoryview(b"".join(packed(connection, commands)))
    return (data[at : at + _PIECE] for at in range(0, len(data), _PIECE))


class FastTransport(asyncio.Protocol):
    """With hiredis: takes over redis-py's transport, and reads replies as the bytes arrive."""

    def __init__(self, connection: Any, replied: Replied, lost: Lost) -> None:
        self._connection, self._replied, self._lost = connection, replied, lost
        self._reader = Reader(
            protocolError=InvalidResponse, replyError=connection._parser.parse_error
        )
        self._transport = connection._writer.transport
        # redis-py's protocol already got `connection_lost`; this one never would.
        if self._transport.is_closing():
            raise ConnectionError("the server hung up")
        self._redis_protocol = self._transport.get_protocol()
        self._transport.set_protocol(self)
        self._unsent: deque[memoryview] = deque()
        self._full = False
        self._loop = asyncio.get_running_loop()
        self.moved_at = 0.0

    def send(self, commands: list[Command]) -> None:
        self._unsent.extend(pieces(self._connection, commands))
        self._write()

    def end(self) -> None:
        """The transport is closed with redis-py's connection."""
        self._unsent.clear()

    def _write(self) -> None:
        while self._unsent and not self._full:
            self._transport.write(self._unsent.popleft())

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self.moved_at = self._loop.time()
        self._write()

    def data_received(self, data: bytes) -> None:
        self.moved_at = self._loop.time()
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not False:
                self._replied(reply)
        except InvalidResponse as nonsense:
            self._lost(nonsense)

    def connection_lost(self, failure: BaseException | None) -> None:
        self._redis_protocol.connection_lost(failure)  # redis-py waits for it when it closes
        self._lost(failure or ConnectionError("the server hung up"))


class SlowTransport:
    """Without hiredis, or to a fake server: a task sends and reads by redis-py."""

    def __init__(self, connection: Any, replied: Replied, lost: Lost) -> None:
        self._connection, self._replied, self._lost = connection, replied, lost
        self._unsent: list[tuple[int, Iterator[memoryview]]] = []  # how many commands; their bytes
        self._task: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self.moved_at = 0.0
        stream: Any = connection._reader
        if hasattr(stream, "feed_data"):  # else it is a fake server's
            self._feed, stream.feed_data = stream.feed_data, self._heard

    def send(self, commands: list[Command]) -> None:
        self._unsent.append((len(commands), pieces(self._connection, commands)))
        if self._task is None:
            self._task = asyncio.create_task(self._converse())

    def end(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _converse(self) -> None:
        try:
            while self._unsent:
                count, data = self._unsent.pop(0)
                for piece in data:
                    await self._connection.send_packed_command([bytes(piece)])
                    self.moved_at = self._loop.time()
                for _ in range(count):
                    self._replied(await self._reply())
        except (RedisError, OSError) as failure:
            self._lost(failure)
        finally:
            self._task = None

    def _heard(self, data: bytes) -> None:
        self.moved_at = self._loop.time()
        self._feed(data)

    async def _reply(self) -> Any:
        try:
            return await self._connection.read_response()
        except ResponseError as refusal:
            return refusal


Request = tuple[Command, "asyncio.Future[Any]", float]  # and when it was asked


class Opened:
    """One connection to the server, and its requests that have no reply yet."""

    def __init__(
        self,
        connection: Any,
        transport: Callable[[Any, Replied, Lost], Transport],
        replied: Callable[["Opened", Any], None],
        lost: Callable[["Opened", BaseException], None],
    ) -> None:
        self.connection = connection
        self.asked: deque[Request] = deque()
        self.watched = False
        self.overdue: Request | None = None
        self.transport = transport(connection, partial(replied, self), partial(lost, self))

    @property
    def due_since(self) -> float:
        """Since when the next reply is due: the server answers one request after the other, and
        a long request or reply takes its time while it moves."""
        return max(self.asked[0][2], self.transport.moved_at)


def refuse(requests: Iterable[Request], failure: BaseException) -> None:
    """Fail the callers of these requests."""
    for _, answer, _ in requests:
        if not answer.done():
            answer.set_exception(failure)


_GOODBYE = 1.0  # seconds
_LOOK = 0.1


class AsyncConnection:
    """One connection of one event loop."""

    def __init__(self, target: RedisTarget, scripts: Mapping[str, Script], timeout: float) -> None:
        # redis-py's own timeouts cost a task for each write: `_watch` has one for all requests.
        self._client: Any = connect_async(target, timeout=None)
        fake = target.kind == "fake"
        self._timeout = math.inf if fake else timeout  # a fake server is never silent
        self._transport_kind = SlowTransport if Reader is None or fake else FastTransport
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
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None
        refuse(self._taken(), failure)
        for opened in [*self._unfinished]:
            self._hang_up(opened, failure)

    async def close(self) -> None:
        while waiting := self._unfinished_work():
            await asyncio.wait(waiting)
        for opened in [*self._unfinished]:
            self._hang_up(opened, ConnectionError("closed"))
        if self._closing:
            await asyncio.wait(self._closing)
        await self._client.aclose()

    def _unfinished_work(self) -> "list[asyncio.Future[Any]]":
        asked = [answer for opened in self._unfinished for _, answer, _ in opened.asked]
        sending = [] if self._sending is None else [self._sending]
        return [*sending, *(answer for answer in asked if not answer.done())]

    # Requests

    def _post(self, requests: list[Request]) -> None:
        self._new += requests
        if self._sending is not None:
            return
        if self._opened is not None and not self._opened.asked:
            self._put(self._opened)
        else:
            self._sending = asyncio.create_task(self._send())

    async def _send(self) -> None:
        failure: Exception = ConnectionError("broken off")
        try:
            while self._new:
                if self._opened is None:
                    self._opened = await self._open()
                else:
                    self._put(self._opened)
        except Exception as wrong:  # noqa: BLE001 - it is for those who asked
            failure = wrong
        finally:
            if self._sending is asyncio.current_task():  # else it was broken off
                self._sending = None
                refuse(self._taken(), failure)

    async def _open(self) -> Opened:
        async with asyncio.timeout(self._timeout):
            connection = await self._client.connection_pool.get_connection()
        try:
            opened = Opened(connection, self._transport_kind, self._replied, self._hang_up)
        except Exception:
            self._close_soon(connection)
            raise
        self._unfinished.add(opened)
        return opened

    def _taken(self) -> list[Request]:
        batch, self._new = self._new, []
        return batch

    def _put(self, opened: Opened) -> None:
        """Send the new requests; refuse them if they cannot be packed."""
        batch = self._taken()
        try:
            opened.transport.send([command for command, _, _ in batch])
        except Exception as wrong:  # noqa: BLE001 - it is for those who asked
            refuse(batch, wrong)
        else:
            opened.asked.extend(batch)
            if not opened.watched:
                self._watch(opened)

    # Replies

    def _replied(self, opened: Opened, reply: Any) -> None:
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
        if opened not in self._unfinished:
            return
        self._unfinished.discard(opened)
        if self._opened is opened:
            self._opened = None
        asked, opened.asked = opened.asked, deque()
        opened.transport.end()
        self._close_soon(opened.connection)
        refuse(asked, failure)

    def _close_soon(self, connection: Any) -> None:
        closing = asyncio.get_running_loop().create_task(self._close(connection))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _close(self, connection: Any) -> None:
        with contextlib.suppress(RedisError, OSError):
            async with asyncio.timeout(_GOODBYE):  # TLS waits for the other side's goodbye
                await connection.disconnect()
        await self._client.connection_pool.release(connection)
