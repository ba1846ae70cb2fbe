"""Expressions of the dashboard and of the alerts: which figures they ask for, and whether a scrape
has those."""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import promql_parser as promql
import yaml
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.architecture.source import ROOT

_BOARD = ROOT / "deploy/grafana/dashboards/penstock.json"


def board() -> Any:
    return json.loads(_BOARD.read_text())


def shown() -> list[str]:
    """The dashboard's expressions, with each variable as Grafana writes it for *All*."""
    texts = [target["expr"] for panel in board()["panels"] for target in panel["targets"]]
    names = "|".join(one["name"] for one in board()["templating"]["list"])
    return [
        re.sub(rf"\$({names})\b", ".*", text.replace("$__rate_interval", "1m")) for text in texts
    ]


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load((ROOT / "deploy/alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def selectors(text: str) -> Iterator[promql.VectorSelector]:
    """What an expression reads; `ValueError` if it is none."""
    yield from _selectors(promql.parse(text))


def _selectors(node: Any) -> Iterator[promql.VectorSelector]:
    if isinstance(node, promql.VectorSelector):
        yield node
    for part in _parts(node):
        yield from _selectors(part)


def _parts(node: Any) -> list[Any]:
    if isinstance(node, promql.BinaryExpr):
        return [node.lhs, node.rhs]
    if isinstance(node, promql.Call):
        return list(node.args)
    inner = getattr(node, "expr", None) or getattr(node, "vector_selector", None)
    return [] if inner is None else [inner]


def samples(pages: Iterable[str]) -> list[Sample]:
    families: list[Metric] = [
        family for page in pages for family in text_string_to_metric_families(page)
    ]
    return [sample for family in families for sample in family.samples]


def gives(text: str, scraped: list[Sample]) -> bool:
    """Whether an expression has a value, as far as that hangs on what was scraped."""
    return _gives(promql.parse(text), scraped)


def _gives(node: Any, scraped: list[Sample]) -> bool:
    if isinstance(node, promql.VectorSelector):
        return any(_fits(node, sample) for sample in scraped)
    parts = [_gives(part, scraped) for part in _parts(node)]
    return any(parts) if str(getattr(node, "op", "")) == "or" else all(parts)


def _fits(wanted: promql.VectorSelector, sample: Sample) -> bool:
    return sample.name == wanted.name and all(
        _matches(one, sample.labels.get(one.name, "")) for one in wanted.matchers.matchers
    )


def _matches(one: promql.Matcher, value: str) -> bool:
    if one.op == promql.MatchOp.Equal:
        return bool(one.value == value)
    assert one.op == promql.MatchOp.Re, one.op
    return re.fullmatch(one.value, value) is not None
