"""The program: looks at the fleet again and again, and does what keys say.

A key is done when its screen is there: keys that were pressed meanwhile come after it.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rich.cells import set_cell_size
from rich.text import Text as RichText
from textual import events
from textual.app import App, ComposeResult
from textual.containers import VerticalScroll
from textual.widget import Widget
from textual.widgets import DataTable, Static

from ground import SettingError
from ground.redis.connect import UNWELL
from ground.tasks import heed_cancellation
from penstock.changes import Author, Changes
from penstock.fleet import FleetReader
from penstock.fleet.history import History
from penstock.fleet.search import find
from penstock.top.cells import STYLES, cell, cut, harmless, text, widget, widths
from penstock.top.details import Seen
from penstock.top.model import (
    Block,
    Column,
    Look,
    Notes,
    Place,
    Row,
    Screen,
    Table,
    Text,
    fitting,
    sentence,
)
from penstock.top.offers import Offer, offers
from penstock.top.views import PAGE, place_of, view

HELP = """\
1 overview 2 queues 3 jobs 4 workers 5 gates 6 groups 7 sandboxes 8 changes
f            the latest failed job, with its traceback
up down j k  move; PgUp PgDn Home End too. Tab goes to the next table
Enter        open: why a queue does not move, where a job's time went
Esc          back; so does Backspace
left right   jobs, groups: those in another state
t            jobs: those whose program ended as …; groups: those that timed out
/            show only rows with these words; Esc ends it
< > s        sort by another column; s turns the order round
[ ]          the page before, the next page
g            go to the id or the name of anything
space, a     mark a job, or all of this page; r x D then change them
r x D        jobs: retry, cancel, delete. Groups: r requeues
x            sandboxes: end one; on a run, end those whose owners are dead
p            pause or resume a queue or a gate
+ -          raise or lower a gate's limit: edit the number, then Enter
? h          this help
q            quit; so does Ctrl-C

Each change is asked about, and noted with your name: 8 lists them.
"""
_PLACES = {
    "1": "overview", "2": "queues", "3": "jobs", "4": "workers", "5": "gates", "6": "groups",
    "7": "sandboxes", "8": "log",
}  # fmt: skip
_STEPS = {"up": -1, "k": -1, "down": 1, "j": 1}
_PAGES = {
    "pageup": -1.0, "ctrl+u": -1.0, "ctrl+b": -1.0, "pagedown": 1.0, "ctrl+d": 1.0, "ctrl+f": 1.0,
    "home": -1e6, "end": 1e6,
}  # fmt: skip
_UNHAPPY = ("wrong", "error", "timeout", "memory", "limit", "data", "masked")
_MOST_MARKED = 500
# What one key of Redis holds must not end the looking.
_UNREADABLE = (*UNWELL, ValueError, TypeError, LookupError, AttributeError)


@dataclass
class Prompt:
    """A line at the bottom that keys go into. `then` is called with what was typed."""

    question: str
    typed: str
    then: Callable[[str], object]
    by_y: bool = False
    """Whether one key answers it."""


@dataclass
class Laid:
    """The places of each row that can be opened or changed, from the top of the screen's body."""

    lines: int = 0
    rows: list[tuple[Row, DataTable[RichText], int]] = field(default_factory=list)
    tops: list[int] = field(default_factory=list)

    def index(self, key: Any) -> int:
        """The index of the row under the cursor: the first, until it is moved."""
        return next((at for at, (row, *_) in enumerate(self.rows) if row.key == key), 0)


