"""`penstock demo`: play the story, and end with what happened, in numbers."""

import json
import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from ground import GroundSettings
from penstock.demo.crew import DemoFailed
from penstock.demo.screen import Screen
from penstock.demo.story import Outcome, play
from penstock.options import examples, given_settings, settings_options
from penstock.startup import require_one_primary, running_redis


@click.command(
    "demo",
    epilog=examples("""
Examples:

  penstock demo
  penstock demo --jobs 200
  penstock demo --redis-url redis://localhost:6379/0

It needs no Redis: it starts a private server in a temporary folder, or in
PENSTOCK_DATA_DIR where that is set, and takes away what it made.
"""),
)
@click.option(
    "--jobs", type=click.IntRange(12, 10_000), default=40, show_default=True, help="How many."
)
@click.option("--json", "as_json", is_flag=True, help="The numbers as one JSON object on stdout.")
@settings_options
def command(jobs: int, as_json: bool) -> int:
    """Run jobs through a gate, kill a worker with -9, lose nothing."""
    talk = Console(stderr=True)
    settings = given_settings()
    logging.getLogger("rq").setLevel(logging.WARNING)  # the story tells it better
    try:
        with (
            _scratch() as scratch,
            _redis(settings, scratch) as url,
            Screen(talk, jobs) as screen,
        ):
            outcome = play(url, jobs, scratch, screen)
    except DemoFailed as failure:
        click.echo(f"penstock: the demo failed: {failure}", err=True)
        return 1
    if as_json:
        click.echo(json.dumps(asdict(outcome)))
    else:
        Console().print(summary(outcome))
    return 0 if outcome.well else 1


def summary(outcome: Outcome) -> Table:
    """The closing table."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(justify="right", style="bold")
    table.add_column()
    lost = outcome.jobs - outcome.right
    at_once = f"at most at work at once; the gate's limit is {outcome.limit}"
    for number, what in (
        (f"{outcome.right}/{outcome.jobs}", f"jobs done, each with the right result; {lost} lost"),
        (str(outcome.most_at_once), at_once),
        (str(outcome.killed), "worker killed with -9 in the middle of a job"),
        (
            str(outcome.permits_expired),
            f"permit came back by itself, after {outcome.permit_back_after:.1f} s; "
            f"{outcome.permits_left} of {outcome.permits_granted} left behind",
        ),
        (str(outcome.repeated), "job done again by another worker"),
        (f"{outcome.seconds:.1f} s", f"on {outcome.server}"),
    ):
        table.add_row(number, what)
    return table


@contextmanager
def _scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as folder:
        yield Path(folder)


@contextmanager
def _redis(settings: GroundSettings, scratch: Path) -> Iterator[str]:
    require_one_primary(settings)
    own = "data_dir" not in settings.model_fields_set
    with running_redis(settings, folder=scratch / "redis" if own else None) as url:
        yield url
