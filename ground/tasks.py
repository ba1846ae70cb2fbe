"""Tasks and their cancellation: none gets lost in what a task awaits, and a block whose
permit or sandbox is lost is cancelled."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import Any


def cancellations() -> int:
    """How often this task has been cancelled, even if it caught that."""
    task = asyncio.current_task()
    return task.cancelling() if task is not None else 0


def heed_cancellation(before: int = 0) -> None:
    """Raise `CancelledError` if this task was cancelled and something swallowed that.
    A function whose caller may have caught one earlier passes what it counted `before`.

    Before Python 3.12 `asyncio.wait_for`, with which redis-py waits for each command, loses one
    that comes at the same instant as the result. A loop that calls this at each turn still ends.
    """
    if cancellations() > before:
        raise asyncio.CancelledError


async def ended(chores: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel them until they have ended: a cancellation that meets a timeout is lost in it."""
    all_of_them = list(chores)
    pending = set(all_of_them)
    while pending:
        for chore in pending:
            chore.cancel()
        _, pending = await asyncio.wait(pending, timeout=1.0)
    await asyncio.gather(*all_of_them, return_exceptions=True)  # nobody else asks for it


class Body:
    """The body of a `with` block in a coroutine, which works with something that may get lost.

    `cancel` is called when that is lost. The block then raises what `check` raises, unless the
    body failed by itself or the task was cancelled from elsewhere too.
    """

    def __init__(self, check: Callable[[], None]) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine that runs, runs in a task
        self._check = check
        self._task = task
        self._cancelled_before = task.cancelling()
        self._cancelled = self._over = False

    def cancel(self) -> None:
        """Cancel the block's body, from any thread, any number of times. After the block's end it
        does nothing."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: no body is left to cancel
            self._task.get_loop().call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if not self._over and not self._cancelled:
            self._cancelled = self._task.cancel()

    def __enter__(self) -> None:
        """The body begins when the object is made; this is only for the `with`."""

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._over = True
        alone = self._cancelled and self._task.uncancel() <= self._cancelled_before
        if kind is None or (alone and issubclass(kind, asyncio.CancelledError)):
            self._check()
