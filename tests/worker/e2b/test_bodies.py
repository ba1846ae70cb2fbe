"""What requests hold of the server's memory and disk is bounded for all of them together."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request

from jail.sessions import SessionExists
from tests.jail.sessions.conftest import sessions_in
from worker.e2b import http_files, wire
from worker.e2b.app import app
from worker.e2b.boxes import Boxes
from worker.e2b.problems import Problem
from worker.e2b.settings import E2bSettings

LONG = 60.0


class Client:
    """A creation whose body comes piece by piece."""

    def __init__(self, server: Any) -> None:
        self._coming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.said: list[dict[str, Any]] = []
        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        scope = {
            "type": "http", "method": "POST", "path": "/sandboxes", "raw_path": b"/sandboxes",
            "query_string": b"", "headers": headers, "root_path": "",
        }  # fmt: skip
        self.answered = asyncio.create_task(server(scope, self._coming.get, self._hear))

    async def _hear(self, message: Any) -> None:
        self.said.append(message)

    async def send(self, piece: bytes, more: bool = True) -> None:
        """Returns once the server has read it."""
        self._coming.put_nowait({"type": "http.request", "body": piece, "more_body": more})
        while not self._coming.empty():  # noqa: ASYNC110
            await asyncio.sleep(0)
        await asyncio.sleep(0)

    def hang_up(self) -> None:
        self._coming.put_nowait({"type": "http.disconnect"})

    @property
    def status(self) -> int:
        return next(one["status"] for one in self.said if "status" in one)


@pytest.fixture(autouse=True)
def _little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire.HELD, "most", 1000)
    monkeypatch.setattr(http_files._FORMS, "most", 1000)


async def test_bodies_that_are_too_much_together_are_refused(tmp_path: Path) -> None:
    server = app(Boxes(sessions_in(tmp_path), E2bSettings()), "", "localhost")
    async with asyncio.timeout(LONG):
        first, second = Client(server), Client(server)
        await first.send(b"{" + b" " * 599)
        await second.send(b"{" + b" " * 599)
        await second.answered
        assert second.status == 503
        assert (b"retry-after", b"1") in second.said[0]["headers"]
        third = Client(server)
        await third.send(b"no JSON", more=False)
        await third.answered
        assert third.status == 400
        first.hang_up()
        await first.answered
    assert wire.HELD.bytes == 0


async def test_a_creation_that_another_server_is_about_to_make_may_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def taken(_: Any) -> None:
        raise SessionExists("its name is taken, and it is not whole so far")

    sessions = sessions_in(tmp_path)
    monkeypatch.setattr(sessions, "open", taken)
    async with asyncio.timeout(LONG):
        client = Client(app(Boxes(sessions, E2bSettings()), "", "localhost"))
        await client.send(b'{"templateID": "base"}', more=False)
        await client.answered
    assert client.status == 503
    assert (b"retry-after", b"1") in client.said[0]["headers"]


def request(*pieces: bytes) -> Request:
    coming = [{"type": "http.request", "body": one, "more_body": True} for one in pieces]
    coming.append({"type": "http.request", "body": b"", "more_body": False})

    async def receive() -> dict[str, Any]:
        return coming.pop(0)

    return Request({"type": "http", "headers": []}, receive)


async def test_a_stream_holds_its_frames_until_they_are_used() -> None:
    size = len(wire.frame({"data": "x" * 600}))
    found = []
    async with aclosing(wire.frames(request(*[wire.frame({"data": "x" * 600})] * 5))) as messages:  # type: ignore[type-var]
        async for message in messages:
            found.append(message)
            assert wire.HELD.bytes == size
    assert len(found) == 5
    assert wire.HELD.bytes == 0


async def test_frames_that_are_too_much_together_are_refused() -> None:
    half = wire.frame({"data": "x" * 600})[:600]
    with wire.HELD.some() as take:
        take(600)
        with pytest.raises(Problem, match="are here already"):
            await wire.one_frame(request(half))
        assert wire.HELD.bytes == 600
    assert wire.HELD.bytes == 0


async def test_forms_that_are_too_much_together_are_refused() -> None:
    head = b'--x\r\nContent-Disposition: form-data; name="file"; filename="/f"\r\n\r\n'
    form = head + b"y" * 400 + b"\r\n--x--\r\n"

    def parts() -> AsyncIterator[Any]:
        return http_files._parts(request(form), b"x")

    async with aclosing(parts()) as first:  # type: ignore[type-var]
        name, content = await anext(first)
        assert (name, content.read()) == ("/f", b"y" * 400)
        assert http_files._FORMS.bytes == len(form)
        async with aclosing(parts()) as second:  # type: ignore[type-var]
            await anext(second)
            with pytest.raises(Problem, match="are here already"):
                await anext(parts())
    assert http_files._FORMS.bytes == 0
