"""The moving picture of a demo: queue, permits and groups over time; one file that loads nothing.

It shows the run as fast as it was, again and again, or still to who wants no motion.
"""

from collections.abc import Callable, Sequence
from html import escape

from penstock.demo.record import Record, Sample

_WIDTH, _PANEL, _LEFT, _RIGHT, _TOP = 760, 120, 60, 180, 46
_COLOURS = ("#0072b2", "#b25a00", "#00795a")
_DASHES = ("", "6 4", "2 3")
_Line = tuple[str, Callable[[Sample], float]]


def drawn(record: Record) -> str:
    """Three panels over one axis of seconds, with what happened marked in each."""
    seconds = max((sample.at for sample in record.samples), default=1.0) or 1.0
    panels: list[tuple[str, list[_Line]]] = [
        ("jobs", [("waiting in the queue", lambda s: s.waiting)]),
        ("permits", [("in flight", lambda s: s.in_flight), ("the limit", lambda _: record.limit)]),
        ("groups", [("open", lambda s: s.open), ("ready", lambda s: s.ready),
                    ("delivered", lambda s: s.delivered)]),
    ]  # fmt: skip
    body = [
        _panel(record, title, lines, _TOP + row * (_PANEL + 40), seconds)
        for row, (title, lines) in enumerate(panels)
    ]
    height = _TOP + len(panels) * (_PANEL + 40) + 10
    past = f'x="{_LEFT}" y="0" width="{_WIDTH - _RIGHT - _LEFT}" height="{height}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'font-family="system-ui, sans-serif" font-size="12" role="img" '
        f'aria-label="Queue, permits and groups while the demo ran">'
        f"<style>{_moving(seconds)}</style>"
        f'<clipPath id="past"><rect class="past" {past}/></clipPath>'
        f'<rect width="100%" height="100%" fill="#fff"/>'
        f'<text x="{_LEFT}" y="24" font-size="15" font-weight="600">penstock demo</text>'
        + "".join(body)
        + "</svg>\n"
    )


def _moving(seconds: float) -> str:
    """The drawing stands whole for a fifth of the time, also at first: a still of it shows all."""
    return (
        "@keyframes past{0%,20%,100%{transform:none}20.1%{transform:scaleX(0)}}"
        "@media (prefers-reduced-motion:no-preference){.past{"
        f"transform-origin:{_LEFT}px 0;animation:past {seconds / 0.8:.1f}s linear infinite}}}}"
    )


def page(record: Record, told: Sequence[tuple[str, str]]) -> str:
    """The picture above the demo's final figures, as a page for a browser."""
    rows = "".join(f"<tr><th>{escape(n)}</th><td>{escape(what)}</td></tr>" for n, what in told)
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>penstock demo</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<style>body{max-width:48rem;margin:auto;padding:1rem;font:15px/1.5 system-ui,sans-serif;"
        "background:#fff;color:#16181d}th{text-align:right;padding-right:1rem}</style>"
        f"<body>{drawn(record)}<table>{rows}</table></body></html>\n"
    )


class _Panel:
    """A diagram of the picture: where a moment and a value stand in it."""

    right = _WIDTH - _RIGHT

    def __init__(self, top: int, seconds: float, most: float) -> None:
        self.top = top
        self.bottom = top + _PANEL
        self.seconds = seconds
        self.most = most

    def x(self, at: float) -> float:
        return _LEFT + (self.right - _LEFT) * max(0.0, at) / self.seconds

    def y(self, value: float) -> float:
        return self.top + _PANEL * (1 - value / self.most)

    def frame(self, title: str) -> str:
        top, bottom, right = self.top, self.bottom, self.right
        size = f'width="{right - _LEFT}" height="{_PANEL}"'
        return (
            f'<rect x="{_LEFT}" y="{top}" {size} fill="#f6f7f9"/>'
            f'<text x="{_LEFT - 8}" y="{top + 12}" text-anchor="end">{self.most / 1.1:g}</text>'
            f'<text x="{_LEFT - 8}" y="{bottom}" text-anchor="end">0</text>'
            f'<text x="{_LEFT}" y="{top - 5}" font-weight="600">{title}</text>'
            f'<text x="{right}" y="{bottom + 14}" text-anchor="end">{self.seconds:.1f} s</text>'
        )

    def mark(self, at: float, what: str) -> str:
        """A moment, named where the mouse rests on it."""
        x = f"{self.x(at):.1f}"
        return (
            f'<line clip-path="url(#past)" x1="{x}" x2="{x}" y1="{self.top}" y2="{self.bottom}" '
            f'stroke="#b00020" stroke-dasharray="1 3"><title>{escape(what)}</title></line>'
        )

    def caption(self, at: float, what: str, row: int) -> str:
        """The name of a moment next to its mark, in one of three rows."""
        x, y = self.x(at), self.top + 12 * (row + 1)
        anchor = "end" if x > self.right - 150 else "start"
        return (
            f'<text clip-path="url(#past)" x="{x:.1f}" y="{y}" fill="#b00020" '
            f'text-anchor="{anchor}">{escape(what)}</text>'
        )

    def curve(self, samples: Sequence[Sample], line: _Line, number: int) -> str:
        name, read = line
        points = " ".join(f"{self.x(s.at):.1f},{self.y(read(s)):.1f}" for s in samples)
        dashes, colour = _DASHES[number], _COLOURS[number]
        stroke = f'stroke="{colour}" stroke-width="2" stroke-dasharray="{dashes}"'
        label, key = self.top + 16 + number * 18, f'x1="{self.right + 10}" x2="{self.right + 34}"'
        return (
            f'<polyline clip-path="url(#past)" fill="none" {stroke} points="{points}"/>'
            f'<line {key} y1="{label - 4}" y2="{label - 4}" {stroke}/>'
            f'<text x="{self.right + 40}" y="{label}">{name}</text>'
        )


def _panel(record: Record, title: str, lines: Sequence[_Line], top: int, seconds: float) -> str:
    most = max([1.0, *(read(s) for s in record.samples for _, read in lines)]) * 1.1
    panel = _Panel(top, seconds, most)
    parts = [panel.frame(title)]
    for number, (at, what) in enumerate(record.events):
        parts.append(panel.mark(at, what))
        if title == "jobs":
            parts.append(panel.caption(at, what, number * 2 % 3))
    parts += [panel.curve(record.samples, line, number) for number, line in enumerate(lines)]
    return "".join(parts)
