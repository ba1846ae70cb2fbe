"""Draw docs/pictures/processes.svg: which processes there are, and what passes between them.

What a box says is the first sentence of its command or class, and a port is its setting's
default. The picture has a background of its own, and is dark for readers who prefer that.
"""

import textwrap
from dataclasses import dataclass
from html import escape
from pathlib import Path

import click

from buffer import RolloutBuffer
from buffer.settings import BufferSettings
from penstock.cli import command
from penstock.settings import MonitorSettings
from worker import CodeQueue

PICTURE = Path(__file__).parents[1] / "pictures" / "processes.svg"
WIDTH, HEIGHT = 960, 724
PAD, LINE, LETTER = 14, 18, 7
STYLE = """\
svg { --ground: #fff; --ink: #222; --soft: #555; --edge: #999; --penstock: #e8eefc;
      --yours: #f3f3f3; --redis: #fde8e4; --way: #666 }
@media (prefers-color-scheme: dark) {
  svg { --ground: #181a1f; --ink: #e6e6e6; --soft: #b4b8c0; --edge: #6b7280; --penstock: #22304f;
        --yours: #2a2d34; --redis: #4a2620; --way: #9aa3b2 }
}
.ground { fill: var(--ground) } .ink { fill: var(--ink) } .soft { fill: var(--soft) }
.penstock { fill: var(--penstock) } .yours { fill: var(--yours) } .redis { fill: var(--redis) }
rect { stroke: var(--edge) } .ground { stroke: none }
.way { stroke: var(--way); stroke-width: 1.5; fill: none } .tip { fill: var(--way) }
"""


@dataclass(frozen=True)
class Box:
    title: str
    says: str
    x: int
    y: int
    width: int
    height: int
    kind: str = "penstock"


@dataclass(frozen=True)
class Way:
    """An arrow along corners, with a tip at its end, or at both."""

    path: str
    label: str
    x: int
    y: int
    both: bool = True


def main() -> None:
    PICTURE.write_text(drawn())


def boxes() -> list[Box]:
    buffer, monitor = BufferSettings.model_fields, MonitorSettings.model_fields
    ports = buffer["buffer_port"].default, monitor["monitor_port"].default
    trainer = " ".join(f"{it.__name__}: {_first(it.__doc__)}" for it in (CodeQueue, RolloutBuffer))
    return [
        Box("your trainer, its agent loops", trainer, 20, 20, 440, 86, "yours"),
        Box("your agents and generators", "They write trajectories, from any host.",
            500, 20, 440, 86, "yours"),
        Box(f"penstock buffer serve, port {ports[0]}", _help("buffer", "serve"),
            500, 186, 440, 78),
        Box("Redis or Valkey", "queues, jobs and results · gates and permits · groups and batches ·"
            " records of session sandboxes. Everything that must survive is here.",
            20, 338, 920, 80, "redis"),
        Box("penstock worker, as many as you like", _help("worker"), 20, 492, 380, 78),
        Box(f"penstock monitor, port {ports[1]}", _help("monitor"), 640, 492, 300, 78),
        Box("penstock sandbox serve", _help("sandbox", "serve"), 20, 636, 380, 78),
        Box("session sandboxes", "Jails on this machine, Modal, or a provider of your own.",
            460, 636, 300, 78),
    ]  # fmt: skip


def ways() -> list[Way]:
    return [
        Way("M100 106V338", "programs, results, permits", 110, 232),
        Way("M330 106V338", "batches", 340, 302),
        Way("M410 106V224H500", "or over HTTP", 420, 168),
        Way("M720 106V186", "trajectories over HTTP", 730, 157, both=False),
        Way("M720 264V338", "groups", 730, 306),
        Way("M100 418V492", "jobs with permits, heartbeats, results", 110, 460),
        Way("M790 492V418", "reads", 800, 460, both=False),
        Way("M100 570V636", "programs over HTTP, or embedded", 110, 608),
        Way("M400 530H560V636", "commands", 570, 590),
    ]


def _help(*words: str) -> str:
    found: click.Command | None = command
    for word in words:
        group = found if isinstance(found, click.Group) else None
        found = group.get_command(click.Context(group), word) if group else None
    return _first(found and found.help)


def _first(text: str | None) -> str:
    if not text:
        raise LookupError("a box of the picture needs a sentence")
    sentence = " ".join(text.strip().partition("\n\n")[0].split()).partition(". ")[0]
    return sentence.rstrip(".:") + "."


def drawn() -> str:
    shown = [*(_way(one) for one in ways()), *(_box(one) for one in boxes())]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT + 10}" '
        'font-family="system-ui, sans-serif" font-size="13">\n'
        f"<style>\n{STYLE}</style>\n"
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
        'markerHeight="8" orient="auto-start-reverse"><path class="tip" d="M0 0L8 4L0 8z"/>'
        "</marker></defs>\n"
        f'<rect class="ground" width="{WIDTH}" height="{HEIGHT + 10}" rx="8"/>\n'
        + "\n".join(shown)
        + "\n</svg>\n"
    )


def _box(box: Box) -> str:
    lines = textwrap.wrap(box.says, (box.width - 2 * PAD) // LETTER)
    if (len(lines) + 1) * LINE + PAD > box.height:
        raise ValueError(f"{box.title}: {len(lines)} lines are too many for its box: {box.says}")
    texts = [
        f'<text class="ink" x="{box.x + PAD}" y="{box.y + PAD + 12}" font-size="15" '
        f'font-weight="600">{escape(box.title)}</text>'
    ]
    for n, line in enumerate(lines, 1):
        at = f'x="{box.x + PAD}" y="{box.y + PAD + 12 + LINE * n}"'
        texts.append(f'<text class="soft" {at}>{escape(line)}</text>')
    return (
        f'<rect class="{box.kind}" x="{box.x}" y="{box.y}" width="{box.width}" '
        f'height="{box.height}" rx="8"/>\n' + "\n".join(texts)
    )


def _way(way: Way) -> str:
    start = ' marker-start="url(#tip)"' if way.both else ""
    return (
        f'<path class="way" d="{way.path}"{start} marker-end="url(#tip)"/>\n'
        f'<text class="soft" x="{way.x}" y="{way.y}">{escape(way.label)}</text>'
    )


if __name__ == "__main__":
    main()
