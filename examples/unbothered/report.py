"""What the runs came to: a text, and a picture."""

import json
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import numpy as np

from examples.unbothered import model, notes

Found = dict[int, dict[str, "Ended"]]  # by seed and name
Curve = list[tuple[int, float]]

# Student's t for 95 %, by the number of pairs; of more than 11 it is less than that of 11.
_T = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262,
      11: 2.228}  # fmt: skip


@dataclass(frozen=True)
class Ended:
    """A run that has ended, by its folder."""

    folder: Path

    @cached_property
    def about(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "ended.json").read_text()))

    @cached_property
    def steps(self) -> list[dict[str, Any]]:
        """Each step once: as it was done last, if its trainer died before the checkpoint."""
        return [*{step["version"]: step for step in notes.read(self.folder, "steps")}.values()]

    @property
    def seconds(self) -> float:
        return float(self.about["seconds"])

    def curve(self, what: str = "held") -> Curve:
        return [(step["version"], step[what]) for step in self.steps if what in step]

    def last(self, what: str) -> float:
        return self.curve(what)[-1][1]

    def count(self, what: str) -> int:
        return sum(step.get(what, 0) for step in self.steps)

    def weights(self) -> model.Weights:
        return model.loaded(self.folder / "checkpoint.npz")[0]


def read(folder: Path) -> Found:
    found: Found = {}
    for ended in sorted(folder.glob("seed-*/*/ended.json")):
        seed = int(ended.parts[-3].removeprefix("seed-"))
        found.setdefault(seed, {})[ended.parts[-2]] = Ended(ended.parent)
    return dict(sorted(found.items()))


def equal(one: Ended, other: Ended) -> bool:
    first, second = one.weights(), other.weights()
    return all(np.array_equal(first[name], second[name]) for name in first)


def holds(found: Found) -> bool:
    """Whether what must hold in every run holds: equal weights, no false reward, no mask."""
    for runs in found.values():
        for name, run in runs.items():
            if name in ("control", "masked", "shuffled"):
                continue
            if run.count("false") or run.count("masked"):
                return False
            calm = runs.get("undisturbed", run)
            if "ahead" not in name and not equal(calm, run):
                return False
    return True


def told(found: Found) -> str:
    return "\n".join(_lines(found))


def _lines(found: Found) -> Iterator[str]:
    for seed, runs in found.items():
        yield f"seed {seed}"
        yield "  run           seconds  held-out  whole  false zeros  masked  killed with -9"
        for name, run in runs.items():
            kills = [f"{kind} {count}" for kind, count in run.about["kills"].items()]
            ran, died = run.about["sandboxes"]
            if died:
                kills.append(f"sandboxes {died} of {ran}")
            zeros = run.count("false_zeros")
            share = f" ({zeros / max(1, run.count('deserving')):.0%})" if zeros else ""
            false = "-" if name == "shuffled" else f"{zeros}{share}"
            figures = (
                f"{run.seconds:>7.0f} {run.last('held'):>9.3f} {run.last('whole'):>6.2f}"
                f" {false:>12} {run.count('masked'):>7}"
            )
            yield f"  {name:<13} {figures}  {', '.join(kills)}"
            if old := run.count("old"):
                part = f"{old / run.count('samples'):.0%}"
                yield f"  {'':<13} {part} of its samples were a version old"
        if "undisturbed" not in runs:
            continue
        for name in ("bare", "killed", "tenth"):
            if name in runs:
                yield from _beside(name, runs["undisturbed"], runs[name])
    yield from _pairs(found)


def _beside(name: str, calm: Ended, run: Ended) -> Iterator[str]:
    same = "equal, bit for bit" if equal(calm, run) else "DIFFERENT"
    yield f"  {name} beside undisturbed: the weights are {same}"
    if not run.about["kills"]:
        return
    spent = split(calm, run)
    each = ", ".join(f"{what} {seconds:.0f} s" for what, seconds in spent.items())
    yield f"    {run.seconds / calm.seconds:.2f} times as long: {each}"
    rest = run.seconds - sum(spent.values()) + spent["other"]
    yield f"    {run.seconds / rest:.2f} times as long as its own steps without the first three"


