"""Ctrl-C and SIGTERM, told to a worker's event loop."""

import asyncio
import signal
import threading
from collections.abc import Callable


class Signals:
    """SIGINT and SIGTERM stop the worker, where it runs in the main thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
        self._loop, self._stop = loop, stop
        self._main = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> None:
        if self._main:
            for number in (signal.SIGINT, signal.SIGTERM):
                self._loop.add_signal_handler(number, self._stop)

    def __exit__(self, *_: object) -> None:
        if self._main:
            for number in (signal.SIGINT, signal.SIGTERM):
                self._loop.remove_signal_handler(number)
