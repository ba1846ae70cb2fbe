"""How a program ends: what its interpreter says, flushes and returns."""

import _thread
import _weakref
import atexit
import contextlib
import gc
import os
import signal
import sys
import traceback
import types
from collections.abc import Callable, Collection
from importlib.machinery import SourceFileLoader
from typing import Any

Left = Callable[[], SourceFileLoader | None]
_INTERRUPTED = -signal.SIGINT  # no exit code: it ends by the signal


def report(problem: BaseException) -> int:
    if isinstance(problem, SystemExit):
        return _exit_code(problem.code)
    trace = problem.__traceback__
    problem = problem.with_traceback(trace and trace.tb_next)  # our own frame is no news
    try:
        _show(problem)
    except SystemExit as another:
        return report(another)
    return _INTERRUPTED if type(problem) is KeyboardInterrupt else 1


def _exit_code(asked: Any) -> int:
    if asked is None or isinstance(asked, int):
        code = asked or 0
        return code & 0xFF if -(2**63) <= code < 2**63 else 0xFF  # what C cannot hold is -1
    try:
        print(asked, file=sys.stderr or sys.__stderr__)
    except BaseException:  # noqa: BLE001  its text, or the stream, is the program's
        print(file=sys.__stderr__)
    return 1


def _show(problem: BaseException) -> None:
    try:
        sys.excepthook(type(problem), problem, problem.__traceback__)
    except SystemExit:
        raise
    except BaseException as another:  # noqa: BLE001  the hook is the program's
        trace = another.__traceback__
        another.__context__ = None
        print("Error in sys.excepthook:", file=sys.stderr)
        traceback.print_exception(another.with_traceback(trace and trace.tb_next))
        print("\nOriginal exception was:", file=sys.stderr)
        traceback.print_exception(problem)


def main_module(script: str) -> tuple[types.ModuleType, Left]:
    """`__main__`, made for one program: what a fork has of its server is not searched as garbage.

    Its loader, which lies in its namespace, tells whether that is still held by anything.
    """
    main = types.ModuleType("__main__")
    main.__loader__ = loader = SourceFileLoader("__main__", script)
    builtins = sys.modules["builtins"]
    vars(main).update(__annotations__={}, __builtins__=builtins, __file__=script, __cached__=None)
    vars(loader)["namespace"] = vars(main)
    return main, _weakref.ref(loader)


def finalize(code: int, older: Collection[str], left: Left) -> int:
    """What the interpreter does as it ends: threads, atexit, files still open, objects."""
    _told(_join_threads)
    _told(atexit._run_exitfuncs)
    stdout, refusals = sys.stdout, [_flush(sys.stdout), _flush(sys.stderr)]
    if any(refusals) and code != _INTERRUPTED:
        code = 120
    if refusals[0]:
        _tell_ignored(stdout, refusals[0])
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    _told(_forget, older, left)
    for stream in (sys.stdout, sys.stderr):
        _flush(stream)  # what was written last, as things were deleted
    if code == _INTERRUPTED:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return code


def _join_threads() -> None:
    if threading := sys.modules.get("threading"):
        threading._shutdown()


def _told(deed: Callable[..., None], *arguments: Any) -> None:
    """Whatever becomes of it, the next one is done."""
    try:
        deed(*arguments)
    except BaseException:  # noqa: BLE001  printed, as the interpreter would
        traceback.print_exc()


def _forget(older: Collection[str], left: Left) -> None:
    """Its modules are garbage all at once, so that what an object does last finds its names."""
    gc.collect()  # what outlives this is in the order in which it is reached: files before buffers
    for name in [name for name in sys.modules if name not in older]:
        del sys.modules[name]
    gc.collect()
    if (loader := left()) and not _thread._count():  # threads that go on would miss them
        vars(loader)["namespace"].clear()
        del loader
        gc.collect()


def _flush(stream: Any) -> BaseException | None:
    """Why it could not be done. The stream may be the program's own, and of any kind."""
    try:
        if stream is not None and not getattr(stream, "closed", False):
            stream.flush()
    except BaseException as problem:  # noqa: BLE001  told, as the interpreter would
        trace = problem.__traceback__
        return problem.with_traceback(trace and trace.tb_next)
    return None


def _tell_ignored(stream: Any, problem: BaseException) -> None:
    said = "".join(traceback.format_exception(problem))
    with contextlib.suppress(Exception):  # no name, or nowhere to say it: only its code says it
        os.write(2, f"Exception ignored in: {stream!r}\n{said}".encode())
