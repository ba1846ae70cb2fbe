"""The five workloads of docs/inside/benchmarks.md: their table, their picture, and where
Penstock is behind. All figures are those of the reports in docs/tools/figures/.

Each figure is the median of a run's rounds. A ratio is given as how many times better Penstock
was, with what the two ends of both spreads would make of it.
"""

import json
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FIGURES = HERE / "figures"
PICTURE = HERE.parent / "pictures" / "workloads.svg"

Spread = dict[str, float]


@dataclass(frozen=True)
class Workload:
    title: str
    suite: str
    metric: str
    contender: str
    peers: tuple[str, ...]
    command: str
    settings: str

    @property
    def report(self) -> dict[str, Any]:
        return read(self.suite)

    def spread(self, contender: str) -> Spread:
        found: Spread = self.report["results"][contender][self.metric]
        return found


WORKLOADS = (
    Workload("Tool calls, 64 callers", "tool", "calls/s, 64", "penstock tool", ("ray",),
             "python -m bench tool", "programs that do nothing; limit 128; one worker process"),
    Workload("Start of an isolated program", "sandbox", "start_p50_ms", "penstock",
             ("plain python -c", "bubblewrap"), "python -m bench sandbox",
             "`print(1)` at level `ns`; plain Python has no isolation, bubblewrap no call filter"),
    Workload("Buffer writes over HTTP", "buffer", "writes/s", "one server",
             ("slime v0", "slime v1"), "python -m bench buffer --peer slime-v0=… --peer slime-v1=…",
             "32 connections; items of 2.2 kB in groups of 8; only Penstock writes to a disk"),
    Workload("Round trip on the queue", "queue", "round trip ms, p50", "penstock client",
             ("rq client", "rq simple client"), "python -m bench queue",
             "one job at a time; RQ with its `Worker`, and with its `SimpleWorker`"),
    Workload("Hand-over of a permit", "gates", "hand-over ms, p50", "penstock",
             ("ray", "redis-py locks", "redis-rate-limiters"), "python -m bench gates",
             "from `release` in one process to `acquire` in another; Valkey with its file on disk"),
)  # fmt: skip

# Who stands for Penstock and who is a peer, per suite; and pairs that are not compared.
SIDES = {
    "gates": (("penstock",), ("ray", "redis-py locks", "redis-rate-limiters")),
    "queue": (("penstock",), ("rq", "rq simple", "saq", "arq", "taskiq", "dramatiq", "huey")),
    "queue, client": (("penstock client",), ("rq client", "rq simple client")),
    "buffer": (("one server",), ("slime v0", "slime v1")),
    "buffer, 2,000 pending": (
        ("one server, 2,000 pending",), ("slime v0, 2,000 pending", "slime v1, 2,000 pending"),
    ),
    "tool": (("penstock tool",), ("ray",)),
    "sandbox": (("penstock",), ("plain python -c", "bubblewrap")),
    "sessions": (("session",), ("subprocess", "unshare")),
    "judge": (("judge",), ("plain", "verl client", "prime_code", "scalebox")),
    "limits, 8 processes": (
        ("penstock, 8 processes",), ("inspect_ai, 8 processes", "static, 8 processes"),
    ),
    "limits, 64 processes": (("penstock, 64 processes",), ("inspect_ai, 64 processes",)),
    "limits, quota": (("penstock, quota",), ("inspect_ai, quota",)),
    "starts, even load": (("fleet gate, even",), ("share a worker, even",)),
}  # fmt: skip
# Why each is so. One that is behind and has no reason here ends `make docs`.
REASONS = {
    ("gates", "hand-over ms"): "It blocks one connection per waiter, and has no leases.",
    ("gates", "hand-over CPU %"): "Its waiters sleep for 0.1 s between two tries.",
    ("queue", "noop memory MB"): "Growth of the worker's memory. RQ runs one job at a time.",
    ("queue", "wait memory MB"): "Growth of the worker's memory, with 256 jobs at once.",
    ("buffer", "read ms per 1,000 items"): "Items come from Redis; slime's are in its memory.",
    ("sandbox", "cpu"): "It does not wait for its program, whose time is missing.",
    ("sessions", "first output"): "A plain process of the machine: it isolates nothing.",
    ("judge", "python"): "It isolates no program, and six cases share a process.",
    ("judge", "cpp iostream"): "It isolates no program.",
    ("judge", "go"): "It isolates no program, and Go keeps its compiled packages.",
    ("limits", "goodput"): "Many more of its requests are refused, so the service is always full.",
    ("limits", "refused %"): "A fixed limit just below the capacity is never refused there.",
    ("limits", "s to settle"): "A fixed limit just below the capacity has nothing to find.",
    ("starts", "simulated s"): "With an even load, a fixed share per worker is never too small.",
}  # fmt: skip