class Program(App[None]):
    """The program `penstock top`. `press` takes a key, `show` draws what came of it."""

    TITLE = "penstock top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen, #body, DataTable, Static { background: ansi_default; color: ansi_default; }
    #title, #foot { height: 1; text-wrap: nowrap; }
    #body { scrollbar-size: 0 0; }
    #body > * { height: auto; }
    DataTable > .datatable--header, DataTable > .datatable--even-row {
        background: ansi_default; color: ansi_default; text-style: bold;
    }
    DataTable > .datatable--cursor {
        background: ansi_default; color: ansi_default; text-style: reverse;
    }
    """

    def __init__(self, reader: FleetReader, by: Author, every: float = 1.0) -> None:
        super().__init__(ansi_color=True)
        self.reader, self.by, self.every = reader, by, every
        self.looks = [Look(Place("overview"))]
        self.past = History()
        self.shown: Screen | None = None
        self.said = self.logged = self.trouble = ""
        self.prompt: Prompt | None = None
        self.helps = False
        self.marked: dict[str, None] = {}
        self._seen: Seen | None = None
        self._drawing = asyncio.Lock()
        self._laid = Laid()
        self._shape: Any = None
        self._drawn: tuple[Screen | None, Any] | None = None

    @property
    def look(self) -> Look:
        return self.looks[-1]

    def compose(self) -> ComposeResult:
        yield Static(id="title", markup=False)
        yield VerticalScroll(id="body", can_focus=False)
        yield Static(id="foot", markup=False)

    async def on_mount(self) -> None:
        await self.show()
        self.run_worker(self._look_on(), exit_on_error=True)

    def on_resize(self) -> None:
        self.call_later(self.show)  # once this has been heard: until then the size is the old one

    async def on_event(self, event: events.Event) -> None:
        """All keys come here, and none to a widget: each is done before the next."""
        if isinstance(event, events.Paste):
            if self.prompt is not None and not self.prompt.by_y:
                self.prompt.typed += event.text.partition("\n")[0]
                await self.show()
        elif not isinstance(event, events.Key):
            await super().on_event(event)
        elif event.key == "ctrl+z":
            self.action_suspend_process()
        elif event.key == "ctrl+c" or (event.character == "q" and self.prompt is None):
            self.workers.cancel_all()  # a look that goes on would draw on what is taken down
            self.exit()
        else:
            await self.press((event.is_printable and event.character) or event.key)
            await self.show()

    async def _look_on(self) -> None:
        while True:
            heed_cancellation()
            await self.refresh_fleet()
            await self.show()
            await asyncio.sleep(self.every)

    async def refresh_fleet(self) -> None:
        """Read the fleet, and show this place as it is now; or why it could not be read."""
        try:
            fleet, workers = await self.reader.look()
            self.past.add(fleet)
            self._seen = Seen(self.reader, fleet, workers, self.past)
        except _UNREADABLE as problem:
            self.trouble = f"{type(problem).__name__}: {problem}"
        else:
            await self._see()

    async def _see(self) -> None:
        """Read the place that is shown; if another place was gone to meanwhile, forget it."""
        if self._seen is None:
            return
        look, place = self.look, self.look.place
        try:
            screen = await view(place, self._seen, look.order)
        except _UNREADABLE as problem:
            self.trouble = f"{type(problem).__name__}: {problem}"
            return
        if look is self.look and place == look.place:
            self.shown, self.trouble = screen, ""

    async def press(self, key: str) -> None:
        """Take one key; when it is done, what it leads to is there."""
        if self.prompt is not None:
            await self._answer(self.prompt, key)
            return
        self.said = self.logged = ""
        if self.helps:
            self.helps = False
        elif key in ("?", "h"):
            self.helps = True
        elif not await self._went(key) and not self._moved(key):
            self._ask(key)

    async def _went(self, key: str) -> bool:
        """Whether the key leads to another screen."""
        place = self.look.place
        if key in _PLACES:
            await self._go(Place(_PLACES[key]))
        elif key == "f":
            await self._go_to_failed()
        elif key == "enter":
            row = self._row()
            if row is not None and row.opens is not None:
                await self._go(row.opens)
        elif key in ("escape", "backspace"):
            await self._back()
        elif key in ("left", "right", "t", "[", "]"):
            await self._turn(self._turned(key, place))
        elif key == "r" and not self._offers():
            await self.refresh_fleet()
        else:
            return False
        return True

    async def _go(self, place: Place) -> None:
        """Lists are looked at from the start; Esc comes back to where this was."""
        if place.kind in _PLACES.values() and place == Place(place.kind):
            self.looks = [Look(Place("overview"))]
        if place != self.look.place:
            self.looks.append(Look(place))
        self.marked.clear()
        await self._see()

    async def _go_to_failed(self) -> None:
        failed = self._seen.fleet.failed if self._seen else ()
        if failed:
            await self._go(Place("job", failed[0].id))
        else:
            self.said = "no job has failed"

    async def _back(self) -> None:
        if self.look.order.find:
            self.look.order.find = ""
        elif len(self.looks) > 1:
            self.looks.pop()
        self.marked.clear()
        await self._see()

    async def _turn(self, place: Place) -> None:
        """Turn the list to other rows."""
        if place != self.look.place:
            self.look.place, self.look.chosen, self.look.top = place, None, 0
            self.marked.clear()
            await self._see()

    def _turned(self, key: str, place: Place) -> Place:
        if (screen := self.shown) is None:
            return place
        if key == "]":
            return place if screen.next is None else replace(place, start=screen.next)
        if key == "[":
            return replace(place, start=max(0, place.start - PAGE))
        if key == "t" and place.kind == "jobs":
            only = _after(("", *_UNHAPPY), place.only, 1)
            return replace(place, state="finished", only=only, start=0)
        if key == "t" and place.kind == "groups":
            return replace(place, only="" if place.only else "timeout", start=0)
        if key == "t" or not screen.states:
            return place
        step = 1 if key == "right" else -1
        state = _after(screen.states, place.state or screen.states[0], step)
        return replace(place, state=state, only="", start=0)

    def _moved(self, key: str) -> bool:
        """Whether the key moves the cursor, or changes the order of the rows."""
        if key in _STEPS:
            self._step(_STEPS[key])
        elif key in _PAGES:
            self._page(_PAGES[key])
        elif key in ("tab", "shift+tab"):
            self._next_table(back=key == "shift+tab")
        elif key in ("<", ">", "s"):
            self._sort(key)
        elif key == " ":
            self._mark()
        elif key == "a":
            self._mark_all()
        else:
            return False
        return True

    def _step(self, step: int) -> None:
        """Move by a row, or by a line if no other row is near: texts are read so."""
        laid, look = self._laid, self.look
        at = laid.index(look.chosen) + step if laid.rows else -1
        if 0 <= at < len(laid.rows) and look.top - 1 <= laid.tops[at] <= look.top + self._room:
            self._choose(at)
        else:
            self._scroll(look.top + step)

    def _page(self, pages: float) -> None:
        """Move by a page, or to an end; the cursor comes along, if there is a row in view."""
        laid, look, before = self._laid, self.look, self.look.top
        self._scroll(before + int(pages * self._room))
        shown = range(look.top, look.top + self._room)
        seen = [at for at, top in enumerate(laid.tops) if top in shown]
        if seen and (look.top == before or abs(pages) > 1):
            look.chosen = laid.rows[seen[-1 if pages > 0 else 0]][0].key
        elif seen and laid.index(look.chosen) not in seen:
            look.chosen = laid.rows[seen[0]][0].key

    def _next_table(self, *, back: bool) -> None:
        """Go to the first row of the next table, round and round."""
        laid = self._laid
        if not laid.rows:
            return
        at = laid.index(self.look.chosen)
        owners = [id(table) for _, table, _ in laid.rows]
        firsts = [n for n, one in enumerate(owners) if n == 0 or owners[n - 1] != one]
        others = [n for n in firsts if n < at][::-1] if back else [n for n in firsts if n > at]
        self._choose((others or [firsts[-1 if back else 0]])[0])

    def _choose(self, at: int) -> None:
        row, top = self._laid.rows[at][0], self._laid.tops[at]
        self.look.chosen = row.key
        self._scroll(max(top - self._room + 1, min(self.look.top, top - 1)))

    def _scroll(self, top: int) -> None:
        self.look.top = max(0, min(top, self._laid.lines - self._room))

    def _sort(self, key: str) -> None:
        order, lists = self.look.order, self.shown.lists if self.shown else None
        if lists is None:
            self.said = "this screen has no list to sort"
        elif key == "s":
            order.column, order.down = order.column or 0, not order.down
        else:
            step, columns = 1 if key == ">" else -1, len(lists.columns)
            at = (-1 if step > 0 else columns) if order.column is None else order.column
            order.column = (at + step) % columns

    def _mark(self) -> None:
        row = self._row()
        if row is None or row.opens is None or row.opens.kind != "job":
            self.said = "only jobs can be marked"
            return
        if row.opens.name in self.marked:
            del self.marked[row.opens.name]
        elif len(self.marked) < _MOST_MARKED:
            self.marked[row.opens.name] = None
        self._step(1)

    def _mark_all(self) -> None:
        """Mark the jobs of this page, or none if all are marked."""
        jobs = [row.opens.name for row, *_ in self._laid.rows if row.opens and _is_job(row)]
        if not jobs:
            self.said = "only jobs can be marked"
        elif self.marked.keys() >= set(jobs):
            self.marked.clear()
        else:
            self.marked = dict.fromkeys(jobs[:_MOST_MARKED])

    def _ask(self, key: str) -> None:
        """Do what a key asks for: a change, a filter, or another place."""
        if key == "/":
            self.prompt = Prompt("show only rows with:", self.look.order.find, self._filter)
        elif key == "g":
            self.prompt = Prompt("go to the id or name:", "", self._jump)
        elif offer := next((one for one in self._offers() if one.key == key), None):
            self._offer(offer)
        elif len(key) == 1:
            self.said = f"{key} does nothing here; ? lists the keys"

    def _offer(self, offer: Offer) -> None:
        async def make(typed: str) -> None:
            await self._change(offer, typed)

        self.prompt = Prompt(
            offer.question if offer.answer is not None else f"{offer.question} y or n",
            offer.answer or "", make, by_y=offer.answer is None,
        )  # fmt: skip

    async def _answer(self, prompt: Prompt, key: str) -> None:
        if key == "escape" or (prompt.by_y and key != "y"):
            self.prompt, self.said = None, "nothing was changed" if prompt.by_y else ""
        elif (key == "y" and prompt.by_y) or key == "enter":
            self.prompt = None
            done = prompt.then(prompt.typed)
            if asyncio.iscoroutine(done):
                await done
        elif key == "backspace":
            prompt.typed = prompt.typed[:-1]
        elif key == "ctrl+u":
            prompt.typed = ""
        elif len(key) == 1:
            prompt.typed += key

    async def _change(self, offer: Offer, typed: str) -> None:
        try:
            changed = await offer.make(Changes(self.reader, self.by), typed)
            self.said = f"{offer.label}: {changed.outcome}"
        except (SettingError, ValueError, TypeError, OverflowError) as wrong:
            self.said = f"{offer.label}: {wrong}"
        except UNWELL as problem:
            self.said = f"{offer.label} broke off: {problem}"
        self.marked.clear()
        await self.refresh_fleet()

    async def _filter(self, typed: str) -> None:
        self.look.order.find = typed.strip()
        self.look.place = replace(self.look.place, start=0)
        await self._see()

    async def _jump(self, typed: str) -> None:
        wanted = typed.strip()[:200]
        if not wanted or self._seen is None:
            return
        try:
            found = await find(self.reader, self._seen.fleet, wanted)
        except _UNREADABLE as problem:
            self.said = f"cannot look for it now: {problem}"
            return
        if len(found) == 1 or (len([one for one in found if one.exact]) == 1):
            await self._go(place_of(found[0].kind, found[0].name, found[0].where))
        elif found:
            await self._go(Place("found", wanted))
        else:
            await self._go(Place("item", wanted))  # or a session: these are found by their ids

    def _offers(self) -> list[Offer]:
        """The offers for the row under the cursor, else for the whole screen."""
        row, screen = self._row(), self.shown
        found = offers(row.opens, row.about, tuple(self.marked)) if row else []
        if found or screen is None:
            return found or offers(None, None)
        about = screen.about
        return offers(about if isinstance(about, Place) else self.look.place, about)

    def _row(self) -> Row | None:
        """The row under the cursor."""
        rows = self._laid.rows
        return rows[self._laid.index(self.look.chosen)][0] if rows else None

    # How it is drawn.

    @property
    def _room(self) -> int:
        return max(1, self.size.height - 2)

    async def show(self) -> None:
        """Draw the title, the blocks of the screen, and what keys do here."""
        async with self._drawing:
            if self.query("#body"):  # else it ends, and its screen is taken down
                await self._draw()

    async def _draw(self) -> None:
        width, body = max(1, self.size.width), self.query_one("#body", VerticalScroll)
        order = self.look.order
        way = (
            self.helps, self.trouble, width, self._room, order.column, order.down, order.find,
            tuple(self.marked),
        )  # fmt: skip
        with self.batch_update():
            if self._drawn is None or self._drawn[0] is not self.shown or self._drawn[1] != way:
                self._drawn = self.shown, way
                await self._fill_body(body, self._blocks(width), width)
            if not self.helps:
                self._scroll(self.look.top)
            self._point()
            self.query_one("#title", Static).update(self._title(width))
            self.query_one("#foot", Static).update(self._foot(width))
        # After the layout: before it there may be no room to scroll in.
        top = 0 if self.helps else self.look.top
        self.call_after_refresh(body.scroll_to, y=top, animate=False, force=True)

    async def _fill_body(self, body: VerticalScroll, blocks: list[Block], width: int) -> None:
        shape = [(type(one), len(getattr(one, "columns", ()))) for one in blocks]
        if shape != self._shape:
            self._shape = shape
            await body.remove_children()
            await body.mount(*(widget(one) for one in blocks))
        self._lay(blocks, list(body.children), width)

    def _blocks(self, width: int) -> list[Block]:
        if self.helps:
            return [Text("", HELP)]
        if self.shown is None:
            return [Notes((Row((self.trouble or "looking …",)),))]
        blocks = list[Block]()
        for block in fitting(self.shown, self.look.order, width - 2, self._room):
            blocks.append(block)
            more = block.total - len(block.rows) if isinstance(block, Table) else 0
            if more > 0 and isinstance(block, Table):
                blocks.append(Text("", f" … and {more:,} more{block.whole}", "dim"))
        return blocks

    def _point(self) -> None:
        """Put the cursor into the table of the chosen row."""
        rows = self._laid.rows
        at = self._laid.index(self.look.chosen)
        for table in {id(table): table for _, table, _ in rows}.values():
            table.show_cursor = table is rows[at][1]
        if rows:
            rows[at][1].move_cursor(row=rows[at][2], scroll=False)

    def _lay(self, blocks: Sequence[Block], widgets: Sequence[Widget], width: int) -> None:
        """Fill the widgets, and note where each row stands."""
        self._laid = laid = Laid()
        for block, shown in zip(blocks, widgets, strict=True):
            if isinstance(block, Text):
                lines = text(block, width)
                assert isinstance(shown, Static)  # noqa: S101 - made for it by `widget`
                shown.update(RichText("\n").join(lines))
                shown.styles.height = len(lines)
                laid.lines += len(lines)
            elif isinstance(shown, DataTable):
                self._fill(shown, block, width)

    def _fill(self, table: DataTable[RichText], block: Notes | Table, width: int) -> None:
        """Fill in the rows, at the widths that fit; below them how many more there are."""
        table.clear(columns=True)
        table.show_cursor = False
        if isinstance(block, Notes):
            headings, wide = [Column("", "text")], [width - 2]
            said = [sentence(row, block, width - 2) for row in block.rows]
            notes = [[harmless(line) for line in lines] for lines in said]
            shown = [(["\n".join(lines)], len(lines)) for lines in notes]
        else:
            headings = list(block.columns)
            shown = [([harmless(one) for one in row.shown], 1) for row in block.rows]
            wide = widths(headings, [texts for texts, _ in shown], width - 2)
        start = self._laid.lines
        table.show_header = any(one.heading for one in headings)
        for column, room in zip(headings, wide, strict=True):
            table.add_column(cell(column.heading, column, room, "heading"), width=room)
        at = start + table.show_header
        for number, (row, (texts, height)) in enumerate(zip(block.rows, shown, strict=True)):
            if _is_job(row) and row.opens and row.opens.name in self.marked:
                texts[0] = f"*{texts[0][1:]}"
            cells_ = zip(texts, headings, wide, strict=True)
            table.add_row(*(cell(*each, row.style) for each in cells_), height=height)
            if row.opens is not None or row.about is not None:
                self._laid.rows.append((row, table, number))
                self._laid.tops.append(at)
            at += height
        table.styles.height = at - start
        self._laid.lines = at

    def _title(self, width: int) -> RichText:
        """The title: what is shown, how many alarms there are, of which Redis and run, and when."""
        fleet = self._seen.fleet if self._seen else None
        clock = time.strftime("%H:%M:%S", time.localtime(fleet.at)) if fleet else ""
        where = f"{fleet.server.where}, run {fleet.run}" if fleet else ""
        alarms = f" [alarms: {len(fleet.alarms)}]" if fleet and fleet.alarms else ""
        said = harmless(f"{self.shown.title if self.shown else 'penstock top'}{alarms} - {where}")
        room = max(0, width - len(clock) - 1)
        line = set_cell_size(cut(said, room, "text"), room)
        return RichText(f"{line} {clock}", style=STYLES["title"], no_wrap=True)

    def _foot(self, width: int) -> RichText:
        """A question, else what is wrong, else what came of the last key, else the keys."""
        if self.prompt is not None:
            said, style, kind = f"{self.prompt.question} {self.prompt.typed}_", "warn", "name"
        elif self.trouble:
            said, style, kind = f"! {self.trouble}", "bad", "text"
        elif self.said or self.logged:
            said, style, kind = self.said or self.logged, "warn", "text"
        else:
            said, style, kind = "  ".join(self._keys()), "dim", "text"
        return RichText(cut(harmless(said), width, kind), style=STYLES[style], no_wrap=True)

    def _keys(self) -> Iterable[str]:
        """The keys that do something here, the most special first."""
        if self.helps:
            return ["q quit", "any other key goes back"]
        screen, look, lines, room = self.shown, self.look, self._laid.lines, self._room
        found = ["? help", *(f"{one.key} {one.label}" for one in self._offers())]
        if screen and screen.states:
            found.append("left/right state")
        if screen and screen.lists:
            found.append(f"/ {look.order.find or 'filter'}")
        if screen and screen.next is not None:
            found.append("] next page")
        if lines > room:
            found.append(f"lines {look.top + 1}-{min(lines, look.top + room)} of {lines}")
        return [*found, "f latest failure", "1-8 places", "q quit"]


class Footer(logging.Handler):
    """The footer shows what is logged, which would else be written over the screen."""

    def __init__(self, program: Program) -> None:
        super().__init__(logging.WARNING)
        self._program = program

    def emit(self, record: logging.LogRecord) -> None:
        self._program.logged = record.getMessage()


def _is_job(row: Row) -> bool:
    return row.opens is not None and row.opens.kind == "job"


def _after(among: Sequence[str], one: str, step: int) -> str:
    at = among.index(one) if one in among else -1 if step > 0 else 0
    return among[(at + step) % len(among)]
