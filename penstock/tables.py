"""Tables on stdout: as wide as the terminal, and whole if none reads them."""

import math
import os
import shutil
import sys
import unicodedata
from collections.abc import Container, Iterator
from itertools import zip_longest
from typing import Any, NamedTuple

import click

from ground import visible

_GAP = 2
_LEAST = 8  # cells


class Styled(NamedTuple):
    """A cell in a colour, as `click.style` takes it."""

    text: str
    style: dict[str, Any]


class Table:
    """Columns side by side. Names in them are others': they steer no terminal.

    On a narrow terminal the widest columns are folded, and never those in `whole`. Columns in
    `right` end at their right. Nothing stands above columns without headings.
    """

    def __init__(
        self, *headings: str, right: Container[str] = (), whole: Container[str] = ()
    ) -> None:
        self._headings = headings
        self._right, self._whole = right, whole
        bold = {"bold": True}
        self._rows = [[Styled(one, bold) for one in headings]] if any(headings) else []

    def add(self, *cells: str | Styled) -> None:
        styled = (cell if isinstance(cell, Styled) else Styled(cell, {}) for cell in cells)
        self._rows.append([Styled(_on_one_line(text), style) for text, style in styled])

    def show(self) -> None:
        for line in self.lines(terminal_width()):
            click.echo(line)  # which takes the colours away if no terminal reads

    def lines(self, width: float) -> Iterator[str]:
        widths = self.fitting(width)
        for row in self._rows:
            columns = [folded(cell.text, room) for cell, room in zip(row, widths, strict=True)]
            for texts in zip_longest(*columns, fillvalue=""):
                cells = []
                for at, text in enumerate(texts):
                    shown = coloured(row[at]._replace(text=text))
                    blank = " " * (widths[at] - cells_of(text))
                    right = self._headings[at] in self._right
                    cells.append(blank + shown if right else shown + blank)
                yield (" " * _GAP).join(cells).rstrip()

    def fitting(self, width: float, least: int = _LEAST) -> list[int]:
        """The width of each column. No column is folded to fewer cells than `least`."""
        widths = [
            max(cells_of(cell.text) for cell in column) for column in zip(*self._rows, strict=True)
        ]
        folding = [at for at, one in enumerate(self._headings) if one not in self._whole]
        while folding and sum(widths) + _GAP * (len(widths) - 1) > width:
            widest = max(folding, key=widths.__getitem__)
            if widths[widest] <= least:
                break
            widths[widest] -= 1
        return widths


def terminal_width() -> float:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else math.inf


def coloured(said: Styled) -> str:
    """The text as a terminal gets it; in no colour if its user wants none."""
    plain = os.environ.get("NO_COLOR") or not (said.text and said.style)
    return said.text if plain else click.style(said.text, **said.style)


def _on_one_line(text: str) -> str:
    return visible(text).replace("\n", " ").replace("\t", " ")


def cells_of(text: str) -> int:
    """How many cells of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(_cells_of_one(character) for character in text)


def _cells_of_one(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def folded(text: str, width: float) -> list[str]:
    """Lines of at most so many cells, between words if there are any."""
    lines = [""]
    for word in text.split(" "):
        grown = f"{lines[-1]} {word}" if lines[-1] else word
        if cells_of(grown) <= width:
            lines[-1] = grown
            continue
        if lines[-1]:
            lines.append("")
        for character in word:
            if cells_of(lines[-1] + character) > width:
                lines.append("")
            lines[-1] += character
    return lines
