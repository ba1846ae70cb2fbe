"""Commands on queues, gates, groups and sandboxes do this alike: lists, shares, pause, resume."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any, TypeVar

import click

from limiter import GateShares
from penstock.options import examples, settings_options
from penstock.tables import Table
from worker import Shares

_T = TypeVar("_T")

json_array = click.option("--json", "as_json", is_flag=True, help="One JSON array on stdout.")


def show_list(
    found: Sequence[_T], table: Callable[[Sequence[_T]], Table], nothing: str, *, as_json: bool
) -> None:
    """Show a list as a table, or whole as JSON. That there is nothing is said on stderr."""
    if as_json:
        click.echo(json.dumps([_plain(one) for one in found], indent=2))
    elif found:
        table(found).show()
    else:
        click.echo(nothing, err=True)


def _plain(one: Any) -> Any:
    return asdict(one) if is_dataclass(one) and not isinstance(one, type) else one


def show_shares(shares: Shares | GateShares, *, as_json: bool) -> None:
    """Show the shares of a queue or of a gate, in the order of their turns."""
    if as_json:
        click.echo(json.dumps(asdict(shares), indent=2))
        return
    rows = Table("share", "waiting", "weight", right=("waiting", "weight"))
    for one in shares.shares:
        rows.add(one.name or "(none)", str(one.waiting), f"{one.weight:g}")
    rows.add("*", "", f"{shares.others:g}")
    left_out = shares.waiting - sum(one.waiting > 0 for one in shares.shares)
    if left_out > 0:
        rows.add(f"and {left_out} more", "", "")
    rows.show()


def add_pause_and_resume(
    group: click.Group, named: str, names: Any, change: Callable[[str, bool], int], *,
    pause: str, resume: str,
) -> None:  # fmt: skip
    """Two commands of a group. `names` completes what is `named`; `change` gets it, and whether
    it is to be paused. `pause` and `resume` are their help."""

    def add(verb: str, paused: bool, help: str) -> None:
        @group.command(
            verb, help=help, epilog=examples(f"\nExample:\n\n  penstock {group.name} {verb} code\n")
        )
        @click.argument(named, shell_complete=names)
        @settings_options
        def changed(**given: str) -> int:
            return change(given[named], paused)

    add("pause", True, pause)
    add("resume", False, resume)
