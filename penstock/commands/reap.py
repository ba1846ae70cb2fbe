"""`penstock reap`: only a reaper of session sandboxes, for fleets without workers."""

import click

from penstock.commands.sandboxes import named_run
from penstock.in_order import run_in_order
from penstock.named_or_own_redis import fleets_redis
from penstock.options import examples, given_settings, settings_options
from worker.lifecycle.reaper.reaper import Reaper


@click.command(
    "reap",
    epilog=examples("""
Examples:

  penstock reap                            next to trainers that open sandboxes themselves
  PENSTOCK_REAP_INTERVAL=2 penstock reap   look more often
  penstock sandbox reap                  once, now

Every `penstock worker` reaps too. Of all reapers one is elected; if it dies, another takes over.
"""),
)
@settings_options
def command() -> None:
    """End session sandboxes whose owners have died. Runs until Ctrl-C."""
    settings = given_settings()
    with fleets_redis(settings) as url:
        run = named_run(settings)
        reaper = Reaper(url, run=run)
        whose = f"run {run!r}" if run else "every run"
        click.echo(f"watching the session sandboxes of {whose} on {reaper.target}", err=True)
        run_in_order(_work(reaper))


async def _work(reaper: Reaper) -> None:
    try:
        await reaper.work()
    finally:
        await reaper.close()
