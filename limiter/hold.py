"""A permit for the length of a block."""

import asyncio
from typing import TYPE_CHECKING

from limiter.permit import Permit, SyncPermit

if TYPE_CHECKING:
    from limiter.gate import Gate


class Hold:
    """What `gate.hold()` gives: for one `with` or one `async with`.

    Where the permit is found lost, the body of an `async with` is cancelled and the block
    raises `PermitLost`; a `with` cannot be interrupted, and raises at its end.
    """

    def __init__(self, gate: "Gate", timeout: float | None, lane: int) -> None:
        self._gate = gate
        self._timeout = timeout
        self._lane = lane
        self._permit: Permit | SyncPermit | None = None
        self._cancelled = False

    async def __aenter__(self) -> Permit:
        permit = await self._gate.acquire(timeout=self._timeout, lane=self._lane)
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None  # noqa: S101 - a coroutine that runs, runs in a task
        self._task = task
        self._cancelling = task.cancelling()
        self._permit = permit
        permit.on_lost = lambda: _tell(loop, self._cancel_body)
        if permit.lost:  # before anybody listened, or just now: the cancellation is not to come
            self._end(None)
        return permit

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._end(kind)

    def __enter__(self) -> SyncPermit:
        self._permit = permit = self._gate.sync.acquire(timeout=self._timeout, lane=self._lane)
        return permit

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._end(kind)

    def _end(self, kind: type[BaseException] | None) -> None:
        """Raise `PermitLost` where the body ended well, or by our cancelling it alone."""
        permit, self._permit = self._permit, None
        if permit is None:
            return
        permit.on_lost = None
        try:
            ours = self._cancelled and self._task.uncancel() <= self._cancelling
            if kind is None or (ours and issubclass(kind, asyncio.CancelledError)):
                permit.check()
        finally:
            permit.release()

    def _cancel_body(self) -> None:
        if self._permit is not None and not self._cancelled:
            self._cancelled = True
            self._task.cancel()


def _tell(loop: asyncio.AbstractEventLoop, deed: object) -> None:
    try:
        loop.call_soon_threadsafe(deed)  # type: ignore[arg-type]
    except RuntimeError:
        return  # the loop is closed: there is no body left to cancel
