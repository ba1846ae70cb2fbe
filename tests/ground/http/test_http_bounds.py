"""What a client may send, and how long it may take, before anybody asks for its token."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from ground.http import HttpGuard, bounds, listen, serve

MB = 1 << 20
START = b"POST /x HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer t\r\n"
JSON = b"Content-Type: application/json\r\n"


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Says how much it got; nothing where the client went away."""
    if scope["type"] == "lifespan":
        for _ in range(2):
            await send({"type": f"{(await receive())['type']}.complete"})
        return
    size, message = 0, {"more_body": True}
    while message.get("more_body"):
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size += len(message["body"])
    if scope["path"] == "/slow":
        await asyncio.sleep(0.5)  # longer than any bound of these tests
    body = str(size).encode()
    head = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    await send({"type": "http.response.body", "body": body})


async def nothing() -> Any:
    return {}


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[int]:
    guard = HttpGuard(echo, health=nothing, figures=nothing, token=SecretStr("t"))
    server = serve._server(guard, grace=1)
    with listen("127.0.0.1", 0, "X") as listener:
        port = listener.getsockname()[1]
        running = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield port
        finally:
            server.should_exit = True
            await running


@contextlib.asynccontextmanager
async def caller(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def rest_of(reader: asyncio.StreamReader) -> bytes:
    """All until the server hangs up; it may cut off what it says while more is sent to it."""
    said = b""
    async with asyncio.timeout(100):
        with contextlib.suppress(ConnectionError):
            while part := await reader.read(65536):
                said += part
    return said


async def push(writer: asyncio.StreamWriter, part: bytes, times: int) -> int:
    """How many parts went out before the server hung up."""
    for number in range(times):
        writer.write(part)
        try:
            await writer.drain()
        except ConnectionError:
            return number
    return times


@pytest.mark.parametrize(
    "before",
    [
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ",
        b"GET /",
        b"POST /x HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: ",
    ],
    ids=["header", "line", "trailer"],
)
async def test_a_header_without_end_is_hung_up_on_before_it_fills_the_memory(before: bytes) -> None:
    async with serving() as port, caller(port) as (reader, writer):
        writer.write(before)
        assert await push(writer, b"a" * MB, 100) < 20
        await rest_of(reader)


async def test_too_many_headers_are_answered_431() -> None:
    async with serving() as port, caller(port) as (reader, writer):
        writer.write((START + b"X: aaaaaa\r\n" * 10_000)[: bounds.HEAD_BYTES + 1])
        assert (await rest_of(reader)).startswith(b"HTTP/1.1 431 ")


async def test_a_head_that_does_not_come_is_answered_408(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "HEAD_SECONDS", 0.2)
    async with serving() as port:
        for begun in (b"", b"POST /x HT", START):
            async with caller(port) as (reader, writer):
                writer.write(begun)
                assert (await rest_of(reader)).startswith(b"HTTP/1.1 408 ")


async def test_half_a_body_is_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "HEAD_SECONDS", 0.1)
    monkeypatch.setattr(bounds, "BODY_SECONDS", 0.2)
    monkeypatch.setattr(bounds, "BODY_PACE", 100 * MB)
    async with serving() as port, caller(port) as (reader, writer):
        writer.write(START + JSON + b"Content-Length: %d\r\n\r\n" % (2 * MB) + b"a" * MB)
        assert (await rest_of(reader)).startswith(b"HTTP/1.1 408 ")


async def test_a_body_that_keeps_coming_has_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "HEAD_SECONDS", 0.1)
    monkeypatch.setattr(bounds, "BODY_SECONDS", 0.3)
    monkeypatch.setattr(bounds, "BODY_PACE", MB // 1000)  # each piece of it earns a minute
    async with serving() as port, caller(port) as (reader, writer):
        writer.write(START + JSON + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % MB)
        for _ in range(16):
            writer.write(b"a" * (MB // 16))
            await asyncio.sleep(0.04)  # a body that is slower than BODY_SECONDS
        assert (await rest_of(reader)).endswith(b"\r\n\r\n1048576")


async def test_the_next_request_on_a_connection_has_the_same_bounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bounds, "HEAD_SECONDS", 0.2)
    async with serving() as port:
        async with caller(port) as (reader, writer):
            writer.write(START + JSON + b"Content-Length: 2\r\n\r\n{}")
            await reader.readuntil(b"\r\n\r\n2")
            writer.write(START)
            assert (await rest_of(reader)).startswith(b"HTTP/1.1 408 ")
        async with httpx.AsyncClient(base_url=f"http://t@127.0.0.1:{port}", timeout=100) as client:
            for _ in range(2):  # an answer may take longer than a request
                assert (await client.post("/slow", json={})).text == "2"
                await asyncio.sleep(0.3)  # and between requests there is time
