"""Write the tables and pictures of the benchmarks' pages from the reports in docs/tools/figures/.

    python -m bench gates --json > docs/tools/figures/gates.json; make docs

A test fails where the pages and the reports differ.
"""

import json
import re
from pathlib import Path
from typing import Any

from docs.tools import sharing, workloads

HERE = Path(__file__).parent
FIGURES = HERE / "figures"
PAGES = [HERE.parent / "inside" / f"{name}.md" for name in ("benchmarks", "benchmark-tables")]
_PART = re.compile(r"(<!-- (\w+): (\w+) -->\n).*?(<!-- /\2 -->)", re.DOTALL)

Results = dict[str, dict[str, dict[str, float]]]


def main() -> None:
    for page in PAGES:
        page.write_text(updated(page.read_text()))
    workloads.PICTURE.write_text(workloads.drawn())
    sharing.PICTURE.write_text(sharing.drawn())


def updated(page: str) -> str:
    return _PART.sub(lambda part: f"{part[1]}{_made(part[2], part[3])}{part[4]}", page)


def _made(kind: str, name: str) -> str:
    if kind == "figures":
        return _figures(name)
    return {"five": workloads.table, "settings": workloads.settings, "behind": workloads.behind}[
        name
    ]()


def _figures(suite: str) -> str:
    report = json.loads((FIGURES / f"{suite}.json").read_text())
    tables = [_table(report["results"], names) for names in _comparable(report["results"])]
    targets = [_targets(report["targets"])] if report["targets"] else []
    return "\n".join([_conditions(report["conditions"]), *tables, *targets])


def _conditions(conditions: dict[str, Any]) -> str:
    rounds = f"{conditions['rounds']} round{'s' * (conditions['rounds'] != 1)}"
    if conditions["quick"]:
        rounds += " of the quick kind"
    return (
        f"Measured on {conditions['when'][:10]}, on {conditions['cores']} cores of an "
        f"{conditions['cpu']}, with {rounds}. Python {conditions['python']}, redis-py "
        f"{conditions['redis-py']}, RQ {conditions['rq']}. The load average was "
        f"{conditions['load before']} before and {conditions['load after']} after.\n"
    )


def _comparable(results: Results) -> list[list[str]]:
    """Contenders that share a metric stand in one table."""
    groups: list[list[str]] = []
    for name, metrics in results.items():
        near = [group for group in groups if any(metrics.keys() & results[o].keys() for o in group)]
        apart = [group for group in groups if group not in near]
        groups = [*apart, [*sum(near, list[str]()), name]]
    return groups


def _table(results: Results, names: list[str]) -> str:
    """A column for each contender, or a row where there are more of them than metrics."""
    metrics = [*dict.fromkeys(metric for name in names for metric in results[name])]
    cells = {(n, m): _spread(results[n].get(m)) for n in names for m in metrics}
    if len(names) > len(metrics):
        return _lines(["", *metrics], [[n, *(cells[n, m] for m in metrics)] for n in names])
    return _lines(["", *names], [[m, *(cells[n, m] for n in names)] for m in metrics])


def _targets(targets: list[dict[str, Any]]) -> str:
    rows = [
        [one["what"], one["goal"].replace(">=", "≥").replace("<=", "≤"), _number(one["measured"]),
         {True: "met", False: "**missed**", None: "not judged"}[one["met"]]]
        for one in targets
    ]  # fmt: skip
    return _lines(["Target", "Goal", "Measured", ""], rows)


def _lines(head: list[str], rows: list[list[str]]) -> str:
    written = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n".replace("| --- ", "|---") for cells in written)


def _spread(spread: dict[str, float] | None) -> str:
    if spread is None:
        return "–"
    median, least, most = (_number(spread[name]) for name in ("median", "min", "max"))
    return median if least == most else f"{median} ({least}–{most})"


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


if __name__ == "__main__":
    main()
