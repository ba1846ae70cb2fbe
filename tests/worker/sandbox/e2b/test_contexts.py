"""What an interpreter says reaches who asks, and its end reaches all of them."""

import asyncio
import json
import subprocess
import sys
from typing import Any

import pytest
from starlette.requests import Request

from worker.sandbox.e2b.boxes import Box
from worker.sandbox.e2b.interpreter import _KERNEL, Interpreter, _Context
from worker.sandbox.e2b.problems import Problem
from worker.sandbox.e2b.wire import TAKE
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


class Interpreting:
    """A session whose interpreters live until they are killed."""

    def __init__(self) -> None:
        self.name, self.living = "one", list[Silent]()

    async def start(self, command: CommandRequest) -> "Silent":
        await asyncio.sleep(0)
        self.living.append(silent := Silent(self.living))
        return silent


class Silent:
    def __init__(self, living: "list[Silent]") -> None:
        self.living = living

    async def events(self):
        await asyncio.Event().wait()
        yield Exit(0, None, "", "", 0.1)

    async def signal(self, number: int) -> None:
        await asyncio.sleep(0)
        if self in self.living:
            self.living.remove(self)

    async def close(self) -> None: ...


def request(said: dict[str, Any]) -> Request:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps(said).encode(), "more_body": False}

    return Request({"type": "http", "path_params": {"context": "default"}, TAKE: abs}, receive)


async def test_a_restart_beside_a_cell_leaves_one_interpreter():
    session: Any = Interpreting()
    interpreter, one = Interpreter(), Box(session, "base", "token")
    cell = {"code": "1"}
    async with asyncio.timeout(LONG):
        await interpreter.execute(request(cell), one, "")
        await asyncio.gather(
            interpreter.restart(request({}), one, ""),
            interpreter.execute(request(cell), one, ""),
            interpreter.execute(request(cell), one, ""),
        )
    assert (len(session.living), len(interpreter._contexts)) == (1, 1)
    interpreter.forget("one")


@pytest.mark.parametrize(
    "env", [{"A": 1}, {"A": None}, {"A=B": "1"}, {"": "1"}, {"A\0": "1"}, {"A": "\0"}, ["A"], "A"]
)
async def test_a_variable_that_cannot_be_set_is_refused(env):
    session: Any = Interpreting()
    asked = request({"code": "1", "env_vars": env})
    with pytest.raises(Problem, match="env_vars") as refused:
        await Interpreter().execute(asked, Box(session, "base", "token"), "")
    assert refused.value.status == 400
    assert not session.living


def test_a_cell_whose_variables_cannot_be_set_fails_alone():
    cells = [
        {"code": "x = 5", "env_vars": {}},
        {"code": "x", "env_vars": {"A": "1", "B": "\ud800"}},
        {"code": "import os; x, os.environ.get('A')", "env_vars": {}},
    ]
    done = subprocess.run(
        [sys.executable, "-u", "-c", _KERNEL], capture_output=True, text=True, check=True,
        input="".join(json.dumps(cell) + "\n" for cell in cells),
    )  # fmt: skip
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["type"] for one in said].count("end") == 3
    assert [one["name"] for one in said if one["type"] == "error"] == ["UnicodeEncodeError"]
    assert [one["text"] for one in said if one["type"] == "result"] == ["(5, None)"]
