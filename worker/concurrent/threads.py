"""Threads for functions that block: one per call in flight, reused for later calls.

They are daemons: a function that cannot be interrupted must not keep the worker from
ending. The caller awaits one future of its event loop per call.
"""

import asyncio
import contextvars
import ctypes
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any


class Call:
    """A function call in a thread.

    `done` only says that it has ended. It does not carry the function's error, because asyncio
    treats some errors in a future, such as a cancellation, as its own.
    """

    def __init__(self, function: Callable[[], Any], loop: asyncio.AbstractEventLoop) -> None:
        self.done: asyncio.Future[None] = loop.create_future()
        self.failure: BaseException | None = None
        self._value: Any = None
        self._function = function
        self._context = contextvars.copy_context()
        self._loop = loop
        self._guard = threading.Lock()
        self._thread = 0
        self._pending: type[BaseException] | None = None

    def interrupt(self, error: type[BaseException]) -> None:
        """Raise an error in the function, at its next line of Python."""
        with self._guard:
            self._pending = error
            if self._thread:
                _raise_in(self._thread, error)

    def run(self) -> None:
        """Run the call, in the thread."""
        try:
            self._value = self._guarded()
        except BaseException as error:  # noqa: BLE001 - any error is the job's outcome
            self.failure = error
        try:
            self._loop.call_soon_threadsafe(self._settle)
        except RuntimeError:
            return  # the loop has ended: a cold shutdown did not wait for this thread

    def result(self) -> Any:
        """Return or raise as the function did. Call it once, after `done`."""
        failure, self.failure = self.failure, None
        if failure is None:
            return self._value
        try:
            raise failure
        finally:
            del failure  # its traceback refers to this frame: avoid a reference cycle

    def _guarded(self) -> Any:
        with self._guard:
            if self._pending is not None:
                raise self._pending
            self._thread = threading.get_ident()
        try:
            return self._context.run(self._function)
        finally:
            with self._guard:
                ident, self._thread = self._thread, 0
                _raise_in(ident, None)  # a late interrupt must not hit the next function

    def _settle(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


class Threads:
    """The pool grows to the number of calls in flight."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Call] = SimpleQueue()
        self._guard = threading.Lock()
        self._idle = 0

    def start(self, function: Callable[[], Any]) -> Call:
        call = Call(function, asyncio.get_running_loop())
        with self._guard:
            spare = self._idle > 0
            if spare:
                self._idle -= 1
        if not spare:  # first: a call that gets no thread fails, and must not run later
            threading.Thread(target=self._work, name="penstock-job", daemon=True).start()
        self._calls.put(call)
        return call

    async def run(self, function: Callable[[], Any]) -> Any:
        """The result of a function, which is not interrupted."""
        call = self.start(function)
        await call.done
        return call.result()

    def _work(self) -> None:
        while True:
            self._calls.get().run()
            with self._guard:
                self._idle += 1


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread), None if error is None else ctypes.py_object(error)
    )
