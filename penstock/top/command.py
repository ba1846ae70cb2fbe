"""`penstock top`: the fleet in a terminal, live; or one look at it, as text or as JSON."""

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
from penstock.in_order import run_in_order
from penstock.options import console, examples, given_settings, settings_options
from penstock.startup import fleets_redis, require_one_primary
from penstock.top.paper import Paper
from penstock.top.program import Program
from penstock.top.screen import Order, lines_of
from penstock.top.terminal import Terminal
from penstock.top.views import overview_of

_ALL = 10_000  # lines


@click.command(
    "top",
    epilog=examples("""
Examples:

  penstock top                      live; ? lists the keys, q ends it
  penstock top --once               print once; no terminal needed
  penstock top --json | jq -r '.notes[]'

1 to 8 are the overview and the lists. Enter opens a row, and Esc goes back. f opens the latest
failed job, / filters, g goes to an id. Changes are asked about, and noted with your name.

Exit code of one look: 0, or 1 if something needs attention.
"""),
)
@click.option("--once", is_flag=True, help="Look once, print, and end.")
@click.option("--json", "as_json", is_flag=True, help="One look, as one JSON object on stdout.")
@click.option("--every", type=click.FloatRange(0.2), default=1.0, show_default=True,
              help="Seconds between looks.")  # fmt: skip
@settings_options
def command(once: bool, as_json: bool, every: float) -> int:
    """Queues, jobs, workers, gates, groups: live, worst first. Keys open, sort and change them."""
    settings = given_settings()
    require_one_primary(settings)
    screen = console()
    with fleets_redis(settings) as url:
        if once or as_json or not screen.file.isatty() or screen.is_dumb_terminal:
            return run_in_order(_look(url, settings.run, screen.width, as_json=as_json))
        try:
            run_in_order(_watch(url, settings.run, every))
        except KeyboardInterrupt:
            return 0  # a way to end it
    return 0


async def _look(url: str, run: str, width: int, *, as_json: bool) -> int:
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


async def _watch(url: str, run: str, every: float) -> None:
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
