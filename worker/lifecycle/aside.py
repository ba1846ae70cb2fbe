"""Where a registry's calls are made, which block: beside the event loop, on a few threads."""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def _new_threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(8, thread_name_prefix="penstock-registry")


_threads = _new_threads()


def _forget_parent() -> None:
    """A forked child has none of its parent's threads."""
    global _threads
    _threads = _new_threads()


os.register_at_fork(after_in_child=_forget_parent)


async def aside(deed: Callable[[], T]) -> T:
    """Make a registry's call off the event loop."""
    return await asyncio.get_running_loop().run_in_executor(_threads, deed)
