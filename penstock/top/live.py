"""One look at the fleet, printed; or the program that stays on the terminal."""

import json
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import click

from penstock.changes import Author
from penstock.fleet import Fleet, FleetReader
from penstock.fleet.history import History
from penstock.top.paper import Paper
from penstock.top.program import Program
from penstock.top.screen import Order, lines_of
from penstock.top.terminal import Terminal
from penstock.top.views import overview_of

_ALL = 10_000  # lines


async def look(url: str, run: str, width: int, *, as_json: bool) -> int:
    async with FleetReader(url, run) as reader:
        fleet = await reader.read()
    if as_json:
        click.echo(json.dumps(fleet.as_dict(), indent=2))
    else:
        click.echo("\n".join(_printed(fleet, Paper(width, sys.stdout.encoding or "ascii"))))
    return int(bool(fleet.notes))


def _printed(fleet: Fleet, paper: Paper) -> list[str]:
    """The overview, with all its lines."""
    history = History()
    history.add(fleet)
    clock = time.strftime("%H:%M:%S", time.localtime(fleet.at))
    where = f"penstock, run {fleet.run}, {fleet.server.where}"
    headline = paper.padded(where, paper.width - len(clock) - 1, "text") + " " + clock
    lines = lines_of(overview_of(fleet, history), paper, _ALL, Order())
    return [headline, *(line.text for line in lines)]


async def watch(url: str, run: str, every: float) -> None:
    async with FleetReader(url, run) as reader:
        with Terminal() as terminal:
            program = Program(reader, Author.at_terminal("top"), terminal, every)
            with _log_to(program):
                await program.run()


class _Footer(logging.Handler):
    """What is logged meanwhile would be written over the screen: it is shown at its bottom."""

    def __init__(self, program: Program) -> None:
        super().__init__(logging.WARNING)
        self._program = program

    def emit(self, record: logging.LogRecord) -> None:
        self._program.logged = record.getMessage()


@contextmanager
def _log_to(program: Program) -> Iterator[None]:
    root = logging.getLogger()
    before, root.handlers[:] = list(root.handlers), [_Footer(program)]
    try:
        yield
    finally:
        root.handlers[:] = before
