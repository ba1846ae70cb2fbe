"""envd's service of processes: commands and terminals, begun, found again, fed and ended."""

import asyncio
import base64
import signal
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ground import tracing
from ground.tracing import Span
from ground.tracing.spans import OFF
from jail.sessions import (
    CommandRequest,
    Exit,
    Output,
    Process,
    ProcessInfo,
    Session,
    Terminal,
)
from worker.e2b.boxes import Box
from worker.e2b.problems import Problem
from worker.e2b.wire import Json, body, frames, is_number, number, one_frame, streamed

_PING = 50.0
_PROMPTLY, _SHARE = 0.25, 0.1  # seconds, and of the time that is asked for
_SIZE = {"cols": 80, "rows": 24}
_SIGNALS = {"SIGNAL_SIGKILL": signal.SIGKILL, "SIGNAL_SIGTERM": signal.SIGTERM}


async def start(request: Request, box: Box, user: str) -> Response:
    arrived = asyncio.get_running_loop().time()
    asked = await one_frame(request)
    config = _table(asked.get("process"), "process")
    pty = asked.get("pty")
    env = _table(config.get("envs") or {}, "envs")
    command = CommandRequest(
        argv=[str(config.get("cmd") or ""), *map(str, _list(config.get("args"), "args"))],
        env={str(key): str(value) for key, value in env.items()},
        cwd=str(config.get("cwd") or ""),
        user=user,
        stdin=bool(asked.get("stdin", True)),  # left out by SDKs that are older than the field
        terminal=_terminal(_table(pty, "pty")) if pty else None,
        timeout=_left(request, arrived),
        kept=True,
        tag=str(asked.get("tag") or ""),
    )
    process = await box.session.start(command)
    return streamed(_events(process, tracing.begun("command")), _ping(request))


async def connect(request: Request, box: Box, user: str) -> Response:
    process = await box.session.attach(_which(await one_frame(request)))
    return streamed(_events(process), _ping(request))


async def listed(request: Request, box: Box, user: str) -> Response:
    await body(request)
    return JSONResponse({"processes": [_info(one) for one in await box.session.processes()]})


async def send_input(request: Request, box: Box, user: str) -> Response:
    asked = await body(request)
    await _feed(box.session, _which(asked), asked)
    return JSONResponse({})


async def stream_input(request: Request, box: Box, user: str) -> Response:
    """The client streams: which process first, then what it reads."""
    which: int | str | None = None
    async for message in frames(request):
        if begun := message.get("start"):
            which = _which(_table(begun, "start"))
        elif which is None:
            raise Problem("invalid_argument", "the stream must begin with the process")
        elif data := message.get("data"):
            await _feed(box.session, which, _table(data, "data"))
    return JSONResponse({})


async def close_stdin(request: Request, box: Box, user: str) -> Response:
    await box.session.close_stdin(_which(await body(request)))
    return JSONResponse({})


async def send_signal(request: Request, box: Box, user: str) -> Response:
    asked = await body(request)
    number = _SIGNALS.get(str(asked.get("signal")))
    if number is None:
        raise Problem("invalid_argument", f"signal is none of {', '.join(_SIGNALS)}")
    await box.session.signal(_which(asked), number)
    return JSONResponse({})


async def update(request: Request, box: Box, user: str) -> Response:
    asked = await body(request)
    await box.session.resize(_which(asked), _terminal(_table(asked.get("pty"), "pty")))
    return JSONResponse({})


CALLS = {
    "Start": start, "Connect": connect, "List": listed, "SendInput": send_input,
    "StreamInput": stream_input, "CloseStdin": close_stdin, "SendSignal": send_signal,
    "Update": update,
}  # fmt: skip


async def _events(process: Process, span: Span = OFF) -> AsyncGenerator[Json, None]:
    """A client that hangs up ends no command. The end comes when the outputs are closed."""
    ended: Exit | None = None
    try:
        yield _event("start", {"pid": process.pid})
        async with aclosing(process.events()) as events:
            async for event in events:
                if isinstance(event, Output):
                    data = base64.b64encode(event.data).decode()
                    yield _event("data", {event.stream: data})
                else:
                    ended = event
        if ended is not None:
            span.set("process.exit.code", -1 if ended.code is None else ended.code)
            yield _event("end", _end(ended))
    finally:
        span.end()
        await process.close()


def _event(kind: str, content: Json) -> Json:
    return {"event": {kind: content}}


def _end(found: Exit) -> Json:
    if found.why == "timeout":
        raise Problem("deadline_exceeded", "the command ran out of its time and was killed")
    if found.why == "session_ended":
        raise Problem("unavailable", "The sandbox was not found")
    if found.why in ("no_folder", "not_found", "not_executable"):
        raise Problem("invalid_argument", found.message)
    if found.code is None:
        name = signal.strsignal(found.signal or signal.SIGKILL) or found.signal
        text = f"signal: {name}" + (f" ({found.why})" if found.why else "")
        return {"exitCode": -1, "exited": False, "status": text, "error": text}
    text = f"exit status {found.code}"
    return {"exitCode": found.code, "exited": True, "status": text} | (
        {"error": text} if found.code else {}
    )


def _info(one: ProcessInfo) -> Json:
    command = one.command
    config = {
        "cmd": command.argv[0], "args": list(command.argv[1:]), "envs": dict(command.env),
        "cwd": command.cwd,
    }  # fmt: skip
    return {"pid": one.pid, "config": config} | ({"tag": one.tag} if one.tag else {})


async def _feed(session: Session, which: int | str, asked: Json) -> None:
    given = _table(asked.get("input"), "input")
    try:
        data = base64.b64decode(given.get("stdin") or given.get("pty") or "", validate=True)
    except (ValueError, TypeError):
        raise Problem("invalid_argument", "input is not base64") from None
    await session.write_stdin(which, data)


def _which(asked: Json) -> int | str:
    found = _table(asked.get("process"), "process")
    if isinstance(tag := found.get("tag"), str) and tag:
        return tag
    if isinstance(pid := found.get("pid"), int):
        return pid
    raise Problem("invalid_argument", "process needs a pid or a tag")


def _terminal(pty: Json) -> Terminal:
    size = _table(pty.get("size") or {}, "pty.size")
    columns, rows = (number(size.get(key) or given, key) for key, given in _SIZE.items())
    return Terminal(columns, rows)


def _table(found: Any, name: str) -> Json:
    if not isinstance(found, dict):
        raise Problem("invalid_argument", f"{name} is missing")
    return found


def _list(found: Any, name: str) -> list[Any]:
    if not isinstance(found or [], list):
        raise Problem("invalid_argument", f"{name} must be a list")
    return found or []


def _left(request: Request, arrived: float) -> float | None:
    """Seconds for the command. The client sends its own deadline as that of the call, and some
    clients wait no moment longer for the answer: it must be on its way by then."""
    text = request.headers.get("connect-timeout-ms", "")
    if not is_number(text) or not (asked := int(text) / 1000):
        return None
    passed = asyncio.get_running_loop().time() - arrived
    return max(asked - passed - min(_PROMPTLY, _SHARE * asked), 0.001)


def _ping(request: Request) -> float:
    text = request.headers.get("keepalive-ping-interval", "")
    return float(text) if is_number(text) and int(text) else _PING
