"""Whether `make test` keeps within its budget of processor time.

    python -m tests.harness.budget            1 if the last run took more, with what grew most
    python -m tests.harness.budget --renew    write `.ci/durations.txt` from the last run
    python -m tests.harness.budget --add      only its tests that are not there yet

Seconds differ twofold between machines. So the budget is in units: the time of a fixed loop, which
each process of the tests times now and then, in between. On a machine at rest, a unit is about a
second. The row `budget` of `.ci/durations.txt` is set by hand. The others are written by
`make durations`, which runs everything: the units of one case of a test, and how many cases it has.
`selection.py` reads there which tests are dear.
"""

import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

LAST = Path(".pytest_cache/units.txt")
KEPT = Path(__file__).parents[2] / ".ci/durations.txt"
BUDGET, TOTAL, LOADING = "budget", "all of it", "loading"
DEAR = 0.25  # units; what is noted to cost as much takes turns
EVERY = 20  # tests from one loop to the next
_LOOPS = 50  # in a unit
_SHOWN = 20


class Cost(NamedTuple):
    case: float  # units
    cases: int = 1


def loop() -> float:
    """The processor seconds that one loop takes here and now."""
    began, total = time.thread_time(), 0
    for number in range(200_000):
        total += number * number % 7
    return time.thread_time() - began


def note(seconds: Mapping[str, float], loading: float, loops: Sequence[float]) -> None:
    """What each test took, and what it took to find them all, beside these loops."""
    unit = _LOOPS * sum(loops) / len(loops)
    functions: dict[str, list[float]] = defaultdict(list)
    for test, took in seconds.items():
        functions[test.partition("[")[0]].append(took / unit)
    costs = {name: Cost(sum(all_) / len(all_), len(all_)) for name, all_ in functions.items()}
    total = (loading + sum(seconds.values())) / unit
    _write(LAST, {TOTAL: Cost(total), LOADING: Cost(loading / unit)} | costs)


def main() -> int:
    last, before = read(LAST), kept()
    dear = {name: cost for name, cost in last.items() if cost.case >= 0.05}
    if "--add" in sys.argv:
        _write(KEPT, dear | before)
        return 0
    if "--renew" in sys.argv:
        _write(KEPT, {BUDGET: before.get(BUDGET, Cost(0.0))} | dear)
        return 0
    took, budget = last[TOTAL].case, before.get(BUDGET, Cost(0.0)).case
    if not budget:
        print(f"The tests took {took:.0f} units of processor time. {KEPT} sets no budget.")
        return 0
    print(f"The tests took {took:.0f} units of processor time, of {budget:.0f} in {KEPT}.")
    unnoted = {name: cost for name, cost in dear.items() if "::" in name and name not in before}
    if alone := [name for name, cost in unnoted.items() if cost.case >= DEAR]:
        print(f"Dear tests without a row there, which run at each commit: {len(alone)}.")
        print("Note them on a machine at rest: python -m tests.harness.budget --add")
        print("".join(f"{last[name].case:8.2f}  {name}\n" for name in alone), end="")
    if took <= budget:
        return 0
    grown = {
        name: (cost.case - before.get(name, Cost(0.0)).case) * cost.cases
        for name, cost in last.items()
        if name != TOTAL
    }
    print(f"The {_SHOWN} that grew most since `make durations`, in units:")
    for name in sorted(grown, key=lambda name: -grown[name])[:_SHOWN]:
        print(f"{grown[name]:+8.1f}  {name}")
    return 1


def kept() -> dict[str, Cost]:
    """What is noted in the tree; nothing, if nothing is."""
    return read(KEPT) if KEPT.exists() else {}


def read(file: Path) -> dict[str, Cost]:
    rows = (line.split(maxsplit=2) for line in file.read_text().splitlines())
    return {name: Cost(float(case), int(cases)) for case, cases, name in rows}


def _write(file: Path, costs: Mapping[str, Cost]) -> None:
    file.parent.mkdir(exist_ok=True)
    rows = {name: cost for name, cost in costs.items() if "::" not in name}
    rows |= dict(sorted(costs.items(), key=lambda row: (-round(row[1].case, 2), row[0])))
    lines = (f"{cost.case:8.2f} {cost.cases:4d}  {name}\n" for name, cost in rows.items())
    file.write_text("".join(lines))


if __name__ == "__main__":
    sys.exit(main())
