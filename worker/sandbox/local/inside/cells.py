"""A notebook's kernel in small: runs cells in one namespace, for as long as its client asks.

It lives in the program's own process, so that a hostile cell can lie about its own
results; time, memory and the rest are still held by the jail's init. What differs from
ipykernel is a list in docs/reference/sandbox-fusion.md.
"""

import ast
import base64
import builtins
import contextlib
import functools
import io
import json
import linecache
import os
import signal
import sys
import traceback
import types
from collections.abc import Coroutine
from typing import Any

from . import wire

CHANNEL = 4
_FILE = "<cell {}>"
_FORMS = {
    "text/html": "_repr_html_", "text/markdown": "_repr_markdown_", "text/latex": "_repr_latex_",
    "image/svg+xml": "_repr_svg_", "image/png": "_repr_png_", "image/jpeg": "_repr_jpeg_",
    "application/pdf": "_repr_pdf_", "application/json": "_repr_json_",
    "application/javascript": "_repr_javascript_", "": "_repr_mimebundle_",
}  # fmt: skip
_SEVERAL = ""
_SHELL = "_penstock_shell"
_SCRIPTS = ("%%bash", "%%sh")
_OF_A_STATEMENT = ("%time", "%%time", "%timeit", "%%timeit", "%prun", "%%capture")
_AWAIT, _AWAITS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, 0x80  # allow it; a code's flag that it does


class CellTimeout(BaseException):
    """Raised in a cell at its own time limit; the jail's limits stand behind it."""