def split(calm: Ended, run: Ended) -> dict[str, float]:
    """Where the seconds went that a run took beyond an undisturbed one.

    replay   steps that a killed trainer had begun, and its next one did again
    restart  until a killed trainer's next one began a step, and waits for Redis, the gateway and
             sandboxes in steps in which one of them was killed
    lease    waits for a grade in steps in which a worker was killed: until its jobs are given away
    other    all else, such as a machine that others use, which makes every step longer
    """
    usual = median(step["seconds"] for step in run.steps)
    kills = notes.read(run.folder, "kills")
    begun = [line["at"] for line in notes.read(run.folder, "begun")]
    found = dict.fromkeys(("lease", "restart", "replay"), 0.0)
    for killed in (kill["at"] for kill in kills if kill["what"] == "trainer"):
        began = max((at for at in begun if at <= killed), default=killed)
        if not any(began < step["at"] <= killed for step in run.steps):
            found["replay"] += killed - began
        found["restart"] += min((at for at in begun if at > killed), default=killed) - killed
    usual_wait = median(step["longest"].get("judge", 0.0) for step in run.steps)
    for step in run.steps:
        excess = step["seconds"] - usual
        began = step["at"] - step["seconds"]
        hit = {kill["what"] for kill in kills if began - 2 <= kill["at"] <= step["at"]}
        if excess <= 0 or not hit:
            continue
        if "worker" in hit:
            waited = max(0.0, step["longest"].get("judge", 0.0) - usual_wait)
            found["lease"] += (lease := min(excess, waited))
            excess -= lease
        found["restart"] += excess
    return found | {"other": run.seconds - calm.seconds - sum(found.values())}


def _pairs(found: Found) -> Iterator[str]:
    """What chaos does to the asynchronous runs, beside what it does to the control."""
    for what in ("held", "area"):
        differences = _differences(found, "ahead", "ahead-killed", what)
        name = "at the end" if what == "held" else "mean over the run"
        if differences:
            yield f"held-out reward {name}, asynchronous, killed less not: {_interval(differences)}"
        for other in ("control", "masked"):
            if losses := _differences(found, "bare", other, what):
                yield f"held-out reward {name}, {other} less bare: {_interval(losses)}"


def _differences(found: Found, calm: str, other: str, what: str) -> list[float]:
    def of(run: Ended) -> float:
        return mean(y for _, y in run.curve()) if what == "area" else run.last(what)

    return [
        of(runs[other]) - of(runs[calm]) for runs in found.values() if {calm, other} <= runs.keys()
    ]


def _interval(values: list[float]) -> str:
    each = " ".join(f"{value:+.3f}" for value in values)
    if len(values) < 2:
        return f"{each} (one seed)"
    half = _T[min(len(values), 11)] * stdev(values) / math.sqrt(len(values))
    return f"{mean(values):+.3f} ± {half:.3f} (95 %, {len(values)} seeds: {each})"


# The picture

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 450, 56, 250, 46, 102
STYLE = """\
svg { --ground: #fff; --ink: #222; --soft: #666; --edge: #e3e3e3; --calm: #9aa7b5;
      --killed: #1f7a45; --control: #c0392b; --masked: #d98a1f; --shuffled: #8a8f98 }
@media (prefers-color-scheme: dark) {
  svg { --ground: #181a1f; --ink: #e6e6e6; --soft: #a0a6b0; --edge: #333842; --calm: #7b8794;
        --killed: #5fce8d; --control: #f07b6d; --masked: #f0b45c; --shuffled: #7d838c }
}
.ground { fill: var(--ground) } text { fill: var(--ink) } .soft { fill: var(--soft) }
path { fill: none } .edge { stroke: var(--edge) } .mark { stroke: var(--killed) }
.undisturbed { stroke: var(--calm); stroke-width: 8; stroke-opacity: .55; stroke-linecap: round }
.killed { stroke: var(--killed); stroke-width: 2 }
.control { stroke: var(--control); stroke-width: 2 }
.masked { stroke: var(--masked); stroke-width: 2; stroke-dasharray: 6 4 }
.shuffled { stroke: var(--shuffled); stroke-width: 1.5; stroke-dasharray: 2 3 }
"""
SHOWN = {
    "undisturbed": ("undisturbed", ""),
    "killed": ("everything is killed", "by the whole path: jobs run again"),
    "masked": ("20% of batches masked", "a mask is the last resort"),
    "control": ("20% of batches fail, scored 0", "plain subprocess rewards"),
    "shuffled": ("shuffled rewards", "nothing to learn from"),
}


def may_be_drawn(found: Found) -> bool:
    return bool(_whole(found))


def _whole(found: Found) -> Found:
    """The seeds with all runs that are drawn."""
    return {seed: runs for seed, runs in found.items() if SHOWN.keys() <= runs.keys()}


