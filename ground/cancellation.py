"""For loops that end by being cancelled: a cancellation must not get lost in what they await."""

import asyncio


def cancellations() -> int:
    """How often this task has been asked to be cancelled, also where it caught that."""
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
