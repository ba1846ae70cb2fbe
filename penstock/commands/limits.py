"""`penstock limits`: the gates, seen and changed while everybody uses them."""

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import click
from rich.table import Table

from ground import SettingError
from limiter import (
    Gate,
    GateInUse,
    GateStatus,
    TokenBucket,
    UnknownGate,
    existing_gate,
    gate_names,
    remove_gate,
)
from penstock.options import examples, for_data, given_settings, say, settings_options
from penstock.startup import running_redis


@click.group(
    "limits",
    short_help="See and change the gates of all processes.",
    epilog=examples("""
Examples:

  penstock limits ls                          what is in flight, who waits
  penstock limits set code --limit 64         for everyone, at once
  penstock limits set api --rate 30 --burst 60
  penstock limits pause code                  grant nothing; waiters keep their places
  penstock limits resume code
  penstock limits rm code                     forget a gate that nobody uses
"""),
)
def command() -> None:
    """See and change the gates. A change applies to every process at once."""


@command.command(
    "ls",
    epilog=examples("""
Examples:

  penstock limits ls
  penstock limits ls --json | jq '.[] | select(.waiting > 0)'
"""),
)
@click.option("--json", "as_json", is_flag=True, help="One JSON array on stdout.")
@settings_options
def list_gates(as_json: bool) -> None:
    """List the gates: limits, permits in flight, waiters, counters."""
    with running_redis(given_settings()) as url:
        gates = list(_statuses(url))
    if as_json:
        click.echo(json.dumps([asdict(gate) for gate in gates], indent=2))
    elif gates:
        for_data().print(_table(gates))
    else:
        click.echo("no gate has been used on this Redis", err=True)


@command.command(
    "set",
    epilog=examples("""
Examples:

  penstock limits set code --limit 64
  penstock limits set api --rate 30 --burst 60
"""),
)
@click.argument("name")
@click.option("--limit", type=int, help="Permits in flight at once.")
@click.option("--rate", type=float, help="Grants per second.")
@click.option("--burst", type=int, help="Grants that may come at once after a quiet time.")
@settings_options
def set_limits(name: str, limit: int | None, rate: float | None, burst: int | None) -> None:
    """Change a gate, or make one before anybody uses it. A lowered limit revokes nothing."""
    if limit is rate is burst is None:
        raise click.UsageError("say what to change: --limit, --rate or --burst")
    with running_redis(given_settings()) as url:
        try:
            gate = existing_gate(url, name)
        except UnknownGate:
            gate = TokenBucket(url, name, limit=limit, rate=rate, burst=burst)
        if burst is not None and rate is None and gate.terms.rate is None:
            raise SettingError("burst", f"gate {name!r} has no rate; give --rate too")
        gate.sync.configure(limit=limit, rate=rate, burst=burst)
        _say(gate.sync.status())


@command.command(
    "pause",
    epilog=examples("""
Example:

  penstock limits pause code
"""),
)
@click.argument("name")
@settings_options
def pause(name: str) -> int:
    """Grant nothing until `resume`. Holders keep their permits, waiters their places."""
    return _change(name, lambda gate: gate.sync.pause())


@command.command(
    "resume",
    epilog=examples("""
Example:

  penstock limits resume code
"""),
)
@click.argument("name")
@settings_options
def resume(name: str) -> int:
    """Grant again, beginning with those who waited."""
    return _change(name, lambda gate: gate.sync.resume())


@command.command(
    "rm",
    epilog=examples("""
Examples:

  penstock limits rm old-run
  penstock limits rm code --force             its holders are not asked
"""),
)
@click.argument("name")
@click.option("--force", is_flag=True, help="Also if permits are in flight or waited for.")
@settings_options
def remove(name: str, force: bool) -> int:
    """Delete a gate and all its keys.

    A process that still uses it makes it again, with the limit that it was started with.
    """
    with running_redis(given_settings()) as url:
        try:
            remove_gate(url, name, force=force)
        except (UnknownGate, GateInUse) as refusal:
            say(f"penstock: {refusal}", err=True)
            return 1
    say(f"{name}: removed")
    return 0


def _statuses(url: str) -> Iterator[GateStatus]:
    for name in gate_names(url):
        with contextlib.suppress(UnknownGate):  # its hash was deleted meanwhile
            yield existing_gate(url, name).sync.status()


def _change(name: str, action: Callable[[Gate], None]) -> int:
    with running_redis(given_settings()) as url:
        try:
            gate = existing_gate(url, name)
            action(gate)
            _say(gate.sync.status())
        except UnknownGate as unknown:
            say(f"penstock: {unknown}", err=True)
            return 1
    return 0


def _say(gate: GateStatus) -> None:
    allowed = ", ".join(
        f"{what} {_shown(value)}"
        for what, value in (("limit", gate.limit), ("rate", gate.rate), ("burst", gate.burst))
        if value is not None
    )
    state = "paused" if gate.paused else "open"
    say(f"{gate.name}: {state}, {allowed}; {gate.in_flight} in flight, {gate.waiting} waiting")


def _table(gates: list[GateStatus]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("gate")
    for heading in ("limit", "rate/s", "burst", "in flight", "waiting", "oldest", "granted"):
        table.add_column(heading, justify="right")
    table.add_column("state")
    for gate in gates:
        table.add_row(
            gate.name,
            *map(_shown, (gate.limit, gate.rate, gate.burst, gate.in_flight, gate.waiting)),
            f"{gate.oldest_wait:.1f} s" if gate.waiting else "",
            str(gate.granted),
            "paused" if gate.paused else "full" if gate.in_flight == gate.limit else "open",
        )
    return table


def _shown(value: Any) -> str:
    return "" if value is None else f"{value:g}"
