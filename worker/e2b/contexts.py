"""The code interpreter: contexts that keep their names from cell to cell, each a process inside.

What a context writes is passed to the client as it is. The server looks at the first byte of each
line, and at nothing else: a sandbox that floods it costs it bytes, which are counted, and no parse.
"""

import asyncio
import json
import re
import secrets
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, suppress
from importlib.resources import files
from weakref import WeakValueDictionary

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from ground.http.held import Held
from jail.inside.notebook import LONGEST_LINE, MESSAGE, OVER
from jail.inside.place import Refused
from jail.inside.program import check_environment
from jail.sessions import CommandRequest, Exit, Output, Process
from worker.e2b.boxes import Box, lives, texts
from worker.e2b.problems import EXPECTED, Problem
from worker.e2b.wire import Json, body, no_room

_DEFAULT = "default"
_MOST_CONTEXTS = 32
_AHEAD = 64 << 10  # bytes that wait until somebody reads; one longer line waits alone
_SENT = 64 << 10  # bytes that are given to a client at once, who may read slowly
HELD = Held(128 << 20, no_room)  # of all contexts, whole lines and half ones
_TO_STOP = 2.0  # seconds that an interrupted cell has before its context is ended
_NOTEBOOK = (files("jail.inside") / "notebook.py").read_text()
_NO_MESSAGE = re.compile(rb"\n(?!%b)" % re.escape(MESSAGE))
_END = b"\n" + OVER
_NEXT_ONE = "the next cell starts another one"


