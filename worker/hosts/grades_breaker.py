"""The breaker of a host's adapter: of all graders of one process that grade at the same place.

It counts grades, so it sees also what no queue's breaker can: a Redis that is away, a queue without
workers, a sandbox that is asked without a queue.
"""

import os
import threading
import time
from functools import cache

from ground.breaker import Breaker
from jail.judge.fault import Fault
from worker.errors import TrainingPaused
from worker.settings import worker_settings


class GradesBreaker:
    """A breaker of grades, for any event loop and thread."""

    def __init__(self, need: int, last: int) -> None:
        self._breaker = Breaker(need, last)
        self._guard = threading.Lock()

    def begin(self) -> float:
        """The moment at which a grade begins. Raises `TrainingPaused` if none may."""
        with self._guard:
            now, breaker = time.monotonic(), self._breaker
            if not breaker.room(now):
                raise self._paused()
            breaker.let_through(1, now)
            return now

    def end(self, fault: Fault, began: float) -> None:
        """Note whose fault a grade's end was. While the breaker is open, `TrainingPaused` takes the
        place of a grade that is not known."""
        with self._guard:
            if fault != "system":
                self._breaker.succeed(began)
                return
            put_off = self._breaker.fail(began, time.monotonic())
        if put_off:  # a late one too, when others may begin: it takes no place of theirs
            raise self._paused()

    def _paused(self) -> TrainingPaused:
        need, last = self._breaker.need, self._breaker.last
        return TrainingPaused(
            "grading in this process",
            f"{need} of the last {last} grades are not known, for no fault of a program",
        )

    def break_off(self, began: float) -> None:
        """A grade ended without an answer: it was cancelled, or raised."""
        with self._guard:
            self._breaker.back(began)


def breaker_here(place: str) -> GradesBreaker | None:
    """This process's breaker for graders at a place. None: PENSTOCK_BREAKER_LAST is 0."""
    terms = worker_settings().breaker
    return None if terms is None else _breaker(os.getpid(), place, terms)


@cache
def _breaker(process: int, place: str, terms: tuple[int, int]) -> GradesBreaker:
    return GradesBreaker(*terms)
