"""`penstock top`: the fleet in a terminal, live; or one look at it, as text or as JSON."""

import click

from ground.extras import needed_by
from penstock.in_order import run_in_order
from penstock.interrupts import Loading
from penstock.options import console, examples, given_settings, settings_options
from penstock.startup import fleets_redis, require_one_primary


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
    with Loading(), needed_by("penstock top"):
        from penstock.top.live import look, watch

    settings = given_settings()
    require_one_primary(settings)
    screen = console()
    with fleets_redis(settings) as url:
        if once or as_json or not screen.file.isatty() or screen.is_dumb_terminal:
            return run_in_order(look(url, settings.run, screen.width, as_json=as_json))
        try:
            run_in_order(watch(url, settings.run, every))
        except KeyboardInterrupt:
            return 0  # a way to end it
    return 0
