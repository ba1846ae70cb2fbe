"""A sandbox for the length of a block, for as long as it is ours.

Where a reaper or an operator took it over, there is nothing left to work in: the body of
an `async with` is cancelled and the block raises `SandboxLost`, which is our side's
doing. Blocking code cannot be interrupted; its block raises at its end.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from worker.lifecycle.box import Box
from worker.lifecycle.errors import SandboxLost


@asynccontextmanager
async def held(box: Box) -> AsyncIterator[None]:
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None  # noqa: S101 - a coroutine that runs, runs in a task
    before, told, over = task.cancelling(), False, False

    def cancel() -> None:
        nonlocal told
        if not over and not told:
            told = task.cancel()

    def tell() -> None:
        with contextlib.suppress(RuntimeError):  # a loop that is closed has no body left
            loop.call_soon_threadsafe(cancel)

    box.on_taken(tell)
    try:
        with checked(box):
            yield
    except asyncio.CancelledError:
        if told and task.uncancel() <= before:
            raise SandboxLost(box.name, box.lost) from None
        raise
    finally:
        over = True
        box.on_taken(None)


@contextmanager
def checked(box: Box) -> Iterator[None]:
    """Raise `SandboxLost` after a body that ended well although its sandbox was gone."""
    yield
    if box.taken:
        raise SandboxLost(box.name, box.lost)
