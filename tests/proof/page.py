"""The page of a run, one HTML file that asks the network for nothing, and its summary as text.

The promises are the matrix of docs/reference/guarantees.md. Each cell gets its chances to be
broken, and how often it was.
"""

import html
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from tests.harness.nursery import ROOT
from tests.proof.account import Accounts, Thing
from tests.proof.schedule import COLUMN

GUARANTEES = ROOT / "docs/reference/guarantees.md"
# Promises of other pages that the accounts look at, too.
MORE = {
    "Turn": "an answer that an agent had is in its session's log, once, and trained on once",
    "Version": "versions never go back, and no group is older than the policy allows",
}
CALM = "No disturbance"
NOT_HERE = "Last second lost"  # each acknowledged write is on the disk, and at the replica
SHOWN = 100  # faults; the journals have all of them
SERIES = {
    "turns": ("has an answer", "#2563eb"), "results of programs": ("has a result", "#d97706"),
    "permits": ("has a permit", "#059669"), "batches": ("acknowledged", "#7c3aed"),
}  # fmt: skip
COLOURS = {
    "Process killed": "#dc2626", "Process frozen": "#0891b2", "Redis restarted": "#ea580c",
    "Failover": "#9333ea", "Network cut": "#65a30d", "Disk full": "#78716c",
    "Clock jumped": "#db2777",
}  # fmt: skip
WIDTH, HEIGHT = 960, 220
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2em auto; }
table { border-collapse: collapse; width: 100%; }
th, td { border: 1px solid #d4d4d8; padding: .3em .5em; text-align: left; vertical-align: top; }
th { background: #f4f4f5; } th i { font-weight: normal; } td b { font-size: 17px; }
small { color: #52525b; display: block; font-weight: normal; } .n { text-align: right; }
.ok { color: #15803d; } .bad { color: #b91c1c; }
svg { width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: #52525b; }
"""


def promises() -> dict[str, dict[str, str]]:
    """The matrix: by object and event, what is promised."""
    lines = GUARANTEES.read_text().splitlines()
    start = next(n for n, line in enumerate(lines) if "| Process killed |" in line)
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start:]]
    table = cells[2 : next(n for n, row in enumerate(cells) if row == [""])]
    plain = re.compile(r"\[([^]]*)\]\([^)]*\)")
    return {
        plain.sub(r"\1", row[0]): {
            event: plain.sub(r"\1", cell).replace("`", "")
            for event, cell in zip(cells[0][1:], row[1:], strict=True)
        }
        for row in table
    }


def counted(found: Accounts) -> tuple[Counter[tuple[str, str]], Counter[tuple[str, str]]]:
    """Chances and breaks, by kind of thing and column. A break counts in each of its columns."""
    chances, breaks = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for thing in found.things:
        columns = found.columns_of(thing) or [CALM]
        chances.update((thing.kind, column) for column in columns)
        if thing.fault:
            breaks.update((thing.kind, column) for column in set(columns))
    return chances, breaks


def summary(found: Accounts) -> str:
    return "\n".join(_lines(found))


def _lines(found: Accounts) -> Iterator[str]:
    chances, breaks = counted(found)
    kinds = [*promises(), *MORE]
    columns = [*dict.fromkeys(COLUMN.values()), CALM]
    hits = Counter(hit.kind for hit in found.hits)
    yield f"{found.ended - found.began:.0f} s, {len(found.hits)} disturbances: " + ", ".join(
        f"{kind} {count}" for kind, count in hits.most_common()
    )
    width = max(map(len, columns)) + 2
    yield "chances to be broken".ljust(24) + "".join(column.rjust(width) for column in columns)
    for kind in kinds:
        row = ""
        for column in columns:
            broken = breaks[kind, column]
            cell = f"{chances[kind, column]:,}" + (f" ({broken} BROKEN)" if broken else "")
            row += cell.rjust(width)
        count = sum(thing.kind == kind for thing in found.things)
        yield f"{kind} ({count:,})".ljust(24) + row
    for note, count in sorted(found.notes.items()):
        yield f"{note}: {count:,}"
    for thing in found.faults[:SHOWN]:
        yield f"BROKEN: {said(thing, found)}"
    yield f"broken promises: {len(found.faults)}"


def said(thing: Thing, found: Accounts) -> str:
    seconds = thing.began - found.began
    under = ", ".join(sorted(set(found.columns_of(thing)))) or CALM
    return f"{thing.kind} {thing.name} of {thing.who}, at {seconds:.1f} s ({under}): {thing.fault}"


def written(found: Accounts, seed: int) -> str:
    """The page."""
    verdict = f"Broken promises: {len(found.faults)}"
    notes = "".join(
        f"<tr><td>{html.escape(note)}</td><td class=n>{count:,}</td></tr>"
        for note, count in sorted(found.notes.items())
    )
    faults = "".join(f"<li>{html.escape(said(each, found))}</li>" for each in found.faults[:SHOWN])
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Penstock: proof</title><style>
{STYLE}</style></head><body>
<h1>Proof</h1>
<p class={"bad" if found.faults else "ok"}><b>{verdict}</b></p>
<p>{found.ended - found.began:,.0f} seconds, {len(found.hits):,} disturbances, {len(found.things):,}
things accounted for. <code>make proof SEED={seed}</code> draws the same disturbances again.</p>
<h2>Chances to be broken, and breaks</h2>
<p>A chance is one disturbance that fell into the time of one permit, job, result or other thing,
and hit Redis or a process that had to do with it. Below it is the promise, in the words of
docs/reference/guarantees.md.</p>
{_matrix(found)}
{"<h2>Broken promises</h2><ul>" + faults + "</ul>" if faults else ""}
<h2>Throughput, and disturbances</h2>{_throughput(found)}{_disturbances(found)}
<h2>Also counted</h2><table>{notes}</table>
</body></html>
"""


def _matrix(found: Accounts) -> str:
    chances, breaks = counted(found)
    table = promises()
    events = [*next(iter(table.values())), "Disk full", "Clock jumped", CALM]
    rows = []
    for kind in [*table, *MORE]:
        count = sum(thing.kind == kind for thing in found.things)
        row = f"<th>{kind} <i>({count:,})</i><small>{MORE.get(kind, '')}</small></th>"
        for event in events:
            promise = html.escape(table.get(kind, {}).get(event, ""))
            broken = breaks[kind, event]
            told = f"<span class=bad> {broken:,} broken</span>" if broken else ""
            figure = "see its tests" if event == NOT_HERE else f"<b>{chances[kind, event]:,}</b>"
            row += f"<td>{figure}{told}<small>{promise}</small></td>"
        rows.append(f"<tr>{row}</tr>")
    head = "".join(f"<th>{event}</th>" for event in events)
    return f"<table><tr><th></th>{head}</tr>{''.join(rows)}</table>"


def _throughput(found: Accounts) -> str:
    """Per second, each point the mean of a hundredth of the run."""
    length = found.ended - found.began
    bins = max(1, min(100, int(length)))
    curves = {}
    for name, (what, _) in SERIES.items():
        counts = Counter(
            min(bins - 1, int((line["at"] - found.began) / length * bins))
            for _, line in found.of(what)
        )
        curves[name] = [counts[n] * bins / length for n in range(bins)]
    top = max(1.0, *(max(curve) for curve in curves.values()))
    drawn = []
    for n, (name, curve) in enumerate(curves.items()):
        colour = SERIES[name][1]
        points = " ".join(
            f"{40 + (at + 0.5) * (WIDTH - 50) / bins:.1f},"
            f"{HEIGHT - 25 - value / top * (HEIGHT - 55):.1f}"
            for at, value in enumerate(curve)
        )
        drawn.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
        )
        x = 45 + n * 210
        drawn.append(f'<rect x="{x}" y="4" width="12" height="12" fill="{colour}"/>')
        drawn.append(f'<text x="{x + 18}" y="15">{name} per second</text>')
    axis = [f'<text x="0" y="34">{top:.0f}</text><text x="0" y="{HEIGHT - 25}">0</text>']
    return _svg([*axis, *drawn, *_seconds(length, HEIGHT)], HEIGHT)


def _disturbances(found: Accounts) -> str:
    """A row for each target, a bar for each disturbance."""
    targets = sorted({hit.target for hit in found.hits})
    length, drawn = found.ended - found.began, []
    height = 25 + 16 * len(targets) + 30
    for n, target in enumerate(targets):
        y = 30 + 16 * n
        drawn.append(f'<text x="0" y="{y + 10}">{target}</text>')
        drawn.append(f'<path d="M90 {y + 6}H{WIDTH - 10}" stroke="#e4e4e7"/>')
    for hit in found.hits:
        x = 90 + (hit.began - found.began) / length * (WIDTH - 100)
        width = max(2.0, (hit.ended - hit.began) / length * (WIDTH - 100))
        drawn.append(
            f'<rect x="{x:.1f}" y="{30 + 16 * targets.index(hit.target)}" width="{width:.1f}"'
            f' height="12" fill="{COLOURS[COLUMN[hit.kind]]}"><title>{hit.kind}</title></rect>'
        )
    for n, (column, colour) in enumerate(COLOURS.items()):
        x = 90 + n * 120
        drawn.append(f'<rect x="{x}" y="4" width="12" height="12" fill="{colour}"/>')
        drawn.append(f'<text x="{x + 18}" y="15">{column}</text>')
    return _svg([*drawn, *_seconds(length, height, 90)], height)


def _seconds(length: float, height: int, left: int = 40) -> Iterator[str]:
    for n in range(5):
        x = left + n / 4 * (WIDTH - left - 10)
        anchor = "end" if n == 4 else "middle" if n else "start"
        place = f'x="{x:.0f}" y="{height - 6}" text-anchor="{anchor}"'
        yield f"<text {place}>{n / 4 * length:.0f} s</text>"


def _svg(parts: Sequence[str], height: int) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img">{"".join(parts)}</svg>'