class _Context:
    """An interpreter that stays. What it says is read as it comes, so its end is noticed at any
    time."""

    def __init__(
        self, box: Box, name: str, cwd: str, process: Process, interpreter: "Interpreter"
    ) -> None:
        self.box, self.id, self.cwd = box, name, cwd
        self.turn = asyncio.Lock()
        self.held = 0  # bytes
        self.why = f"the interpreter ended; {_NEXT_ONE}"
        self._process = process
        self._interpreter = interpreter
        self._said: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._unread = self._taken = 0
        self._was_read = asyncio.Event()
        self._hold: Callable[[int], None] = _not_counted
        self._cells = 0  # that have begun, and whose end has not been said
        self.is_full = False  # nobody reads, so its end is not noticed
        self._reader = asyncio.create_task(self._read())
        self._stopping: asyncio.Task[None] | None = None

    def answer(self) -> Json:
        return {"id": self.id, "language": "python", "cwd": self.cwd or "~"}

    async def begin(self, cell: Json) -> None:
        self._cells += 1
        await self._process.write(json.dumps(cell).encode() + b"\n")

    async def next(self) -> bytes | None:
        """The next messages, as lines; empty at a cell's end. None once the interpreter has ended,
        to all who ask. A caller that asks for more has done with what came before."""
        self._hold(-self._taken)
        self._unread -= self._taken
        self._taken = 0
        self._was_read.set()
        said = await self._said.get()
        if said is None:
            self._said.put_nowait(None)
            return None
        self._taken = len(said)
        return said

    def stop_cell(self) -> None:
        """Interrupt the cell that runs, and give the turn back. One that goes on all the same ends
        its context. By a task: the caller is being cancelled."""
        self._stopping = asyncio.create_task(self._stop_cell())

    async def _stop_cell(self) -> None:
        try:
            async with asyncio.timeout(_TO_STOP):
                await self._process.signal(signal.SIGINT)
                while await self.next():
                    pass
        except (TimeoutError, *EXPECTED):
            await self.end()
        finally:
            self.turn.release()

    async def end(self, why: str = "") -> None:
        self.why = why or self.why
        self._interpreter.drop(self)
        self._give_back()
        self._reader.cancel()
        with suppress(*EXPECTED):
            await self._process.signal(signal.SIGKILL)

    def forget(self) -> None:
        """The context's sandbox is gone."""
        self._reader.cancel()

    async def _read(self) -> None:
        with HELD.some() as take:

            def hold(more: int) -> None:
                self.held += more
                take(more)

            self._hold = hold
            try:
                await self._listen()
            except _NoMessage:
                self.why = f"the cell wrote into what is the interpreter's own; {_NEXT_ONE}"
            except EXPECTED:
                return  # its sandbox is gone
            finally:
                self._interpreter.drop(self)
                self._give_back()
                self._said.put_nowait(None)
                with suppress(*EXPECTED):
                    await self._process.signal(signal.SIGKILL)
                await self._process.close()

    async def _listen(self) -> None:
        part = bytearray(b"\n")  # the end of a line, and what has come of the next
        async with aclosing(self._process.events()) as events:
            async for event in events:
                if isinstance(event, Exit):
                    return
                if not isinstance(event, Output) or event.stream != "stdout":
                    continue
                part += event.data
                try:
                    self._hold(len(event.data))
                except Problem:
                    # Whoever holds the most gives it back, so that none of the others has to.
                    fullest = self._interpreter.fullest() or self
                    await fullest.end(
                        f"all contexts of this server held above {HELD.most:,} bytes that nobody "
                        f"had read, and this one the most; {_NEXT_ONE}"
                    )
                if b"\n" in event.data:
                    end = part.rfind(b"\n")
                    whole = bytes(part[:end])
                    del part[:end]
                    await self._add(whole)
                if len(part) > LONGEST_LINE:
                    self.why = f"it wrote a line above {LONGEST_LINE:,} bytes; {_NEXT_ONE}"
                    return

    async def _add(self, lines: bytes) -> None:
        """Lines, each behind its newline. Returns when there is room for more: while nobody reads,
        what the sandbox writes fills no memory here. Raises `_NoMessage`."""
        at = 0
        while odd := _NO_MESSAGE.search(lines, at):
            begin, after = odd.start(), odd.start() + len(_END)
            line, rest = lines[begin:after], lines[after : after + 1]
            if line != _END or rest not in (b"", b"\n") or not self._cells:
                raise _NoMessage
            self._cells -= 1
            self._put(lines[at:begin])
            self._said.put_nowait(b"")
            self._hold(-len(_END))
            at = after
        self._put(lines[at:])
        while self._unread > _AHEAD:
            self.is_full = True
            self._was_read.clear()
            await self._was_read.wait()
        self.is_full = False

    def _put(self, lines: bytes) -> None:
        """Messages, each of which begins with its mark, which is not the client's."""
        if lines:
            messages = lines.replace(b"\n" + MESSAGE, b"\n")[1:] + b"\n"
            self._hold(len(messages) - len(lines))
            self._unread += len(messages)
            self._said.put_nowait(messages)

    def _give_back(self) -> None:
        """Give back the bytes that are held; what still waits is read, or dropped with this."""
        self._hold(-self.held)
        self._hold = _not_counted


def _not_counted(more: int) -> None:
    """Count nothing, for a context that has ended, or has not begun."""


class _NoMessage(Exception):
    """A line that the interpreter does not write."""


