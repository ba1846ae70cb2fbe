"""A screen as lines of text: for one look, and for `penstock up`. Escapes in names do nothing."""

import math
from typing import Any

from ground import visible
from penstock.tables import Styled, Table, coloured
from penstock.top import model
from penstock.top.model import Block, Notes, Order, Screen, Text, fitting, sentence

_STYLES: dict[str, dict[str, Any]] = {
    "bad": {"fg": "red", "bold": True}, "warn": {"fg": "yellow"}, "well": {"fg": "green"},
    "heading": {"bold": True}, "dim": {"dim": True},
}  # fmt: skip


def lines_of(screen: Screen, width: float, height: float = math.inf) -> list[str]:
    """All of them, in colours; a bounded screen is made for so many."""
    blocks = fitting(screen, Order(), width, height)
    return [line for block in blocks for line in _lines(block, width)]


def _lines(block: Block, width: float) -> list[str]:
    match block:
        case Notes(rows):
            return [
                _styled(line, row.style) for row in rows for line in sentence(row, block, width)
            ]
        case Text(heading, text, style):
            return [
                "",
                _styled(heading, "heading"),
                *(_styled(one, style) for one in text.split("\n")),
            ]
        case model.Table(columns, rows, whole, total):
            figures = {one.heading for one in columns if one.kind == "figure"}
            table = Table(*(one.heading for one in columns), right=figures, whole=figures)
            for row in rows:
                table.add(*(Styled(cell, _STYLES.get(row.style, {})) for cell in row.shown))
            more = total - len(rows)
            left = [_styled(f"… and {more:,} more{whole}", "dim")] if more > 0 else []
            return [*table.lines(width), *left]


def _styled(said: str, style: str) -> str:
    return coloured(Styled(visible(said), _STYLES.get(style, {})))
