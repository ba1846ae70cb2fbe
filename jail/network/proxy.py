"""The proxy of one session: takes its connections, judges whom each wants, and passes bytes on.

What one session can hold here is bounded: connections, bytes under way in each, the time of a head,
of a dial, and without a byte. What it asks for costs no other session more than that.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus

from . import requests
from .requests import ProxyRequest, Refused, Target
from .rules import Address, Policy, address_of

log = logging.getLogger(__name__)

CONNECTIONS = 64  # of one session at once; more wait in the kernel's line
_BUFFER = 1 << 14
_PIECE = 1 << 15
_MOST_ADDRESSES = 8  # of a name
_LOOK_UPS = 2  # names at once: a name's own server may never answer
_REST = 2.0  # seconds for a client to take an answer, and for one that goes on to be heard

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Resolve = Callable[[str, int], Awaitable[list[Address]]]


@dataclass(frozen=True)
class Patience:
    """The times of a proxy, in seconds."""

    head: float = 10.0
    dial: float = 15.0
    idle: float = 300.0  # of a connection on which nothing passes


class Proxy:
    """A proxy serves a listening socket of the session's own network until it is closed."""

    def __init__(
        self,
        listener: socket.socket,
        policy: Policy,
        room: asyncio.Semaphore,
        resolve: Resolve,
        patience: Patience,
    ) -> None:
        self._listener, self._policy, self._room = listener, policy, room
        self._resolve, self._patience = resolve, patience
        self._own_room = asyncio.Semaphore(CONNECTIONS)
        self._look_ups = asyncio.Semaphore(_LOOK_UPS)
        self._open: dict[asyncio.Task[None], tuple[Target, Address] | None] = {}
        listener.setblocking(False)
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    def change(self, policy: Policy) -> None:
        """Take another policy, and cut every connection that it no longer allows."""
        self._policy = policy
        for task, reached in self._open.items():
            if reached and not policy.admits(reached[0].name, reached[1], reached[0].port):
                task.cancel()

    async def close(self) -> None:
        tasks = [self._accepting, *self._open]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        self._listener.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._own_room.acquire()
            try:
                client, _ = await loop.sock_accept(self._listener)
            except BaseException as problem:
                self._own_room.release()
                if not isinstance(problem, OSError):
                    raise
                await asyncio.sleep(_REST)  # no descriptor is left, say
                continue
            try:  # only now: a session that dials nobody takes no place from the others
                await self._room.acquire()
            except BaseException:
                self._own_room.release()
                client.close()
                raise
            task = loop.create_task(self._serve(client))
            self._open[task] = None
            task.add_done_callback(self._over)

    def _over(self, task: "asyncio.Task[None]") -> None:
        del self._open[task]
        self._leave()
        if not task.cancelled() and (problem := task.exception()):
            log.error("a connection was cut", exc_info=problem)

    def _leave(self) -> None:
        self._room.release()
        self._own_room.release()

    async def _serve(self, client: socket.socket) -> None:
        streams = await _streams(client)
        try:
            try:
                async with asyncio.timeout(self._patience.head):
                    asked = await requests.read_head(streams[0])
                await self._pass_on(asked, streams)
            except TimeoutError:
                raise Refused(408, "the request did not come within the time for it") from None
        except Refused as refused:
            with contextlib.suppress(ConnectionError, TimeoutError):
                await _say(streams, refused)
        except ConnectionError:
            pass  # either side has gone
        finally:
            streams[1].transport.abort()

    async def _pass_on(self, asked: ProxyRequest, client: Streams) -> None:
        server = await self._reach(asked.target)
        try:
            if not asked.head:
                client[1].write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                server[1].write(asked.head)
            await _Passing(client, server, self._patience.idle).run(asked)
        except Refused as cut:  # an answer may have begun: no other one can be given
            raise ConnectionError(cut.why) from None
        finally:
            server[1].transport.abort()

    async def _reach(self, target: Target) -> Streams:
        """Connect to an address that was judged. Raises `Refused`."""
        problem = ""
        try:
            async with asyncio.timeout(self._patience.dial):
                admitted = await self._admitted(target)
                for address in admitted:
                    try:  # one that never answers leaves the others their time
                        async with asyncio.timeout(self._patience.dial / len(admitted)):
                            return await self._dial(target, address)
                    except OSError as refused:
                        problem = refused.strerror or "no answer"
        except TimeoutError:
            raise Refused(504, f"{target} does not answer") from None
        raise Refused(502, f"{target} cannot be reached: {problem}")

    async def _admitted(self, target: Target) -> list[Address]:
        if target.address is not None:
            found = [target.address]
        elif self._policy.may_look_up(target.name):
            try:
                found = await self._look_up(target)
            except OSError:
                raise Refused(502, f"{target.name} has no address") from None
        else:
            raise Refused(403, f"{target} is not on this sandbox's list")
        admitted = [one for one in found if self._policy.admits(target.name, one, target.port)]
        if not admitted:
            raise Refused(403, f"{target} is not on this sandbox's list, or is not public")
        return admitted[:_MOST_ADDRESSES]

    async def _look_up(self, target: Target) -> list[Address]:
        """The look-up takes its place until it has ended, also when nobody waits for it any
        more."""
        await self._look_ups.acquire()
        asking = asyncio.ensure_future(self._resolve(target.name, target.port))
        asking.add_done_callback(lambda asked: asked.exception() and None)
        asking.add_done_callback(lambda _: self._look_ups.release())
        return await asyncio.shield(asking)

    async def _dial(self, target: Target, address: Address) -> Streams:
        loop = asyncio.get_running_loop()
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        dialling = socket.socket(family, socket.SOCK_STREAM)
        try:
            dialling.setblocking(False)
            await loop.sock_connect(dialling, (str(address), target.port))
            # What was changed meanwhile counts.
            if not self._policy.admits(target.name, address, target.port):
                raise Refused(403, f"{target} is no longer on this sandbox's list")
            task = asyncio.current_task()
            assert task is not None  # noqa: S101 - each connection has one
            self._open[task] = target, address
            return await _streams(dialling)
        except BaseException:
            dialling.close()
            raise


