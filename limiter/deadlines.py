"""The timeouts of a process's asks, in order."""

import heapq
import itertools

from limiter.ledger import Ledger
from limiter.wishes import NEVER, Ask


class Deadlines:
    """Each ask is told once its time is up, if it still waits."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Ledger, Ask]] = []
        self._most = 1024
        self._sequence = itertools.count()

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def first(self) -> float:
        return self._heap[0][0] if self._heap else NEVER

    def add(self, ledger: Ledger, ask: Ask) -> None:
        if ask.deadline < NEVER:
            heapq.heappush(self._heap, (ask.deadline, next(self._sequence), ledger, ask))
            self._forget()

    def pass_by(self, now: float) -> None:
        while self._heap and self._heap[0][0] <= now:
            _, _, ledger, ask = heapq.heappop(self._heap)
            ledger.time_out(ask)

    def _forget(self) -> None:
        """Those of asks that have their outcome, so that long timeouts do not pile up."""
        if len(self._heap) > self._most:
            self._heap = [due for due in self._heap if due[2].wants(due[3])]
            heapq.heapify(self._heap)
            self._most = max(1024, 2 * len(self._heap))
