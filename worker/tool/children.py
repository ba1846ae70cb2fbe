"""Processes that call functions for a pool, one each for every thread of it.

A function that takes its process down takes nothing else: its caller gets an error, and
the next call of that thread starts a new process. A child whose parent has died
ends at once, so that no function outlives the permit that its parent held for it.
"""

import multiprocessing
import os
import pickle
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

from ground import PenstockError

_SPAWN = multiprocessing.get_context("spawn")  # a fork would copy locks that other threads hold


class ExecutionLost(PenstockError):
    """A function has no outcome: its process died or did not start, or it could not be sent to
    one."""


class FunctionFailed(Exception):
    """The function raised in its process; the error says what, with the traceback."""


class Children:
    """Child processes call functions, each for one calling thread."""

    def __init__(self) -> None:
        self._mine = threading.local()
        self._all: set[_Child] = set()

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            # Bytes: a view that an error's traceback keeps cannot be collected quietly.
            message = bytes(ForkingPickler.dumps((function, args, kwargs)))
        except Exception as refusal:  # noqa: BLE001 - pickle raises what it likes
            raise ExecutionLost(
                f"{function!r} cannot be sent to another process ({refusal}): ProcessMode takes "
                "functions that are defined at the top of a module, and plain arguments"
            ) from None
        try:
            child = self._child()
        except Exception as refusal:  # noqa: BLE001 - the system refuses it, or multiprocessing
            raise ExecutionLost(
                f"no process could be started to call {function!r}: {refusal}"
            ) from None
        try:
            failed, value = child.ask(message)
        except (EOFError, OSError):
            self._forget(child)
            raise ExecutionLost(
                f"the process that called {function!r} died, exit code {child.exit_code()}"
            ) from None
        if failed:
            raise FunctionFailed(value)
        return value

    def close(self) -> None:
        for child in list(self._all):
            self._forget(child)

    def _child(self) -> "_Child":
        child: _Child | None = getattr(self._mine, "child", None)
        if child is None or child not in self._all:
            child = self._mine.child = _Child()
            self._all.add(child)
        return child

    def _forget(self, child: "_Child") -> None:
        self._all.discard(child)
        child.end()


class _Child:
    def __init__(self) -> None:
        self._pipe, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()  # so that its death is the end of the pipe

    def ask(self, message: Any) -> tuple[bool, Any]:
        self._pipe.send_bytes(message)
        failed, value = self._pipe.recv()
        return failed, value

    def exit_code(self) -> int | None:
        self._process.join()
        return self._process.exitcode

    def end(self) -> None:
        self._pipe.close()
        self._process.kill()
        self._process.join()


def _serve(pipe: Connection) -> None:
    """Call what the parent asks for, in the child, until it asks no more."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        while True:
            pipe.send_bytes(_outcome(pipe.recv_bytes()))
    except (EOFError, OSError, KeyboardInterrupt):
        return  # the parent has gone, or wants us gone


def _outcome(message: bytes) -> Any:
    try:
        function, args, kwargs = pickle.loads(message)  # noqa: S301 - from our own parent
        return ForkingPickler.dumps((False, function(*args, **kwargs)))
    except (Exception, SystemExit):  # noqa: BLE001 - the function's own; also a result that cannot be sent
        return ForkingPickler.dumps((True, traceback.format_exc()))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
