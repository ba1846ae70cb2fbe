"""The program: looks at the fleet again and again, and does what keys say.

A key is done when its screen is there: keys that were pressed meanwhile come after it.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from ground import SettingError, heed_cancellation
from ground.redis.connect import UNWELL
from penstock.changes import Author, Changes
from penstock.fleet import FleetReader
from penstock.fleet.finding import find
from penstock.fleet.history import History
from penstock.top import cursor, frame
from penstock.top.details import Seen
from penstock.top.frame import HELP, Prompt
from penstock.top.offers import Offer, offers
from penstock.top.paper import Paper
from penstock.top.screen import Line, Look, Place, Row, Screen, lines_of
from penstock.top.views import PAGE, place_of, view

_PLACES = {
    "1": "overview", "2": "queues", "3": "jobs", "4": "workers", "5": "gates", "6": "groups",
    "7": "sandboxes", "8": "log",
}  # fmt: skip
_MOST_MARKED = 500
# What one key of Redis holds must not end the looking.
_UNREADABLE = (*UNWELL, ValueError, TypeError, LookupError, AttributeError)


class Drawn(Protocol):
    """What the program draws on, and is told by."""

    @property
    def paper(self) -> Paper: ...

    @property
    def height(self) -> int: ...

    def keys(self) -> AsyncIterator[str]: ...

    def draw(self, lines: Sequence[Line], chosen: frozenset[int]) -> None: ...


@dataclass
class Program:
    """One of them. `press` takes a key, `draw` shows what came of it."""

    reader: FleetReader
    by: Author
    terminal: Drawn
    every: float = 1.0
    looks: list[Look] = field(default_factory=lambda: [Look(Place("overview"))])
    history: History = field(default_factory=History)
    screen: Screen | None = None
    said: str = ""
    logged: str = ""
    trouble: str = ""
    prompt: Prompt | None = None
    help: bool = False
    marked: dict[str, None] = field(default_factory=dict)
    _seen: Seen | None = None
    _laid: tuple[Screen, tuple[object, ...], list[Line]] | None = None

    @property
    def look(self) -> Look:
        return self.looks[-1]

    async def run(self) -> None:
        """Until a key ends it, or the terminal goes away."""
        self.draw()
        await self.refresh()
        self.draw()
        looking = asyncio.create_task(self._look_on())
        try:
            async for key in self.terminal.keys():
                if key == "q" and self.prompt is None:
                    return
                await self.press(key)
                self.draw()
        finally:
            looking.cancel()
            await asyncio.wait([looking])

    async def _look_on(self) -> None:
        while True:
            heed_cancellation()
            await asyncio.sleep(self.every)
            await self.refresh()
            self.draw()

    async def refresh(self) -> None:
        """The fleet, and the screen of this place as it is now; or why neither could be seen."""
        try:
            fleet, workers = await self.reader.look()
            self.history.add(fleet)
            self._seen = Seen(self.reader, fleet, workers, self.history)
        except _UNREADABLE as problem:
            self.trouble = f"{type(problem).__name__}: {problem}"
        else:
            await self._show()

    async def _show(self) -> None:
        """What is read while another place was gone to is forgotten."""
        if self._seen is None:
            return
        look, place = self.look, self.look.place
        try:
            screen = await view(place, self._seen, look.order)
        except _UNREADABLE as problem:
            self.trouble = f"{type(problem).__name__}: {problem}"
            return
        if look is self.look and place == look.place:
            self.screen, self.trouble = screen, ""

    async def press(self, key: str) -> None:
        """One key; when it is done, what it leads to is there."""
        if key == "redraw":
            return
        if self.prompt is not None:
            await self._answer(self.prompt, key)
            return
        self.said = self.logged = ""
        if self.help:
            self.help = False
        elif key in ("?", "h"):
            self.help = True
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
            await self.refresh()
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
        await self._show()

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
        await self._show()

    async def _turn(self, place: Place) -> None:
        """The same list, of other rows."""
        if place != self.look.place:
            self.look.place, self.look.chosen, self.look.top = place, None, 0
            self.marked.clear()
            await self._show()

    def _turned(self, key: str, place: Place) -> Place:
        if (screen := self.screen) is None:
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
        lines = self._lines()
        if key in cursor.STEPS:
            cursor.move(lines, self.look, self._room, key)
        elif key in cursor.PAGES:
            cursor.turn(lines, self.look, self._room, key)
        elif key in ("tab", "back-tab"):
            cursor.next_table(lines, self.look, self._room, back=key == "back-tab")
        elif key in ("<", ">", "s"):
            self._sort(key)
        elif key == " ":
            self._mark()
        elif key == "a":
            self._mark_all()
        else:
            return False
        return True

    def _sort(self, key: str) -> None:
        order, lists = self.look.order, self.screen.lists if self.screen else None
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
        cursor.move(self._lines(), self.look, self._room, "down")

    def _mark_all(self) -> None:
        """The jobs of this page; none, if all are marked."""
        places = [line.row.opens for line in self._lines() if line.row and line.row.opens]
        jobs = [place.name for place in places if place.kind == "job"]
        if not jobs:
            self.said = "only jobs can be marked"
        elif self.marked.keys() >= set(jobs):
            self.marked.clear()
        else:
            self.marked = dict.fromkeys(jobs[:_MOST_MARKED])

    def _ask(self, key: str) -> None:
        """A change, a filter, or where to go."""
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
        elif key == "page-up":  # Ctrl-U
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
        await self.refresh()

    async def _filter(self, typed: str) -> None:
        self.look.order.find = typed.strip()
        self.look.place = replace(self.look.place, start=0)
        await self._show()

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
            self.said = f"nothing is called {wanted}"

    def _offers(self) -> list[Offer]:
        """Of the row under the cursor, else of the whole screen."""
        row, screen = self._row(), self.screen
        found = offers(row.opens, row.about, tuple(self.marked)) if row else []
        return found or (offers(None, None) if screen is None else self._of_screen(screen))

    def _of_screen(self, screen: Screen) -> list[Offer]:
        about = screen.about
        return offers(about if isinstance(about, Place) else self.look.place, about)

    def _lines(self) -> list[Line]:
        """Of the screen as it is laid out. Once for all who ask, until something of it changes."""
        if self.screen is None:
            return []
        paper, order = self.terminal.paper, self.look.order
        way = (paper, self._room, order.column, order.down, order.find)
        if self._laid is None or self._laid[0] is not self.screen or self._laid[1] != way:
            self._laid = self.screen, way, lines_of(self.screen, paper, self._room, order)
        return self._laid[2]

    @property
    def _room(self) -> int:
        return max(1, self.terminal.height - 2)

    def _row(self) -> Row | None:
        return cursor.row_of(self._lines(), self.look)

    def draw(self) -> None:
        """The title, the lines that fit, and what keys do here."""
        paper, lines = self.terminal.paper, self._lines()
        if self.help:
            lines, top = [Line(paper.cut(one, paper.width)) for one in HELP.split("\n")], 0
        else:
            if not lines:
                lines = [Line(paper.cut(self.trouble or "looking …", paper.width))]
            cursor.keep_in_bounds(lines, self.look, self._room)
            top = self.look.top
        row = None if self.help else self._row()
        shown = lines[top : top + self._room]
        chosen = {at for at, line in enumerate(shown, 1) if row is not None and line.row is row}
        body = [self._marked(line) for line in shown]
        body += [Line("")] * (self._room - len(body))
        fleet = self._seen.fleet if self._seen else None
        keys = ["q quit", "any other key goes back"]
        if not self.help:
            keys = frame.keys(self.screen, self.look, self._offers(), len(lines), self._room)
        first = frame.title(paper, self.screen, fleet)
        last = frame.footer(paper, self.prompt, self.trouble, self.said or self.logged, keys)
        self.terminal.draw([first, *body, last], frozenset(chosen))

    def _marked(self, line: Line) -> Line:
        place = line.row.opens if line.row else None
        marked = place is not None and place.kind == "job" and place.name in self.marked
        return replace(line, text=f"*{line.text[1:]}") if marked else line


_UNHAPPY = ("wrong", "error", "timeout", "memory", "limit", "masked")


def _after(among: Sequence[str], one: str, step: int) -> str:
    at = among.index(one) if one in among else -1 if step > 0 else 0
    return among[(at + step) % len(among)]
