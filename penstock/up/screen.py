"""The screen of `penstock up`: its services and the fleet, live; or a line for each event."""

import contextlib
import time
from collections import deque

import click
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from ground import visible
from penstock.fleet import Fleet
from penstock.fleet.history import History
from penstock.top.plain import lines_of
from penstock.top.views import overview_of
from penstock.up.redis import Redis
from penstock.up.service import Service

_COLOURS = {"up": "green", "starting": "yellow", "restarting": "bold red", "ending": "yellow"}
_EVENTS = 3


class Screen:
    """A screen if a terminal reads; else lines on stderr."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = (
            Live(console=console, screen=True, auto_refresh=False)
            if console.file.isatty()
            else None
        )
        self._events: deque[str] = deque(maxlen=200)
        self._history = History()
        self._fleet: Fleet | None = None
        self.address = ""

    def start(self) -> None:
        if self._live is not None:
            self._live.start()

    def stop(self) -> None:
        """Leave the screen; what happened stays to be read."""
        if self._live is not None:
            self._live.stop()
            self._live = None
            for event in list(self._events)[-8:]:
                _print(event)

    def say(self, event: str) -> None:
        stamped = visible(f"{time.strftime('%H:%M:%S')} {event}")
        self._events.append(stamped)
        if self._live is None:
            _print(stamped)

    def say_all_is_up(self) -> None:
        self.say("all is up" if self._live else f"all is up; open {self.address}")

    def look(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._history.add(fleet)

    def draw(self, redis: Redis, services: list[Service]) -> None:
        if self._live is None:
            return
        width, height = self._console.width, self._console.height
        lines = [Text("penstock up — Ctrl-C ends it all", style="bold"), _services(redis, services)]
        lines += [Text(f"open {self.address}", style="bold cyan", no_wrap=True)]
        lines += [Text(event, style="dim", no_wrap=True) for event in list(self._events)[-_EVENTS:]]
        used = len(lines) + 1 + len(lines[1].plain) // max(1, width)
        body: list[object] = [*lines, Text("")]
        if self._fleet is not None:
            left = max(4, height - used)
            overview = lines_of(overview_of(self._fleet, self._history), width, left)
            body += [Text.from_ansi(line, no_wrap=True) for line in overview[:left]]
        self._live.update(Group(*body), refresh=True)  # type: ignore[arg-type]


def _print(event: str) -> None:
    """A reader that went away (`| tee` at Ctrl-C) or a full disk must not end what runs."""
    with contextlib.suppress(OSError):
        click.echo(event, err=True)


def _services(redis: Redis, services: list[Service]) -> Text:
    line = Text()
    everyone: list[Redis | Service] = [redis, *services]
    for one in everyone:
        again = f", {one.restarts}× again" if one.restarts else ""
        line.append(f"{one.name} ")
        line.append(f"{one.state}{again}", style=_COLOURS.get(one.state, ""))
        line.append("   ")
    return line