class _Passing:
    """A passing of bytes both ways at once. A side that has said all closes its half; the other may
    go on."""

    def __init__(self, client: Streams, server: Streams, idle: float) -> None:
        self._client, self._server, self._idle = client, server, idle
        self._limit: asyncio.Timeout | None = None

    async def run(self, asked: ProxyRequest) -> None:
        try:
            async with asyncio.timeout(self._idle) as self._limit:
                back = asyncio.ensure_future(self._copy(self._server[0], self._client[1]))
                forth = asyncio.ensure_future(self._forth(asked))
                try:
                    await self._both(asked, forth, back)
                finally:
                    forth.cancel()
                    back.cancel()
                    await asyncio.gather(forth, back, return_exceptions=True)
        except TimeoutError:
            return  # it idled: both are cut

    async def _both(
        self, asked: ProxyRequest, forth: "asyncio.Future[None]", back: "asyncio.Future[None]"
    ) -> None:
        """Wait for the end: that of both halves of a tunnel, or of a request's answer."""
        if not asked.head:
            await asyncio.gather(forth, back)
            return
        await asyncio.wait([forth, back], return_when=asyncio.FIRST_COMPLETED)
        if forth.done():
            forth.result()
        await back

    async def _forth(self, asked: ProxyRequest) -> None:
        if not asked.head:
            await self._copy(self._client[0], self._server[1])
            return
        async with contextlib.aclosing(requests.body(self._client[0], asked.length)) as pieces:
            async for piece in pieces:
                await self._write(self._server[1], piece)
        while await self._client[0].read(_PIECE):
            pass  # what is behind a request is nobody's
        self._server[1].write_eof()

    async def _copy(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while piece := await source.read(_PIECE):
            await self._write(target, piece)
        target.write_eof()
        await target.drain()

    async def _write(self, target: asyncio.StreamWriter, piece: bytes) -> None:
        target.write(piece)
        await target.drain()
        if self._limit:
            self._limit.reschedule(asyncio.get_running_loop().time() + self._idle)


async def _streams(at: socket.socket) -> Streams:
    """The streams of a connection have small buffers: there may be many."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_BUFFER)
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await loop.connect_accepted_socket(lambda: protocol, at)
    transport.set_write_buffer_limits(_BUFFER)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


async def _say(client: Streams, refused: Refused) -> None:
    """Send the answer, and then its end: what still comes is read, else a reset would take it
    back."""
    reader, writer = client
    text = f"{refused.why}\n".encode()
    head = (
        f"HTTP/1.1 {refused.status} {HTTPStatus(refused.status).phrase}\r\n"
        f"Content-Type: text/plain; charset=utf-8\r\nContent-Length: {len(text)}\r\n"
        "Connection: close\r\n\r\n"
    )
    async with asyncio.timeout(_REST):
        writer.write(head.encode() + text)
        writer.write_eof()
        await writer.drain()
        while await reader.read(_PIECE):
            pass


async def resolved(name: str, port: int) -> list[Address]:
    """Addresses come from the machine's own resolver, which may take its time."""
    found = await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
    addresses = (address_of(str(where[0])) for *_, where in found)
    return list(dict.fromkeys(one for one in addresses if one is not None))
