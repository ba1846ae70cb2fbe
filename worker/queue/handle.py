"""A submitted job in its caller's hands, for coroutines and for threads."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from functools import partial
from queue import SimpleQueue
from typing import Any

from ground.numbers import check_number
from ground.quick_json import read_json
from ground.redis.answers import Answer, LoopAnswer, ThreadAnswer, own
from jail.errors import SandboxBroken
from jail.models import CodeResult
from worker.errors import QueueError, ResultUnreadable
from worker.queue.order import Order


class AnyHandle:
    """The blocking handle and the other have this in common."""

    def __init__(self, order: Order) -> None:
        self._order = order

    @property
    def id(self) -> str:
        """The job's id in RQ; submitting again with it as `token` gives the same job."""
        return self._order.id

    @property
    def done(self) -> bool:
        """Whether there is an outcome, so that `result` will not wait."""
        return self._order.outcome is not None

    def _watch(self, answer: Answer) -> None:
        self._request(self._order.client.watch, answer)

    def _cancel(self, answer: Answer) -> None:
        self._request(self._order.client.cancel, answer)

    def _request(self, wish: Callable[[Order, Answer], None], answer: Answer) -> None:
        """Post it to the engine, which answers. An engine that has ended does not."""
        client = self._order.client
        if not client.engine.stopped:
            with contextlib.suppress(QueueError):  # it has ended just now
                client.engine.request(client, partial(wish, self._order, answer), answer)
                return
        if not self.done:
            raise QueueError(f"job {self.id} belongs to another process, or to one that is ending")
        answer.settle()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}, {'done' if self.done else 'waiting'}>"


class Handle(AnyHandle):
    """A job submitted by a coroutine."""

    async def result(self) -> CodeResult:
        """Wait for it. Raises a `QueueError` if there is none; may be called repeatedly."""
        if not self.done:
            answer = LoopAnswer()
            self._watch(answer)
            await answer.future
        return read_outcome(self._order.outcome)

    async def cancel(self) -> None:
        """Take the job off the queue, or have its worker stop it; `result` then raises."""
        answer = LoopAnswer()
        self._cancel(answer)
        await answer.future


class SyncHandle(AnyHandle):
    """A job submitted by a thread."""

    def result(self, timeout: float | None = None) -> CodeResult:
        """The result, as `Handle.result` gives it; `TimeoutError` leaves the job as it is."""
        if timeout is not None:
            check_number("timeout", timeout)
        if not self.done:
            answer = ThreadAnswer()
            self._watch(answer)
            if not answer.wait(timeout):
                raise TimeoutError(f"job {self.id}: no result within {timeout:g} s")
        return read_outcome(self._order.outcome)

    def cancel(self) -> None:
        """Cancel the job, as `Handle.cancel` does."""
        answer = ThreadAnswer()
        self._cancel(answer)
        answer.wait(None)


def read_outcome(outcome: Any) -> CodeResult:
    """The result in it, or its error raised."""
    try:
        return CodeResult.read(json_of(outcome))
    except SandboxBroken as wrong:
        raise ResultUnreadable(str(wrong)) from None


def json_of(outcome: Any) -> Any:
    """The result in it as it came, or its error raised."""
    if isinstance(outcome, BaseException):
        raise own(outcome)
    try:
        return read_json(outcome)
    except ValueError as wrong:
        raise ResultUnreadable(f"the stored result is not JSON: {wrong}") from None
    except RecursionError:
        raise ResultUnreadable("the stored result is nested too deeply to be read") from None


class _Arrival(LoopAnswer):
    __slots__ = ("arrived", "handle")

    def __init__(self, arrived: "asyncio.Queue[_Arrival]", handle: Handle) -> None:
        super().__init__()
        self.arrived = arrived
        self.handle = handle

    def settle(self) -> None:
        self.arrived.put_nowait(self)


class _SyncArrival(Answer):
    __slots__ = ("arrived", "handle")

    def __init__(self, arrived: "SimpleQueue[_SyncArrival]", handle: SyncHandle) -> None:
        super().__init__()
        self.arrived = arrived
        self.handle = handle

    def settle(self) -> None:
        self.arrived.put(self)


async def as_completed(handles: Iterable[Handle]) -> AsyncIterator[Handle]:
    arrived: asyncio.Queue[_Arrival] = asyncio.Queue()
    waiting = [_Arrival(arrived, handle) for handle in handles]
    for arrival in waiting:
        arrival.handle._watch(arrival)
    left = set(waiting)
    while left:
        if (arrival := await arrived.get()) in left:  # it may be settled twice
            left.remove(arrival)
            yield arrival.handle


def sync_as_completed(handles: Iterable[SyncHandle]) -> Iterator[SyncHandle]:
    arrived: SimpleQueue[_SyncArrival] = SimpleQueue()
    waiting = [_SyncArrival(arrived, handle) for handle in handles]
    for arrival in waiting:
        arrival.handle._watch(arrival)
    left = set(waiting)
    while left:
        if (arrival := arrived.get()) in left:
            left.remove(arrival)
            yield arrival.handle
