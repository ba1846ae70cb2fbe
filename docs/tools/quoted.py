"""Write the figures that pages quote, from what was measured last.

- `<!-- gates: penstock pairs/s, 32 tasks vs ray -->33<!-- / -->` is a target of the suite `gates`,
  in docs/tools/figures/; `<!-- buffer: library: batch writes/s -->` a contender's metric,
  and `<!-- queue: penstock / saq: noop jobs/s -->` the ratio of two contenders'.
- `<!-- kept: killed scripted jobs -->` is a number of docs/tools/kept/killed.json.
- `<!-- costs: jobs -->` and `<!-- /costs -->` surround a table that is made here.

A test fails where a page and the reports differ.
"""

import json
import math
import re
import statistics
from functools import cache
from pathlib import Path
from typing import Any

from docs.tools.measured import FIGURES

ROOT = Path(__file__).parents[2]
KEPT = Path(__file__).parent / "kept"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_QUOTED = re.compile(r"<!-- (\w+): ([^>]+) -->[^<]*<!-- / -->")
_TABLE = re.compile(r"(<!-- costs: (\w+) -->\n).*?(<!-- /costs -->)", re.DOTALL)
PLANNED = 0.5  # of one core of Redis

Row = tuple[str, float | None, float | None]  # what, bytes that stay, microseconds


def main() -> None:
    for page in PAGES:
        text = page.read_text()
        if (now := updated(text)) != text:
            page.write_text(now)


def updated(page: str) -> str:
    page = _QUOTED.sub(
        lambda part: f"<!-- {part[1]}: {part[2]} -->{_figure(*part.groups())}<!-- / -->", page
    )
    return _TABLE.sub(lambda part: part[1] + TABLES[part[2]]() + part[3], page)


def _figure(suite: str, name: str) -> str:
    if suite == "kept":
        found = read_kept(name.split()[0])
        for key in name.split()[1:]:
            found = found[key]
        return _short(found)
    report = json.loads((FIGURES / f"{suite}.json").read_text())
    for one in report["targets"]:
        if one["what"] == name:
            return _short(one["measured"])
    contenders, _, metric = name.partition(": ")
    value, *peer = [
        report["results"][contender][metric]["median"] for contender in contenders.split(" / ")
    ]
    return _short(value / peer[0] if peer else value)


@cache
def read_kept(name: str) -> Any:
    return json.loads((KEPT / f"{name}.json").read_text())


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}" if value >= 1.05 else f"{value:.2g}"


# Tables


def _costs() -> str:
    rows = []
    for what, kept, took in read_kept("sizing"):
        memory = "" if kept is None else f"{kept:,.0f} bytes"
        time = "" if took is None else f"{took:.0f} µs"
        rate = "" if took is None else f"{round(PLANNED * 1e6 / took, -2):,.0f} per second"
        rows.append([what, memory, time, rate])
    head = ["Item", "Memory in Redis", "Time of Redis' core", "Rate at half a core"]
    return _lines(head, rows)


def job_bytes() -> tuple[float, float]:
    """What one job of 1 kB takes while it waits, and when it has ended."""
    waits, ended = (kept for what, kept, _ in read_kept("sizing") if what.startswith("a job"))
    return waits, ended


def _jobs() -> str:
    waits, ended = job_bytes()
    return _lines(
        ["With a program of 1 kB", "One job", "100,000 jobs"],
        [
            ["queued", f"{waits / 1e3:.1f} kB", f"{waits / 10:,.0f} MB"],
            ["finished, until `result_ttl` ran out", f"{ended / 1e3:.1f} kB",
             f"{ended / 10:,.0f} MB"],
        ],
    )  # fmt: skip


_ADVICE = {
    (50, "1 h"): "",
    (200, "1 h"): "above three quarters of the default, 6 GB: raise both numbers",
    (200, "10 min"): "`CodeQueue(…, result_ttl=600)`",
    (1000, "1 h"): "shorten `result_ttl`, or raise both numbers",
}
_SECONDS = {"1 h": 3600, "10 min": 600}


def _results() -> str:
    ended = job_bytes()[1]
    rows = []
    for (rate, kept), advice in _ADVICE.items():
        takes = rate * _SECONDS[kept] * ended / 1e9
        if "fits" in advice and takes > 6:
            raise ValueError(f"{rate} jobs per second no longer fit: {takes:.1f} GB")
        rows.append([f"{rate:,}", kept, f"{takes:.2g} GB", advice])
    return _lines(["Jobs per second", "Kept for", "Results take", ""], rows)


def _lines(head: list[str], rows: list[list[str]]) -> str:
    written = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n".replace("| --- ", "|---") for cells in written)


def _scaling() -> str:
    kept = read_kept("scaling")
    rows = [
        [name, *(f"{took:.0f} µs" for took in curve), f"{curve[-1] / curve[0]:.1f}"]
        for name, curve in kept["curves"].items()
    ]
    return _lines(["What grows", *(f"{size:,}" for size in kept["sizes"]), "last / first"], rows)


def _leaks() -> str:
    kept = read_kept("leaks")
    facts = [fact for fact in next(iter(kept.values())) if fact != "count"]
    rows = []
    for name, found in kept.items():
        cells = []
        for fact in facts:
            grows, error = slope(found[fact], found["count"])
            unit = " kB" if "memory" in fact else ""
            cells.append(f"{found[fact][-1]:,.0f}{unit}; {grows:.2f} ± {error:.2f}")
        rows.append([f"{found['count']:,} {name}", *cells])
    return _lines(["After", *facts], rows)


def slope(values: list[float], count: int) -> tuple[float, float]:
    """What a thousand of so many add, by the line that fits best, and its standard error."""
    at = [(n + 1) * count / len(values) / 1000 for n in range(len(values))]
    line = statistics.linear_regression(at, values)
    off = [value - line.intercept - line.slope * x for x, value in zip(at, values, strict=True)]
    spread = math.fsum((x - statistics.fmean(at)) ** 2 for x in at)
    error = math.sqrt(math.fsum(each**2 for each in off) / (len(at) - 2) / spread)
    return line.slope, error


TABLES = {
    "all": _costs, "jobs": _jobs, "results": _results, "scaling": _scaling, "leaks": _leaks,
}  # fmt: skip


if __name__ == "__main__":
    main()