def drawn(found: Found) -> str:
    """Held-out reward over steps: the mean of the seeds that have all runs, and each of them; and
    when what was killed."""
    found = _whole(found)
    runs = defaultdict[str, list[Ended]](list)
    for of_seed in found.values():
        for name, run in of_seed.items():
            runs[name].append(run)
    last = max(run.steps[-1]["version"] for name in SHOWN for run in runs[name])
    across, down = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def at(step: float, reward: float) -> str:
        return f"{LEFT + across * step / last:.1f} {TOP + down * (1 - reward):.1f}"

    title = "A training that does not notice"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{title}: held-out reward over steps" '
        'font-family="system-ui, sans-serif" font-size="12">',
        f"<style>\n{STYLE}</style>",
        f'<rect class="ground" width="{WIDTH}" height="{HEIGHT}" rx="8"/>',
        _text(LEFT, 20, f"{title}: reward on held-out prompts, by step", ' font-weight="600"'),
        _text(LEFT, 36, _seeds(found), ' class="soft" font-size="11"'),
    ]
    for reward in (0, 0.25, 0.5, 0.75, 1):
        parts.append(f'<path class="edge" d="M{at(0, reward)}L{at(last, reward)}"/>')
        y = TOP + down * (1 - reward) + 4
        parts.append(_text(LEFT - 8, y, f"{reward:g}", ' class="soft" text-anchor="end"'))
    for step in range(0, last + 1, max(1, last // 6)):
        x = LEFT + across * step / last
        parts.append(_text(x, TOP + down + 16, str(step), ' class="soft" text-anchor="middle"'))
    labels: list[tuple[float, str]] = []
    for name in SHOWN:
        curves = [_middle(runs[name])]
        if len(found) > 1 and name != "undisturbed":
            curves += [run.curve() for run in runs[name]]
        for number, curve in enumerate(curves):
            path = "L".join(at(*point) for point in curve)
            faint = ' opacity=".3"' if number else ""
            parts.append(f'<path class="{name}" d="M{path}"{faint}/>')
        labels.append((TOP + down * (1 - curves[0][-1][1]), name))
    parts += _labels(labels, LEFT + across + 12)
    parts += _marks(runs["killed"][0], last, across, TOP + down + 28)
    return "\n".join(parts) + "\n</svg>\n"


def _middle(runs: list[Ended]) -> Curve:
    values = defaultdict[int, list[float]](list)
    for run in runs:
        for step, reward in run.curve():
            values[step].append(reward)
    return [(step, mean(found)) for step, found in sorted(values.items())]


def _labels(labels: list[tuple[float, str]], x: float) -> Iterator[str]:
    """Beside the curves' ends, and not on each other."""
    y = -math.inf
    order = list(SHOWN)
    for wish, name in sorted(
        labels, key=lambda label: (round(label[0] / 12), order.index(label[1]))
    ):
        y = max(wish, y + 32)
        words, more = SHOWN[name]
        yield f'<path class="{name}" d="M{x} {y:.1f}h22"/>'
        yield _text(x + 30, y + 4, words)
        if more:
            yield _text(x + 30, y + 17, more, ' class="soft" font-size="10"')


def _marks(run: Ended, last: int, across: float, y: float) -> Iterator[str]:
    kills = notes.read(run.folder, "kills")
    for kind in ("worker", "gateway", "redis", "trainer"):
        steps = [kill["done"] for kill in kills if kill["what"] == kind]
        ticks = "".join(f"M{LEFT + across * step / last:.1f} {y - 5:.1f}v9" for step in steps)
        yield f'<path class="mark" d="{ticks}"/>'
        yield _text(
            LEFT + across + 12, y + 4, f"{kind} killed, {len(steps)} times", ' font-size="11"'
        )
        y += 14
    ran, died = run.about["sandboxes"]
    if died:
        words = f"sandbox killed in {died} of {ran} runs"
        yield _text(LEFT + across + 12, y + 4, words, ' font-size="11"')


def _seeds(found: Found) -> str:
    same = all(equal(runs["undisturbed"], runs["killed"]) for runs in found.values())
    seeds = f"mean of {len(found)} seeds" if len(found) > 1 else "one seed"
    verdict = "the same weights, bit for bit" if same else "other weights"
    return f"{seeds}; killed and undisturbed end with {verdict}"


def _text(x: float, y: float, words: str, more: str = "") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}"{more}>{escape(words)}</text>'