class Interpreter:
    """The contexts of all sandboxes that this process has been asked for."""

    def __init__(self) -> None:
        self._contexts: dict[tuple[str, str], _Context] = {}
        # Kept by those who hold it or wait for it.
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def execute(self, request: Request, box: Box, user: str) -> Response:
        asked = await body(request)
        _check_language(asked)
        code = asked.get("code")
        if not isinstance(code, str):
            raise Problem("invalid_argument", "code is missing")
        cell = {"code": code, "env_vars": _environment(asked)}
        name = str(asked.get("context_id") or _DEFAULT)
        async with self._turns.setdefault(box.id, asyncio.Lock()):
            context = self._contexts.get((box.id, name))
            if context is None:
                if name != _DEFAULT:
                    raise Problem("not_found", f"there is no context {name!r}")
                context = await self._open(box, _DEFAULT, "", user)
        return StreamingResponse(_run(context, cell), media_type="application/x-ndjson")

    async def create(self, request: Request, box: Box, user: str) -> Response:
        asked = await body(request)
        _check_language(asked)
        async with self._turns.setdefault(box.id, asyncio.Lock()):
            if sum(name == box.id for name, _ in self._contexts) >= _MOST_CONTEXTS:
                raise Problem(
                    "resource_exhausted", f"a sandbox has at most {_MOST_CONTEXTS} contexts"
                )
            cwd = str(asked.get("cwd") or "")
            context = await self._open(box, secrets.token_hex(8), cwd, user)
        return JSONResponse(context.answer())

    async def list(self, request: Request, box: Box, user: str) -> Response:
        found = [one for (name, _), one in self._contexts.items() if name == box.id]
        return JSONResponse([one.answer() for one in found])

    async def remove(self, request: Request, box: Box, user: str) -> Response:
        await self._find(request, box).end()
        return Response(status_code=204)

    async def restart(self, request: Request, box: Box, user: str) -> Response:
        async with self._turns.setdefault(box.id, asyncio.Lock()):
            context = self._find(request, box)
            await context.end()
            again = await self._open(box, context.id, context.cwd, user)
        return JSONResponse(again.answer())

    def forget(self, box: str) -> None:
        """The sandbox is gone."""
        for key in [key for key in self._contexts if key[0] == box]:
            self._contexts.pop(key).forget()

    async def _open(self, box: Box, name: str, cwd: str, user: str) -> _Context:
        await self._forget_the_dead()
        process = await box.session.start(
            CommandRequest(
                ["python3", "-u", "-c", _NOTEBOOK, "--lines"], cwd=cwd, user=user, stdin=True
            )
        )
        context = _Context(box, name, cwd, process, self)
        self._contexts[box.id, name] = context
        return context

    async def _forget_the_dead(self) -> None:
        """Forget sandboxes that have ended: one may end by its time while nobody reads what it
        said."""
        full = {
            context.box.id: context.box for context in self._contexts.values() if context.is_full
        }
        for name, box in full.items():
            if not await lives(box):
                self.forget(name)

    def drop(self, context: _Context) -> None:
        """The context has ended."""
        if self._contexts.get((context.box.id, context.id)) is context:
            del self._contexts[context.box.id, context.id]

    def fullest(self) -> _Context | None:
        """The one that holds the most."""
        return max(self._contexts.values(), key=lambda context: context.held, default=None)

    def _find(self, request: Request, box: Box) -> _Context:
        name = request.path_params["context"]
        context = self._contexts.get((box.id, name))
        if context is None:
            raise Problem("not_found", f"there is no context {name!r}")
        return context


async def _run(context: _Context, cell: Json) -> AsyncIterator[bytes]:
    """The cell's messages as they come. A client that hangs up interrupts its cell."""
    await context.turn.acquire()
    over = False
    try:
        await context.begin(cell)
        while said := await context.next():
            for at in range(0, len(said), _SENT):
                yield said[at : at + _SENT]
        over = True
        if said is None:
            yield _died(context.why)
    except EXPECTED as gone:
        over = True
        yield _died(str(gone))
    finally:
        if over:
            context.turn.release()
        else:
            context.stop_cell()


def _died(why: str) -> bytes:
    said = {"type": "error", "name": "ContextDied", "value": why, "traceback": ""}
    return json.dumps(said).encode() + b"\n"


def _environment(asked: Json) -> dict[str, str]:
    found = texts(asked.get("env_vars") or {}, "env_vars")
    try:
        check_environment(found)
    except Refused as refusal:
        raise Problem("invalid_argument", f"env_vars, {refusal!s:.200}") from None
    return found


def _check_language(asked: Json) -> None:
    if (language := asked.get("language") or "python") != "python":
        raise Problem("invalid_argument", f"language is {language!r}; only python is offered")
