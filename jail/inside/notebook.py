"""The Python that stays: cells, or whole programs, run one after the other in one namespace.

Three callers speak to it, each in its own dialect, at the end of this file. `/run_jupyter` and our
own notebooks use frames, E2B's contexts use lines. The lifecycle's sessions use a socket over which
each program brings its own streams. For the last two this file is sent as text into sandboxes whose
Python is not this one. So it imports nothing of Penstock's, and runs on Python 3.8, programs on
3.9.

It lives in the program's own process, so a hostile cell can lie about its own results. Each caller
that passes them on bounds them and does not read them. What differs from ipykernel is a list in
docs/reference/sandbox-fusion.md.
"""

from __future__ import annotations

import _thread
import ast
import base64
import builtins
import contextlib
import functools
import io
import itertools
import json
import linecache
import os
import signal
import sys
import traceback
import types
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any

CHANNEL = 4  # of the dialect of frames
LONGEST_LINE = 8 << 20  # bytes of the dialect of lines
MESSAGE, OVER = b"+", b"."  # how its lines begin
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
_TIMED = ("%time", "%%time", "%timeit", "%%timeit", "%prun", "%%prun")
# They set up what is set up here, or what is not there to be set up.
_LEFT_OUT = (
    "%matplotlib", "%config", "%load_ext", "%reload_ext", "%autoreload", "%aimport", "%precision",
    "%xmode", "%colors", "%%capture",
)  # fmt: skip
_AWAIT, _AWAITS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, 0x80  # allow it; a code's flag that it does
_MOST_LINES = 256  # of a traceback

if TYPE_CHECKING:
    Bundle = dict[str, Any]  # what is shown, by its form; bytes are in base64


class CellTimeout(BaseException):
    """Raised in a cell at its own time limit; the jail's limits stand behind it."""


class UsageError(Exception):
    """A cell has a magic that is not offered."""


# What a cell is, and what it may do


