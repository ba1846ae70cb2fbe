"""A screen is this before it is known how large the terminal is: notes, tables and texts, with rows
that can be opened."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ground import visible
from penstock.tables import folded

Cell = str | int | float | None


class Age(float):
    """Seconds: shown as 250 ms, 12 s, 3 min or 2 h."""


@dataclass(frozen=True)
class Place:
    """A place that can be opened, as an address of the monitor's page: a kind, a name, and what
    else it needs. `where` is a group's task, a sandbox's run, and of a list the queue or the
    worker."""

    kind: str
    name: str = ""
    where: str = ""
    state: str = ""
    only: str = ""
    """An outcome, or why a group ended."""
    start: int = 0


@dataclass(frozen=True)
class Column:
    """A column of a table. A figure is shown whole and to the right. If there is no room, a name is
    cut in its middle, and a text at its end."""

    heading: str
    kind: str = "figure"


def name(heading: str) -> Column:
    return Column(heading, "name")


def text(heading: str) -> Column:
    return Column(heading, "text")


@dataclass(frozen=True)
class Row:
    """A line of a table, or a note. `key` tells it from the others, look by look; by
    `cells` it is sorted, and `shown` are these as text."""

    cells: tuple[Cell, ...]
    opens: Place | None = None
    style: str = ""
    about: Any = None
    """What can be changed by it: a queue, a gate."""

    @property
    def key(self) -> Any:
        return self.opens or self.cells

    @property
    def shown(self) -> tuple[str, ...]:
        return tuple(figure(cell) for cell in self.cells)


@dataclass(frozen=True)
class Notes:
    """Sentences, each in at most `most` lines."""

    rows: tuple[Row, ...]
    most: int = 2


@dataclass(frozen=True)
class Table:
    """`whole` says where to see the rows that had no room."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    whole: str = ""
    total: int = 0
    """How many there are, if these are some of them."""


@dataclass(frozen=True)
class Text:
    """Other people's text, line by line: a program, what it printed, a traceback."""

    heading: str
    text: str
    style: str = ""


Block = Notes | Table | Text


@dataclass(frozen=True)
class Screen:
    """A screen of `top`. `lists` is the table that keys sort and filter. `states` are those that
    the arrows go through. `next` is where the next page begins."""

    title: str
    blocks: tuple[Block, ...]
    about: Any = None
    lists: Table | None = None
    states: tuple[str, ...] = ()
    next: int | None = None
    bounded: bool = False
    """Whether its tables share the height, rather than scroll."""


@dataclass
class Order:
    """How the rows of a list are ordered, and which of them are shown."""

    column: int | None = None
    down: bool = False
    find: str = ""

    def of(self, rows: Sequence[Row]) -> list[Row]:
        found = [row for row in rows if self.find.lower() in " ".join(row.shown).lower()]
        if self.column is None:
            return found
        at = self.column
        known = [row for row in found if row.cells[at] not in (None, "")]
        unknown = [row for row in found if row.cells[at] in (None, "")]
        known.sort(key=lambda row: _rank(row.cells[at]), reverse=self.down)
        return known + unknown


def fitting(
    screen: Screen, order: Order, width: float = math.inf, height: float = math.inf
) -> list[Block]:
    """The blocks of a screen, its list in this order. Of a bounded screen the tables share the
    height: what one does not need is the others'."""
    blocks = [
        replace(block, rows=tuple(order.of(block.rows)), columns=_marked(block.columns, order))
        if isinstance(block, Table) and block is screen.lists
        else block
        for block in screen.blocks
    ]
    if not screen.bounded or height == math.inf:
        return blocks
    tables = {at: len(one.rows) for at, one in enumerate(blocks) if isinstance(one, Table)}
    # A table needs two lines besides its rows: its headings, and how many more there are.
    room = int(height) - sum(
        sum(len(sentence(row, block, width)) for row in block.rows)
        if isinstance(block, Notes)
        else 2
        for block in blocks
    )
    given = dict.fromkeys(tables, 0)
    while room > 0 and (hungry := [at for at, many in tables.items() if given[at] < many]):
        for at in hungry[:room]:
            given[at] += 1
        room -= len(hungry[:room])
    return [
        replace(one, rows=one.rows[: max(1, given[at])], total=max(one.total, len(one.rows)))
        if isinstance(one, Table)
        else one
        for at, one in enumerate(blocks)
    ]


def sentence(row: Row, notes: Notes, width: float) -> list[str]:
    """The lines of a note."""
    return folded(visible(" ".join(row.shown)), width)[: notes.most]


def _marked(columns: tuple[Column, ...], order: Order) -> tuple[Column, ...]:
    sign = "v" if order.down else "^"
    return tuple(
        replace(column, heading=f"{column.heading} {sign}".strip())
        if at == order.column
        else column
        for at, column in enumerate(columns)
    )


def figure(cell: Cell) -> str:
    """A figure as it is read: 1,234; 0.25; nothing."""
    if cell is None:
        return ""
    if isinstance(cell, Age):
        return _age(cell)
    if isinstance(cell, float):
        return f"{cell:.3g}" if abs(cell) < 1000 else f"{cell:,.0f}"
    return f"{cell:,}" if isinstance(cell, int) else cell


def _age(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for longest, unit, one in ((120, "s", 1), (7200, "min", 60), (172_800, "h", 3600)):
        if seconds < longest:
            return f"{seconds / one:.3g} {unit}" if seconds < 10 else f"{seconds / one:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def _rank(cell: Cell) -> tuple[bool, Any]:
    return (isinstance(cell, str), cell.lower() if isinstance(cell, str) else cell)


@dataclass
class Look:
    """A place, and how it is looked at: kept while others are, so that going back finds it."""

    place: Place
    order: Order = field(default_factory=Order)
    chosen: Any = None
    """The key of the row under the cursor."""
    top: int = 0
    """The first line that is shown."""
