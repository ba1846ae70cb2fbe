"""`penstock limits permits`, `waiting` and `revoke`: who holds what, who waits for it and why."""

from collections.abc import Sequence

import click

from limiter import LeaseStatus, UnknownGate, existing_gate
from penstock.changes import change_at_terminal
from penstock.commands.completion import gates
from penstock.fleet import FleetReader
from penstock.fleet.lines import Waiter, line_of
from penstock.in_order import run_in_order
from penstock.listing import json_array, show_list
from penstock.named_or_own_redis import fleets_redis
from penstock.options import examples, given_settings, say, settings_options
from penstock.tables import Table


@click.command(
    "permits",
    epilog=examples("""
Examples:

  penstock limits permits code
  penstock limits permits code --json | jq '.[].process'
"""),
)
@click.argument("name", shell_complete=gates)
@json_array
@settings_options
def permits(name: str, as_json: bool) -> int:
    """List a gate's permits in flight: at most a hundred, the first to end first."""
    with fleets_redis(given_settings()) as url:
        try:
            leases = existing_gate(url, name).sync.status().leases
        except UnknownGate as unknown:
            say(f"penstock: {unknown}", err=True)
            return 1
    show_list(leases, _table_of_permits, f"{name}: no permit is in flight", as_json=as_json)
    return 0


@click.command(
    "waiting",
    epilog=examples("""
Examples:

  penstock limits waiting code
  penstock limits waiting code --json | jq '.[0].waits'
"""),
)
@click.argument("name", shell_complete=gates)
@json_array
@settings_options
def waiting(name: str, as_json: bool) -> int:
    """List who waits for a permit: at most a hundred, with place, reason, and what lets them in.

    A worker waits once, whatever the number of jobs in its queue.
    """
    with fleets_redis(given_settings()) as url:
        line = run_in_order(_line(url, name))
    if line is None:
        say(f"penstock: there is no gate {name!r}; list them with penstock limits ls", err=True)
        return 1
    show_list(line, _table_of_waiters, f"{name}: nobody waits", as_json=as_json)
    return 0


async def _line(url: str, name: str) -> list[Waiter] | None:
    async with FleetReader(url) as reader:
        status = await reader.gate_status(name)
        if status is None:
            return None
        workers = await reader.workers()
        return await line_of(reader.client, status, await reader.now(), workers)


@click.command(
    "revoke",
    epilog=examples("""
Example:

  penstock limits revoke code 1f2e3d4c5b6a7988:2c
"""),
)
@click.argument("name", shell_complete=gates)
@click.argument("permit")
@settings_options
def revoke(name: str, permit: str) -> int:
    """Take one permit from its holder now, instead of waiting for its lease.

    For a holder that is dead, or hangs. A living one learns that its permit is lost. A program
    that still runs in a sandbox elsewhere continues.
    """
    with fleets_redis(given_settings()) as url:
        changed = change_at_terminal(url, "limits", lambda changes: changes.revoke(name, permit))
    if changed.refusal:
        say(f"penstock: {changed.refusal}", err=True)
        return 1
    holder, left = changed.found["process"], changed.found["expires_in"]
    say(f"{name}: revoked {permit} of {holder}, {left:.0f} s before its lease would end")
    return 0


def _table_of_permits(leases: Sequence[LeaseStatus]) -> Table:
    figures = "held", "ends in"
    table = Table("permit", "process", *figures, right=figures)
    for lease in leases:
        table.add(lease.id, lease.process, f"{lease.held:.1f} s", f"{lease.expires_in:.1f} s")
    return table


def _table_of_waiters(line: Sequence[Waiter]) -> Table:
    figures = "place", "lane", "waited"
    table = Table("place", "process", "lane", "share", "waited", "why", right=figures)
    for one in line:
        table.add(
            str(one.place), one.process, str(one.lane), one.share, f"{one.waited:.1f} s", one.waits
        )
    return table
