"""How a program ends: what its interpreter says, flushes and returns."""

import atexit
import contextlib
import gc
import os
import signal
import sys
import traceback
import types
from typing import Any

_INTERRUPTED = -signal.SIGINT  # no exit code: it ends by the signal


def report(problem: BaseException) -> int:
    if isinstance(problem, SystemExit):
        if problem.code is None or isinstance(problem.code, int):
            return (problem.code or 0) & 0xFF
        print(problem.code, file=sys.stderr)
        return 1
    trace = problem.__traceback__
    problem = problem.with_traceback(trace and trace.tb_next)  # our own frame is no news
    _show(problem)
    return _INTERRUPTED if isinstance(problem, KeyboardInterrupt) else 1


def _show(problem: BaseException) -> None:
    try:
        sys.excepthook(type(problem), problem, problem.__traceback__)
    except BaseException as another:  # noqa: BLE001  the hook is the program's
        trace = another.__traceback__
        another.__context__ = None
        print("Error in sys.excepthook:", file=sys.stderr)
        traceback.print_exception(another.with_traceback(trace and trace.tb_next))
        print("\nOriginal exception was:", file=sys.stderr)
        traceback.print_exception(problem)


def finalize(main: types.ModuleType, code: int) -> int:
    """What the interpreter does as it ends: threads, atexit, and files still open."""
    try:
        if threading := sys.modules.get("threading"):
            threading._shutdown()
        atexit._run_exitfuncs()
    except BaseException:  # noqa: BLE001  printed, as the interpreter would
        traceback.print_exc()
    stdout, refusals = sys.stdout, [_flush(sys.stdout), _flush(sys.stderr)]
    if any(refusals):
        code = code or 120
    if refusals[0]:
        _tell_ignored(stdout, refusals[0])
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    try:
        main.__dict__.clear()
        gc.collect()
    except BaseException:  # noqa: BLE001  printed, as the interpreter would
        traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        _flush(stream)  # what was written last, as things were deleted
    if code == _INTERRUPTED:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return code


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
