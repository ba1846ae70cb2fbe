"""`penstock limits permits` and `revoke`: who holds what, and how it is taken back."""

from collections.abc import Sequence

import click

from limiter import LeaseStatus, UnknownGate, existing_gate
from penstock.changes import change_at_terminal
from penstock.commands.completion import gates
from penstock.listing import json_array, show_list
from penstock.options import examples, given_settings, say, settings_options
from penstock.startup import fleets_redis
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
