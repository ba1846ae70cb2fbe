"""What an interpreter says reaches who asks, and its end reaches all of them."""

import asyncio
import json
import subprocess
import sys
from typing import Any

import pytest
from starlette.requests import Request

from jail.inside.notebook import LONGEST_LINE
from jail.sessions import CommandRequest, Exit, Output, SessionGone
from worker.e2b.boxes import Box
from worker.e2b.contexts import _NOTEBOOK, HELD, Interpreter, _Context, _run
from worker.e2b.problems import Problem
from worker.e2b.wire import TAKE

LONG = 60.0


class Speaker:
    """A process that says so much, and ends; or says it, and lives."""

    def __init__(self, pieces: list[bytes], lives: bool = False) -> None:
        self.pieces, self.lives = pieces, lives
        self.said = 0
        self.closed = asyncio.Event()
        self.said_all = asyncio.Event()

    async def events(self):
        for piece in self.pieces:
            self.said += 1
            yield Output("stdout", piece)
        self.said_all.set()
        if self.lives:
            await asyncio.Event().wait()
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
    return b"+" + json.dumps({"type": "stdout", "text": "x" * size}).encode() + b"\n"


def context(process: Speaker, interpreter: Interpreter | None = None) -> _Context:
    return _Context(box(), "default", "", process, interpreter or Interpreter())


async def answered(found: _Context, code: str = "1") -> bytes:
    return b"".join([said async for said in _run(found, {"code": code, "env_vars": {}})])


@pytest.mark.parametrize("count", [3, 64, 65, 200])
@pytest.mark.parametrize("size", [1, 1000])
async def test_the_end_is_told_however_much_was_said_before(count, size):
    found = context(Speaker([message(size)] * count))
    async with asyncio.timeout(LONG):
        *said, died = (await answered(found)).splitlines()
        assert said == [message(size)[1:-1]] * count
        assert json.loads(died)["name"] == "ContextDied"
        # To a cell that waited for its turn too.
        assert json.loads(await answered(found))["name"] == "ContextDied"


async def test_messages_are_whole_lines_however_they_come():
    text = message(3) + message(5) + b".\n"
    for cut in range(1, len(text)):
        found = context(Speaker([text[:cut], text[cut:]], lives=True))
        async with asyncio.timeout(LONG):
            assert await answered(found) == message(3)[1:] + message(5)[1:]
        found.forget()


async def test_what_nobody_reads_is_not_read_from_the_sandbox():
    process = Speaker([message(1 << 20)] * 50)
    found = context(process)
    async with asyncio.timeout(LONG):
        assert await found.next()
        for _ in range(100):
            await asyncio.sleep(0)
        assert process.said <= 3
        count = 1
        while await found.next():
            count += 1
        assert count == 50


@pytest.mark.parametrize("size", [1000, 1 << 20])
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


# What a hostile cell writes


HOSTILE = b'+{"type":"stdout","x":[' + b"{}," * 1_000_000 + b'1],"text":"x"}\n'


async def test_a_line_of_a_million_objects_is_passed_on_unread(monkeypatch):
    monkeypatch.setattr(json, "loads", None)
    found = context(Speaker([HOSTILE, b".\n"], lives=True))
    async with asyncio.timeout(LONG):
        assert await answered(found) == HOSTILE[1:]
    found.forget()


@pytest.mark.parametrize(
    "written",
    [b"1\n", b"\n", b"\n" * 60_000, b".x\n", b".\n" * 60_000, message() + b'{"type": "end"}\n'],
)
async def test_what_is_no_message_ends_its_context_alone(written):
    process = Speaker([written], lives=True)
    found = context(process)
    async with asyncio.timeout(LONG):
        *_, died = (await answered(found)).splitlines() or [b""]
        if not written.startswith(b".\n"):
            assert "interpreter's own" in json.loads(died)["value"]
        await process.closed.wait()


async def test_a_line_without_end_ends_its_context():
    found = context(Speaker([b"+" + b"x" * (1 << 20)] * 100, lives=True))
    async with asyncio.timeout(LONG):
        said = json.loads(await answered(found))
    assert (said["name"], said["value"].partition(";")[0]) == (
        "ContextDied", f"it wrote a line above {LONGEST_LINE:,} bytes",
    )  # fmt: skip


async def test_all_contexts_together_hold_no_more_than_their_budget(monkeypatch):
    """Whoever holds the most gives it back; the others go on."""
    monkeypatch.setattr(HELD, "most", 10 << 20)
    interpreter = Interpreter()
    mine = box("mine", Speaker([message(1 << 20), b".\n"], lives=True))
    innocent = await interpreter._open(mine, "default", "", "")
    hostile = [Speaker([b"+" + b"x" * (1 << 20)] * 4, lives=True) for _ in range(5)]
    async with asyncio.timeout(LONG):
        for number, process in enumerate(hostile):
            await interpreter._open(box(f"hostile {number}", process), "default", "", "")
            await asyncio.wait(
                [asyncio.ensure_future(each.wait()) for each in (process.said_all, process.closed)],
                return_when=asyncio.FIRST_COMPLETED,
            )
            assert HELD.bytes <= HELD.most
        assert sum(process.closed.is_set() for process in hostile) == 3
        assert await answered(innocent) == message(1 << 20)[1:]
        for name in ("mine", *(f"hostile {number}" for number in range(5))):
            interpreter.forget(name)
        for process in hostile:
            await process.closed.wait()
        await mine.session.process.closed.wait()
    assert HELD.bytes == 0


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
        [sys.executable, "-u", "-c", _NOTEBOOK, "--lines"],
        capture_output=True, text=True, check=True,
        input="".join(json.dumps(cell) + "\n" for cell in cells),
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert lines.count(".") == 3
    said = [json.loads(line[1:]) for line in lines if line[0] == "+"]
    assert [one["name"] for one in said if one["type"] == "error"] == ["UnicodeEncodeError"]
    assert [one["text"] for one in said if one["type"] == "result"] == ["(5, None)"]
