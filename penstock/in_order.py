"""Run a coroutine so that SIGTERM and SIGHUP end it as Ctrl-C does: cancelled, in order."""

import asyncio
import signal
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


def run_in_order(main: Coroutine[Any, Any, _T]) -> _T:
    """Do as `asyncio.run`; the process exits with 143 after SIGTERM, 129 after SIGHUP, as all
    do."""
    told = 0

    async def wrapped() -> _T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
        if before[signal.SIGHUP] is signal.SIG_IGN:  # as nohup starts us
            del before[signal.SIGHUP]

        def end(number: int) -> None:
            nonlocal told
            told = number
            if task is not None:
                task.cancel()

        for number in before:
            loop.add_signal_handler(number, end, number)
        try:
            return await main
        finally:
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler)

    try:
        return asyncio.run(wrapped())
    except asyncio.CancelledError:
        if told:
            sys.exit(128 + told)
        raise
