"""A service's figures by OTLP: what `/metrics` shows, sent to a collector every minute.

They keep their names. The exporter and the interval are those of OpenTelemetry's own variables.
"""

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any

from prometheus_client import Metric
from prometheus_client.samples import Sample

from ground.tracing.sdk import exporters_of, resource_of, say_none, version

log = logging.getLogger("penstock.tracing")

Figures = Callable[[], Awaitable[Iterable[Metric]]]
_EVERY = 60_000  # milliseconds, as the SDK has it
_LEAST = 100


async def push(figures: Figures, service: str) -> None:
    """Push until cancelled. A push that fails is logged, and the next one follows."""
    try:
        exporters = exporters_of("metrics", "OTEL_METRICS_EXPORTER")
    except Exception as wrong:  # noqa: BLE001 - whatever an installation raises, the service serves
        say_none("metrics", wrong)
        return
    since = time.time_ns()
    while exporters:
        await asyncio.sleep(_interval())
        try:
            data = _data_of(list(await figures()), since, service)
            for exporter in exporters:
                await asyncio.to_thread(exporter.export, data)
        except Exception:
            log.exception("figures were not sent; they are tried again")


def _interval() -> float:
    text = os.environ.get("OTEL_METRIC_EXPORT_INTERVAL", "")
    return max(int(text) if text.isdecimal() else _EVERY, _LEAST) / 1000


def _data_of(families: Iterable[Metric], since: int, service: str) -> Any:
    from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    now = time.time_ns()
    metrics = [one for family in families for one in _metrics_of(family, since, now)]
    scope = ScopeMetrics(InstrumentationScope("penstock", version()), metrics, "")
    return MetricsData([ResourceMetrics(resource_of(service), [scope], "")])


def _metrics_of(family: Metric, since: int, now: int) -> Iterator[Any]:
    from opentelemetry.sdk.metrics.export import (
        AggregationTemporality,
        Gauge,
        NumberDataPoint,
        Sum,
    )
    from opentelemetry.sdk.metrics.export import Metric as Made

    if family.type == "histogram":
        yield _histogram(family, since, now)
        return
    by_name: dict[str, list[Any]] = {}
    for sample in family.samples:
        if not sample.name.endswith("_created"):
            point = NumberDataPoint(sample.labels, since, now, sample.value)
            by_name.setdefault(sample.name, []).append(point)
    for name, points in by_name.items():
        data = (
            Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True)
            if family.type == "counter"
            else Gauge(points)
        )
        yield Made(name, family.documentation, None, data)


def _histogram(family: Metric, since: int, now: int) -> Any:
    from opentelemetry.sdk.metrics.export import AggregationTemporality, Histogram
    from opentelemetry.sdk.metrics.export import Metric as Made

    by_labels: dict[tuple[tuple[str, str], ...], list[Sample]] = {}
    for sample in family.samples:
        labels = tuple((name, text) for name, text in sample.labels.items() if name != "le")
        by_labels.setdefault(labels, []).append(sample)
    points = [_point(dict(labels), samples, since, now) for labels, samples in by_labels.items()]
    data = Histogram(points, AggregationTemporality.CUMULATIVE)
    return Made(family.name, family.documentation, None, data)


def _point(labels: dict[str, str], samples: list[Sample], since: int, now: int) -> Any:
    from opentelemetry.sdk.metrics.export import HistogramDataPoint

    steps = [sample for sample in samples if sample.name.endswith("_bucket")]
    upto = [0, *(int(step.value) for step in steps)]
    sums = [sample.value for sample in samples if sample.name.endswith("_sum")]
    none: Any = None  # no least or greatest value is known, and OTLP leaves it out
    return HistogramDataPoint(
        attributes=labels, start_time_unix_nano=since, time_unix_nano=now, count=upto[-1],
        sum=sums[0] if sums else none, min=none, max=none,
        bucket_counts=[after - before for before, after in pairwise(upto)],
        explicit_bounds=[float(step.labels["le"]) for step in steps[:-1]],
    )  # fmt: skip
