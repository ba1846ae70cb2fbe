"""Whether `make test` keeps within its budget of processor time.

    python -m tests.harness.budget            1 if the last run took more, with what grew most
    python -m tests.harness.budget --renew    write `.ci/durations.txt` from the last run

Seconds differ twofold between machines. So the budget is in units: the time of a fixed loop, which
each process of the tests times now and then, in between. On a machine at rest, a unit is about a
second. The row `budget` of `.ci/durations.txt` is set by hand.
"""

import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

LAST = Path(".pytest_cache/units.txt")
KEPT = Path(".ci/durations.txt")
BUDGET, TOTAL, LOADING = "budget", "all of it", "loading"
EVERY = 20  # tests from one loop to the next
_LOOPS = 50  # in a unit
_SHOWN = 20


def loop() -> float:
    """The processor seconds that one loop takes here and now."""
    began, total = time.thread_time(), 0
    for number in range(200_000):
        total += number * number % 7
    return time.thread_time() - began


def note(seconds: Mapping[str, float], loading: float, loops: Sequence[float]) -> None:
    """What each test took, and what it took to find them all, beside these loops."""
    unit = _LOOPS * sum(loops) / len(loops)
    functions: dict[str, float] = defaultdict(float)
    for test, took in seconds.items():
        functions[test.partition("[")[0]] += took / unit
    whole = {TOTAL: (loading + sum(seconds.values())) / unit, LOADING: loading / unit}
    _write(LAST, whole | {name: units for name, units in functions.items() if units >= 0.05})


def main() -> int:
    last = _read(LAST)
    kept = _read(KEPT) if KEPT.exists() else {}
    if "--renew" in sys.argv:
        _write(KEPT, {BUDGET: kept.get(BUDGET, 0.0)} | last)
        return 0
    took, budget = last[TOTAL], kept.get(BUDGET, 0.0)
    if not budget:
        print(f"The tests took {took:.0f} units of processor time. {KEPT} sets no budget.")
        return 0
    print(f"The tests took {took:.0f} units of processor time, of {budget:.0f} in {KEPT}.")
    if took <= budget:
        return 0
    grown = {name: units - kept.get(name, 0.0) for name, units in last.items() if name != TOTAL}
    print(f"The {_SHOWN} that grew most since `make durations`, in units:")
    for name in sorted(grown, key=lambda name: -grown[name])[:_SHOWN]:
        print(f"{grown[name]:+8.1f}  {name}")
    return 1


def _write(file: Path, units: Mapping[str, float]) -> None:
    file.parent.mkdir(exist_ok=True)
    rows = {name: took for name, took in units.items() if "::" not in name}
    rows |= dict(sorted(units.items(), key=lambda row: (-round(row[1], 1), row[0])))
    file.write_text("".join(f"{took:8.1f}  {name}\n" for name, took in rows.items()))


def _read(file: Path) -> dict[str, float]:
    rows = (line.split(maxsplit=1) for line in file.read_text().splitlines())
    return {name: float(took) for took, name in rows}


if __name__ == "__main__":
    sys.exit(main())
