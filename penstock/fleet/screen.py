"""A fleet in a terminal: as many lines as fit, what is wrong first."""

import textwrap
import time
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Group as Lines
from rich.text import Text

from buffer.versions.publishing import Versions
from ground import visible
from penstock.fleet.history import History
from penstock.fleet.model import Fleet, Worker
from penstock.fleet.verdicts import bias, in_flight_of, limit_of, shares_of, state_of

_BLOCKS = "▁▂▃▄▅▆▇█"
_MARKS = {"no workers": ("!", "bold red"), "held back": ("!", "yellow"),
          "suspended": ("!", "yellow"), "paused": ("!", "yellow"),
          "workers are full": ("·", "")}  # fmt: skip
_Row = tuple[Sequence[Any], str]


def picture(fleet: Fleet, history: History, width: int, height: int) -> Lines:
    """The lines, none longer than the terminal is wide, no more than it is high."""
    top = [_headline(fleet, width), _pulse(fleet, history, width)]
    for note in fleet.notes[:3]:
        top += [Text(line, style="bold yellow") for line in textwrap.wrap(f"! {note}", width)[:2]]
    rooms: list[tuple[list[Text], int]] = [
        (_queues(fleet, width), 4), (_gates(fleet, width), 4), (_tasks(fleet, width), 3),
        (_versions(fleet, width), 3), (_sandboxes(fleet, width), 3),
    ]  # fmt: skip
    body: list[Text] = []
    for lines, most in rooms:
        body += _at_most(lines, most + 1)
    left = height - len(top) - len(body) - 1
    return Lines(*top, *body, *_at_most(_workers(fleet, width), max(2, left)))


def _headline(fleet: Fleet, width: int) -> Text:
    clock = time.strftime("%H:%M:%S", time.localtime(fleet.at))
    left = f"penstock · run {fleet.run} · {fleet.server.where}"
    return Text(_cut(left, width - 9).ljust(width - 9) + clock.rjust(9), style="bold")


def _pulse(fleet: Fleet, history: History, width: int) -> Text:
    rates = [point.done_per_second for point in history.points]
    last = history.points[-1]
    said = f"{last.done_per_second:g} jobs/s · {last.depth} wait · {last.running} run"
    if last.took_median is not None:
        said += f" · median {last.took_median * 1000:.0f} ms"
    line = Text(_cut(said, width))
    room = width - len(line) - 2
    if room > 8:
        line.append("  " + sparkline(rates[-room:]), style="cyan")
    return line


def sparkline(values: Sequence[float]) -> str:
    most = max(values, default=0.0)
    scale = (len(_BLOCKS) - 1) / most if most else 0.0
    return "".join(_BLOCKS[round(value * scale)] for value in values)


def _queues(fleet: Fleet, width: int) -> list[Text]:
    rows: list[_Row] = []
    for queue in fleet.queues:
        mark, style = _MARKS.get(queue.verdict, ("", ""))
        oldest = f"{queue.oldest:.0f} s" if queue.depth else ""
        rows.append(
            ((queue.name, queue.depth, queue.running, queue.workers, oldest,
              f"{mark} {queue.verdict}".strip()), style)
        )  # fmt: skip
    return _table(("QUEUE", "wait", "run", "workers", "oldest", "  "), rows, width, text={0, 5})


def _gates(fleet: Fleet, width: int) -> list[Text]:
    rows: list[_Row] = []
    for gate in fleet.gates:
        state = state_of(gate)
        style = "yellow" if not state.startswith("open") and gate.waiting else ""
        waiting = f"{gate.waiting}{shares_of(gate)}"
        rows.append(((gate.name, in_flight_of(gate), limit_of(gate), waiting, gate.granted,
                      _bar(gate.cost, gate.limit), state), style))  # fmt: skip
    headings = ("GATE", "in flight", "limit", "waiting", "granted", "", "  ")
    return _table(headings, rows, width, text={0, 5, 6})


def _bar(value: int, limit: int | None, width: int = 10) -> str:
    filled = min(width, round(width * value / limit)) if limit else 0
    return "█" * filled + "░" * (width - filled) if limit else ""


def _tasks(fleet: Fleet, width: int) -> list[Text]:
    states = ("open", "ready", "leased", "delivered", "quarantined")
    rows: list[_Row] = [
        (
            (task.name, *(task.groups.get(state, 0) for state in states),
             "" if task.mean_reward is None else f"{task.mean_reward:.3f}"),
            "red" if task.groups.get("quarantined") else "",
        )
        for task in fleet.tasks
    ]  # fmt: skip
    headings = ("GROUPS", "open", "ready", "leased", "done", "quarantined", "reward")
    return _table(headings, rows, width, text={0})


