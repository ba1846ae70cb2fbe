"""A notebook's kernel in small: runs cells in one namespace, for as long as its client asks.

It lives in the program's own process, so that a hostile cell can lie about its own
results; time, memory and the rest are still held by the jail's init.
"""

import ast
import base64
import builtins
import functools
import io
import json
import linecache
import signal
import sys
import traceback
import types
from collections.abc import Coroutine
from typing import Any

from . import wire

CHANNEL = 4
_FILE = "<cell {}>"
_AWAIT, _AWAITS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, 0x80  # allow it; a code's flag that it does


class CellTimeout(BaseException):
    """Raised in a cell at its own time limit; the jail's limits stand behind it."""


def serve(namespace: dict[str, Any]) -> None:
    """Answer cells from the channel until the client closes it."""
    signal.signal(signal.SIGALRM, _time_is_up)
    with open(CHANNEL, "rb", buffering=0) as asked, open(CHANNEL, "wb", closefd=False) as said:
        number = 0
        while message := _read(asked):
            header, (code,) = wire.unpack(message)
            number += 1
            result = run(code.decode(errors="replace"), number, header["timeout"], namespace)
            answer = json.dumps(result, ensure_ascii=False).encode(errors="replace")
            said.write(wire.pack({}, [answer]))
            said.flush()


def _read(source: io.RawIOBase | Any) -> bytes:
    message = b""
    while (expected := wire.length(message)) is None or len(message) < expected:
        chunk = source.read((expected or 12) - len(message))
        if not chunk:
            return b""
        message += chunk
    return message


def run(code: str, number: int, timeout: float, namespace: dict[str, Any]) -> dict[str, Any]:
    """One cell: what it wrote, what it showed, how it failed."""
    out, err = io.StringIO(), io.StringIO()
    kept = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = out, err
    display: list[dict[str, Any]] = []
    error: list[dict[str, Any]] = []
    vars(builtins)["display"] = lambda *values, **_: display.extend(map(_as_text, values))
    try:
        signal.setitimer(signal.ITIMER_REAL, timeout)
        _execute(code, _FILE.format(number), namespace, display)
        display += _figures()
    except BaseException as problem:  # noqa: BLE001  a cell's end is not the kernel's
        error.append(_described(problem))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.stdout, sys.stderr = kept
    return {
        "stdout": out.getvalue(),
        "stderr": err.getvalue(),
        "display": display,
        "error": error,
    }


def _time_is_up(*_: object) -> None:
    raise CellTimeout("the cell's time limit has passed")


def _execute(
    code: str, file: str, namespace: dict[str, Any], display: list[dict[str, Any]]
) -> None:
    lines, tree = _parsed(code, file)
    linecache.cache[file] = len(code), None, lines, file
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    parts = [compile(tree, file, "exec", _AWAIT, dont_inherit=True)]
    if isinstance(last, ast.Expr):
        shown = ast.Expression(last.value)
        parts.append(compile(shown, file, "eval", _AWAIT, dont_inherit=True))
    if any(part.co_flags & _AWAITS for part in parts):
        value = _complete(_awaited(parts, namespace))
    else:
        value = [eval(part, namespace) for part in parts][-1]  # noqa: S307
    if value is not None:
        namespace["_"] = value
        display.append(_as_text(value))


async def _awaited(parts: list[types.CodeType], namespace: dict[str, Any]) -> Any:
    """What the last of them comes to."""
    for part in parts:
        value = eval(part, namespace)  # noqa: S307
        if part.co_flags & _AWAITS:
            value = await value
    return value


def _complete(cell: Coroutine[Any, Any, Any]) -> Any:
    task = _loop().create_task(cell)
    try:
        return _loop().run_until_complete(task)
    finally:
        task.cancel()  # out of its time, it must not go on in later cells


@functools.cache
def _loop() -> Any:
    """One for all cells."""
    import asyncio  # which few need

    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    return loop


def _as_text(value: object) -> dict[str, str]:
    return {"text/plain": repr(value)}


def _parsed(code: str, file: str) -> tuple[list[str], ast.Module]:
    """Its lines as Python, where a line that Python stumbles over may be a notebook's own.

    In a string, or within an expression, such a line is Python.
    """
    lines = [f"{line}\n" for line in code.split("\n")]
    while True:
        try:
            return lines, ast.parse("".join(lines), file)
        except SyntaxError as problem:
            number = problem.lineno or 0
            here = slice(number - 1, number)
            replaced = [_without_magic(line) for line in lines[here]]
            if replaced == lines[here]:
                raise
            lines[here] = replaced


def _without_magic(line: str) -> str:
    """`!command` runs it; a `%magic` line means nothing here, and is left out."""
    bare = line.strip()
    indent = line[: len(line) - len(line.lstrip())]
    if bare.startswith("!"):
        command = "__import__('subprocess').run({!r}, shell=True, capture_output=True, text=True)"
        return f"{indent}print({command.format(bare[1:])}.stdout, end='')\n"
    if bare.startswith("%"):
        return f"{indent}pass\n"
    return line


def _figures() -> list[dict[str, Any]]:
    """What the cell has drawn, as a notebook shows it."""
    pyplot: Any = sys.modules.get("matplotlib.pyplot")
    shown = []
    for number in pyplot.get_fignums() if pyplot else ():
        picture = io.BytesIO()
        figure = pyplot.figure(number)
        figure.savefig(picture, format="png")
        shown.append(
            {
                "text/plain": repr(figure),
                "image/png": base64.b64encode(picture.getvalue()).decode(),
            }
        )
    if pyplot:
        pyplot.close("all")
    return shown


def _described(problem: BaseException) -> dict[str, Any]:
    trace = problem.__traceback__
    while trace is not None and not trace.tb_frame.f_code.co_filename.startswith("<cell "):
        trace = trace.tb_next  # our own frames are no news
    lines = traceback.format_exception(type(problem), problem, trace)
    try:
        said = str(problem)
    except BaseException:  # noqa: BLE001  a method of the program's own
        said = "<exception str() failed>"
    return {"ename": type(problem).__name__, "evalue": said, "traceback": lines}
