"""A program's life in the interpreter that is already there, and how it ends.

It ends as its interpreter would end it: what that says, flushes and returns. A program may have
changed any name that it can reach; what happens after it takes names that were taken before.

A script that has to come to its end gives back a mark. It lies in no frame and no object that the
program can look at: `bytes.join` holds it, in C, while the program runs. A program that finds it in
its own memory nevertheless can end early. What its functions return is its own word in any case.

A check that shares the program's process is compiled before the program runs, and held like that.
It has builtins of its own.
"""

import _signal  # type: ignore[import-not-found]
import _thread
import _weakref
import atexit
import builtins
import gc
import marshal
import os
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import SourceFileLoader
from itertools import takewhile
from typing import Any, NoReturn

from . import notebook, syscalls, values, wire
from .verdict import CHECK_SIZE, MARK_SIZE

# The functions of this module take theirs from this copy.
__builtins__ = dict(vars(builtins))  # type: ignore[assignment]

Left = Callable[[], SourceFileLoader | None]
_OURS = (__file__, values.__file__)
_INTERRUPTED = -int(_signal.SIGINT)  # no exit code: it ends by the signal

LAST_WORD = notebook.CHANNEL  # where a session's program has its channel

_exit, _getpid, _kill = os._exit, os.getpid, os.kill
_read, _write = os.read, os.write
_modules, _settrace, _setprofile = sys.modules, sys.settrace, sys.setprofile
_display = sys.__excepthook__
_handle, _SIGINT, _SIG_DFL = _signal.signal, _signal.SIGINT, _signal.SIG_DFL
_loads = marshal.loads
_collect, _count_threads = gc.collect, _thread._count
_run_exitfuncs = atexit._run_exitfuncs
_flush_c = syscalls.flush_files

if sys.version_info >= (3, 14):
    _IGNORED = "Exception ignored while flushing sys.stdout:"
elif sys.version_info >= (3, 13):
    _IGNORED = "Exception ignored on flushing sys.stdout:"
else:
    _IGNORED = "Exception ignored in: {!r}"


_older: frozenset[str] = frozenset()  # the modules of every program, and the last of them
_last = ""


def settle() -> None:
    """Note which modules are there now: those are no program's own."""
    global _older, _last
    _older, _last = frozenset(_modules) - {"__main__"}, next(reversed(_modules))


def run(
    script: str,
    arguments: Sequence[str] = (),
    code: types.CodeType | None = None,
    marks: bool = False,
    calls: bool = False,
    checks: bool = False,
) -> NoReturn:
    """Do as `python script` does, or run cells; then end. `code` is the script's, if known.

    A script that `marks` says so if it comes to its own last line. One that is called is imported,
    in place of that: its stdin says which of its functions are, and it answers what they return.
    One that is checked runs the code that comes by the line of its last word, in its namespace.
    """
    asked = values.calls_in(_all_of(0)) if calls else None
    name = script.rpartition("/")[2].removesuffix(".py") if calls else "__main__"
    main, left = _main_module(script, name)
    sys.modules["__main__"] = types.ModuleType("__main__")
    sys.modules[name] = main
    sys.argv[:] = [script, *arguments]
    sys.orig_argv[:] = [sys.executable, script, *arguments]
    streams = sys.stdout, sys.stderr
    exit_code = 1
    try:
        try:
            try:
                if marks:
                    steps = _checked if checks else _course
                    course = steps(main, script, code, asked)
                    _write(LAST_WORD, _read(LAST_WORD, MARK_SIZE).join(course))
                elif script:
                    # Compiled here: what is wrong with it is reported without the harness.
                    exec(code or compile(*source_of(script), dont_inherit=True), main.__dict__)  # noqa: S102
                else:
                    notebook.serve_frames(main.__dict__, wire)
                exit_code = 0
            finally:
                _settrace(None)  # what follows is not the program's to follow
                _setprofile(None)
        except BaseException as problem:  # noqa: BLE001  the interpreter's own last resort
            exit_code = _report(problem)
        del main
        if calls:  # what it does as it ends is of no interest
            _flush(streams[0])
            _flush(streams[1])
        else:
            exit_code = _finalize(exit_code, streams, left)
    finally:  # a signal's handler, which is the program's, may raise at any point
        _flush_c()
        _exit(exit_code)


def _course(
    main: types.ModuleType, script: str, code: types.CodeType | None, asked: list[Any] | None
) -> Iterator[bytes]:
    """Run a marked script. `run` joins what this yields by the mark, so two empty texts give the
    mark itself. A fork of the program that comes to its end yields none, and so has no mark."""
    own_pid = _getpid()
    exec(code or compile(*source_of(script), dont_inherit=True), main.__dict__)  # noqa: S102
    if asked is not None:
        answers = [*values.answers(main.__dict__, asked)]
        _settrace(None)
        _setprofile(None)
        said = memoryview(values.text_of(answers))
        if _getpid() == own_pid:
            while said:
                said = said[_write(LAST_WORD, said) :]
    if _getpid() == own_pid:
        yield b""
        yield b""


def _checked(
    main: types.ModuleType, script: str, code: types.CodeType | None, _: object
) -> Iterator[bytes]:
    """Run as `_course` does, and then the check, which was compiled before the program began.

    The check is what joins the two empty texts of `_course`, so the joined bytes are the check.
    While the program runs no variable holds it."""
    own_pid = _getpid()
    check = _check_in(LAST_WORD).join(_course(main, script, code, None))
    _settrace(None)
    _setprofile(None)
    vars(main)["__builtins__"] = {**__builtins__}  # type: ignore[dict-item]
    exec(_loads(check), vars(main))  # noqa: S102
    if _getpid() == own_pid:
        yield b""
        yield b""


