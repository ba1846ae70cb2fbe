"""For loops that end by being cancelled, and wait for Redis on their way."""

import asyncio


def cancellations() -> int:
    """How many this task has been asked for, those included that it caught."""
    task = asyncio.current_task()
    return task.cancelling() if task is not None else 0


def heed_cancellation(before: int = 0) -> None:
    """Raise a cancellation of this task that was swallowed; where there was none, do nothing.
    A function for callers who may have caught one says how many there were `before` it began.

    Before Python 3.12 `asyncio.wait_for` loses one that comes in the instant of the result, and
    redis-py waits with it for each command. A loop that asks here at each turn ends all the same.
    """
    if cancellations() > before:
        raise asyncio.CancelledError
