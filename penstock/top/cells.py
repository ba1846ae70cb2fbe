"""Textual's widgets get these cells: text without power over the terminal, and of a width.

Names, code and outputs are other people's. No character here moves a cursor, has no width, or
is read as markup. Figures are never pushed off by a long name.
"""

import unicodedata
from collections.abc import Sequence

from rich.cells import set_cell_size
from rich.text import Text as RichText
from textual.widget import Widget
from textual.widgets import DataTable, Static

from ground import visible
from penstock import tables
from penstock.tables import cells_of
from penstock.top.model import Block, Column, Text

STYLES = {
    "bad": "bold red", "warn": "yellow", "well": "green", "dim": "dim", "heading": "bold",
    "title": "bold",
}  # fmt: skip
_LEAST = 6  # cells of a column in which something gave way
_LONGEST = 2000  # characters of one cell or line: nobody's screen is wider


def harmless(said: str) -> str:
    """The text on one line, of characters that only take their place."""
    line = said[:_LONGEST]
    if line.isascii() and line.isprintable():
        return line
    line = unicodedata.normalize("NFC", visible(line.replace("\t", "    ").replace("\n", " ")))
    return "".join(
        one if one.isprintable() and cells_of(one) else f"\\u{ord(one):04x}" for one in line
    )


def widget(block: Block) -> Widget:
    if isinstance(block, Text):
        return Static(markup=False)
    table: DataTable[RichText] = DataTable(cursor_type="row")
    table.can_focus = False
    return table


def widths(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[int]:
    figures = {one.heading for one in columns if one.kind == "figure"}
    sized = tables.Table(*(f"{one.heading}" for one in columns), whole=figures)
    for row in rows:
        sized.add(*row)
    return sized.fitting(width, _LEAST) if rows else [cells_of(one.heading) for one in columns]


def cell(said: str, column: Column, width: int, style: str) -> RichText:
    shown = said if "\n" in said else cut(said, width, column.kind)
    justify = "right" if column.kind == "figure" else "left"
    return RichText(shown, style=STYLES.get(style, ""), justify=justify, no_wrap=True)  # type: ignore[arg-type]


def cut(said: str, width: int, kind: str) -> str:
    """Cut it to at most so many cells: a name is cut in its middle, a text at its end."""
    if cells_of(said) <= width:
        return said
    tail = (width - 1) // 2 if kind == "name" else 0
    head = max(0, width - 1 - tail)
    last = set_cell_size(said[::-1], tail)[::-1] if tail > 0 else ""
    return (set_cell_size(said, head).rstrip() + "…" + last.lstrip())[: max(0, width)]


def text(block: Text, width: int) -> list[RichText]:
    """The block's heading, if it has one, and its lines."""
    lines = [
        RichText(cut(harmless(one), width, "text"), no_wrap=True) for one in block.text.split("\n")
    ]
    for line in lines:
        line.stylize(STYLES.get(block.style, ""))
    heading = cut(harmless(block.heading), width, "text")
    return [RichText(), RichText(heading, style=STYLES["heading"]), *lines] if heading else lines
