"""What a terminal is sent: text without power over it, cut to so many cells; tables that fit.

Names, code and outputs are other people's. No character here moves a cursor, has no width, or
cannot be encoded; figures are never pushed off by a long name.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, get_character_cell_size

from ground import visible

_GAP = 2
_LONGEST = 2000  # characters of one cell or line: nobody's screen is wider


@dataclass(frozen=True)
class Column:
    """Of a table. A figure is shown whole and to the right. A name is cut in its middle, and text
    at its end; neither is cut below `least` cells."""

    heading: str
    kind: str = "figure"
    least: int = 8


def name(heading: str, least: int = 8) -> Column:
    return Column(heading, "name", least)


def text(heading: str, least: int = 6) -> Column:
    return Column(heading, "text", least)


@dataclass(frozen=True)
class Paper:
    """So many cells wide, in an encoding."""

    width: int
    encoding: str = "utf-8"

    @property
    def ellipsis(self) -> str:
        return "…" if self.harmless("…") == "…" else "~"

    def harmless(self, said: object) -> str:
        """One line of it, of characters that only take their place."""
        line = str(said)[:_LONGEST]
        if line.isascii() and line.isprintable():
            return line
        line = unicodedata.normalize("NFC", visible(line.replace("\t", "    ")))
        line = "".join(one if _takes_its_place(one) else f"\\u{ord(one):04x}" for one in line)
        return line.encode(self.encoding, "backslashreplace").decode(self.encoding)

    def cut(self, said: object, width: int, *, middle: bool = False) -> str:
        """At most so many cells of it."""
        line = self.harmless(said)
        if cell_len(line) <= width:
            return line
        if width < 2:
            return line[:0]
        tail = (width - 1) // 2 if middle else 0
        return _first(line, width - 1 - tail) + self.ellipsis + _last(line, tail)

    def padded(self, said: object, width: int, kind: str) -> str:
        """Exactly so many cells."""
        line = self.cut(said, width, middle=kind == "name")
        space = " " * (width - cell_len(line))
        return space + line if kind == "figure" else line + space

    def wrapped(self, said: str, most: int) -> list[str]:
        """At most so many lines of a sentence."""
        lines, line = list[str](), ""
        for word in self.harmless(said).split(" "):
            longer = f"{line} {word}" if line else word
            if line and cell_len(longer) > self.width:
                lines, longer = [*lines, line], word
            line = longer
        lines.append(line)
        if len(lines) > most:
            lines[most - 1 :] = [" ".join(lines[most - 1 :])]
        return [self.cut(one, self.width, middle=True) for one in lines]

    def rows(
        self, columns: Sequence[Column], rows: Sequence[Sequence[str]]
    ) -> tuple[str, list[str]]:
        """The headings, and each row, as lines."""
        natural = [
            max([cell_len(column.heading), *(cell_len(self.harmless(row[at])) for row in rows)])
            for at, column in enumerate(columns)
        ]
        widths = fitted(columns, natural, self.width)

        def line(cells: Sequence[str]) -> str:
            put = [
                self.padded(cell, width, column.kind)
                for cell, width, column in zip(cells, widths, columns, strict=True)
                if width
            ]
            return self.cut((" " * _GAP).join(put).rstrip(), self.width)

        return line([column.heading for column in columns]), [line(row) for row in rows]


def fitted(columns: Sequence[Column], natural: Sequence[int], width: int) -> list[int]:
    """The width of each column: names and texts give way, the widest first, down to their least.
    If that is not enough, texts go, the last first, then figures; 0 is a column that went."""
    widths = [min(one, max(width, 1)) for one in natural]
    least = [
        wide if column.kind == "figure" else min(wide, max(column.least, len(column.heading)))
        for column, wide in zip(columns, widths, strict=True)
    ]
    while (over := _taken(widths) - width) > 0:
        room = [wide - low for wide, low in zip(widths, least, strict=True)]
        if not any(room):
            break
        at = max((n for n in range(len(widths)) if room[n]), key=lambda n: widths[n])
        others = [widths[n] for n in range(len(widths)) if room[n] and n != at]
        step = widths[at] - max(others, default=0)
        widths[at] -= max(1, min(over, room[at], step))
    for kind in ("text", "name", "figure"):
        for at in reversed(range(1, len(columns))):
            if _taken(widths) > width and columns[at].kind == kind:
                widths[at] = 0
    return widths


def _taken(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * max(0, sum(map(bool, widths)) - 1)


def _takes_its_place(one: str) -> bool:
    return one.isprintable() and get_character_cell_size(one) > 0


def _first(line: str, width: int) -> str:
    taken = 0
    for at, one in enumerate(line):
        taken += get_character_cell_size(one)
        if taken > width:
            return line[:at]
    return line


def _last(line: str, width: int) -> str:
    return _first(line[::-1], width)[::-1]
