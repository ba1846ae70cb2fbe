"""A report for people: tables in the terminal, bars in an SVG."""

from collections.abc import Sequence
from html import escape
from typing import Any

from rich import markup
from rich.console import Console
from rich.table import Table


def show(report: dict[str, Any], console: Console) -> None:
    """The tables of one suite."""
    measured = Table("", "metric", "median", "min", "max", box=None, title=report["suite"])
    for contender, metrics in report["results"].items():
        for metric, spread in metrics.items():
            row = (_number(spread[column]) for column in ("median", "min", "max"))
            measured.add_row(contender, metric, *row)
    console.print(measured)
    for name, ratio in report["ratios"].items():
        console.print(f"  {name}: {ratio:.2f}x", highlight=False)
    for target in report["targets"]:
        console.print(f"  {_verdict(target)}, goal {target['goal']}", highlight=False)


def plot(reports: Sequence[dict[str, Any]]) -> str:
    """Bars of every metric's median, with a line from the least to the most."""
    rows: list[str] = []
    y = 10
    for report in reports:
        for metric in _metrics(report):
            y += 24
            rows.append(_text(8, y, f"{report['suite']}: {metric}", weight="bold"))
            spreads = {n: m[metric] for n, m in report["results"].items() if metric in m}
            most = max(spread["max"] for spread in spreads.values()) or 1
            for name, spread in spreads.items():
                y += 20
                rows.append(_bar(y, name, spread, 380 / most))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 {y + 20}" '
        f'font-family="sans-serif" font-size="12">{"".join(rows)}</svg>\n'
    )


def _verdict(target: dict[str, Any]) -> str:
    what = markup.escape(target["what"])
    if target["met"] is None:
        return f"[yellow]not judged[/] {what}"
    style, verdict = ("green", "met") if target["met"] else ("red", "missed")
    return f"[{style}]{verdict:<6}[/] {what}: {_number(target['measured'])}"


def _metrics(report: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys(m for metrics in report["results"].values() for m in metrics))


def _bar(y: int, name: str, spread: dict[str, float], scale: float) -> str:
    left, width = 200, spread["median"] * scale
    low, high = left + spread["min"] * scale, left + spread["max"] * scale
    return (
        _text(16, y, name)
        + f'<rect x="{left}" y="{y - 11}" width="{width:.1f}" height="14" fill="#5b8db8"/>'
        + f'<path d="M{low:.1f} {y - 4}H{high:.1f}" stroke="#222"/>'
        + _text(int(max(left + width, high)) + 6, y, _number(spread["median"]))
    )


def _text(x: int, y: int, words: str, weight: str = "normal") -> str:
    return f'<text x="{x}" y="{y}" font-weight="{weight}">{escape(words)}</text>'


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
