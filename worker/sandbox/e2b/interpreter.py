"""The code interpreter: contexts that keep their names from cell to cell, each a process inside."""

import asyncio
import json
import secrets
import signal
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from worker.sandbox.e2b.boxes import Box
from worker.sandbox.e2b.problems import EXPECTED, Problem
from worker.sandbox.e2b.wire import Json, body
from worker.sandbox.sessions import CommandRequest, Exit, Output, Process

_DEFAULT = "default"
_MOST_CONTEXTS = 32
_KERNEL = (files("worker.sandbox.e2b") / "kernel.py").read_text()


@dataclass
class _Context:
    id: str
    cwd: str
    process: Process
    lines: AsyncGenerator[Json, None]
    one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)

    def answer(self) -> Json:
        return {"id": self.id, "language": "python", "cwd": self.cwd}


class Interpreter:
    """The contexts of all sandboxes that this process has been asked for."""

    def __init__(self) -> None:
        self._contexts: dict[tuple[str, str], _Context] = {}
        self._opening = asyncio.Lock()

    async def execute(self, request: Request, box: Box, user: str) -> Response:
        asked = await body(request)
        _check_language(asked)
        code = asked.get("code")
        if not isinstance(code, str):
            raise Problem("invalid_argument", "code is missing")
        name = str(asked.get("context_id") or _DEFAULT)
        async with self._opening:
            context = self._contexts.get((box.id, name))
            if context is None:
                if name != _DEFAULT:
                    raise Problem("not_found", f"there is no context {name!r}")
                context = await self._open(box, _DEFAULT, "", user)
        cell = {"code": code, "env_vars": asked.get("env_vars") or {}}
        return StreamingResponse(self._run(box, context, cell), media_type="application/x-ndjson")

    async def create(self, request: Request, box: Box, user: str) -> Response:
        asked = await body(request)
        _check_language(asked)
        if sum(name == box.id for name, _ in self._contexts) >= _MOST_CONTEXTS:
            raise Problem("resource_exhausted", f"a sandbox has at most {_MOST_CONTEXTS} contexts")
        cwd = str(asked.get("cwd") or "")
        context = await self._open(box, secrets.token_hex(8), cwd, user)
        return JSONResponse(context.answer())

    async def list(self, request: Request, box: Box, user: str) -> Response:
        found = [one for (name, _), one in self._contexts.items() if name == box.id]
        return JSONResponse([one.answer() for one in found])

    async def remove(self, request: Request, box: Box, user: str) -> Response:
        await self._end(box, self._find(request, box))
        return Response(status_code=204)

    async def restart(self, request: Request, box: Box, user: str) -> Response:
        context = self._find(request, box)
        await self._end(box, context)
        again = await self._open(box, context.id, context.cwd, user)
        return JSONResponse(again.answer())

    async def _open(self, box: Box, name: str, cwd: str, user: str) -> _Context:
        process = await box.session.start(
            CommandRequest(["python3", "-u", "-c", _KERNEL], cwd=cwd, user=user, stdin=True)
        )
        context = _Context(name, cwd or "~", process, _lines(process))
        self._contexts[box.id, name] = context
        return context

    async def _run(self, box: Box, context: _Context, cell: Json) -> AsyncIterator[bytes]:
        """The cell's messages as they come. A client that hangs up interrupts its cell."""
        async with context.one_at_a_time:
            over = False
            try:
                await context.process.write(json.dumps(cell).encode() + b"\n")
                async for message in context.lines:
                    if message["type"] == "end":
                        over = True
                        return
                    yield json.dumps(message).encode() + b"\n"
                over = True
                self._contexts.pop((box.id, context.id), None)
                yield _died()
            except EXPECTED as gone:
                over = True
                self._contexts.pop((box.id, context.id), None)
                yield _died(str(gone))
            finally:
                if not over:
                    with suppress(*EXPECTED):
                        await context.process.signal(signal.SIGINT)
                    self._contexts.pop((box.id, context.id), None)

    async def _end(self, box: Box, context: _Context) -> None:
        self._contexts.pop((box.id, context.id), None)
        with suppress(*EXPECTED):
            await context.process.signal(signal.SIGKILL)
        await context.process.close()

    def _find(self, request: Request, box: Box) -> _Context:
        name = request.path_params["context"]
        context = self._contexts.get((box.id, name))
        if context is None:
            raise Problem("not_found", f"there is no context {name!r}")
        return context


async def _lines(process: Process) -> AsyncGenerator[Json, None]:
    held = bytearray()
    async with aclosing(process.events()) as events:
        async for event in events:
            if isinstance(event, Exit):
                return
            if isinstance(event, Output) and event.stream == "stdout":
                held += event.data
                while (end := held.find(b"\n")) >= 0:
                    line = bytes(held[:end])
                    del held[: end + 1]
                    yield json.loads(line)


def _died(why: str = "") -> bytes:
    said = {"type": "error", "name": "ContextDied", "value": why, "traceback": ""}
    said["value"] = why or "the interpreter ended; the next cell starts another one"
    return json.dumps(said).encode() + b"\n"


def _check_language(asked: dict[str, Any]) -> None:
    if (language := asked.get("language") or "python") != "python":
        raise Problem("invalid_argument", f"language is {language!r}; only python is offered")
