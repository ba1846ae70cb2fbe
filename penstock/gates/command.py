"""`penstock limits`: the gates, seen and changed while everybody uses them."""

from collections.abc import Mapping, Sequence
from typing import Any

import click

from ground import SettingError
from limiter import (
    Adaptive,
    Gate,
    GateShares,
    GateStatus,
    TokenBucket,
    UnknownGate,
    existing_gate,
)
from limiter.status import Change
from limiter.terms import as_whole
from penstock.changes import change_at_terminal
from penstock.commands.completion import gates
from penstock.fleet import FleetReader, Worker
from penstock.fleet.gate_texts import figure, in_flight_of, limit_of, rate_of, shares_of, state_of
from penstock.fleet.lines import line_says
from penstock.gates.permits import permits, revoke, waiting
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


@click.group(
    "limits",
    short_help="See and change the gates of all processes.",
    epilog=examples("""
Examples:

  penstock limits ls                          what is in flight, who waits
  penstock limits set code --gate-limit 64         for everyone, at once
  penstock limits set api --rate 30 --burst 60
  penstock limits share llm training=3 evaluation=1
  penstock limits pause code                  grant nothing; waiters keep their places
  penstock limits resume code
  penstock limits permits code                who holds what, and for how long
  penstock limits waiting code                who waits, and what lets them in
  penstock limits revoke code PERMIT          its holder is dead: do not wait for its lease
  penstock limits rm code                     delete a gate that nobody uses
"""),
)
def command() -> None:
    """See and change the gates. A change applies to every process at once.

    The monitor's log shows who changed what.
    """


command.add_command(permits)
command.add_command(revoke)
command.add_command(waiting)


@command.command(
    "ls",
    epilog=examples("""
Examples:

  penstock limits ls
  penstock limits ls --json | jq '.[] | select(.waiting > 0)'
"""),
)
@json_array
@settings_options
def list_gates(as_json: bool) -> int:
    """List the gates: limits, permits in flight, waiters, counters. One that cannot be read is
    named on stderr, with what to do; the exit code is 1 then."""
    with fleets_redis(given_settings()) as url:
        found, broken, workers = run_in_order(_gates_and_workers(url))
    nothing = "no gate can be read" if broken else "no gate has been used on this Redis"
    show_list(found, _table, nothing, as_json=as_json)
    for gate in () if as_json else found:
        if why := line_says(gate, workers):
            say(f"{gate.name}: {why}")
    for why in broken.values():
        _refused(why)
    return 1 if broken else 0


@command.command(
    "set",
    epilog=examples("""
Examples:

  penstock limits set code --gate-limit 64
  penstock limits set api --rate 30 --burst 60
  penstock limits set llm --amount requests=8 --amount tokens=1700
  penstock limits set api --adapt --min 1 --max 400     the gate finds its limit
  penstock limits set api --gate-limit 48                    pin it to this limit again
"""),
)
@click.argument("name", shell_complete=gates)
@click.option("--gate-limit", metavar="N", type=int, help="Permits in flight at once.")
@click.option("--limit", type=int, hidden=True)  # as it was called first
@click.option("--rate", type=float, help="Grants per second.")
@click.option("--burst", type=int, help="Grants that may come at once after a quiet time.")
@click.option("--amount", "amounts", multiple=True, metavar="NAME=RATE",
              help="How much of an amount is granted per second; may be repeated.")  # fmt: skip
@click.option("--passing", type=int,
              help="How many times its cost others may take before the first in line.")  # fmt: skip
