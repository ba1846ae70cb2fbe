"""Where the cursor is among the lines of a screen, and which lines are in view."""

from collections.abc import Sequence

from penstock.top.screen import Line, Look, Row

STEPS = {"up": -1, "k": -1, "down": 1, "j": 1}
PAGES = {"page-up": -1.0, "page-down": 1.0, "home": -1e9, "end": 1e9}


def row_of(lines: Sequence[Line], look: Look) -> Row | None:
    """The row under the cursor: the first, until it is moved."""
    listed = _rows(lines)
    chosen = (one for one in listed if one.key == look.chosen)
    return next(chosen, listed[0] if listed else None)


def move(lines: Sequence[Line], look: Look, room: int, key: str) -> None:
    """By a row, or by a line if no other row is near: texts are read so."""
    listed, row, step = _rows(lines), row_of(lines, look), STEPS[key]
    at = listed.index(row) + step if row is not None else -1
    if 0 <= at < len(listed) and look.top - 1 <= _line(lines, listed[at]) <= look.top + room:
        _choose(lines, look, room, listed[at])
    else:
        _scroll(lines, look, room, look.top + step)


def turn(lines: Sequence[Line], look: Look, room: int, key: str) -> None:
    """By a page, or to an end; the cursor comes along, if there is a row in view."""
    before, step = look.top, PAGES[key]
    _scroll(lines, look, room, look.top + int(step * room))
    listed = _rows(lines[look.top : look.top + room])
    if not listed:
        return
    if look.top == before or abs(step) > 1:
        look.chosen = listed[-1 if step > 0 else 0].key
    elif row_of(lines, look) not in listed:
        look.chosen = listed[0].key


def next_table(lines: Sequence[Line], look: Look, room: int, *, back: bool) -> None:
    """To the first row of the next block, round and round."""
    listed, row = _rows(lines), row_of(lines, look)
    if row is None:
        return
    at, starts = listed.index(row), [listed.index(one) for one in _firsts(lines)]
    others = [n for n in starts if n < at][::-1] if back else [n for n in starts if n > at]
    _choose(lines, look, room, listed[(others or [starts[-1 if back else 0]])[0]])


def keep_in_bounds(lines: Sequence[Line], look: Look, room: int) -> None:
    """Lines may have become fewer since."""
    _scroll(lines, look, room, look.top)


def _rows(lines: Sequence[Line]) -> list[Row]:
    """That the cursor can be on, in order."""
    found: list[Row] = []
    for line in lines:
        row = line.row
        if row is not None and _can_be_chosen(row) and (not found or found[-1] is not row):
            found.append(row)
    return found


def _can_be_chosen(row: Row) -> bool:
    return row.opens is not None or row.about is not None


def _firsts(lines: Sequence[Line]) -> list[Row]:
    """Of each run of rows, the first that can be chosen."""
    found: list[Row] = []
    within = False
    for line in lines:
        if line.row is None:
            within = False
        elif not within and _can_be_chosen(line.row):
            found.append(line.row)
            within = True
    return found


def _choose(lines: Sequence[Line], look: Look, room: int, row: Row) -> None:
    look.chosen, at = row.key, _line(lines, row)
    heading = int(at > 0 and lines[at - 1].row is None)
    look.top = max(0, at - room + 1, min(look.top, at - heading))


def _scroll(lines: Sequence[Line], look: Look, room: int, top: int) -> None:
    look.top = max(0, min(top, len(lines) - room))


def _line(lines: Sequence[Line], row: Row) -> int:
    return next(at for at, line in enumerate(lines) if line.row is row)
