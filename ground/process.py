"""Each process has these once: an event loop in a thread, engines, threads for calls that block.

Stock RQ runs each coroutine job on a loop of its own, so that nothing of one job could serve
the next. Jobs run on the process's loop instead, and connections stay open between them. A
forked child has none of its parent's threads, and makes its own.
"""

import asyncio
import atexit
import itertools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from types import MethodType
from typing import Any, Generic, Protocol, TypeVar, cast

from ground.tasks import ended

T = TypeVar("T")


# Not `WeakMethod`: its callback fails on an object that lives until the interpreter is gone.
_forgetting: dict[int, tuple[weakref.ref[Any], Callable[[Any], None]]] = {}
_numbers = itertools.count()


def in_forked_child(forget_parent: Callable[[], None]) -> None:
    """Call this method in each forked child, if its object still lives."""
    method, number = cast(MethodType, forget_parent), next(_numbers)
    owner = weakref.ref(method.__self__, lambda _: _forgetting.pop(number, None))
    _forgetting[number] = owner, method.__func__


def _forget_parent() -> None:
    for ref, forget in list(_forgetting.values()):
        if (owner := ref()) is not None:
            forget(owner)


os.register_at_fork(after_in_child=_forget_parent)


class LoopThread:
    """An event loop in a thread of its own, started at first use; also in a forked child."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._forget_parent()
        in_forked_child(self._forget_parent)

    def _forget_parent(self) -> None:
        self._guard = threading.Lock()
        self._running: tuple[asyncio.AbstractEventLoop, threading.Thread] | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        with self._guard:
            if self._running is None:
                loop = asyncio.new_event_loop()
                thread = threading.Thread(target=loop.run_forever, name=self._name, daemon=True)
                thread.start()
                self._running = loop, thread
            return self._running[0]

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it there, and block until it is done; the caller's interruption cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        finally:
            future.cancel()  # does nothing to one that is done

    def stop(self, farewell: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """End the loop, if there is one, after a last piece of work on it. What still runs there
        is cancelled and awaited, as `asyncio.run` does."""
        if self._running is None:
            return
        loop, thread = self._running
        try:  # still the loop of this object: what is closed there may ask for it
            asyncio.run_coroutine_threadsafe(farewell(), loop).result()
        finally:
            asyncio.run_coroutine_threadsafe(_cleared(), loop).result()
            with self._guard:
                self._running = None
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


async def _cleared() -> None:
    """End all else on this loop, also what a task begins when it is cancelled."""
    this = asyncio.current_task()
    while others := asyncio.all_tasks() - {this}:
        await ended(others)
    await asyncio.get_running_loop().shutdown_asyncgens()


_process_loop = LoopThread("penstock-jobs")


def process_loop() -> asyncio.AbstractEventLoop:
    """The loop itself, for what must outlive the loop that asked for it."""
    return _process_loop.loop


def from_thread(work: Coroutine[Any, Any, T]) -> T:
    """Run it on the process's loop, and block until it is done: for code without a loop."""
    return _process_loop.run(work)


async def on_process_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run it there. It sees the caller's context; the caller's cancellation reaches it."""
    future = asyncio.run_coroutine_threadsafe(work, process_loop())
    try:
        return await asyncio.wrap_future(future)
    finally:
        future.cancel()


def stop(farewell: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """End the process's loop, if there is one, after a last piece of work on it."""
    _process_loop.stop(farewell)


class Stoppable(Protocol):
    stopped: bool

    def stop(self) -> None: ...


K = TypeVar("K")
V = TypeVar("V", bound=Stoppable)


_AFTER_ITS_CHILDREN = -100  # where multiprocessing ends a process, below 0
_LAST = "penstock-end"  # threads of this name do not wait for each other


class PerProcess(Generic[K, V]):
    """Values of which a process has one per key; a forked child makes its own."""

    def __init__(self) -> None:
        self.all: dict[K, V] = {}
        self.guard = threading.RLock()  # a signal's handler may come back while its thread is here
        atexit.register(self.stop_all)
        in_forked_child(self._forget_parent)

    def get(self, key: K, make: Callable[[], V]) -> V:
        """The key's; made on first use, and again after it was stopped."""
        with self.guard:
            one = self.all.get(key)
            if one is None or one.stopped:
                if not self.all:
                    self._stop_with_child()
                one = self.all[key] = make()
            return one

    def stop_all(self) -> None:
        for one in list(self.all.values()):
            one.stop()

    def _stop_with_child(self) -> None:
        if "multiprocessing" in sys.modules:  # so it is in all its children
            from multiprocessing import parent_process, util

            if parent_process() is not None:
                util.Finalize(None, self._end_child, exitpriority=_AFTER_ITS_CHILDREN)

    def _end_child(self) -> None:
        """A child of multiprocessing may end without `atexit`. Up to Python 3.12 its threads end
        after this. So a thread waits for the others there, and then stops everything."""
        if sys.version_info >= (3, 13):
            self.stop_all()
        else:
            threading.Thread(target=self._stop_last, name=_LAST, daemon=False).start()

    def _stop_last(self) -> None:
        for thread in threading.enumerate():
            if not (thread.daemon or thread.name == _LAST or thread is threading.main_thread()):
                thread.join()
        self.stop_all()

    def _forget_parent(self) -> None:
        self.guard = threading.RLock()
        for one in self.all.values():
            one.stopped = True
        self.all.clear()


class _Threads:
    """Threads for calls that block, so that no event loop waits for Redis or the file system."""

    def __init__(self) -> None:
        self._forget_parent()
        in_forked_child(self._forget_parent)

    def _forget_parent(self) -> None:
        self.pool = ThreadPoolExecutor(8, thread_name_prefix="penstock-registry")


_threads = _Threads()


async def aside(call: Callable[[], T]) -> T:
    """Make a call that blocks off the event loop."""
    return await asyncio.get_running_loop().run_in_executor(_threads.pool, call)