@click.option("--adapt", is_flag=True, help="Let the gate find its limit, within bounds.")
@click.option("--min", "least", type=float, help="The lowest limit that it may choose.")
@click.option("--max", "most", type=float, help="The highest limit that it may choose.")
@settings_options
def set_limits(
    name: str,
    gate_limit: int | None,
    limit: int | None,
    rate: float | None,
    burst: int | None,
    amounts: tuple[str, ...],
    passing: int | None,
    adapt: bool,
    least: float | None,
    most: float | None,
) -> int:
    """Change a gate, or create one before anybody uses it. A lowered limit revokes nothing.

    A number for --gate-limit or --rate pins a gate that adapts; --adapt frees it.
    """
    limit = limit if gate_limit is None else gate_limit
    if limit is rate is burst is least is most is passing is None and not (adapt or amounts):
        raise click.UsageError(
            "say what to change: --gate-limit, --rate, --burst, --amount, --passing, --min, --max "
            "or --adapt"
        )
    rates = _rates(amounts)
    if rate is not None and "requests" in rates:
        raise SettingError("--amount", "requests in it is the --rate: give one of them")
    Change(limit, rate, burst, least, most, passing=passing).fields(None)  # refuses before it makes
    with fleets_redis(given_settings()) as url:
        try:
            gate = existing_gate(url, name)
        except UnknownGate:
            gate = _new_gate(
                url, name, limit, rate, burst, rates, adapt=adapt, least=least, most=most
            )
            gate.sync.status()  # makes it, so that it can be changed as any other
        rate = rates.pop("requests", rate)
        return _change(
            url, gate, limit=limit, rate=rate, burst=burst, min=least, max=most,
            adapt=adapt or None, rates=rates or None, passing=passing,
        )  # fmt: skip


@command.command(
    "share",
    epilog=examples("""
Examples:

  penstock limits share code                      show them
  penstock limits share code training=4 eval=1
  penstock limits share code debug=0              served when no other share waits
  penstock limits share code '*=2' =1             all others; waiters without a share
  penstock limits share code training=            remove its own weight
"""),
)
@click.argument("name", shell_complete=gates)
@click.argument("weights", nargs=-1, metavar="[NAME=WEIGHT]...", callback=read_weights)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@settings_options
def share(name: str, weights: dict[str, float | None], as_json: bool) -> int:
    """Show the shares of a gate; with weights, set these first. They count at once.

    A weight says how many permits a share gets for each permit of a share with weight 1, while both
    wait. '*' stands for shares without a weight of their own, an empty name for
    waiters without a share.
    """
    with fleets_redis(given_settings()) as url:
        try:
            gate = existing_gate(url, name)
        except UnknownGate as unknown:
            return _refused(str(unknown))
        if weights and (refusal := _changed(url, gate, weights=weights)):
            return _refused(refusal)
        shares = gate.sync.status().shares or GateShares(1.0, 0, ())
    show_shares(shares, as_json=as_json)
    return 0


def _rates(amounts: tuple[str, ...]) -> dict[str, float]:
    rates = {}
    for given in amounts:
        name, _, rate = given.partition("=")
        try:
            rates[name] = float(rate)
        except ValueError:
            raise click.BadParameter(f"{given!r} is no NAME=RATE: tokens=1700") from None
    return rates


def _new_gate(
    url: str, name: str, limit: int | None, rate: float | None, burst: int | None,
    rates: dict[str, float], *, adapt: bool, least: float | None, most: float | None,
) -> Gate:  # fmt: skip
    """A gate object whose terms are all checked: what is refused later would leave a gate."""
    if not adapt:
        if least is not None or most is not None:
            bound = "min" if least is not None else "max"
            raise SettingError(bound, f"gate {name!r} would not adapt: give --adapt too")
        return TokenBucket(url, name, limit=limit, rate=rate, burst=burst, rates=rates)
    if limit is not None or rate is not None or "requests" in rates:
        number = "--gate-limit" if limit is not None else "--rate"
        raise SettingError(
            number, f"a gate that adapts finds its own: leave out {number}, or --adapt"
        )
    if most is None:
        raise SettingError(
            "adapt", f"there is no gate {name!r} yet: give --max, and --min if it is not 1. It "
            "starts at 20, or within these"
        )  # fmt: skip
    bounds = [as_whole(each) for each in (1 if least is None else least, most)]
    start = max(bounds[0], min(20, bounds[1]))
    return TokenBucket(url, name, limit=Adaptive(start, *bounds), burst=burst, rates=rates)


