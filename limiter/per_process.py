"""What a process has one of for each key: stopped with it, and none of it in a forked child."""

import atexit
import os
import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class Stoppable(Protocol):
    stopped: bool

    def stop(self) -> None: ...


K = TypeVar("K")
V = TypeVar("V", bound=Stoppable)


class PerProcess(Generic[K, V]):
    def __init__(self) -> None:
        self.all: dict[K, V] = {}
        self._begin_anew()
        atexit.register(self.stop_all)
        os.register_at_fork(after_in_child=self._forget_parent)

    def get(self, key: K, make: Callable[[], V]) -> V:
        """That of the key; made on first use, and anew after it was stopped."""
        with self.guard:
            one = self.all.get(key)
            if one is None or one.stopped:
                one = self.all[key] = make()
            return one

    def stop_all(self) -> None:
        for one in list(self.all.values()):
            one.stop()

    def _begin_anew(self) -> None:
        self.guard = threading.RLock()  # a signal's handler may come back while its thread is here

    def _forget_parent(self) -> None:
        """A forked child has none of its parent's threads, and nothing that they held."""
        self._begin_anew()
        for one in self.all.values():
            one.stopped = True
        self.all.clear()
