"""Run a coroutine so that SIGTERM ends it as Ctrl-C does: cancelled, its `finally` run."""

import asyncio
import signal
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


def run_in_order(main: Coroutine[Any, Any, _T]) -> _T:
    """`asyncio.run`; after SIGTERM the process exits with 143, as all of ours do."""
    told = False

    async def wrapped() -> _T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        before = signal.getsignal(signal.SIGTERM)

        def end() -> None:
            nonlocal told
            told = True
            if task is not None:
                task.cancel()

        loop.add_signal_handler(signal.SIGTERM, end)
        try:
            return await main
        finally:
            loop.remove_signal_handler(signal.SIGTERM)
            signal.signal(signal.SIGTERM, before)

    try:
        return asyncio.run(wrapped())
    except asyncio.CancelledError:
        if told:
            sys.exit(128 + signal.SIGTERM)
        raise
