"""`penstock top`: the fleet in a terminal, live; or one look at it, as text or as JSON."""

import json
import logging
import os
import sys
import time

import click

from ground.extras import needed_by
from penstock.in_order import run_in_order
from penstock.interrupts import Loading
from penstock.named_or_own_redis import fleets_redis, require_one_primary
from penstock.options import Seconds, examples, given_settings, settings_options


@click.command(
    "top",
    epilog=examples("""
Examples:

  penstock top                      live; ? lists the keys, q ends it
  penstock top --once               print once; no terminal needed
  penstock top --json | jq -r '.notes[]'

1 to 8 are the overview and the lists. Enter opens a row, and Esc goes back. f opens the latest
failed job, / filters, g goes to an id. Changes are asked about, and noted with your name.

Exit codes of one look are those of `penstock status`.
"""),
)
@click.option("--once", is_flag=True, help="Look once, print, and end.")
@click.option("--json", "as_json", is_flag=True, help="One look, as one JSON object on stdout.")
@click.option("--every", type=Seconds(0.2), default=1.0, show_default=True,
              help="Seconds between looks.")  # fmt: skip
@settings_options
def command(once: bool, as_json: bool, every: float) -> int:
    """Queues, jobs, workers, gates, groups: live, worst first. Keys open, sort and change them."""
    settings = given_settings()
    require_one_primary(settings)
    live = sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
    if once or as_json or not live:
        with fleets_redis(settings) as url:
            return run_in_order(_look(url, settings.run, as_json=as_json))
    with Loading(), needed_by("penstock top"):
        import penstock.top.program  # noqa: F401 - before there is anything to clean up
    with fleets_redis(settings) as url:
        try:
            return run_in_order(_watch(url, settings.run, every))
        except KeyboardInterrupt:
            return 0  # a way to end it


async def _look(url: str, run: str, *, as_json: bool) -> int:
    from penstock.fleet import FleetReader
    from penstock.fleet.health import EXIT_CODES
    from penstock.fleet.history import History
    from penstock.tables import terminal_width
    from penstock.top.plain import lines_of
    from penstock.top.views import overview_of

    async with FleetReader(url, run) as reader:
        fleet = await reader.read()
    code = EXIT_CODES[fleet.level]
    if as_json:
        click.echo(json.dumps(fleet.as_dict(), indent=2))
        return code
    history = History()
    history.add(fleet)
    clock = time.strftime("%H:%M:%S", time.localtime(fleet.at))
    lines = lines_of(overview_of(fleet, history), terminal_width())
    for line in (f"penstock, run {fleet.run}, {fleet.server.where}  {clock}", *lines):
        click.echo(line.encode(sys.stdout.encoding or "ascii", "backslashreplace").decode(
            sys.stdout.encoding or "ascii"))  # fmt: skip
    return code


async def _watch(url: str, run: str, every: float) -> int:
    from penstock.changes import Author
    from penstock.fleet import FleetReader
    from penstock.top.program import Footer, Program

    async with FleetReader(url, run) as reader:
        program = Program(reader, Author.at_terminal("top"), every)
        root = logging.getLogger()
        before, root.handlers[:] = list(root.handlers), [Footer(program)]
        try:
            await program.run_async(mouse=False)
        finally:
            root.handlers[:] = before
    return program.return_code or 0