@command.command(
    "rm",
    epilog=examples("""
Examples:

  penstock limits rm old-run
  penstock limits rm code --force             its holders are not asked
"""),
)
@click.argument("name", shell_complete=gates)
@click.option("--force", is_flag=True, help="Also if permits are in flight or waited for.")
@settings_options
def remove(name: str, force: bool) -> int:
    """Delete a gate and all its keys.

    A process that still uses it makes it again, with the limit that it was started with.
    """
    with fleets_redis(given_settings()) as url:
        changed = change_at_terminal(
            url, "limits", lambda changes: changes.remove_gate(name, force=force)
        )
    if changed.refusal:
        return _refused(changed.refusal)
    say(f"{name}: removed")
    return 0


async def _gates_and_workers(
    url: str,
) -> tuple[Sequence[GateStatus], Mapping[str, str], Sequence[Worker]]:
    """The workers only if somebody waits: they say who holds permits, and lives."""
    async with FleetReader(url) as reader:
        found, broken = await reader.gates()
        return found, broken, await reader.workers() if any(one.waiting for one in found) else []


def _change_named(name: str, paused: bool) -> int:
    with fleets_redis(given_settings()) as url:
        try:
            return _change(url, existing_gate(url, name), paused=paused)
        except UnknownGate as unknown:
            return _refused(str(unknown))


add_pause_and_resume(
    command, "name", gates, _change_named,
    pause="Grant nothing until `resume`. Holders keep their permits, waiters their places.",
    resume="Grant again, beginning with those who waited.",
)  # fmt: skip


def _change(url: str, gate: Gate, **terms: Any) -> int:
    if refusal := _changed(url, gate, **terms):
        return _refused(refusal)
    _say(gate.sync.status())
    return 0


def _changed(url: str, gate: Gate, **terms: Any) -> str:
    """Change a gate; return why it was refused. Terms that are None stay as they are."""
    given = {term: value for term, value in terms.items() if value is not None}
    return change_at_terminal(
        url, "limits", lambda changes: changes.gate(gate.name, **given)
    ).refusal


def _refused(why: str) -> int:
    say(f"penstock: {why}", err=True)
    return 1


def _say(gate: GateStatus) -> None:
    allowed = ", ".join(
        f"{what} {_shown(value)}"
        for what, value in (("limit", gate.limit), ("rate", gate.rate), ("burst", gate.burst))
        if value is not None
    )
    if gate.adaptive:
        bounds = f"{figure(gate.adaptive.min)} to {figure(gate.adaptive.max)}"
        allowed += f" (adapts, {bounds})" if gate.adaptive.adapts else f" (pinned; {bounds})"
    amounts = [f"{name} {figure(amount.rate)}/s" for name, amount in gate.amounts.items()]
    state = "paused" if gate.paused else "open"
    terms = ", ".join(filter(None, (state, allowed, *amounts)))
    waiting = f"{gate.waiting} waiting{shares_of(gate)}"
    say(f"{gate.name}: {terms}; {in_flight_of(gate)} in flight, {waiting}")


def _table(gates: Sequence[GateStatus]) -> Table:
    figures = "limit", "rate/s", "burst", "in flight", "waiting", "oldest", "granted"
    table = Table("gate", *figures, "state", right=figures)
    for gate in gates:
        table.add(
            gate.name,
            limit_of(gate),
            rate_of(gate),
            _shown(gate.burst),
            in_flight_of(gate),
            f"{gate.waiting}{shares_of(gate)}",
            f"{gate.oldest_wait:.1f} s" if gate.waiting else "",
            str(gate.granted),
            state_of(gate),
        )
    return table


def _shown(value: Any) -> str:
    return "" if value is None else figure(value)