def _versions(fleet: Fleet, width: int) -> list[Text]:
    rows: list[_Row] = []
    for task in fleet.tasks:
        if now := task.versions:
            holders = ", ".join(one.instance_id or one.slot for one in now.waits_for)
            rows.append(((task.name, now.version, now.taken, by_age(now.outstanding),
                          by_age(now.ready), now.slots, now.waiting, _dropped(now), holders),
                         "yellow" if bias(task.generation_seconds) else ""))  # fmt: skip
    headings = ("VERSIONS", "now", "taken", "under way by age", "ready by age", "slots", "asks",
                "dropped", "waits for")  # fmt: skip
    return _table(headings, rows, width, text={0, 3, 4, 7, 8})


def _dropped(now: Versions) -> str:
    """`12%, most: slow 40`: the part that was dropped by policy, and the problem hit most."""
    if not now.dropped_by:
        return ""
    most = next((f", most: {name} {n}" for name, n in now.dropped.items()), "")
    return f"{now.dropped_share:.0%}{most}"


def by_age(counts: dict[int, int]) -> str:
    """`2: 5, 0: 8`, the oldest first."""
    return ", ".join(f"{age}: {n}" for age, n in sorted(counts.items(), reverse=True) if n)


def _sandboxes(fleet: Fleet, width: int) -> list[Text]:
    rows: list[_Row] = []
    for one in fleet.registries:
        new = sum(one.states.get(state, 0) for state in ("WAITING", "CREATING", "STARTING"))
        ready, ending = one.states.get("READY", 0), one.states.get("TERMINATING", 0)
        counts = one.counters
        style = "red" if one.failing else "yellow" if one.states and not one.reaper else ""
        watched = "" if one.reaper else "no reaper"
        rows.append(((one.run, new, ready, ending, one.failing, counts.get("opened", 0),
                      counts.get("reaped", 0), watched), style))  # fmt: skip
    headings = ("SANDBOXES", "starting", "ready", "ending", "failing", "opened", "reaped", "  ")
    return _table(headings, rows, width, text={0, 7})


def _workers(fleet: Fleet, width: int) -> list[Text]:
    rows: list[_Row] = [(_worker_row(one, fleet.at), _style(one)) for one in fleet.workers]
    total = sum(fleet.worker_states.values())
    return _table(
        (f"WORKERS {total}", "state", "run", "done", "failed", "masked", "since", "job"),
        rows, width, text={0, 1, 7}, total=total,
    )  # fmt: skip


def _worker_row(worker: Worker, now: float) -> Sequence[Any]:
    since = worker.job_since if worker.job else 0.0
    age = f"{now - since:.0f} s" if since else ""
    job = f"silent for {worker.silent:.0f} s" if worker.state == "dead" else worker.job
    name = worker.name if len(worker.name) <= 18 else "…" + worker.name[-17:]
    counts = worker.running, worker.finished, worker.failed, worker.masked
    return name, worker.state, *counts, age, job


def _style(worker: Worker) -> str:
    return {"dead": "bold red", "suspended": "yellow"}.get(worker.state, "")


def _table(
    headings: Sequence[str], rows: list[_Row], width: int, *, text: set[int], total: int = 0
) -> list[Text]:
    if not rows:
        return []
    shown = [[visible(str(cell)) for cell in cells] for cells, _ in rows]
    widths = [max(map(len, column)) for column in zip(headings, *shown, strict=True)]

    def laid(cells: Sequence[str]) -> str:
        put: list[Callable[[str, int], str]] = [
            str.ljust if at in text else str.rjust for at in range(len(cells))
        ]
        line = "  ".join(put[at](cell, widths[at]) for at, cell in enumerate(cells))
        return _cut(line.rstrip(), width)

    lines = [Text(laid(headings), style="dim")]
    lines += [Text(laid(cells), style=style) for cells, (_, style) in zip(shown, rows, strict=True)]
    if total > len(rows):
        lines.append(Text(f"… and {total - len(rows)} more", style="dim"))
    return lines


def _at_most(lines: list[Text], most: int) -> list[Text]:
    if len(lines) <= most:
        return lines
    return [*lines[: most - 1], Text(f"… and {len(lines) - most + 1} more", style="dim")]


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
