"""Figures for Prometheus: one page made of what a service counts and of its own process."""

from collections.abc import Iterable, Mapping
from itertools import accumulate

from prometheus_client import Metric, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# Without a registry: read once per scrape.
_PROCESS: tuple[Collector, ...] = (
    ProcessCollector(registry=None),
    PlatformCollector(registry=None),
)


class Sheet:
    """The families of one kind of thing, all with the same labels."""

    def __init__(self, *labels: str) -> None:
        self._labels = labels
        self._families: dict[str, Metric] = {}

    def gauge(self, name: str, help: str, value: float, *where: str, **more: str) -> None:
        self._add(GaugeMetricFamily, name, help, value, where, more)

    def count(self, name: str, help: str, value: float, *where: str, **more: str) -> None:
        """Add a counter; its name ends in `_total`."""
        self._add(CounterMetricFamily, name, help, value, where, more)

    def histogram(
        self,
        name: str,
        help: str,
        counted: Iterable[tuple[str, int]],
        *where: str,
        total: float | None = None,
    ) -> None:
        """Add a histogram: how many fell into each step, which is named by its upper end. The last
        is `+Inf`.

        `total` is the sum of all values. If a step is below zero there is no `_sum`, and so no
        `_count`: it could shrink.
        """
        family = self._families.get(name)
        if family is None:
            family = self._families[name] = HistogramMetricFamily(name, help, labels=self._labels)
        steps, counts = zip(*counted, strict=True)
        upto = list(zip(steps, map(float, accumulate(counts)), strict=True))
        family.add_metric(where, upto, sum_value=total)  # type: ignore[attr-defined]

    def families(self) -> list[Metric]:
        return list(self._families.values())

    def _add(
        self,
        kind: type[CounterMetricFamily] | type[GaugeMetricFamily],
        name: str,
        help: str,
        value: float,
        where: tuple[str, ...],
        more: Mapping[str, str],
    ) -> None:
        family = self._families.get(name)
        if family is None:
            family = self._families[name] = kind(name, help, labels=[*self._labels, *more])
        family.add_metric([*where, *more.values()], value)  # type: ignore[attr-defined]


def exposition(families: Iterable[Metric]) -> str:
    """The page, with the figures of this process at its end."""
    own = [metric for collector in _PROCESS for metric in collector.collect()]
    return generate_latest(_Page([*families, *own])).decode()


class _Page(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families
