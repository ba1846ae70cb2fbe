"""What the workers of the queue suite run: its jobs, and the sandbox of its client.

Each job is a coroutine, for workers with an event loop, and a function, for RQ's own, which
would make a loop for every job.
"""

import asyncio
import time
from typing import Any

WAIT = 0.05
WORK = 0.005  # less than `print(1)` takes in the embedded sandbox


async def noop() -> None:
    """Does nothing."""


def plain_noop() -> None:
    """Does nothing."""


async def wait() -> None:
    await asyncio.sleep(WAIT)


def plain_wait() -> None:
    time.sleep(WAIT)


async def second() -> None:
    await asyncio.sleep(1)


async def work() -> None:
    plain_work()


def plain_work() -> None:
    """Some milliseconds of its thread's own processor time, however busy the machine is."""
    end = time.thread_time() + WORK
    while time.thread_time() < end:
        pass


class Echo:
    """A sandbox for what the queue itself costs: every program prints `ok`, at once."""

    name, languages = "echo", frozenset({"python"})

    def __init__(self, _: object) -> None: ...

    async def run(self, request: Any) -> Any:
        from worker import CodeResult, CommandResult

        ended = CommandResult(status="Finished", return_code=0, stdout="ok\n")
        return CodeResult(status="Success", run_result=ended)

    async def close(self) -> None: ...