class Output:
    """All that is written to a descriptor: by Python, by C, by processes that a cell starts.

    It goes to a file without a name, so that nobody has to read while it is written.
    """

    def __init__(self, at: int, name: str) -> None:
        self._at = at
        self.name = name
        self._before = os.dup(at)
        path = f"{os.environ.get('TMPDIR', '/tmp')}/.output-{os.getpid()}-{at}"  # noqa: S108
        new = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND
        self._file = os.dup(os.open(path, new, 0o600))
        os.unlink(path)
        os.dup2(self._file, at)
        self._open()

    def _open(self) -> None:
        new = open(self._at, "w", 1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
        vars(sys)[f"__{self.name}__"] = vars(sys)[self.name] = self._stream = new

    def begin(self) -> None:
        """A stream that an earlier cell has closed is opened again."""
        if self._stream.closed:
            self._open()

    def take(self, most: int) -> str:
        """What was written since; of more than may be said, enough to show that it is more."""
        for stream in (vars(sys)[self.name], self._stream):
            with contextlib.suppress(Exception):  # a cell's own stream, or a closed one
                stream.flush()
        said = os.pread(self._file, 4 * most + 4, 0)
        os.ftruncate(self._file, 0)
        return said.decode(errors="replace")

    def end(self) -> None:
        """What is written from now on goes where it went before."""
        with contextlib.suppress(Exception):
            self._stream.flush()
        os.dup2(self._before, self._at)


def serve(namespace: dict[str, Any]) -> None:
    """Answer cells from the channel until the client closes it."""
    signal.signal(signal.SIGALRM, _time_is_up)
    del namespace["__file__"]
    outputs = Output(1, "stdout"), Output(2, "stderr")
    notebook = Notebook(namespace)
    with open(CHANNEL, "rb", buffering=0) as asked, open(CHANNEL, "wb", closefd=False) as said:
        while message := _read(asked):
            header, (code,) = wire.unpack(message)
            for output in outputs:
                output.begin()
            result = notebook.run(code.decode(errors="replace"), header["timeout"])
            result |= {output.name: output.take(header["most"]) for output in outputs}
            answer = json.dumps(result, ensure_ascii=False).encode(errors="replace")
            said.write(wire.pack({}, [answer]))
            said.flush()
    for output in outputs:
        output.end()


def _read(source: io.RawIOBase | Any) -> bytes:
    message = b""
    while (expected := wire.length(message)) is None or len(message) < expected:
        chunk = source.read((expected or 12) - len(message))
        if not chunk:
            return b""
        message += chunk
    return message


class Notebook:
    """One namespace, and what a notebook keeps in it: `In`, `Out`, `_`, `__`, `___`, `_3`."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self._names = namespace
        self._in, self._out = [""], dict[int, Any]()
        self._shown: list[Any] = ["", "", ""]  # the last three
        namespace.update(In=self._in, _ih=self._in, Out=self._out, _oh=self._out)
        namespace.update(_="", __="", ___="", _i="", _ii="", _iii="")

    def run(self, code: str, timeout: float) -> dict[str, Any]:
        """One cell: what it showed, how it failed."""
        display: list[dict[str, Any]] = []
        error: list[dict[str, Any]] = []
        for name, earlier in zip(("_i", "_ii", "_iii"), reversed(self._in), strict=False):
            self._names[name] = earlier
        self._in.append(code)
        self._names[f"_i{len(self._in) - 1}"] = code
        vars(builtins)["display"] = lambda *values, **_: display.extend(map(_as_shown, values))
        vars(builtins)[_SHELL] = functools.partial(_shell, self._names)
        try:
            signal.setitimer(signal.ITIMER_REAL, timeout)
            self._execute(code, display)
            display += _figures()
        except BaseException as problem:  # noqa: BLE001  a cell's end is not the kernel's
            error.append(_described(problem))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        return {"display": display, "error": error}

    def _execute(self, code: str, display: list[dict[str, Any]]) -> None:
        file = _FILE.format(len(self._in) - 1)
        lines, tree = _parsed(code, file)
        linecache.cache[file] = len(code), None, lines, file
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        parts = [compile(tree, file, "exec", _AWAIT, dont_inherit=True)]
        if isinstance(last, ast.Expr):
            shown = ast.Expression(last.value)
            parts.append(compile(shown, file, "eval", _AWAIT, dont_inherit=True))
        if any(part.co_flags & _AWAITS for part in parts):
            value = _complete(_awaited(parts, self._names))
        else:
            value = [eval(part, self._names) for part in parts][-1]  # noqa: S307
        if value is not None and not _quiet("".join(lines)):
            display.append(_as_shown(value))
            self._keep(value)

    def _keep(self, value: Any) -> None:
        """As a notebook does, unless the program has taken one of the names for its own."""
        number = len(self._in) - 1
        names = "_", "__", "___"
        if all(
            self._names.get(name) is kept for name, kept in zip(names, self._shown, strict=True)
        ):
            self._shown = [value, *self._shown[:2]]
            self._names.update(zip(names, self._shown, strict=True))
        self._out[number] = self._names[f"_{number}"] = value


def _time_is_up(*_: object) -> None:
    raise CellTimeout("the cell's time limit has passed")


def _quiet(code: str) -> bool:
    """Whether its last token is a semicolon."""
    if ";" not in code:
        return False
    import tokenize  # which few need

    space = (tokenize.ENDMARKER, tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT, tokenize.DEDENT)
    tokens = list(tokenize.generate_tokens(io.StringIO(code).readline))
    last = next((token for token in reversed(tokens) if token.type not in space), None)
    return last is not None and last.string == ";"


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


def _as_shown(value: object) -> dict[str, str]:
    """In every form that the object offers a notebook, as text; bytes are in base64."""
    shown: dict[str, Any] = {"text/plain": repr(value), **_drawn(value)}
    for form, name in _FORMS.items():
        if method := getattr(type(value), name, None):
            with contextlib.suppress(Exception):  # not for this one
                said = method(value)
                said = said[0] if isinstance(said, tuple) else said  # what is left is about it
                shown |= said if form == _SEVERAL else {form: said} if said is not None else {}
    return {str(form): _text(said) for form, said in shown.items()}


def _text(said: Any) -> str:
    if isinstance(said, bytes):
        return base64.b64encode(said).decode()
    return said if isinstance(said, str) else json.dumps(said, default=repr)


def _parsed(code: str, file: str) -> tuple[list[str], ast.Module]:
    """Its lines as Python, where a line that Python stumbles over may be a notebook's own.

    In a string, or within an expression, such a line is Python.
    """
    first, _, rest = code.lstrip().partition("\n")
    if first.strip() in _SCRIPTS:
        code = f"{_SHELL}({rest!r}, {first.strip()[2:]!r})"
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
    """`!command` runs it, and `lines = !command` keeps what it prints; `%time` times nothing but
    runs what follows; another `%magic` line means nothing here, and is left out."""
    bare = line.strip()
    indent = line[: len(line) - len(line.lstrip())]
    if bare.startswith("!"):
        return f"{indent}{_SHELL}({bare.lstrip('!')!r})\n"
    target, equals, command = bare.partition("=")
    if equals and command.lstrip().startswith("!"):
        return f"{indent}{target}= {_SHELL}({command.lstrip()[1:]!r}, keep=True)\n"
    if bare.startswith("%"):
        magic, _, rest = bare.partition(" ")
        return f"{indent}{rest if magic in _OF_A_STATEMENT and rest else 'pass'}\n"
    return line


def _shell(
    names: dict[str, Any], command: str, shell: str = "", keep: bool = False
) -> list[str] | None:
    """What it says as it fails is among what it prints, as at a terminal."""
    import subprocess

    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if not shell:
        command = _filled_in(command, names)
    into, err = (subprocess.PIPE, subprocess.STDOUT) if keep else (None, None if shell else 1)
    ran = subprocess.run([shell or "sh", "-c", command], stdout=into, stderr=err)  # noqa: S603
    names["_exit_code"] = ran.returncode
    return ran.stdout.decode(errors="replace").splitlines() if keep else None


def _filled_in(command: str, names: dict[str, Any]) -> str:
    """`{expression}` and `$name` are Python's, where Python has such; `$$name` is the shell's."""
    import re

    def value(found: "re.Match[str]") -> str:
        if found["doubled"]:
            return found["doubled"][1:]
        try:
            return str(eval(found["expression"] or found["name"], names))  # noqa: S307
        except Exception:  # noqa: BLE001  not Python's: `awk '{print $1}'`, `$HOME`
            return found[0]

    pattern = r"(?P<doubled>[$][$]|{{|}})|{(?P<expression>[^{}]+)}|[$](?P<name>[A-Za-z_]\w*)"
    return re.sub(pattern, value, command)


def _figures() -> list[dict[str, Any]]:
    """What the cell has drawn, as a notebook shows it."""
    pyplot: Any = sys.modules.get("matplotlib.pyplot")
    if not pyplot:
        return []
    shown = [_as_shown(pyplot.figure(number)) for number in pyplot.get_fignums()]
    pyplot.close("all")
    return shown


def _drawn(value: Any) -> dict[str, str]:
    """A figure's picture; nothing of what is none."""
    drawing: Any = sys.modules.get("matplotlib.figure")
    if not (drawing and isinstance(value, drawing.Figure)):
        return {}
    picture = io.BytesIO()
    value.savefig(picture, format="png", bbox_inches="tight")
    return {"image/png": _text(picture.getvalue())}


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
