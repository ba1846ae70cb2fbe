"""A loop's connection to Redis: a request goes out at once, even if others are unanswered.

So the server and the process work at the same time. Requests of one tick of the loop that find
others unanswered go out in one write. An error that is a reply is raised to its own caller. An
error that breaks the connection is raised to all callers that wait on it; the next request opens
a new one. Nothing is sent again by itself.

`AsyncConnection` opens connections and keeps the requests without replies. A `Transport` sends and
reads: `WireTransport`, or `FakeTransport` for a fake server.
"""

import asyncio
import math
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Protocol

from redis.exceptions import ConnectionError, NoScriptError, ResponseError

from ground.lua import Command, Script
from ground.redis.connect import connect_async
from ground.redis.connection import is_passing
from ground.redis.dial import dial
from ground.redis.loop_wire import LoopWire
from ground.redis.url import RedisTarget
from ground.redis.wire import BROKEN, packed

Replied = Callable[[Any], None]
Lost = Callable[[BaseException], None]


class Transport(Protocol):
    """A connection that was just opened. It calls `replied` for each reply, in order, an error that
    is a reply too; and `lost` when it ends."""

    moved_at: float  # by the loop's clock: when bytes last came, or left to make room for others

    def send(self, commands: list[Command]) -> None:
        """Send them as soon as the server takes them; raises if they cannot be packed."""

    def end(self) -> None:
        """Close it, and call nothing any more."""


class WireTransport:
    """This transport sends what the socket takes, and the rest as soon as there is room."""

    def __init__(self, wire: LoopWire, replied: Replied, lost: Lost) -> None:
        self._loop = asyncio.get_running_loop()
        self._wire = wire
        self._replied, self._lost = replied, lost
        self._unsent: deque[memoryview] = deque()
        self.moved_at = 0.0
        if not self._wire.watch(self._readable):
            self._wire.hang_up(abort=False)
            raise ConnectionError("this event loop watches no sockets: it needs a selector's")

    def send(self, commands: list[Command]) -> None:
        self._unsent.append(memoryview(packed(commands)))
        if len(self._unsent) == 1:
            self._write()

    def end(self) -> None:
        self._unsent.clear()
        self._wire.hang_up(abort=False)

    def _write(self) -> None:
        try:
            while self._unsent:
                taken = self._wire.send(self._unsent[0])
                self._unsent[0] = self._unsent[0][taken:]
                if self._unsent[0]:
                    break
                self._unsent.popleft()
            self._wire.watch_for_room(self._roomy if self._unsent else None)
        except BROKEN as failure:
            self._loop.call_soon(self._lost, failure)  # later: who sends has yet to note it

    def _roomy(self) -> None:
        self.moved_at = self._loop.time()
        self._write()

    def _readable(self) -> None:
        self.moved_at = self._loop.time()
        try:
            replies = self._wire.received()
        except BROKEN as failure:
            self._lost(failure)
        else:
            for reply in replies:
                self._replied(reply)


class FakeTransport:
    """A task asks a fake server one command after the other."""

    moved_at = 0.0

    def __init__(self, client: Any, replied: Replied, lost: Lost) -> None:
        self._client, self._replied, self._lost = client, replied, lost
        self._unsent: deque[Command] = deque()
        self._task: asyncio.Task[None] | None = None

    def send(self, commands: list[Command]) -> None:
        packed(commands)  # for what it refuses
        self._unsent.extend(commands)
        if self._task is None:
            self._task = asyncio.create_task(self._converse())

    def end(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _converse(self) -> None:
        try:
            while self._unsent:
                self._replied(await self._reply(self._unsent.popleft()))
        except BROKEN as failure:
            self._lost(failure)
        finally:
            self._task = None

    async def _reply(self, command: Command) -> Any:
        try:
            return await self._client.execute_command(*command)
        except ResponseError as refusal:
            return refusal


async def dialed(target: RedisTarget, within: float) -> LoopWire:
    """A wire, dialed on a thread. If nobody waits any more it is closed, on whichever side."""
    opened: list[LoopWire] = []
    left = threading.Event()
    loop = asyncio.get_running_loop()
    kept = weakref.ref(loop)

    def work() -> None:
        opened.append(dial(target, within, partial(LoopWire, kept)))
        if left.is_set():
            close()

    def close() -> None:
        for _ in range(len(opened)):
            opened.pop().close()

    try:
        await loop.run_in_executor(None, work)
    except asyncio.CancelledError:
        left.set()
        close()
        raise
    return opened.pop()


Request = tuple[Command, "asyncio.Future[Any]", float]  # and when it was asked


class Opened:
    """An open connection to the server, and its requests that have no reply yet."""

    def __init__(self) -> None:
        self.transport: Transport
        self.asked: deque[Request] = deque()
        self.watched = False
        self.overdue: Request | None = None

    @property
    def due_since(self) -> float:
        """The moment since which the next reply is due: the server answers one request after the
        other, and a long request or reply takes its time while it moves."""
        return max(self.asked[0][2], self.transport.moved_at)


def refuse(requests: Iterable[Request], failure: BaseException) -> None:
    """Fail the callers of these requests."""
    for _, answer, _ in requests:
        if not answer.done():
            answer.set_exception(failure)


_LOOK = 0.1  # seconds


class AsyncConnection:
    """A connection that belongs to one event loop."""

    def __init__(self, target: RedisTarget, scripts: Mapping[str, Script], timeout: float) -> None:
        self._target = target
        self._fake: Any = connect_async(target) if target.kind == "fake" else None
        if self._fake is not None:
            self._fake.response_callbacks.clear()  # replies have the shapes of a server's
        self._timeout = math.inf if self._fake else timeout  # a fake server is never silent
        self._scripts = scripts
        self._opened: Opened | None = None
        self._unfinished: set[Opened] = set()  # that one, and older ones with requests unanswered
        self._new: list[Request] = []
        self._sending: asyncio.Task[None] | None = None

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
        if self._fake is not None:
            await self._fake.aclose()

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
            self._put(self._opened, self._taken())
        else:
            self._sending = asyncio.create_task(self._send())

    async def _send(self) -> None:
        failure: Exception = ConnectionError("broken off")
        try:
            while self._new:
                if self._opened is None:
                    self._opened = await self._open()
                else:
                    self._put(self._opened, self._taken())
        except Exception as wrong:  # noqa: BLE001 - it is for those who asked
            failure = wrong
        finally:
            if self._sending is asyncio.current_task():  # else it was broken off
                self._sending = None
                refuse(self._taken(), failure)

    async def _open(self) -> Opened:
        opened = Opened()
        ends = partial(self._replied, opened), partial(self._hang_up, opened)
        if self._fake is not None:
            opened.transport = FakeTransport(self._fake, *ends)
        else:
            opened.transport = WireTransport(await dialed(self._target, self._timeout), *ends)
        self._unfinished.add(opened)
        return opened

    def _taken(self) -> list[Request]:
        batch, self._new = self._new, []
        return batch

    def _put(self, opened: Opened, batch: list[Request]) -> None:
        """Send requests; refuse each that cannot be packed."""
        try:
            opened.transport.send([command for command, _, _ in batch])
        except Exception as wrong:  # noqa: BLE001 - it is for who asked; nothing was sent
            if len(batch) == 1:
                refuse(batch, wrong)
            else:
                for request in batch:
                    self._put(opened, [request])
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
        """Watch while something is unanswered: the server may have fallen silent."""
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
        refuse(asked, failure)
