"""Moments at which something is to be done about an order."""

import heapq
import itertools
import math
from collections.abc import Iterator

from worker.order import Order


class Timers:
    """Set any number of times; nothing takes one back."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Order]] = []
        self._sequence = itertools.count()

    def set(self, at: float, order: Order) -> None:
        heapq.heappush(self._heap, (at, next(self._sequence), order))

    @property
    def first(self) -> float:
        return self._heap[0][0] if self._heap else math.inf

    def passed(self, now: float) -> Iterator[Order]:
        """Each is handed out once."""
        while self.first <= now:
            yield heapq.heappop(self._heap)[2]
