"""What a lean client makes of servers that keep connections, close them, or speak badly."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme

from ground.http import wires as wires_module
from ground.http.wires import Cut, Wire, Wires

ASKED = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
SIZED = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nwell"


@asynccontextmanager
async def served(
    *answers: bytes, closes: bool = False, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[Wires, str, list[int]]]:
    """A server with one answer after the other, and how many requests each connection brought."""
    found: list[int] = []
    left = iter(answers)
    serving: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        place = len(found)
        found.append(0)
        # The client cuts it when it has enough.
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while not (closes and found[place]):
                await reader.readuntil(b"\r\n\r\n")
                found[place] += 1
                writer.write(next(left))
        writer.close()

    def came(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.append(asyncio.create_task(serve(reader, writer)))

    server = await asyncio.start_server(came, "127.0.0.1", ssl=tls)
    wires = Wires(kept=100)
    try:
        yield wires, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", found
    finally:
        wires.close()
        server.close()
        await asyncio.gather(*serving)


async def asked(wires: Wires, url: str, patience: float | None = 100) -> tuple[Wire, bytes]:
    wire = await wires.take(url)
    with wire.closed_on_failure():
        wire.writer.write(ASKED)
        content = await wire.read("GET", patience)
    wires.give_back(url, wire)
    return wire, content


async def test_a_connection_serves_one_request_after_the_other() -> None:
    chunked = b"HTTP/1.1 500 No\r\ntransfer-encoding: chunked\r\nX-Y: z\r\n\r\n2\r\nwe\r\n0\r\n\r\n"
    async with served(SIZED, chunked) as (wires, url, found):
        first, content = await asked(wires, url)
        assert (first.status, content, first.fresh) == (200, b"well", True)
        second, content = await asked(wires, url)
        assert (second.status, content, dict(second.headers)[b"x-y"]) == (500, b"we", b"z")
        assert second is first
        assert not second.fresh
    assert found == [2]


async def test_pieces_come_as_they_are_sent() -> None:
    start = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n"
    async with served(start, b"1\r\nb\r\n0\r\n\r\n") as (wires, url, _):
        wire = await wires.take(url)
        wire.writer.write(ASKED)
        pieces = wire.answer("GET")
        assert await anext(pieces) == b"a"
        wire.writer.write(ASKED)
        assert [piece async for piece in pieces] == [b"b"]
        wire.close()


async def test_a_connection_that_the_server_closed_is_not_used_again() -> None:
    async with served(SIZED, SIZED, closes=True) as (wires, url, found):
        first, _ = await asked(wires, url)
        while not first.reader.at_eof():  # noqa: ASYNC110 - it notifies nobody
            await asyncio.sleep(0)
        second, content = await asked(wires, url)
        assert content == b"well"
        assert second is not first
    assert found == [1, 1]


EARLY = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
BYE = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 3\r\nconnection: close\r\n\r\nbye"


async def test_what_a_server_says_before_its_answer_is_no_answer() -> None:
    async with served(EARLY + SIZED, EARLY + EARLY + SIZED) as (wires, url, found):
        for _ in range(2):
            wire, content = await asked(wires, url)
            assert (wire.status, content, wire.headers) == (
                200,
                b"well",
                [(b"content-length", b"4")],
            )
    assert found == [2]


async def test_what_a_server_says_behind_its_answer_is_nobodys() -> None:
    async with served(SIZED + BYE, SIZED, SIZED) as (wires, url, found):
        wire, content = await asked(wires, url)
        assert (wire.status, content, wire.lasting) == (200, b"well", False)
        wire, _ = await asked(wires, url)
        wire.reader.feed_data(BYE)  # as if it came while nobody asked
        wire, content = await asked(wires, url)
        assert (wire.status, content) == (200, b"well")
    assert found == [1, 1, 1]


async def test_an_answer_that_is_cut_says_so_and_leaves_no_connection() -> None:
    async with served(SIZED[:-1], SIZED, closes=True) as (wires, url, found):
        with pytest.raises(Cut, match="closed"):
            await asked(wires, url)
        assert (await asked(wires, url))[1] == b"well"
    assert found == [1, 1]


async def test_an_answer_that_was_not_read_to_its_end_is_not_gone_on_with() -> None:
    async with served(SIZED[:-2], SIZED) as (wires, url, found):
        wire = await wires.take(url)
        wire.writer.write(ASKED)
        assert await anext(wire.answer("GET")) == b"we"
        wires.give_back(url, wire)
        assert (await asked(wires, url))[1] == b"well"
    assert found == [1, 1]


async def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    async with served(b"HTTP/1.1 200 OK\r\n\r\nall", SIZED, closes=True) as (wires, url, found):
        assert (await asked(wires, url))[1] == b"all"
        assert (await asked(wires, url))[1] == b"well"
    assert found == [1, 1]


@pytest.mark.parametrize(
    "answer",
    [b"SSH-2.0-x\r\n", b"HTTP/1.1 101 Other\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n"],
)
async def test_what_is_no_http_is_refused(answer: bytes) -> None:
    async with served(answer) as (wires, url, _):
        with pytest.raises(Cut, match="no HTTP"):
            await asked(wires, url)


async def test_a_server_that_says_nothing_is_not_waited_for_longer_than_the_patience() -> None:
    async with served(b"") as (wires, url, _):
        with pytest.raises(TimeoutError, match=r"no byte in 0\.05 s"):
            await asked(wires, url, patience=0.05)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://a..b:80"])
async def test_a_server_that_is_not_there_is_an_os_error(url: str) -> None:
    with pytest.raises(OSError):
        await Wires(kept=1).take(url)


async def test_a_server_is_believed_over_tls_if_an_authority_of_this_machine_vouches_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, ours = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(ours)
    async with served(SIZED, tls=ours) as (wires, url, _):
        named = url.replace("http://127.0.0.1", "https://localhost")
        wires_module._authorities.cache_clear()
        with pytest.raises(ssl.SSLCertVerificationError):
            await wires.take(named)
        authority.cert_pem.write_to_path(tmp_path / "ca.pem")
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        wires_module._authorities.cache_clear()
        assert (await asked(wires, named))[1] == b"well"
    wires_module._authorities.cache_clear()


async def test_a_connection_that_is_given_back_after_the_end_is_closed() -> None:
    """A reading that goes on when its client ends leaves nothing open."""
    async with served(SIZED) as (wires, url, _):
        wire = await wires.take(url)
        wire.writer.write(ASKED)
        wires.close()
        assert await wire.read("GET", 100) == b"well"
        wires.give_back(url, wire)
        assert wire.writer.transport.is_closing()
