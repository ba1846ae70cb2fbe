"""`penstock queues`: what waits, how the shares of a queue take turns, and its pause."""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

import click

from ground import visible
from penstock.changes import change_at_terminal
from penstock.commands.completion import queues
from penstock.fleet import FleetReader, Queue
from penstock.in_order import run_in_order
from penstock.listing import add_pause_and_resume, json_array, show_list, show_shares
from penstock.named_or_own_redis import fleets_redis
from penstock.options import (
    examples,
    given_settings,
    read_weights,
    say,
    settings_options,
)
from penstock.tables import Table
from worker import CodeQueue
from worker.queue.dropped_jobs import REASONS, Dropped, dropped_of


@click.group(
    "queues",
    short_help="See and pause queues, and set the weights of their shares.",
    epilog=examples("""
Examples:

  penstock queues ls                              what waits, and why
  penstock queues share code                      its shares, in the order of their turns
  penstock queues share code training=4 eval=1    four jobs of training for each of eval
  penstock queues dropped code                    which jobs were taken off without a run
  penstock queues pause code                      start no more of its jobs
  penstock queues resume code
"""),
)
def command() -> None:
    """See and pause queues, and set the weights of their shares.

    The monitor's log shows who changed what.
    """


@command.command(
    "ls",
    epilog=examples("""
Examples:

  penstock queues ls
  penstock queues ls --json | jq '.[] | select(.depth > 0).name'
"""),
)
@json_array
@settings_options
def list_queues(as_json: bool) -> None:
    """List the queues: jobs that wait, with all shares, jobs that run, workers."""

    async def read(url: str) -> tuple[Queue, ...]:
        async with FleetReader(url) as reader:
            return (await reader.read(workers=0)).queues

    with fleets_redis(given_settings()) as url:
        queues = run_in_order(read(url))
    show_list(queues, _table_of_queues, "no queue has been used on this Redis", as_json=as_json)


@command.command(
    "share",
    epilog=examples("""
Examples:

  penstock queues share code                      show them
  penstock queues share code training=4 eval=1
  penstock queues share code debug=0              served when no other share waits
  penstock queues share code '*=2' =1             all others; jobs without a share
  penstock queues share code training=            remove its own weight
  penstock queues share code --by seconds         a job that runs ten times as long costs ten times
"""),
)
@click.argument("queue", shell_complete=queues)
@click.argument("weights", nargs=-1, metavar="[NAME=WEIGHT]...", callback=read_weights)
@click.option(
    "--by", type=click.Choice(("jobs", "seconds")), help="Divide starts, or the time that jobs run."
)
@click.option(
    "--most", type=click.IntRange(1), default=100, show_default=True, help="Show at most this many."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@settings_options
def share(
    queue: str,
    weights: dict[str, float | None],
    by: Literal["jobs", "seconds"] | None,
    most: int,
    as_json: bool,
) -> None:
    """Show the shares of a queue; with weights, set these first. They count at once.

    A weight says how many jobs of a share start for each job of a share with weight 1, while
    both wait. '*' stands for shares without a weight of their own, an empty name for jobs
    without a share.
    """
    with fleets_redis(given_settings()) as url:
        if weights or by:
            change_at_terminal(url, "queues", lambda changes: changes.weights(queue, weights, by))
        shares = CodeQueue(url, queue).sync.shares(most)
    show_shares(shares, as_json=as_json)


@command.command(
    "dropped",
    epilog=examples("""
Examples:

  penstock queues dropped code
  penstock queues dropped code --json | jq -r '.[] | select(.why == "id").job'
"""),
)
@click.argument("queue", shell_complete=queues)
@click.option(
    "--most", type=click.IntRange(1), default=100, show_default=True, help="Show at most this many."
)
@json_array
@settings_options
def dropped(queue: str, most: int, as_json: bool) -> None:
    """List jobs that were taken off a queue without a run, and refused results, with the reason.

    The latest come first. A queue keeps about 1,000, for a week.
    """
    with fleets_redis(given_settings()) as url:
        found = dropped_of(url, queue, most)
    nothing = visible(f"{queue}: no job was dropped in the last week")
    show_list(found, _table_of_dropped, nothing, as_json=as_json)


def _change(queue: str, paused: bool) -> int:
    with fleets_redis(given_settings()) as url:
        changed = change_at_terminal(
            url, "queues", lambda changes: changes.queue(queue, paused=paused)
        )
    if changed.refusal:
        say(f"penstock: {changed.refusal}; `penstock queues ls` lists them", err=True)
        return 1
    say(f"{queue}: {'paused' if paused else 'resumed'}")
    return 0


add_pause_and_resume(
    command, "queue", queues, _change,
    pause="Start no more jobs of a queue until `resume`. Running jobs continue.\n\n"
    "Concurrent workers obey, RQ's own workers do not.",
    resume="Start the jobs of a queue again.",
)  # fmt: skip


def _table_of_dropped(found: Sequence[Dropped]) -> Table:
    rows = Table("job", "when", "by worker", "why")
    for one in found:
        when = datetime.fromtimestamp(one.at).astimezone().isoformat(" ", "seconds")
        rows.add(one.job, when, one.worker, REASONS.get(one.why, one.why))
    return rows


def _table_of_queues(queues: Sequence[Queue]) -> Table:
    figures = "waiting", "running", "workers", "oldest"
    rows = Table("queue", *figures, "state", right=figures)
    for queue in queues:
        oldest = f"{queue.oldest:.0f} s" if queue.depth else ""
        counts = map(str, (queue.depth, queue.running, queue.workers))
        rows.add(queue.name, *counts, oldest, queue.verdict)
    return rows
