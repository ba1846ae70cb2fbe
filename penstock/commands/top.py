"""`penstock top`: the fleet at a glance, live."""

import asyncio
import json

import click
from rich.console import Console, RenderableType
from rich.console import Group as Lines
from rich.live import Live
from rich.text import Text

from ground import heed_cancellation
from ground.http.guard import UNWELL
from penstock.fleet import Fleet, FleetReader
from penstock.fleet.history import History
from penstock.fleet.screen import picture
from penstock.in_order import run_in_order
from penstock.options import console, examples, given_settings, settings_options
from penstock.startup import require_one_primary, running_redis

_UNUSED = "Nothing has used this Redis yet. In this folder `penstock up` starts all of it."


@click.command(
    "top",
    epilog=examples("""
Examples:

  penstock top                      live; Ctrl-C ends it
  penstock top --once               print once; no terminal needed
  penstock top --json | jq -r '.notes[]'

Exit code of one look: 0, or 1 where there is something that a person should see to.
"""),
)
@click.option("--once", is_flag=True, help="Look once, print, and end.")
@click.option("--json", "as_json", is_flag=True, help="One look, as one JSON object on stdout.")
@click.option("--every", type=click.FloatRange(0.2), default=1.0, show_default=True,
              help="Seconds between looks.")  # fmt: skip
@settings_options
def command(once: bool, as_json: bool, every: float) -> int:
    """Queues, gates, workers, groups: live, worst first."""
    settings = given_settings()
    require_one_primary(settings)
    screen = console()
    with running_redis(settings) as url:
        if once or as_json or not screen.is_terminal:
            return run_in_order(_look(url, settings.run, screen, as_json=as_json))
        try:
            run_in_order(_watch(url, settings.run, screen, every))
        except KeyboardInterrupt:
            return 0  # the way to end it
    return 0


def _shown(fleet: Fleet, history: History, console: Console, height: int) -> RenderableType:
    shown = picture(fleet, history, console.width, height)
    return shown if fleet.used else Lines(shown, Text(_UNUSED, style="dim"))


async def _look(url: str, run: str, console: Console, *, as_json: bool) -> int:
    async with FleetReader(url, run) as reader:
        fleet = await reader.read()
    if as_json:
        click.echo(json.dumps(fleet.as_dict(), indent=2))
    else:
        history = History()
        history.add(fleet)
        console.print(_shown(fleet, history, console, 10_000))
    return int(bool(fleet.notes))


async def _watch(url: str, run: str, console: Console, every: float) -> None:
    history = History()
    async with FleetReader(url, run) as reader:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                heed_cancellation()
                live.update(await _seen(reader, history, console), refresh=True)
                await asyncio.sleep(every)


async def _seen(reader: FleetReader, history: History, console: Console) -> RenderableType:
    """What one look shows: the fleet, or why it could not be seen."""
    try:
        fleet = await reader.read()
    except UNWELL as problem:
        return Text(f"! {problem}", style="bold red")
    history.add(fleet)
    return _shown(fleet, history, console, console.height)
