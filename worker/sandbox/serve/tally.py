"""How many programs run here now, and how those that ran have ended."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from ground import Sheet


class Tally:
    """One server's counts, since it started."""

    def __init__(self) -> None:
        self._running = 0
        self._ended: Counter[str] = Counter()
        self._seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        began = time.monotonic()
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1
            self._seconds += time.monotonic() - began

    def ended(self, outcome: str) -> None:
        self._ended[outcome] += 1

    def enter(self, sheet: Sheet) -> None:
        sheet.gauge("penstock_sandbox_running", "Programs that run now.", self._running)
        sheet.count("penstock_sandbox_busy_seconds_total",
                    "Seconds that programs have run, added up.", self._seconds)  # fmt: skip
        for outcome, times in sorted(self._ended.items()) or [("finished", 0)]:
            sheet.count("penstock_sandbox_programs_total", "Programs by how they ended.", times,
                        outcome=outcome)  # fmt: skip