def _check_in(line: int) -> bytes:
    """Read a check from the line, and compile it, as bytes."""
    (size,) = CHECK_SIZE.unpack(_read(line, CHECK_SIZE.size))
    text = b""
    while len(text) < size:
        text += _read(line, size - len(text))
    return marshal.dumps(compile(text, "<check>", "exec", dont_inherit=True))


def _all_of(at: int) -> bytes:
    """All that was written, of which nothing is left for others to read."""
    chunks = []
    while chunk := _read(at, 1 << 20):
        chunks.append(chunk)
    return b"".join(chunks)


def source_of(script: str) -> tuple[bytes, str, str]:
    """The arguments for `compile`."""
    with open(script, "rb") as file:
        return file.read(), script, "exec"


def _report(problem: BaseException) -> int:
    if isinstance(problem, SystemExit):
        return _exit_code(problem.code)
    trace = problem.__traceback__
    while trace and trace.tb_frame.f_code.co_filename in _OURS:  # the harness is no news
        trace = trace.tb_next
    problem = problem.with_traceback(trace)
    try:
        _show(problem)
    except SystemExit as another:
        return _report(another)
    return _INTERRUPTED if type(problem) is KeyboardInterrupt else 1


def _exit_code(asked: Any) -> int:
    if asked is None or isinstance(asked, int):
        code = asked or 0
        return code & 0xFF if -(2**63) <= code < 2**63 else 0xFF  # what C cannot hold is -1
    try:
        print(asked, file=getattr(sys, "stderr", None) or sys.__stderr__)
    except BaseException:  # noqa: BLE001  its text, or the stream, is the program's
        _say("")
    return 1


def _show(problem: BaseException) -> None:
    try:
        sys.excepthook(type(problem), problem, problem.__traceback__)
    except SystemExit:
        raise
    except BaseException as another:  # noqa: BLE001  the hook is the program's
        trace = another.__traceback__
        another.__context__ = None
        _say("Error in sys.excepthook:")
        _print(another.with_traceback(trace and trace.tb_next))
        _say("\nOriginal exception was:")
        _print(problem)


def _print(problem: BaseException) -> None:
    _display(type(problem), problem, problem.__traceback__)


def _say(line: str) -> None:
    try:
        print(line, file=getattr(sys, "stderr", None) or sys.__stderr__)
    except BaseException:  # noqa: BLE001  the stream is the program's
        _write(2, f"{line}\n".encode(errors="backslashreplace"))


def _main_module(script: str, name: str) -> tuple[types.ModuleType, Left]:
    """Made for one program: what a fork has of its server is not searched as garbage.

    Its loader lies in its namespace: while the loader lives, something still holds that.
    """
    main = types.ModuleType(name)
    main.__loader__ = loader = SourceFileLoader(name, script)
    vars(main).update(__annotations__={}, __builtins__=builtins, __file__=script, __cached__=None)
    vars(loader)["namespace"] = vars(main)
    return main, _weakref.ref(loader)


def _finalize(code: int, streams: tuple[Any, Any], left: Left) -> int:
    """Do what the interpreter does as it ends: threads, atexit, files still open, objects."""
    _attempt(_join_threads)
    _attempt(_run_exitfuncs)
    stdout, stderr = getattr(sys, "stdout", None), getattr(sys, "stderr", None)
    refusals = [_flush(stdout), _flush(stderr)]
    if any(refusals) and code != _INTERRUPTED:
        code = 120
    if refusals[0]:
        _attempt(_print_ignored, stdout, refusals[0])
    sys.stdout, sys.stderr = streams
    _attempt(_forget, left)
    for stream in streams:
        _flush(stream)  # what was written last, as things were deleted
    if code == _INTERRUPTED:
        _handle(_SIGINT, _SIG_DFL)
        _kill(_getpid(), _SIGINT)
    return code


def _join_threads() -> None:
    if threading := _modules.get("threading"):
        threading._shutdown()


def _attempt(step: Callable[..., None], *arguments: Any) -> None:
    """Run one step. If it fails, print the error, so that the next step runs too."""
    try:
        step(*arguments)
    except BaseException as problem:  # noqa: BLE001  printed, as the interpreter would
        _print(problem)


def _forget(left: Left) -> None:
    """Drop the program's modules all at once, so that an object's last action finds its names."""
    _collect()  # what outlives this is in the order in which it is reached: files before buffers
    # From the newest on: a look at every name would copy much of a fork's memory.
    newest = [
        name for name in takewhile(_is_not_the_last, reversed(_modules)) if name not in _older
    ]
    for name in ("__main__", *newest[::-1]):
        _modules.pop(name, None)
    _collect()
    if (loader := left()) and not _count_threads():  # threads that go on would miss them
        vars(loader)["namespace"].clear()
        del loader
        _collect()


def _is_not_the_last(name: str) -> bool:
    return name is not _last


def _flush(stream: Any) -> BaseException | None:
    """Flush a stream; return why it could not be done. The stream may be the program's own, and of
    any kind."""
    try:
        if stream is not None and not getattr(stream, "closed", False):
            stream.flush()
    except BaseException as problem:  # noqa: BLE001  printed, as the interpreter would
        trace = problem.__traceback__
        return problem.with_traceback(trace and trace.tb_next)
    return None


def _print_ignored(stream: Any, problem: BaseException) -> None:
    _say(_IGNORED.format(stream))
    _print(problem)