class Interpreter:
    """An interpreter has one namespace and one event loop. `shows` is called with what a program
    displays, and whether that is the value of its last line."""

    def __init__(self, names: dict[str, Any], shows: Callable[[Bundle, bool], None]) -> None:
        self.names, self.shows = names, shows
        self._files: set[str] = set()
        self._loop: Any = None
        self._home = _thread.get_ident()
        self._process = os.getpid()
        vars(builtins)["display"] = self.display
        vars(builtins)[_SHELL] = functools.partial(_shell, names)
        self.on_import("asyncio", self._lend_loop)
        self.on_import("IPython.display", self._lend_display, _small_ipython)

    def on_import(
        self, name: str, change: Callable[[Any], None], make: Callable[[Any], None] | None = None
    ) -> None:
        """Change this module as it is imported; if it is absent, `make` it."""
        if module := sys.modules.get(name):
            change(module)
        else:
            sys.meta_path.insert(0, _Finder(name, change, make))

    def display(self, *values: Any, raw: bool = False, **_: Any) -> None:
        """Show each value in every form that it has. With `raw`, the values are the forms."""
        for value in values:
            self.shows(dict(value) if raw else _forms_of(value), False)

    def execute(self, code: str, file: str) -> Any:
        """The value of its last line, unless a semicolon keeps that from being shown.

        A process that the code has forked, and that comes to the code's end, ends there as it
        would in a script. Behind it only the interpreter itself goes on."""
        try:
            value = self._value_of(code, file)
        except BaseException as problem:
            if os.getpid() != self._process:
                _leave(self.exit_code(problem))
            raise
        if os.getpid() != self._process:
            _leave(0)
        return value

    def _value_of(self, code: str, file: str) -> Any:
        self._files.add(file)
        lines, tree = _parsed(code, file)
        linecache.cache[file] = len(code), None, lines, file
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        parts = [compile(tree, file, "exec", _AWAIT, dont_inherit=True)]
        if isinstance(last, ast.Expr):
            shown = ast.Expression(last.value)
            parts.append(compile(shown, file, "eval", _AWAIT, dont_inherit=True))
        if "asyncio" in sys.modules:
            self.loop()  # an earlier cell may have closed it, and `asyncio.run` leaves none
        if any(part.co_flags & _AWAITS for part in parts):
            value = self._complete(_awaited(parts, self.names))
        else:
            value = [eval(part, self.names) for part in parts][-1]  # noqa: S307
        return None if _quiet("".join(lines)) else value

    def exit_code(self, problem: BaseException) -> int:
        """The exit code of a program that this ends. What is said of it goes to stderr."""
        if not isinstance(problem, SystemExit):
            sys.stderr.writelines(self.lines_of(problem))
            return 1
        if problem.code is None or isinstance(problem.code, int):
            return (problem.code or 0) & 255
        print(problem.code, file=sys.stderr)
        return 1

    def lines_of(self, problem: BaseException) -> list[str]:
        """The lines of an error's traceback, without the notebook's own frames."""
        trace = problem.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename not in self._files:
            trace = trace.tb_next
        told = traceback.TracebackException(type(problem), problem, trace)
        theirs = [frame.f_globals is not globals() for frame, _ in traceback.walk_tb(trace)]
        told.stack[:] = list(itertools.compress(told.stack, theirs))
        lines = list(told.format())
        if len(lines) > _MOST_LINES:
            lines[_MOST_LINES // 2 : -_MOST_LINES // 2] = ["  …\n"]
        return lines

    # Its event loop: a task, queue or client of one cell lives in the next.

    def loop(self) -> Any:
        import asyncio  # which few need

        if self._loop is None or self._loop.is_closed():
            self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        return self._loop

    def idle(self, at: int) -> None:
        """Let the tasks of earlier cells go on until something can be read there."""
        if self._loop is None or self._loop.is_closed():
            return
        self._loop.add_reader(at, self._loop.stop)
        with contextlib.suppress(KeyboardInterrupt, SystemExit):  # a task's own end
            self._loop.run_forever()
        self._loop.remove_reader(at)

    def _complete(self, cell: Coroutine[Any, Any, Any]) -> Any:
        loop = self.loop()
        task = loop.create_task(cell)
        try:
            return loop.run_until_complete(task)
        finally:
            task.cancel()  # out of its time, it must not go on in later cells

    def _lend_loop(self, asyncio: Any) -> None:
        """Let a cell without `await` begin tasks too. The loop does not run under it, so that
        `asyncio.run` and `run_until_complete` work there as they do in a script."""
        events = asyncio.events
        strictly = events.get_running_loop

        def get_running_loop() -> Any:
            if events._get_running_loop() is None and _thread.get_ident() == self._home:
                return self.loop()
            return strictly()

        asyncio.get_running_loop = events.get_running_loop = get_running_loop
        if _thread.get_ident() == self._home:
            self.loop()

    def _lend_display(self, module: Any) -> None:
        """IPython's own prints, as it is not in charge here."""
        module.display = self.display
        module.clear_output = lambda *_, **__: None


class Notebook(Interpreter):
    """A program's names, with what a notebook keeps: figures, `In`, `Out`, `_`, `__`, `___`,
    `_3`."""

    def __init__(self, names: dict[str, Any], shows: Callable[[Bundle, bool], None]) -> None:
        super().__init__(names, shows)
        os.environ.setdefault("MPLBACKEND", "agg")
        self.on_import("matplotlib.pyplot", self._lend_show)
        self._in = [""]
        self._out: dict[int, Any] = {}
        self._kept: list[Any] = ["", "", ""]  # the last three values
        names.update(In=self._in, _ih=self._in, Out=self._out, _oh=self._out)
        names.update(_="", __="", ___="", _i="", _ii="", _iii="")

    @property
    def count(self) -> int:
        """How many cells have begun."""
        return len(self._in) - 1

    def run(self, code: str) -> None:
        """Run one cell. Raises what it raises."""
        for name, earlier in zip(("_i", "_ii", "_iii"), reversed(self._in)):  # noqa: B905
            self.names[name] = earlier
        self._in.append(code)
        self.names[f"_i{self.count}"] = code
        try:
            value = self.execute(code, _FILE.format(self.count))
            if value is not None:
                self.shows(_forms_of(value), True)
                self._keep(value)
        except Exception:
            self._show_figures()
            raise
        self._show_figures()

    def _keep(self, value: Any) -> None:
        """Keep a cell's value by a notebook's names for it, unless the program has taken one of
        them for its own."""
        names = ["_", "__", "___"]
        if [id(self.names.get(name)) for name in names] == [id(kept) for kept in self._kept]:
            self._kept = [value, *self._kept[:2]]
            self.names.update(_=self._kept[0], __=self._kept[1], ___=self._kept[2])
        self._out[self.count] = self.names[f"_{self.count}"] = value

    def _lend_show(self, pyplot: Any) -> None:
        def show(*_: Any, **__: Any) -> None:  # a function, since matplotlib marks it
            self._show_figures()

        pyplot.show = show

    def _show_figures(self) -> None:
        """Show the figures that were drawn and are still open."""
        pyplot: Any = sys.modules.get("matplotlib.pyplot")
        if not pyplot:
            return
        self.display(*(pyplot.figure(number) for number in pyplot.get_fignums()))
        pyplot.close("all")


class _Finder:
    """A finder finds one module, which is changed once it is imported."""

    def __init__(
        self, name: str, change: Callable[[Any], None], make: Callable[[Any], None] | None
    ) -> None:
        self._name, self._change, self._make = name, change, make

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        package = self._name.partition(".")[0]
        if name not in (package, self._name):
            return None
        from importlib.machinery import ModuleSpec, PathFinder

        spec = PathFinder.find_spec(name, path)
        if spec is None and self._make:
            return ModuleSpec(name, self, is_package=name == package)  # type: ignore[arg-type]
        if spec is None or spec.loader is None or name != self._name:
            return None
        load = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            load(module)
            self._change(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    # As the loader of one that is absent.

    def create_module(self, spec: Any) -> None: ...

    def exec_module(self, module: Any) -> None:
        if module.__name__ == self._name:
            assert self._make  # noqa: S101
            self._make(module)
            self._change(module)
        else:
            module.get_ipython = lambda: None  # as IPython says it outside of its own shells
            import importlib

            importlib.import_module(self._name)


async def _awaited(parts: list[types.CodeType], namespace: dict[str, Any]) -> Any:
    """The value of the last part, after all were run and awaited."""
    for part in parts:
        value = eval(part, namespace)  # noqa: S307
        if part.co_flags & _AWAITS:
            value = await value
    return value


# What a notebook writes that is no Python


def _parsed(code: str, file: str) -> tuple[list[str], ast.Module]:
    """The cell's lines as Python, where a line that Python stumbles over may be a notebook's own.

    In a string, or within an expression, such a line is Python.
    """
    first, _, rest = code.lstrip().partition("\n")
    if first.strip() in _SCRIPTS:
        code = f"{_SHELL}({rest!r}, {first.strip()[2:]!r})"
    elif first.startswith("%%"):
        _check_magic(first.split()[0])
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
    """`!command` runs it, and `lines = !command` keeps what it prints. `%pip` is this Python's.
    `%time` times nothing but runs what follows. A few other `%magic` lines are left out."""
    import re

    bare = line.strip()
    indent = line[: len(line) - len(line.lstrip())]
    if bare.startswith("!"):
        return f"{indent}{_SHELL}({bare.lstrip('!')!r})\n"
    target, equals, command = bare.partition("=")
    if equals and command.lstrip().startswith("!"):
        return f"{indent}{target}= {_SHELL}({command.lstrip()[1:]!r}, keep=True)\n"
    if not bare.startswith("%"):
        return line
    magic, _, rest = bare.partition(" ")
    if magic == "%pip":
        return f"{indent}{_SHELL}({f'{sys.executable} -m pip {rest}'!r})\n"
    _check_magic(magic)
    timed = magic in _TIMED and re.sub(r"^(-[a-z] *\d* +)+", "", rest)  # without its options
    return f"{indent}{timed or 'pass'}\n"


def _check_magic(magic: str) -> None:
    if magic not in (*_TIMED, *_LEFT_OUT):
        problem = f"{magic} is not offered here; write it in Python, or as a !command"
        raise UsageError(problem) from None


def _shell(
    names: dict[str, Any], command: str, shell: str = "", keep: bool = False
) -> list[str] | None:
    """Run a command of a cell. Its messages as it fails are part of its output, as at a
    terminal."""
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
    """Fill in `{expression}` and `$name` by Python's values, if there are such; `$$name` is the
    shell's."""
    import re

    def value(found: re.Match[str]) -> str:
        if found["doubled"]:
            return found["doubled"][1:]
        try:
            return str(eval(found["expression"] or found["name"], names))  # noqa: S307
        except Exception:  # noqa: BLE001  not Python's: `awk '{print $1}'`, `$HOME`
            return found[0]

    pattern = r"(?P<doubled>[$][$]|{{|}})|{(?P<expression>[^{}]+)}|[$](?P<name>[A-Za-z_]\w*)"
    return re.sub(pattern, value, command)


def _quiet(code: str) -> bool:
    """Whether its last token is a semicolon."""
    if ";" not in code:
        return False
    import tokenize  # which few need

    space = (tokenize.ENDMARKER, tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT, tokenize.DEDENT)
    tokens = list(tokenize.generate_tokens(io.StringIO(code).readline))
    last = next((token for token in reversed(tokens) if token.type not in space), None)
    return last is not None and last.string == ";"


# What is shown


def _forms_of(value: object) -> Bundle:
    """Every form that the object offers a notebook."""
    shown: Bundle = {"text/plain": repr(value), **_drawn(value)}
    for form, name in _FORMS.items():
        if method := getattr(type(value), name, None):
            with contextlib.suppress(Exception):  # not for this one
                said = method(value)
                said = said[0] if isinstance(said, tuple) else said  # what is left is about it
                if said is not None:
                    shown.update(said if form == _SEVERAL else {form: said})
    return {
        str(form): base64.b64encode(said).decode() if isinstance(said, bytes) else said
        for form, said in shown.items()
    }


def _drawn(value: Any) -> Bundle:
    """The picture of a matplotlib figure; an empty bundle for any other value."""
    drawing: Any = sys.modules.get("matplotlib.figure")
    if not (drawing and isinstance(value, drawing.Figure)):
        return {}
    picture = io.BytesIO()
    value.savefig(picture, format="png", bbox_inches="tight")
    return {"image/png": picture.getvalue()}


def _small_ipython(module: Any) -> None:
    """Make an `IPython.display`, for a Python that has none: objects with one form each."""

    class DisplayObject:
        form = "text/plain"

        def __init__(
            self, data: Any = None, url: Any = None, filename: Any = None, **_: Any
        ) -> None:
            if filename is not None:
                with open(filename, "rb") as file:
                    data = file.read()
                data = data if self.form.startswith("image/p") else data.decode()
            self.data, self.url = data, url

        def _repr_mimebundle_(self, **_: Any) -> Bundle:
            return {self.form: self.data}

    class Math(DisplayObject):
        def _repr_mimebundle_(self, **_: Any) -> Bundle:
            return {"text/latex": f"$\\displaystyle {str(self.data).strip('$')}$"}

    class Image(DisplayObject):
        form = "image/png"

        def __init__(self, data: Any = None, **more: Any) -> None:
            if isinstance(data, str):
                more["url" if "://" in data else "filename"] = data
                data = None
            super().__init__(data, **more)

        def _repr_mimebundle_(self, **_: Any) -> Bundle:
            if self.data is None:
                return {"text/html": f'<img src="{self.url}"/>'}
            return {"image/jpeg" if self.data[:2] == b"\xff\xd8" else self.form: self.data}

    kinds = {
        "HTML": "text/html", "Markdown": "text/markdown", "Latex": "text/latex",
        "SVG": "image/svg+xml", "JSON": "application/json",
        "Javascript": "application/javascript", "Pretty": "text/plain",
    }  # fmt: skip
    made = [type(name, (DisplayObject,), {"form": form}) for name, form in kinds.items()]
    for kind in (DisplayObject, Math, Image, *made):
        kind.__module__, kind.__qualname__ = module.__name__, kind.__name__
        setattr(module, kind.__name__, kind)


# Standard streams


def _open_stream(at: int, name: str) -> Any:
    new = open(at, "w", 1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    vars(sys)[f"__{name}__"] = vars(sys)[name] = new
    return new


def _reopen_closed() -> None:
    """Reopen a stream that an earlier program has closed."""
    for at, name in ((1, "stdout"), (2, "stderr")):
        if getattr(vars(sys).get(f"__{name}__"), "closed", True):
            _open_stream(at, name)


def _flush() -> None:
    for name in ("stdout", "stderr", "__stdout__", "__stderr__"):
        with contextlib.suppress(Exception):  # a program's own stream, or nobody reads it
            vars(sys)[name].flush()


def _leave(code: int) -> None:
    """End this process, and nothing that it shares with the one that it was forked from."""
    _flush()
    os._exit(code)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """SIGINT ends what runs here, and nothing else."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, lambda *_: None)


def _fresh_main() -> dict[str, Any]:
    """The namespace of programs that find nothing of Penstock's in it."""
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    sys.argv = [""]
    return vars(main)


# The dialect of frames: `/run_jupyter` and our own notebooks, in a jail


class Output:
    """All that is written to a descriptor: by Python, by C, by processes that a cell starts.

    It goes to a file without a name, so that nobody has to read while it is written.
    """

    def __init__(self, at: int, name: str) -> None:
        self._at = at
        self._before = os.dup(at)
        path = f"{os.environ.get('TMPDIR', '/tmp')}/.output-{os.getpid()}-{at}"  # noqa: S108
        new = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND
        self._file = os.dup(os.open(path, new, 0o600))
        os.unlink(path)
        os.dup2(self._file, at)
        _open_stream(at, name)

    def take(self, most: int) -> bytes:
        """Return what was written since the last call; of more than may be said, enough to show
        that it is more."""
        said = os.pread(self._file, most + 1, 0)
        os.ftruncate(self._file, 0)
        return said

    def end(self) -> None:
        """Let the output go where it went before."""
        os.dup2(self._before, self._at)


def serve_frames(names: dict[str, Any], wire: Any) -> None:
    """Answer cells from the channel until the client closes it. An answer is the cell's texts, one
    after the other; only which of them is which stands in the header."""
    signal.signal(signal.SIGALRM, _time_is_up)
    del names["__file__"]
    outputs = Output(1, "stdout"), Output(2, "stderr")
    shown: list[dict[str, str]] = []
    notebook = Notebook(names, lambda bundle, _: shown.append(_as_text(bundle)))
    with open(CHANNEL, "rb", buffering=0) as asked, open(CHANNEL, "wb", closefd=False) as said:
        while message := _next_frame(asked, notebook, wire):
            header, (code,) = wire.unpack(message)
            _reopen_closed()
            failed: list[str] = []
            try:
                signal.setitimer(signal.ITIMER_REAL, header["timeout"])
                notebook.run(code.decode(errors="replace"))
            except BaseException as problem:  # noqa: BLE001  a cell's end is not the notebook's
                signal.setitimer(signal.ITIMER_REAL, 0)
                failed = _described(notebook, problem)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            _flush()
            texts = [text for forms in shown for text in forms.values()] + failed
            about = {"shown": [list(forms) for forms in shown], "failed": len(failed)}
            shown.clear()
            written = [output.take(header["most"]) for output in outputs]
            told = [text.encode(errors="replace") for text in texts]
            said.write(wire.pack(about, [*written, *told]))
            said.flush()
    _flush()
    for output in outputs:
        output.end()


def _next_frame(source: Any, notebook: Notebook, wire: Any) -> bytes:
    """Read the next frame; nothing at the client's end."""
    notebook.idle(source.fileno())
    message = b""
    while (expected := wire.length(message)) is None or len(message) < expected:
        chunk = source.read((expected or 12) - len(message))
        if not chunk:
            return b""
        message += chunk
    return message


def _as_text(bundle: Bundle) -> dict[str, str]:
    return {
        str(form): said if isinstance(said, str) else json.dumps(said, default=repr)
        for form, said in bundle.items()
    }


def _time_is_up(*_: object) -> None:
    raise CellTimeout("the cell's time limit has passed")


def _described(notebook: Notebook, problem: BaseException) -> list[str]:
    """The error's name, what it says, and the lines of its traceback."""
    try:
        said = str(problem)
    except BaseException:  # noqa: BLE001  a method of the program's own
        said = "<exception str() failed>"
    return [type(problem).__name__, said, *notebook.lines_of(problem)]


# The dialect of lines: E2B's contexts, in any sandbox

_KEYS = {
    "text/plain": "text", "text/html": "html", "text/markdown": "markdown", "text/latex": "latex",
    "image/svg+xml": "svg", "image/png": "png", "image/jpeg": "jpeg", "application/pdf": "pdf",
    "application/json": "json", "application/javascript": "javascript",
}  # fmt: skip
_TOGETHER = 0.3  # seconds for which what is printed is gathered into one message
_PRINTED = 1 << 20  # bytes of one message of what is printed
_MOST_TOLD = 128 << 10  # characters of each text of an error


class Lines:
    """Messages of JSON, one a line, from any thread; each begins with `MESSAGE`."""

    def __init__(self, at: int) -> None:
        self._file = os.fdopen(at, "wb")
        self._turn = _thread.allocate_lock()

    def tell(self, kind: str, **content: Any) -> None:
        text = json.dumps({"type": kind, **content}, default=repr).encode()
        if len(text) + 2 > LONGEST_LINE:
            raise ValueError(f"this has {len(text):,} bytes, and {LONGEST_LINE:,} can be shown")
        self._say(MESSAGE + text)

    def over(self) -> None:
        """The cell has ended, and all its output was passed on."""
        self._say(OVER)

    def _say(self, line: bytes) -> None:
        with self._turn:
            self._file.write(line + b"\n")
            self._file.flush()

    def show(self, bundle: Bundle, main: bool) -> None:
        known = {_KEYS[form]: said for form, said in bundle.items() if form in _KEYS}
        extra = {form: said for form, said in bundle.items() if form not in _KEYS}
        self.tell("result", is_main_result=main, **known, **({"extra": extra} if extra else {}))


class Printed:
    """A program's output, which a thread passes on as it comes."""

    def __init__(self, at: int, kind: str, lines: Lines) -> None:
        import threading

        self._read, write = os.pipe()
        os.dup2(write, at)
        os.close(write)
        self._at, self._kind, self._lines = at, kind, lines
        self._marks: dict[bytes, threading.Event] = {}
        threading.Thread(target=self._pass_on, daemon=True).start()

    def drain(self) -> None:
        """Wait until all that was written before has been passed on."""
        import threading

        mark, seen = os.urandom(16).hex().encode(), threading.Event()
        self._marks[mark] = seen
        os.write(self._at, mark)
        seen.wait(5)
        self._marks.pop(mark, None)

    def _pass_on(self) -> None:
        import select

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
            if len(held) > _PRINTED:
                held = self._tell(held)

    def _tell(self, held: bytes, final: bool = False) -> bytes:
        """The whole characters; a half one is kept."""
        import codecs
        import time

        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        if text := decoder.decode(held, final):
            self._lines.tell(self._kind, text=text, timestamp=time.time_ns())
        return decoder.getstate()[0]


def serve_lines() -> None:
    """Run the cells that come as lines of JSON, until there are no more."""
    given, lines = os.dup(0), Lines(os.dup(1))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    printed = [Printed(1, "stdout", lines), Printed(2, "stderr", lines)]
    signal.signal(signal.SIGINT, lambda *_: None)
    notebook = Notebook(_fresh_main(), lines.show)
    for line in _lines_of(given, notebook):
        asked = json.loads(line)
        _reopen_closed()
        lines.tell("number_of_executions", execution_count=notebook.count + 1)
        try:
            with _interruptible(), _environment(asked["env_vars"]):
                notebook.run(asked["code"])
        except BaseException as problem:  # noqa: BLE001  whatever a cell raises is its own
            name, value, *told = _described(notebook, problem)
            texts = [text[:_MOST_TOLD] for text in (name, value, "".join(told))]
            lines.tell("error", name=texts[0], value=texts[1], traceback=texts[2])
        _flush()
        for stream in printed:
            stream.drain()
        lines.over()


def _lines_of(given: int, notebook: Notebook) -> Iterator[bytes]:
    held = bytearray()
    while True:
        notebook.idle(given)
        piece = os.read(given, 1 << 16)
        if not piece:
            return
        held += piece
        if b"\n" in piece:
            *whole, held = held.split(b"\n")
            yield from map(bytes, whole)


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    try:
        os.environ.update(variables)
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


# The dialect of programs: the lifecycle's sessions, in any sandbox

_GRACE = 3.0  # seconds that an interrupted program has to end
_INTERRUPTIONS = 10


def serve_programs(door: Any) -> None:
    """Run one program after the other, for as long as the sandbox lives. Each comes by a connection
    of its own, which brings its stdin, stdout and stderr; what it displays is printed there."""
    import socket

    signal.signal(signal.SIGINT, lambda *_: None)
    interpreter = Interpreter(_fresh_main(), lambda bundle, _: print(bundle.get("text/plain")))
    sys.path[0] = os.getcwd()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    while True:
        line, _ = door.accept()
        with line, contextlib.suppress(OSError):
            message, streams, _, _ = socket.recv_fds(line, 1 << 16, 3)
            if len(streams) < 3:
                continue  # killed before it had asked
            _give(streams)
            path, _, name = message.decode().partition("\0")
            run = functools.partial(_program, interpreter, path, name)
            code = 1 if _gone(line) else _watched(line, run)
            _flush()
            _give([os.open(os.devnull, os.O_RDWR) for _ in range(3)])
            line.sendall(str(code).encode())


def _give(streams: list[int]) -> None:
    """Give the program these as stdin, stdout and stderr, whatever it made of its own."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    _reopen_closed()
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__


def _gone(line: Any) -> bool:
    """Whether the caller has been killed while it waited for its turn."""
    import socket

    try:
        return not line.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False


def _watched(line: Any, run: Callable[[], int]) -> int:
    """Run the program for as long as its caller waits for it."""
    import socket
    import threading

    over = threading.Event()

    def watch() -> None:
        line.recv(1)  # returns when the caller is gone, or as it is shut down below
        if over.is_set():
            return
        for _ in range(_INTERRUPTIONS):  # a program may catch one
            os.kill(os.getpid(), signal.SIGINT)
            if over.wait(_GRACE / _INTERRUPTIONS):
                return
        os._exit(1)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        return run()
    finally:
        over.set()
        line.shutdown(socket.SHUT_RD)
        watcher.join()


def _program(interpreter: Interpreter, path: str, name: str) -> int:
    """Run a program, and returns its exit code."""
    try:
        with _interruptible():
            with open(path, encoding="utf-8") as file:
                text = file.read()
            interpreter.execute(text, name)
    except BaseException as problem:  # noqa: BLE001  any error here is the program's own
        return interpreter.exit_code(problem)
    return 0


def main() -> None:
    """Sent as text: `python3 -c NOTEBOOK --lines`, or `--programs` with the door's number."""
    if sys.argv[1] == "--lines":
        serve_lines()
    else:
        import socket

        serve_programs(socket.socket(fileno=int(sys.argv[2])))


if __name__ == "__main__":
    main()
