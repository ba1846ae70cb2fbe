"""Timers hold items that are due at a time, unless they are over by then. Each comes up once."""

import heapq
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Timers(Generic[T]):
    """An item may have any number of times. None is removed early: `over` says whether it still
    counts."""

    def __init__(self, over: Callable[[T], bool]) -> None:
        self._over = over
        self._heap: list[tuple[float, int, T]] = []
        self._most = 1024
        self._sequence = itertools.count()

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def first(self) -> float:
        """The moment at which the next item is due."""
        while self._heap and self._over(self._heap[0][2]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else math.inf

    def set(self, at: float, item: T) -> None:
        heapq.heappush(self._heap, (at, next(self._sequence), item))
        if len(self._heap) > self._most:  # so that times far ahead do not pile up
            self._heap = [each for each in self._heap if not self._over(each[2])]
            heapq.heapify(self._heap)
            self._most = max(1024, 2 * len(self._heap))

    def passed(self, now: float) -> Iterator[T]:
        """Each once; an item is removed after its turn, for a signal handler may interrupt it."""
        while self.first <= now:
            due = self._heap[0]
            yield due[2]
            if self._heap and self._heap[0] is due:
                heapq.heappop(self._heap)
