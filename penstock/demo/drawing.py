"""The picture of a demo: queue, permits and groups over time; one file that loads nothing."""

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
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'font-family="system-ui, sans-serif" font-size="12" role="img" '
        f'aria-label="Queue, permits and groups while the demo ran">'
        f'<rect width="100%" height="100%" fill="#fff"/>'
        f'<text x="{_LEFT}" y="24" font-size="15" font-weight="600">penstock demo</text>'
        + "".join(body)
        + "</svg>\n"
    )


def page(record: Record, told: Sequence[tuple[str, str]]) -> str:
    """The picture above what the demo told at its end, as a page for a browser."""
    rows = "".join(f"<tr><th>{escape(n)}</th><td>{escape(what)}</td></tr>" for n, what in told)
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>penstock demo</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<style>body{max-width:48rem;margin:auto;padding:1rem;font:15px/1.5 system-ui,sans-serif;"
        "background:#fff;color:#16181d}th{text-align:right;padding-right:1rem}</style>"
        f"<body>{drawn(record)}<table>{rows}</table></body></html>\n"
    )


def _panel(record: Record, title: str, lines: Sequence[_Line], top: int, seconds: float) -> str:
    most = max([1.0, *(read(s) for s in record.samples for _, read in lines)]) * 1.1
    right = _WIDTH - _RIGHT

    def x(at: float) -> float:
        return _LEFT + (right - _LEFT) * max(0.0, at) / seconds

    def y(value: float) -> float:
        return top + _PANEL * (1 - value / most)

    parts = [
        f'<rect x="{_LEFT}" y="{top}" width="{right - _LEFT}" height="{_PANEL}" fill="#f6f7f9"/>',
        f'<text x="{_LEFT - 8}" y="{top + 12}" text-anchor="end">{most / 1.1:g}</text>',
        f'<text x="{_LEFT - 8}" y="{top + _PANEL}" text-anchor="end">0</text>',
        f'<text x="{_LEFT}" y="{top - 5}" font-weight="600">{title}</text>',
        f'<text x="{right}" y="{top + _PANEL + 14}" text-anchor="end">{seconds:.1f} s</text>',
    ]
    for at, what in record.events:
        parts.append(
            f'<line x1="{x(at):.1f}" x2="{x(at):.1f}" y1="{top}" y2="{top + _PANEL}" '
            f'stroke="#b00020" stroke-dasharray="1 3"><title>{escape(what)}</title></line>'
        )
        if title == "jobs":
            anchor = "end" if x(at) > right - 150 else "start"
            row = top + 12 * (len(parts) % 3 + 1)
            parts.append(
                f'<text x="{x(at):.1f}" y="{row}" fill="#b00020" text-anchor="{anchor}">'
                f"{escape(what)}</text>"
            )
    for at, (name, read) in enumerate(lines):
        points = " ".join(f"{x(s.at):.1f},{y(read(s)):.1f}" for s in record.samples)
        stroke = f'stroke="{_COLOURS[at]}" stroke-width="2" stroke-dasharray="{_DASHES[at]}"'
        label, key = top + 16 + at * 18, f'x1="{right + 10}" x2="{right + 34}"'
        parts += [
            f'<polyline fill="none" {stroke} points="{points}"/>',
            f'<line {key} y1="{label - 4}" y2="{label - 4}" {stroke}/>',
            f'<text x="{right + 40}" y="{label}">{name}</text>',
        ]
    return "".join(parts)