def read(suite: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((FIGURES / f"{suite.partition(',')[0]}.json").read_text())
    return report


def main() -> None:
    PICTURE.write_text(drawn())


def table() -> str:
    rows = [
        f"| {one.title} | {_figure(one, one.contender)} | {peer}: {_figure(one, peer)} "
        f"| {_times(one, peer)} |"
        for one in WORKLOADS
        for peer in one.peers
    ]
    return _lines("Workload | Penstock | Peer | Times better", rows)


def settings() -> str:
    rows = [
        f"| {one.title} | {one.settings} | {versions(one)} | `{one.command}` |" for one in WORKLOADS
    ]
    return _lines("Workload | Settings | Peers | Command", rows)


def _lines(head: str, rows: list[str]) -> str:
    below = "|".join(["---"] * (head.count("|") + 1))
    return "\n".join([f"| {head} |", f"|{below}|", *rows, ""])


def versions(one: Workload) -> str:
    conditions = one.report["conditions"]
    known = {name: pins[0].replace("==", " ") for name, pins in conditions.get("peers", {}).items()}
    known |= {"redis-py locks": f"redis-py {conditions['redis-py']}"}
    known |= dict.fromkeys(("rq client", "rq simple client"), f"RQ {conditions['rq']}")
    known |= {"slime v0": "slime 3db3545cd", "slime v1": "slime 624b824a8"}
    known |= {"plain python -c": f"Python {conditions['python']}"}
    return ", ".join(dict.fromkeys(known.get(peer, peer) for peer in one.peers))


def behind() -> str:
    """Every shared metric in which the best peer's median is better than Penstock's."""
    rows = []
    for part, (own, peers) in SIDES.items():
        results = read(part)["results"]
        for metric in results[own[0]]:
            mine = results[own[0]][metric]
            others = {peer: results[peer][metric] for peer in peers if metric in results[peer]}
            if not others:
                continue
            best = _best(metric, others)
            if _beats(metric, others[best]["median"], mine["median"]):
                rows.append(
                    f"| {part}: {metric} | {_spread(mine)} | {best}: {_spread(others[best])} "
                    f"| {_reason(part, metric)} |"
                )
    return _lines("Metric | Penstock | Best peer | Why", rows)


def _reason(part: str, metric: str) -> str:
    suite = part.partition(",")[0]
    for (of, begin), reason in REASONS.items():
        if of == suite and metric.startswith(begin):
            return reason
    raise LookupError(f"{part}: {metric}: behind a peer, and REASONS does not say why")


def _more_is_better(metric: str) -> bool:
    return any(word in metric for word in ("/s", "per_second", "ok %", "goodput"))


def _beats(metric: str, one: float, other: float) -> bool:
    return one > other if _more_is_better(metric) else one < other


def _best(metric: str, spreads: dict[str, Spread]) -> str:
    choose = max if _more_is_better(metric) else min
    return choose(spreads, key=lambda name: spreads[name]["median"])


def _times(one: Workload, peer: str) -> str:
    own, other = one.spread(one.contender), one.spread(peer)
    over, under = (own, other) if _more_is_better(one.metric) else (other, own)
    middle = over["median"] / under["median"]
    least, most = over["min"] / under["max"], over["max"] / under["min"]
    return f"**{middle:.2g}** ({least:.2g}–{most:.2g})"


def _figure(one: Workload, contender: str) -> str:
    return f"{_spread(one.spread(contender))} {_unit(one.metric)}"


def _unit(metric: str) -> str:
    return metric.partition(",")[0] if "/s" in metric else "ms"


def _spread(spread: Spread) -> str:
    median, least, most = (number(spread[name]) for name in ("median", "min", "max"))
    return median if least == most else f"{median} ({least}–{most})"


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def drawn() -> str:
    """A panel for each workload: bars of medians, lines from the least to the most."""
    rows, y = list[str](), 6
    for one in WORKLOADS:
        y += 24
        better = "more is better" if _more_is_better(one.metric) else "less is better"
        rows.append(_text(10, y, f"{one.title}, {_unit(one.metric)}", ' font-weight="600"'))
        rows.append(_text(710, y, better, ' fill="#666" text-anchor="end"'))
        names = (one.contender, *one.peers)
        most = max(one.spread(name)["max"] for name in names)
        for name in names:
            y += 19
            rows.append(
                _bar(y, "Penstock" if name == one.contender else name, one.spread(name), most)
            )
        y += 6
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 {y + 12}" '
        'font-family="system-ui, sans-serif" font-size="12" fill="#222">\n'
        f'<rect width="720" height="{y + 12}" rx="8" fill="#fff"/>\n'
        + "\n".join(rows)
        + "\n</svg>\n"
    )


def _bar(y: int, name: str, spread: Spread, most: float) -> str:
    left, scale = 170, 420 / most
    width, low, high = (spread[which] * scale for which in ("median", "min", "max"))
    colour = "#2f7d4f" if name == "Penstock" else "#9aa7b5"
    return (
        _text(10, y, name)
        + f'<rect x="{left}" y="{y - 10}" width="{width:.1f}" height="12" rx="2" fill="{colour}"/>'
        + f'<path d="M{left + low:.1f} {y - 4}H{left + high:.1f}" stroke="#222"/>'
        + _text(left + int(max(width, high)) + 8, y, number(spread["median"]))
    )


def _text(x: int, y: int, words: str, more: str = "") -> str:
    return f'<text x="{x}" y="{y}"{more}>{escape(words)}</text>'


if __name__ == "__main__":
    main()
