"""The code interpreter: contexts that keep their names from cell to cell, each a process inside."""

import asyncio
import json
import secrets
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, suppress
from importlib.resources import files
from weakref import WeakValueDictionary

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from worker.sandbox.e2b.boxes import Box, lives, texts
from worker.sandbox.e2b.problems import EXPECTED, Problem
from worker.sandbox.e2b.wire import Json, body, parsed
from worker.sandbox.local.inside.place import Refused
from worker.sandbox.local.inside.program import check_environment
from worker.sandbox.sessions import CommandRequest, Exit, Output, Process

_DEFAULT = "default"
_MOST_CONTEXTS = 32
_LONGEST_LINE = 16 << 20
_MOST_WAITING = 64  # messages that nobody has read yet
_LARGE = 1 << 14  # bytes of a message that waits alone
_TO_STOP = 2.0  # seconds that an interrupted cell has before its context is ended
_KERNEL = (files("worker.sandbox.e2b") / "kernel.py").read_text()


class _Context:
    """One interpreter. What it says is read as it comes, so its end is noticed at any time."""

    def __init__(
        self, box: Box, name: str, cwd: str, process: Process, ended: Callable[[], None]
    ) -> None:
        self.box, self.id, self.cwd = box, name, cwd
        self.turn = asyncio.Lock()
        self._process = process
        self._ended = ended
        self._messages: asyncio.Queue[Json | None] = asyncio.Queue()
        self._room = asyncio.Semaphore(_MOST_WAITING)
        self.is_full = False  # nobody reads, so its end is not noticed
        self._reader = asyncio.create_task(self._read())
        self._stopping: asyncio.Task[None] | None = None

    def answer(self) -> Json:
        return {"id": self.id, "language": "python", "cwd": self.cwd or "~"}

    async def begin(self, cell: Json) -> None:
        await self._process.write(json.dumps(cell).encode() + b"\n")

    async def next(self) -> Json | None:
        """The next message; None once the interpreter has ended, to all who ask."""
        message = await self._messages.get()
        self._messages.task_done()
        self._room.release()
        if message is None:
            self._messages.put_nowait(None)
        return message

    def stop_cell(self) -> None:
        """Interrupt the cell that runs, and give the turn back. One that goes on all the same ends
        its context. By a task: the caller is being cancelled."""
        self._stopping = asyncio.create_task(self._stop_cell())

    async def _stop_cell(self) -> None:
        try:
            async with asyncio.timeout(_TO_STOP):
                await self._process.signal(signal.SIGINT)
                while (message := await self.next()) and message["type"] != "end":
                    pass
        except (TimeoutError, *EXPECTED):
            await self.end()
        finally:
            self.turn.release()

    async def end(self) -> None:
        self._ended()
        with suppress(*EXPECTED):
            await self._process.signal(signal.SIGKILL)
        self._reader.cancel()

    def drop(self) -> None:
        """Its sandbox is gone."""
        self._reader.cancel()

    async def _read(self) -> None:
        held = bytearray()
        try:
            async with aclosing(self._process.events()) as events:
                async for event in events:
                    if isinstance(event, Exit):
                        return
                    if not isinstance(event, Output) or event.stream != "stdout":
                        continue
                    held += event.data
                    if b"\n" in event.data:
                        *lines, held = held.split(b"\n")
                        for line in lines:
                            await self._add(bytes(line))
                    if len(held) > _LONGEST_LINE:
                        return
        except (Problem, KeyError, *EXPECTED):
            return  # its cell wrote what is no message, or its sandbox is gone
        finally:
            self._ended()
            with suppress(*EXPECTED):
                await self._process.signal(signal.SIGKILL)
            await self._process.close()
            self._messages.put_nowait(None)

    async def _add(self, line: bytes) -> None:
        """Waits while nobody reads: what the sandbox writes fills no memory here."""
        message = parsed(line)
        message["type"]
        is_large = len(line) > _LARGE
        self.is_full = is_large or self._room.locked()
        await self._room.acquire()
        if is_large:
            await self._messages.join()
        self.is_full = False
        self._messages.put_nowait(message)


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
            self._contexts.pop(key).drop()

    async def _open(self, box: Box, name: str, cwd: str, user: str) -> _Context:
        await self._forget_the_dead()
        process = await box.session.start(
            CommandRequest(["python3", "-u", "-c", _KERNEL], cwd=cwd, user=user, stdin=True)
        )
        context = _Context(box, name, cwd, process, lambda: self._drop(box.id, context))
        self._contexts[box.id, name] = context
        return context

    async def _forget_the_dead(self) -> None:
        """A sandbox may end by its time while nobody reads what it said."""
        full = {
            context.box.id: context.box for context in self._contexts.values() if context.is_full
        }
        for name, box in full.items():
            if not await lives(box):
                self.forget(name)

    def _drop(self, box: str, context: _Context) -> None:
        if self._contexts.get((box, context.id)) is context:
            del self._contexts[box, context.id]

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
        while message := await context.next():
            if message["type"] == "end":
                over = True
                return
            yield json.dumps(message).encode() + b"\n"
        over = True
        yield _died("the interpreter ended; the next cell starts another one")
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
