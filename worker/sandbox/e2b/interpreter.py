"""The code interpreter: contexts that keep their names from cell to cell, each a process inside."""

import asyncio
import json
import secrets
import signal
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, suppress
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from worker.sandbox.e2b.boxes import Box
from worker.sandbox.e2b.problems import EXPECTED, Problem
from worker.sandbox.e2b.wire import Json, body, parsed
from worker.sandbox.sessions import CommandRequest, Exit, Output, Process

_DEFAULT = "default"
_MOST_CONTEXTS = 32
_LONGEST_LINE = 16 << 20
_MOST_WAITING = 64  # messages that nobody has read yet
_TO_STOP = 2.0  # seconds that an interrupted cell has before its context is ended
_KERNEL = (files("worker.sandbox.e2b") / "kernel.py").read_text()


class _Context:
    """One interpreter. What it says is read as it comes, so its end is noticed at any time."""

    def __init__(self, name: str, cwd: str, process: Process, ended: Callable[[], None]) -> None:
        self.id = name
        self.cwd = cwd
        self.turn = asyncio.Lock()
        self._process = process
        self._ended = ended
        self._messages: asyncio.Queue[Json | None] = asyncio.Queue(_MOST_WAITING)
        self._reader = asyncio.create_task(self._read())
        self._stopping: asyncio.Task[None] | None = None

    def answer(self) -> Json:
        return {"id": self.id, "language": "python", "cwd": self.cwd or "~"}

    async def begin(self, cell: Json) -> None:
        await self._process.write(json.dumps(cell).encode() + b"\n")

    async def next(self) -> Json | None:
        """The next message; None once the interpreter has ended."""
        return await self._messages.get()

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
                    *lines, rest = held.split(b"\n")
                    held = rest
                    for line in lines:
                        message = parsed(bytes(line))
                        message["type"]
                        await self._messages.put(message)
                    if len(held) > _LONGEST_LINE:
                        return
        except (Problem, KeyError, *EXPECTED):
            return  # its cell wrote what is no message, or its sandbox is gone
        finally:
            self._ended()
            with suppress(*EXPECTED):
                await self._process.signal(signal.SIGKILL)
            await self._process.close()
            with suppress(asyncio.QueueFull):
                self._messages.put_nowait(None)


class Interpreter:
    """The contexts of all sandboxes that this process has been asked for."""

    def __init__(self) -> None:
        self._contexts: dict[tuple[str, str], _Context] = {}
        self._opening: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def execute(self, request: Request, box: Box, user: str) -> Response:
        asked = await body(request)
        _check_language(asked)
        code = asked.get("code")
        if not isinstance(code, str):
            raise Problem("invalid_argument", "code is missing")
        name = str(asked.get("context_id") or _DEFAULT)
        async with self._opening[box.id]:
            context = self._contexts.get((box.id, name))
            if context is None:
                if name != _DEFAULT:
                    raise Problem("not_found", f"there is no context {name!r}")
                context = await self._open(box, _DEFAULT, "", user)
        cell = {"code": code, "env_vars": asked.get("env_vars") or {}}
        return StreamingResponse(_run(context, cell), media_type="application/x-ndjson")

    async def create(self, request: Request, box: Box, user: str) -> Response:
        asked = await body(request)
        _check_language(asked)
        async with self._opening[box.id]:
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
        context = self._find(request, box)
        await context.end()
        again = await self._open(box, context.id, context.cwd, user)
        return JSONResponse(again.answer())

    def forget(self, box: str) -> None:
        """The sandbox is gone; its contexts notice by themselves."""
        self._opening.pop(box, None)
        for key in [key for key in self._contexts if key[0] == box]:
            del self._contexts[key]

    async def _open(self, box: Box, name: str, cwd: str, user: str) -> _Context:
        process = await box.session.start(
            CommandRequest(["python3", "-u", "-c", _KERNEL], cwd=cwd, user=user, stdin=True)
        )
        context = _Context(name, cwd, process, lambda: self._drop(box.id, context))
        self._contexts[box.id, name] = context
        return context

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


def _check_language(asked: Json) -> None:
    if (language := asked.get("language") or "python") != "python":
        raise Problem("invalid_argument", f"language is {language!r}; only python is offered")
