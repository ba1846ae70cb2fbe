"""Requests that are passed on to another machine's server, as they come: no piece waits for more.

Connections are kept, for one request after the other. Nothing is sent twice: what fails once a
connection stood has failed, and the client's SDK knows what may be repeated.
"""

import asyncio
import contextlib
from collections.abc import Iterable
from urllib.parse import urlsplit

from ground.http.guard import Message, Receive, Scope, Send
from ground.http.wires import Headers, Wire, Wires
from worker.e2b.fleet.machines import Machine
from worker.e2b.problems import Problem

FORWARDED, TARGET = b"x-penstock-forwarded", b"x-penstock-machine"
_KEPT = 30.0  # seconds for which an idle connection is used again; servers keep them for 75
_NOT_PASSED_ON = {
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te", b"trailer",
    b"transfer-encoding", b"upgrade", b"expect", b"host", b"origin", b"date", b"server",
    FORWARDED, TARGET,
}  # fmt: skip


class Unreachable(Problem):
    """No connection came about, so nothing was asked."""

    def __init__(self, machine: Machine, why: object) -> None:
        super().__init__(
            "unavailable", f"the server of {machine.id} does not answer; try again: {why}"
        )


class Relay:
    """The connections of one server to all others. `secret` is the fleet's, as it is now."""

    def __init__(self) -> None:
        self.secret = ""
        self._wires = Wires(kept=_KEPT)

    async def ask(
        self, machine: Machine, method: str, path: str, headers: Headers, body: bytes = b""
    ) -> tuple[int, Headers, bytes]:
        """A whole answer to a whole request."""
        wire = await self._wire(machine)
        with wire.closed_on_failure():
            sized = [*headers, (b"content-length", b"%d" % len(body))]
            wire.writer.write(self._head(machine, method, path.encode(), sized) + body)
            content = await wire.read(method)
        self._wires.give_back(machine.address, wire)
        return wire.status, wire.headers, content

    async def pass_on(self, machine: Machine, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on one request of a client, and its answer."""
        headers = _passed(scope["headers"])
        chunked = any(name == b"transfer-encoding" for name, _ in scope["headers"])
        if chunked:
            headers.append((b"transfer-encoding", b"chunked"))
        path = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
        head = self._head(machine, scope["method"], path, headers)
        wire = await self._wire(machine)
        feeding = asyncio.ensure_future(_feed(wire, head, chunked, receive))
        begun = False
        try:
            with wire.closed_on_failure():
                async for piece in wire.answer(scope["method"]):
                    if not begun:
                        begun = True
                        await send(_start(wire))
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                if not begun:
                    begun = True
                    await send(_start(wire))
            await send({"type": "http.response.body", "body": b""})
        except OSError as cut:
            if feeding.done() and not feeding.cancelled() and feeding.result() is None:
                return  # the client went away, and nobody hears the answer
            if begun:
                raise  # the client's connection is cut as this one was
            raise Problem("unavailable", f"the server of {machine.id} hung up: {cut!r}") from None
        finally:
            feeding.cancel()
            await asyncio.wait([feeding])
        # A body that was answered before its end leaves the rest of it on the way.
        if wire.fed:
            self._wires.give_back(machine.address, wire)
        else:
            wire.close()

    def _head(self, machine: Machine, method: str, path: bytes, headers: Headers) -> bytes:
        host = urlsplit(machine.address).netloc.encode()
        own = [(b"host", host), (FORWARDED, self.secret.encode()), (TARGET, machine.id.encode())]
        lines = b"".join(b"%s: %s\r\n" % pair for pair in (*own, *headers))
        return b"%s %s HTTP/1.1\r\n%s\r\n" % (method.encode(), path, lines)

    async def _wire(self, machine: Machine) -> Wire:
        try:
            return await self._wires.take(machine.address)
        except OSError as why:
            raise Unreachable(machine, why) from None

    def close(self) -> None:
        self._wires.close()


async def _feed(wire: Wire, head: bytes, chunked: bool, receive: Receive) -> None:
    """Send the request's head with the first piece of its body, and the rest as it comes. If the
    client has gone, the connection is cut."""
    wire.fed = False
    before = head
    more = True
    while more:
        message: Message = await receive()
        if message["type"] == "http.disconnect":
            wire.close()
            return
        piece, more = message.get("body", b""), message.get("more_body", False)
        if chunked:
            piece = (b"%x\r\n%s\r\n" % (len(piece), piece)) if piece else b""
            piece += b"" if more else b"0\r\n\r\n"
        if before or piece:
            wire.writer.write(before + piece)
            before = b""
            with contextlib.suppress(ConnectionError):  # seen where the answer is read
                await wire.writer.drain()
    wire.fed = True
    while (await receive())["type"] != "http.disconnect":
        pass
    wire.close()


def _start(wire: Wire) -> Message:
    return {
        "type": "http.response.start", "status": wire.status, "headers": _passed(wire.headers),
    }  # fmt: skip


def _passed(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    return [(name, value) for name, value in headers if name not in _NOT_PASSED_ON]
