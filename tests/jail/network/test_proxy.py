"""The proxy against hostile clients, with a server of the test behind it."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from jail.network.proxy import CONNECTIONS, Patience, Proxy
from jail.network.rules import Address, Policy, address_of, ceiling, rules

pytestmark = pytest.mark.timeout(200)
LOOPBACK = address_of("127.0.0.1")
assert LOOPBACK is not None


class Behind:
    """A server that notes all that it is sent, and gives each connection the same answer."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi"
        self.waits = False  # for the end of what it is sent, before it answers
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._serve(reader, writer)
        except ConnectionError:
            pass  # it was cut, which is what some tests are about
        finally:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        at = len(self.heard)
        self.heard.append(b"")
        if self.waits:
            while piece := await reader.read(1 << 16):
                self.heard[at] += piece
        else:
            self.heard[at] += await reader.read(1 << 16)
        writer.write(self.answer)
        await writer.drain()
        if not self.waits:
            while piece := await reader.read(1 << 16):
                self.heard[at] += piece
        writer.write_eof()
        await writer.drain()


@pytest.fixture
async def behind() -> AsyncIterator[Behind]:
    found = Behind()
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    found.port = server.sockets[0].getsockname()[1]
    yield found
    server.close()


async def to_loopback(name: str, port: int) -> list[Address]:
    assert LOOPBACK is not None
    return [LOOPBACK]


@asynccontextmanager
async def proxy(
    behind: Behind,
    allow: list[str] | None = None,
    patience: Patience = Patience(),  # noqa: B008
    resolve: Callable[..., object] = to_loopback,
    room: asyncio.Semaphore | None = None,
    most: Sequence[str] = (),
) -> AsyncIterator[tuple[Proxy, int]]:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    port = listener.getsockname()[1]
    chosen = rules(allow or [f"behind.test:{behind.port}"])
    policy = Policy(chosen, (), ceiling(",".join(["public", f"127.0.0.1:{behind.port}", *most])))
    room = room or asyncio.Semaphore(1000)
    found = Proxy(listener, policy, room, resolve, patience)  # type: ignore[arg-type]
    try:
        yield found, port
    finally:
        await found.close()
        await asyncio.sleep(0)  # what was cut is closed in the next turn


async def said(port: int, *pieces: bytes, eof: bool = False) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        if eof:
            writer.write_eof()
        return await reader.read(-1)
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_a_request_is_written_again_for_its_target(behind: Behind) -> None:
    async with proxy(behind) as (_, port):
        answer = await said(
            port,
            b"GET http://BEHIND.test.:%d/a?b HTTP/1.1\r\nHost: evil.org\r\nX-Own: 1\r\n"
            b"Connection: X-Hop\r\nX-Hop: 1\r\nProxy-Authorization: secret\r\n\r\n" % behind.port,
            eof=True,
        )
    assert answer.endswith(b"\r\n\r\nhi")
    host = f"behind.test:{behind.port}".encode()
    head = b"GET /a?b HTTP/1.1\r\nHost: " + host + b"\r\nX-Own: 1\r\nConnection: close\r\n\r\n"
    assert behind.heard == [head]


async def test_a_tunnel_passes_both_ways_and_each_half_closes_alone(behind: Behind) -> None:
    behind.waits = True
    async with proxy(behind) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"CONNECT behind.test:%d HTTP/1.1\r\n\r\n" % behind.port)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        writer.write(b"x" * 300_000)
        writer.write_eof()
        assert await reader.read(-1) == behind.answer
        writer.close()
    assert behind.heard == [b"x" * 300_000]


@pytest.mark.parametrize("body", [b"12345", b"\r\n"])
async def test_nothing_behind_a_request_is_passed_on(behind: Behind, body: bytes) -> None:
    """A second one, to a host that the first does not name."""
    second = b"GET http://evil.org/ HTTP/1.1\r\nHost: evil.org\r\n\r\n"
    head = b"POST http://behind.test:%d/ HTTP/1.1\r\nContent-Length: %d\r\n\r\n"
    async with proxy(behind) as (_, port):
        await said(port, head % (behind.port, len(body)) + body + second, eof=True)
    assert len(behind.heard) == 1
    assert behind.heard[0].endswith(b"Connection: close\r\n\r\n" + body)


async def test_chunks_are_written_again_and_end(behind: Behind) -> None:
    head = (
        b"POST http://behind.test:%d/ HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n" % behind.port
    )
    chunks = b"0003;ext=1\r\nabc\r\n0\r\nX-Trailer: 1\r\n\r\n"
    async with proxy(behind) as (_, port):
        await said(port, head + chunks + b"GET / HTTP/1.1\r\n\r\n", eof=True)
    assert behind.heard[0].endswith(b"\r\n\r\n3\r\nabc\r\n0\r\n\r\n")


