"""What an interpreter says reaches who asks, and its end reaches all of them."""

import asyncio
import json
from typing import Any

import pytest

from worker.sandbox.e2b.boxes import Box
from worker.sandbox.e2b.interpreter import Interpreter, _Context
from worker.sandbox.sessions import CommandRequest, Exit, Output, SessionGone

LONG = 60.0


class Speaker:
    """A process that says so much, and ends."""

    def __init__(self, lines: list[bytes]) -> None:
        self.lines = lines
        self.said = 0
        self.closed = asyncio.Event()

    async def events(self):
        for line in self.lines:
            self.said += 1
            yield Output("stdout", line + b"\n")
        yield Exit(1, None, "", "", 0.1)

    async def signal(self, number: int) -> None: ...

    async def write(self, data: bytes) -> None: ...

    async def close(self) -> None:
        self.closed.set()


class Session:
    """Lives, until it does not."""

    def __init__(self, name: str, process: Speaker | None = None) -> None:
        self.name, self.process = name, process
        self.gone = False

    async def info(self) -> None:
        if self.gone:
            raise SessionGone(self.name)

    async def start(self, command: CommandRequest) -> Speaker | None:
        return self.process


def box(name: str = "one", process: Speaker | None = None) -> Box:
    session: Any = Session(name, process)
    return Box(session, "base", "token")


def message(size: int = 1) -> bytes:
    return json.dumps({"type": "stdout", "text": "x" * size}).encode()


@pytest.mark.parametrize("count", [3, 64, 65, 200])
async def test_the_end_is_told_however_much_was_said_before(count):
    context = _Context(box(), "default", "", Speaker([message()] * count), lambda: None)
    async with asyncio.timeout(LONG):
        found = 0
        while await context.next():
            found += 1
        assert found == count
        # To a cell that waited for its turn too.
        assert await context.next() is None
        assert await context.next() is None


async def test_what_nobody_reads_is_not_read_from_the_sandbox():
    process = Speaker([message(1 << 20)] * 50)
    context = _Context(box(), "default", "", process, lambda: None)
    async with asyncio.timeout(LONG):
        assert await context.next()
        for _ in range(100):
            await asyncio.sleep(0)
        assert process.said <= 3
        found = 1
        while await context.next():
            found += 1
        assert found == 50


@pytest.mark.parametrize("size", [1, 1 << 20])
async def test_what_a_dead_sandbox_has_said_is_forgotten_by_the_next_that_opens_one(size):
    interpreter = Interpreter()
    talks, silent = Speaker([message(size)] * 100), Speaker([])
    first = box("one", talks)
    await interpreter._open(first, "default", "", "")
    async with asyncio.timeout(LONG):
        while not interpreter._contexts["one", "default"].is_full:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await interpreter._open(box("two", silent), "default", "", "")
        assert ("one", "default") in interpreter._contexts  # it lives
        first.session.gone = True
        await interpreter._open(box("three", silent), "default", "", "")
        assert ("one", "default") not in interpreter._contexts
        await talks.closed.wait()
