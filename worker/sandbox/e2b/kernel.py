"""An interpreter that stays, run inside a sandbox: cells come as JSON lines, what they do goes out.

It is sent as text, so it imports nothing of ours. The program's own outputs are pipes that
threads read, so what a child process prints is seen too. A cell that writes past them spoils its
own context alone.
"""

import ast
import base64
import contextlib
import json
import linecache
import os
import select
import signal
import sys
import threading
import time
import traceback
import uuid
from types import CodeType
from typing import Any, TextIO

_TOGETHER = 0.3  # seconds for which what is printed is gathered into one message
_KINDS = {
    "_repr_html_": "html", "_repr_markdown_": "markdown", "_repr_svg_": "svg",
    "_repr_png_": "png", "_repr_jpeg_": "jpeg", "_repr_latex_": "latex", "_repr_json_": "json",
}  # fmt: skip


class Out:
    """One line of JSON at a time, from any thread."""

    def __init__(self, at: int) -> None:
        self._file = os.fdopen(at, "w", encoding="utf-8")
        self._lock = threading.Lock()

    def tell(self, kind: str, **content: Any) -> None:
        with self._lock:
            self._file.write(json.dumps({"type": kind, **content}) + "\n")
            self._file.flush()


class Stream(threading.Thread):
    """What is written to one of the program's outputs."""

    def __init__(self, at: int, kind: str, out: Out) -> None:
        super().__init__(daemon=True)
        self._read, write = os.pipe()
        os.dup2(write, at)
        os.close(write)
        self._at, self._kind, self._out = at, kind, out
        self._marks: dict[bytes, threading.Event] = {}
        self.start()

    def drain(self) -> None:
        """Return when all that was written before has been sent."""
        mark, seen = uuid.uuid4().hex.encode(), threading.Event()
        self._marks[mark] = seen
        os.write(self._at, mark)
        seen.wait(5)
        self._marks.pop(mark, None)

    def run(self) -> None:
        held = b""
        while True:
            ready, _, _ = select.select([self._read], [], [], _TOGETHER if held else None)
            if not ready:
                held = self._tell(held)
                continue
            held += os.read(self._read, 1 << 16)
            for mark, seen in list(self._marks.items()):
                if mark in held:
                    held = self._tell(held.replace(mark, b""), final=True)
                    seen.set()
            if len(held) > 1 << 20:
                held = self._tell(held)

    def _tell(self, held: bytes, final: bool = False) -> bytes:
        """The whole characters; a half one is kept."""
        keep = 0
        if not final:
            while keep < 3 and held and _half(held, keep):
                keep += 1
        text = held[: len(held) - keep].decode("utf-8", "replace")
        if text:
            self._out.tell(self._kind, text=text, timestamp=time.time_ns())
        return held[len(held) - keep :] if keep else b""


def _half(held: bytes, keep: int) -> bool:
    try:
        held[: len(held) - keep].decode()
    except UnicodeDecodeError as problem:
        return problem.reason == "unexpected end of data"
    return False


class Kernel:
    def __init__(self, cells: TextIO, out: Out) -> None:
        self._cells, self._out = cells, out
        self._streams = [Stream(1, "stdout", out), Stream(2, "stderr", out)]
        self._names: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__}
        self._names["display"] = self._display
        self._count = 0

    def serve(self) -> None:
        for line in self._cells:
            asked = json.loads(line)
            self._count += 1
            self._out.tell("number_of_executions", execution_count=self._count)
            saved: dict[str, str | None] = {}
            try:
                saved = {name: os.environ.get(name) for name in asked["env_vars"]}
                os.environ.update(asked["env_vars"])
                self._run(asked["code"])
            except BaseException as problem:  # noqa: BLE001 - whatever a cell raises is its own
                self._fail(problem)
            for name, value in saved.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            for stream in self._streams:
                stream.drain()
            self._out.tell("end")

    def _run(self, code: str) -> None:
        name = f"<cell {self._count}>"
        linecache.cache[name] = len(code), None, code.splitlines(True), name
        tree = ast.parse(code, name)
        last = None
        if tree.body and isinstance(tree.body[-1], ast.Expr):
            last = ast.Expression(tree.body[-1].value)
            tree.body.pop()
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        self._evaluate(compile(tree, name, "exec", flags))
        if last is not None:
            value = self._evaluate(compile(last, name, "eval", flags))
            if value is not None:
                self._names["_"] = value
                self._show(value, True)

    def _evaluate(self, code: CodeType) -> Any:
        found = eval(code, self._names)  # noqa: S307 - this is what it is for
        if code.co_flags & 0x80:  # a coroutine: the cell awaits
            import asyncio

            return asyncio.run(found)
        return found

    def _display(self, *values: Any) -> None:
        for value in values:
            self._show(value, False)

    def _show(self, value: Any, main: bool) -> None:
        content = {"text": repr(value)}
        for method, kind in _KINDS.items():
            with contextlib.suppress(Exception):
                shown = getattr(value, method)()
                if isinstance(shown, bytes):
                    shown = base64.b64encode(shown).decode()
                if shown is not None:
                    content[kind] = shown
        self._out.tell("result", is_main_result=main, **content)

    def _fail(self, problem: BaseException) -> None:
        frames = traceback.extract_tb(problem.__traceback__)
        inner = [frame for frame in frames if not frame.filename.startswith("<string>")]
        text = "".join(traceback.format_list(inner))
        text += "".join(traceback.format_exception_only(type(problem), problem))
        self._out.tell(
            "error", name=type(problem).__name__, value=str(problem),
            traceback="Traceback (most recent call last):\n" + text,
        )  # fmt: skip


def main() -> None:
    cells, out = os.fdopen(os.dup(0), "r", encoding="utf-8"), Out(os.dup(1))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    kernel = Kernel(cells, out)
    sys.argv = [""]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    while True:
        with contextlib.suppress(KeyboardInterrupt):  # between two cells
            kernel.serve()
            return


main()
