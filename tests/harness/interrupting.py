"""Interrupted at every statement, one after the other: a signal's handler may raise at any.

    interrupts = Interrupts(ear, orders)     # made anew, in a process of its own
    interrupts.at_every_statement(prepare, play, settled)

In CPython 3.11 a trace function that raises may end in an endless loop. So every statement
of every function of these modules has a call before it, by which it may be interrupted.
"""

import ast
import asyncio
import contextlib
import gc
import sys
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import ModuleType
from typing import Any

PATIENCE = 100.0
LEAST = 50  # statements: with fewer something was not made anew

Work = Callable[[], Coroutine[Any, Any, Any]]


class Interrupts:
    """Of the main thread, in these modules. Who imported names from them is given the new ones."""

    def __init__(self, *modules: ModuleType) -> None:
        self._left = 0
        self._at = "nothing yet"
        for module in modules:
            source = Path(str(module.__file__))
            tree = _Interruptible().visit(ast.parse(source.read_text()))
            vars(module)["interrupt"] = self._interrupt
            exec(compile(tree, source, "exec"), vars(module))

    def at_every_statement(self, prepare: Work, play: Work, settled: Callable[[], Any]) -> None:
        """On a loop: prepared, played until it is interrupted, one statement later each time, and
        settled all the same."""
        loop = asyncio.new_event_loop()
        gc.freeze()  # what is there now need not be looked through each time
        statements, interrupted = 0, True
        while interrupted:
            preparing = loop.create_task(prepare())
            self._to_its_end(loop, preparing)
            preparing.result()
            statements += 1
            playing = loop.create_task(play())
            interrupted = self._interrupts(loop, playing, statements)
            self._to_its_end(loop, playing)
            del playing  # and with its traceback what it held
            gc.collect()
            settled()
        loop.close()
        assert statements > LEAST

    def _interrupts(
        self, loop: asyncio.AbstractEventLoop, playing: asyncio.Task[Any], after: int
    ) -> bool:
        """False where it has fewer statements."""
        self._left = after
        with contextlib.suppress(KeyboardInterrupt):
            loop.run_until_complete(playing)
        interrupted, self._left = self._left <= 0, 0
        return interrupted

    def _interrupt(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._left -= 1
            if self._left == 0:
                caller = sys._getframe(1)
                self._at = f"{caller.f_code.co_qualname}, {caller.f_lineno}"
                raise KeyboardInterrupt

    def _to_its_end(self, loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> None:
        waiting = loop.create_task(asyncio.wait([task], timeout=PATIENCE))
        while not waiting.done():
            with contextlib.suppress(RuntimeError):  # an interrupted run's stop lies in the loop
                loop.run_until_complete(waiting)
        assert task.done(), f"interrupted in {self._at}, it waits for ever"


class _Interruptible(ast.NodeTransformer):
    """Puts `interrupt()` before every statement of every function."""

    def visit_FunctionDef(self, function: ast.FunctionDef) -> ast.FunctionDef:
        for node in ast.walk(function):
            for part in ("body", "orelse", "finalbody"):
                if isinstance(block := getattr(node, part, None), list):
                    setattr(node, part, [s for line in block for s in (self._call(line), line)])
        return function

    def _call(self, line: ast.stmt) -> ast.stmt:
        (call,) = ast.parse("interrupt()").body
        for node in ast.walk(call):
            ast.copy_location(node, line)
        return call
