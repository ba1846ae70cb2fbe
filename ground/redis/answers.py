"""The answer carries one result from the engine's thread to its caller.

A thread waits on a lock, a coroutine on a future of its own loop. The engine
delivers a batch with one wake-up per loop.
"""

import asyncio
import threading
from collections.abc import Iterable
from copy import copy
from typing import Any

from ground.errors import PenstockError


def own(error: BaseException) -> BaseException:
    """A copy of an error for one of the callers whom it concerns. Each raise adds frames to the
    traceback of an error: of one error for thousands of callers, each would log the frames of
    all."""
    if not isinstance(error, PenstockError):
        return error
    mine = copy(error)
    mine.__cause__, mine.__suppress_context__ = error.__cause__, error.__suppress_context__
    return mine


class Answer:
    """Set once by the engine, taken once by the caller."""

    __slots__ = ("outcome",)
    loop: asyncio.AbstractEventLoop | None = None  # the caller's, if it is a coroutine

    def __init__(self) -> None:
        self.outcome: Any = None

    def settle(self) -> None:
        """Wake the caller; the outcome is in place."""
        raise NotImplementedError

    def taken(self) -> Any:
        """The outcome, raised if it is an error."""
        if isinstance(self.outcome, BaseException):
            raise own(self.outcome)
        return self.outcome


class OnThread:
    """A mixin for an answer that a thread waits for, at a lock."""

    __slots__ = ()
    _closed: threading.Lock

    def settle(self) -> None:
        if self._closed.locked():  # it may be settled twice
            self._closed.release()

    def wait(self, timeout: float | None) -> bool:
        """Whether the outcome came within the timeout."""
        return self._closed.acquire(timeout=-1 if timeout is None else max(0.0, timeout))


class OnLoop:
    """A mixin for an answer that a coroutine waits for, at a future of its loop."""

    __slots__ = ()
    future: "asyncio.Future[None]"
    loop: asyncio.AbstractEventLoop

    def settle(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class ThreadAnswer(OnThread, Answer):
    """An answer for a caller that blocks its thread."""

    __slots__ = ("_closed",)

    def __init__(self) -> None:
        super().__init__()
        self._closed = closed_lock()


class LoopAnswer(OnLoop, Answer):
    """An answer for a coroutine."""

    __slots__ = ("future", "loop")
    loop: asyncio.AbstractEventLoop

    def __init__(self) -> None:
        self.outcome = None
        self.loop = asyncio.get_running_loop()
        self.future = self.loop.create_future()


def closed_lock() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


def deliver(answers: Iterable[tuple[Answer, Any]]) -> list[Answer]:
    """Hand each its outcome; returns those whose event loop is gone."""
    here = asyncio._get_running_loop()
    elsewhere: dict[asyncio.AbstractEventLoop, list[Answer]] = {}
    for answer, outcome in answers:
        answer.outcome = outcome
        if answer.loop is None or answer.loop is here:
            answer.settle()
        else:
            elsewhere.setdefault(answer.loop, []).append(answer)
    orphans: list[Answer] = []
    for loop, batch in elsewhere.items():
        try:
            loop.call_soon_threadsafe(_settle_all, batch)
        except RuntimeError:  # the loop was closed with callers still waiting
            orphans.extend(batch)
    return orphans


def _settle_all(batch: list[Answer]) -> None:
    for answer in batch:
        answer.settle()
