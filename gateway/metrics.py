"""A gateway process counts these things, and shows them under `/metrics`."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client import Metric

_STEPS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class Tally:
    """The counts of this process since its start."""

    def __init__(self) -> None:
        self.under_way = 0
        self._events: Counter[str] = Counter()
        self._outcomes: Counter[tuple[str, str]] = Counter()
        self._seconds = [0] * (len(_STEPS) + 1)
        self._total = 0.0

    def count(self, event: str) -> None:
        """Count one event."""
        self._events[event] += 1

    def sampled(self, prompt: int, tokens: int) -> None:
        """Tokens of a turn: new ones of its prompt, and sampled ones."""
        self._events["prompt_tokens"] += prompt
        self._events["sampled_tokens"] += tokens

    def ended(self, dialect: str, outcome: str) -> None:
        """Count a request by how it ended."""
        self._outcomes[dialect, outcome] += 1

    @contextmanager
    def turn(self) -> Iterator[None]:
        """The length of one turn."""
        began = time.monotonic()
        self.under_way += 1
        try:
            yield
        finally:
            self.under_way -= 1
            took = time.monotonic() - began
            self._seconds[bisect_left(_STEPS, took)] += 1
            self._total += took

    def families(self) -> list[Metric]:
        """The figures for Prometheus."""
        from ground.http import Sheet

        sheet = Sheet()
        sheet.gauge("penstock_gateway_turns_under_way", "Turns that this process answers now.",
                    self.under_way)  # fmt: skip
        labels = [*map(str, _STEPS), "+Inf"]
        sheet.histogram("penstock_gateway_turn_seconds", "How long turns took.",
                        zip(labels, self._seconds, strict=True), total=self._total)  # fmt: skip
        for (dialect, outcome), number in sorted(self._outcomes.items()):
            sheet.count("penstock_gateway_requests_total", "Requests of agents, by their end.",
                        number, dialect=dialect, outcome=outcome)  # fmt: skip
        for name in _EVENTS:
            sheet.count(f"penstock_gateway_{name}_total", _EVENTS[name], self._events[name])
        return sheet.families()


_EVENTS = {
    "prompt_tokens": "Tokens of prompts that were not recorded before.",
    "sampled_tokens": "Tokens that engines sampled.",
    "rendered_whole": "Prompts that were rendered whole: first ones, and forks.",
    "replayed": "Retries that were answered from the log.",
    "joined": "Retries that waited for the first try's answer.",
    "aborted": "Parts of answers that an engine aborted, as at an update of the weights.",
    "engine_failed": "Requests to engines that failed.",
    "hung_up": "Clients that went before they had their answer.",
}
