"""What a benchmark suite is made of, and how its runs become numbers.

A suite is a module `bench/<name>.py` with one function,

    def measure(quick: bool) -> Suite

It says in `Suite` who is compared (contenders, each a function that does one run
and returns its metrics), how often, which ratios are shown and which targets it
has. The frame interleaves the runs (A B A B), so that a machine that grows slow
or busy on the way is slow for all of them. What peers run in their own environments
(`bench.peers`) is kept in a folder beside the suite, which is not a module.
"""

import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

Run = Callable[[], Mapping[str, float]]
Spread = dict[str, float]
Results = dict[str, dict[str, Spread]]


@dataclass(frozen=True)
class Ratio:
    """How a metric of one contender compares to that of a peer, or to another one, by medians."""

    metric: str
    contender: str
    peer: str
    other: str = ""

    @property
    def name(self) -> str:
        return f"{self.contender} {self.metric} vs {self.peer} {self.other}".rstrip()


@dataclass(frozen=True)
class Target:
    """A number to reach: a ratio of one run, or a count. A rate or a time holds for one machine."""

    what: str
    at_least: float | None = None
    at_most: float | None = None

    @property
    def goal(self) -> str:
        return f">= {self.at_least:g}" if self.at_least is not None else f"<= {self.at_most:g}"

    def met_by(self, measured: float) -> bool:
        return (self.at_least is None or measured >= self.at_least) and (
            self.at_most is None or measured <= self.at_most
        )


@dataclass(frozen=True)
class Suite:
    """Who is compared and how. A target names a ratio, or `contender metric`."""

    contenders: Mapping[str, Run]
    rounds: int
    conditions: Mapping[str, Any] = field(default_factory=dict)
    ratios: Sequence[Ratio] = ()
    targets: Sequence[Target] = ()
    not_judged: Sequence[Target] = ()
    clean_up: Callable[[], object] = lambda: None


def without(suite: Suite, names: Collection[str]) -> Suite:
    """The suite less these contenders and whatever is measured against them.

    Their targets are kept, to be shown as not judged.
    """
    left = {name: once for name, once in suite.contenders.items() if name not in names}
    ratios = [ratio for ratio in suite.ratios if {ratio.contender, ratio.peer} <= left.keys()]
    gone = {ratio.name for ratio in suite.ratios} - {ratio.name for ratio in ratios}
    targets = [
        target
        for target in suite.targets
        if target.what not in gone and not any(target.what.startswith(f"{n} ") for n in names)
    ]
    absent = [target for target in suite.targets if target not in targets]
    return replace(suite, contenders=left, ratios=ratios, targets=targets, not_judged=absent)


def run(suite: Suite, tell: Callable[[str], None]) -> tuple[Results, dict[str, float]]:
    """All rounds, interleaved; the median, least and most of each metric, and the ratios."""
    measured: dict[str, list[Mapping[str, float]]] = {name: [] for name in suite.contenders}
    try:
        for number in range(1, suite.rounds + 1):
            for name, once in suite.contenders.items():
                tell(f"round {number} of {suite.rounds}: {name}")
                measured[name].append(once())
    finally:
        suite.clean_up()
    results = {name: _spreads(runs) for name, runs in measured.items()}
    return results, {ratio.name: _ratio(results, ratio) for ratio in suite.ratios}


def judge(
    suite: Suite, results: Results, ratios: Mapping[str, float]
) -> list[dict[str, str | float | bool | None]]:
    """Each target with what was measured, and whether that meets it: None if nothing was."""
    known = dict(ratios)
    for name, metrics in results.items():
        known |= {f"{name} {metric}": spread["median"] for metric, spread in metrics.items()}
    judged = [
        _verdict(target, known[target.what], target.met_by(known[target.what]))
        for target in suite.targets
    ]
    return judged + [_verdict(target, None, None) for target in suite.not_judged]


def _verdict(
    target: Target, measured: float | None, met: bool | None
) -> dict[str, str | float | bool | None]:
    return {"what": target.what, "goal": target.goal, "measured": measured, "met": met}


def _spreads(runs: Sequence[Mapping[str, float]]) -> dict[str, Spread]:
    return {
        metric: {
            "median": statistics.median(run[metric] for run in runs),
            "min": min(run[metric] for run in runs),
            "max": max(run[metric] for run in runs),
        }
        for metric in runs[0]
    }


def _ratio(results: Results, ratio: Ratio) -> float:
    own = results[ratio.contender][ratio.metric]["median"]
    return own / results[ratio.peer][ratio.other or ratio.metric]["median"]