SMUGGLED = {
    "both lengths": b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
    "two lengths": b"Content-Length: 5\r\nContent-Length: 6\r\n",
    "a list of lengths": b"Content-Length: 5, 5\r\n",
    "a signed length": b"Content-Length: +5\r\n",
    "a length in hexadecimal": b"Content-Length: 0x5\r\n",
    "two codings": b"Transfer-Encoding: gzip, chunked\r\n",
    "a coding twice": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
    "a coding with a tail": b"Transfer-Encoding: chunked\x0b\r\n",
    "a space before the colon": b"Content-Length : 5\r\n",
    "a folded line": b"X-A: 1\r\n Content-Length: 5\r\n",
    "a bare line feed": b"X-A: 1\nContent-Length: 5\r\n",
    "a bare carriage return": b"X-A: 1\rContent-Length: 5\r\n",
    "a zero byte": b"X-A: \0\r\n",
    "no name": b": 1\r\n",
}


@pytest.mark.parametrize("header", SMUGGLED.values(), ids=SMUGGLED)
async def test_what_could_be_read_in_two_ways_is_refused(behind: Behind, header: bytes) -> None:
    head = b"POST http://behind.test:%d/ HTTP/1.1\r\n" % behind.port
    async with proxy(behind) as (_, port):
        answer = await said(port, head + header + b"\r\nhello")
    assert answer[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 501")
    assert behind.heard == []


@pytest.mark.parametrize(
    "chunks", [b"5\nhello\r\n0\r\n\r\n", b"-5\r\nhello\r\n", b"5 \r\nhello, you\r\n0\r\n\r\n",
               b"fffffffff\r\n", b"0x5\r\nhello\r\n0\r\n\r\n", b"\r\n0\r\n\r\n"]
)  # fmt: skip
async def test_chunks_that_are_none_end_the_connection(behind: Behind, chunks: bytes) -> None:
    behind.waits = True
    head = b"POST http://behind.test:%d/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with proxy(behind) as (_, port):
        await said(port, head % behind.port + chunks, eof=True)
    assert not any(heard.endswith(b"\r\n0\r\n\r\n") for heard in behind.heard)


FORMS = [
    "0x7f.1:{}", "127.1:{}", "2130706433:{}", "0177.0.0.1:{}", "127.0.0.1:{}",
    "[::ffff:127.0.0.1]:{}", "[::ffff:7f00:1]:{}", "[::127.0.0.1]:{}", "[::1]:{}", "[::]:{}",
    "0.0.0.0:{}", "[::1%lo]:{}", "localhost:{}", "behind.test@127.0.0.1:{}", "behind.test:{}@x:1",
    "behind.test\t:{}", "behind.test:0{}", "behind.test:+{}", "behind.test:{}\x00", "other.test:{}",
    "behind.test:22", "behind.test:0", "behind.test:99999", "behind.test:", "behind.test", "[", "",
    "evil.behind.test:{}", "behind.test.evil.org:{}", "127.0.0.1.nip.io:{}",
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("plain", [False, True], ids=["tunnel", "plain"])
async def test_only_what_is_named_is_reached(behind: Behind, form: str, plain: bool) -> None:
    where = form.format(behind.port).encode()
    first = b"GET http://%b/ HTTP/1.1" if plain else b"CONNECT %b HTTP/1.1"
    async with proxy(behind) as (_, port):
        answer = await said(port, first % where + b"\r\n\r\n")
    assert answer[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 403"), answer
    assert behind.heard == []


async def test_a_name_that_changes_is_judged_by_the_address_that_is_dialled(behind: Behind) -> None:
    answers = [address_of("8.8.8.8"), LOOPBACK]

    async def rebinding(name: str, port: int) -> list[Address | None]:
        return [answers.pop()]

    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    policy = Policy(rules(["rebound.test:*"]), (), ceiling("public"))
    found = Proxy(listener, policy, asyncio.Semaphore(9), rebinding, Patience())  # type: ignore[arg-type]
    first = b"CONNECT rebound.test:%d HTTP/1.1\r\n\r\n" % behind.port
    answer = await said(listener.getsockname()[1], first)
    await found.close()
    assert answer.startswith(b"HTTP/1.1 403")
    assert behind.heard == []


@pytest.mark.parametrize(
    ("flood", "status"),
    [
        (b"GET http://a.test/" + b"x" * 40_000 + b" HTTP/1.1\r\n\r\n", b"431"),
        (b"GET http://a.test/ HTTP/1.1\r\n" + b"A: 1\r\n" * 500 + b"\r\n", b"431"),
        (b"GET http://a.test/ HTTP/1.1\r\nA: " + b"x" * 40_000 + b"\r\n\r\n", b"431"),
        (b"\x16\x03\x01 tls\r\n\r\n", b"400"),
        (b"GET http://a.test/ HTTP/2.0\r\n\r\n", b"505"),
        (b"GET /only/a/path HTTP/1.1\r\n\r\n", b"400"),
        (b"GET https://a.test/ HTTP/1.1\r\n\r\n", b"400"),
        (b"GET ftp://a.test/ HTTP/1.1\r\n\r\n", b"400"),
        (b"GET http://a.test/ HTTP/1.1 more\r\n\r\n", b"400"),
    ],
)
async def test_a_flood_and_other_tongues_are_refused(
    behind: Behind, flood: bytes, status: bytes
) -> None:
    async with proxy(behind) as (_, port):
        assert (await said(port, flood))[9:12] == status


async def test_a_head_that_drips_is_cut(behind: Behind) -> None:
    async with proxy(behind, patience=Patience(head=0.1)) as (_, port):
        answer = await said(port, b"CONNECT behind.test:")
    assert answer.startswith(b"HTTP/1.1 408")


async def test_a_connection_on_which_nothing_passes_is_cut(behind: Behind) -> None:
    behind.waits = True
    async with proxy(behind, patience=Patience(idle=0.1)) as (_, port):
        first = b"CONNECT behind.test:%d HTTP/1.1\r\n\r\n" % behind.port
        assert (await said(port, first)).startswith(b"HTTP/1.1 200")


async def test_a_target_that_does_not_answer_is_given_up(behind: Behind) -> None:
    async def never(name: str, port: int) -> list[Address]:
        await asyncio.Event().wait()
        return []

    async with proxy(behind, patience=Patience(dial=0.1), resolve=never) as (_, port):
        first = b"CONNECT behind.test:%d HTTP/1.1\r\n\r\n" % behind.port
        assert (await said(port, first)).startswith(b"HTTP/1.1 504")


async def test_more_connections_than_it_may_have_wait(behind: Behind) -> None:
    async with proxy(behind) as (found, port):
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS + 5)]
        request = b"GET http://behind.test:%d/ HTTP/1.1\r\n\r\n" % behind.port
        served = asyncio.create_task(said(port, request, eof=True))
        while len(found._open) < CONNECTIONS:  # noqa: ASYNC110 - nothing says it
            await asyncio.sleep(0.01)
        assert not served.done()
        for _, writer in idle:
            writer.close()
        assert (await served).endswith(b"hi")


async def test_a_session_that_dials_nobody_takes_no_place_from_others(behind: Behind) -> None:
    room = asyncio.Semaphore(1)  # of all sessions
    async with proxy(behind, room=room), proxy(behind, room=room) as (_, port):
        request = b"GET http://behind.test:%d/ HTTP/1.1\r\n\r\n" % behind.port
        assert (await said(port, request, eof=True)).endswith(b"hi")


async def test_an_address_that_never_answers_leaves_the_next_one_its_time(behind: Behind) -> None:
    silent = socket.socket()
    silent.bind(("127.0.0.2", behind.port))
    silent.listen(0)
    waiting = [socket.socket() for _ in range(2)]  # fill its line: no other gets through
    for one in waiting:
        one.setblocking(False)
        one.connect_ex(silent.getsockname())

    async def both(name: str, port: int) -> list[Address]:
        return [address for text in ("127.0.0.2", "127.0.0.1") if (address := address_of(text))]

    own = [f"127.0.0.2:{behind.port}"]
    patience = Patience(dial=8.0)  # half of it is waited for, and no processor is used
    async with proxy(behind, patience=patience, resolve=both, most=own) as (_, port):
        request = b"GET http://behind.test:%d/ HTTP/1.1\r\n\r\n" % behind.port
        assert (await said(port, request, eof=True)).endswith(b"hi")
    for one in (*waiting, silent):
        one.close()


async def test_who_reads_nothing_holds_no_more_than_its_buffers(behind: Behind) -> None:
    sent = 0

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(bytes(1 << 16))
                await writer.drain()
                sent += 1 << 16
        writer.transport.abort()

    server = await asyncio.start_server(pour, "127.0.0.1", 0)
    pouring = Behind()
    pouring.port = server.sockets[0].getsockname()[1]
    async with proxy(pouring) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(b"CONNECT behind.test:%d HTTP/1.1\r\n\r\n" % pouring.port)
        await reader.readuntil(b"\r\n\r\n")
        before = -1
        while sent != before or not sent:
            before = sent
            await asyncio.sleep(0.2)
        assert 0 < sent < 32 << 20  # the kernel's buffers, and none of ours that grow
        writer.close()
    server.close()


async def test_what_is_no_longer_allowed_is_cut(behind: Behind) -> None:
    behind.waits = True
    async with proxy(behind) as (found, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"CONNECT behind.test:%d HTTP/1.1\r\n\r\n" % behind.port)
        await reader.readuntil(b"\r\n\r\n")
        found.change(Policy((), (), ceiling("public")))
        assert await reader.read(-1) == b""
        again = b"CONNECT behind.test:%d HTTP/1.1\r\n\r\n" % behind.port
        assert (await said(port, again)).startswith(b"HTTP/1.1 403")
        writer.close()
