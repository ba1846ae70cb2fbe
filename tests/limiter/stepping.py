"""What a gate that finds its limit does with one report, without Redis: the rule by itself."""

import math
from dataclasses import dataclass, field


@dataclass
class Stepping:
    """The limit of one gate. `live` is what stays in flight after the release that reports."""

    exact: float
    min: float
    max: float
    mark: int = 0
    ceiling: float = 0.0
    run: int = 0
    run_from: float = 0.0
    clean: int = 0
    overloads: int = 0
    peak: float = 0.0
    probe: float = 1.0
    hold_until: int = 0
    counted: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(
            ("throttled", "overloaded", "cuts", "raises", "held_us"), 0
        )
    )

    @property
    def limit(self) -> int:
        return math.floor(self.exact)

    def set(self, exact: float) -> None:
        self.exact = max(self.min, min(self.max, exact))

    def report(self, word: str, fence: int, live: int, newest: int, now: int) -> None:
        if word == "":
            self._served(fence, live)
        elif word == "o":
            self._overloaded(fence, newest)
        elif word[0] == "t":
            self._throttled(fence, live, newest, now, int(word[1:]) if word[1:] else None)

    def _throttled(self, fence: int, live: int, newest: int, now: int, hint: int | None) -> None:
        self.counted["throttled"] += 1
        before = self.exact
        if live >= self.exact / 2:
            self.set(min(self.exact, live))
        if fence <= self.mark:
            return
        self._cut(before, newest)
        if self.run >= 10 and hint is not None and self.hold_until <= now:
            self.hold_until, self.run = now + min(hint, 30_000_000), 0
            self.counted["held_us"] += min(hint, 30_000_000)
            self.set(0.95 * self.run_from)

    def _overloaded(self, fence: int, newest: int) -> None:
        self.counted["overloaded"] += 1
        if fence <= self.mark:
            return
        self.overloads += 1
        if self.overloads >= 0.05 * max(self.exact, 4):
            self._cut(self.exact, newest)

    def _cut(self, before: float, newest: int) -> None:
        if self.run == 0:
            self.run_from = before
        self.ceiling, self.probe, self.mark, self.run = self.exact, 1.0, newest, self.run + 1
        self.set(0.95 * self.exact)
        self.clean, self.overloads, self.peak = 0, 0, 0.0
        self.counted["cuts"] += 1

    def _served(self, fence: int, live: int) -> None:
        if fence <= self.mark:
            return
        self.run, self.clean, self.peak = 0, self.clean + 1, max(self.peak, live + 1)
        if self.clean < max(self.limit, 4):
            return
        if self.peak >= 0.8 * self.limit and not self.overloads:
            self._raise()
        self.clean, self.overloads, self.peak = 0, 0, 0.0

    def _raise(self) -> None:
        before = self.exact
        if not self.ceiling:
            self.set(1.5 * self.exact)
        elif self.exact < 0.95 * self.ceiling:
            self.set(self.exact + max(1, (self.ceiling - self.exact) / 2))
        else:
            self.set(self.exact + min(max(1, self.probe), max(1, self.exact / 10)))
            self.probe = 2 * max(1, self.probe)
        self.counted["raises"] += self.exact > before
