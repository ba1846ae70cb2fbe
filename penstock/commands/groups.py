"""`penstock groups`: look at the rollout buffer's groups, and requeue them."""

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

import click

from buffer import RolloutBuffer
from penstock.changes import Author, Changed, Changes
from penstock.commands.completion import groups as group_ids
from penstock.commands.completion import tasks
from penstock.fleet import FleetReader, Group
from penstock.fleet.buffers import read_groups
from penstock.fleet.groups import meant_by
from penstock.in_order import run_in_order
from penstock.listing import json_array, show_list
from penstock.named_or_own_redis import fleets_redis
from penstock.options import examples, given_settings, say, settings_options
from penstock.tables import Table

_T = TypeVar("_T")
STATES = ("open", "ready", "leased", "kept", "quarantined")


@click.group(
    "groups",
    epilog=examples("""
Examples:

  penstock groups ls                      all that Redis has, by state
  penstock groups ls --state quarantined  what a function failed on, and why
  penstock groups show math_17            its items
  penstock groups versions                how old they are, and what takes wait for
  penstock groups requeue math_17         ready again, after you fixed the function
"""),
)
def command() -> None:
    """Trajectory groups in the rollout buffer."""


@command.command(
    "ls",
    epilog=examples("""
Examples:

  penstock groups ls --task math --limit 500
  penstock groups ls --state quarantined --json | jq -r '.[].reason'
"""),
)
@click.option("--task", shell_complete=tasks, help="Of this task only.")
@click.option("--state", type=click.Choice(STATES), multiple=True, help="Of these states only.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="At most.")
@json_array
@settings_options
def list_groups(task: str | None, state: tuple[str, ...], limit: int, as_json: bool) -> None:
    """List groups, oldest first in each state."""

    async def listed(reader: FleetReader) -> tuple[list[Group], float]:
        found: list[Group] = []
        for buffer in await _buffers(reader, task):
            found += await read_groups(buffer, state or STATES, limit)
        return found[:limit], await reader.now()

    found, now = _with_reader(listed)
    nothing = "no such group in this run"
    show_list(found, lambda groups: _table(groups, now), nothing, as_json=as_json)


@command.command(
    "show",
    epilog=examples("""
Examples:

  penstock groups show math_17
  penstock groups show math_17:2          of round 2, as `penstock why` names it
  penstock groups show math_17 | jq '.[].reward'
"""),
)
@click.argument("instance_id", shell_complete=group_ids)
@click.option("--round", "number", type=click.IntRange(0), help="Its round; default 0.")
@click.option("--task", shell_complete=tasks, help="Its task; default: whichever has it.")
@settings_options
def show(instance_id: str, number: int | None, task: str | None) -> int:
    """Print a group's items as one JSON array. Exits with 1 if there is no such group."""

    async def found(reader: FleetReader) -> list[Any]:
        meant = meant_by(instance_id) if number is None else [(instance_id, number)]
        for buffer in await _buffers(reader, task):
            for name, turn in meant:
                if items := await buffer.catalog.items(name, turn):
                    return items
        return []

    items = _with_reader(found)
    if not items:
        say(
            f"penstock: no group {instance_id!r} of round {number or 0} in this run; list them "
            "with penstock groups ls",
            err=True,
        )
        return 1
    say(json.dumps(items, indent=2, ensure_ascii=False))
    return 0


@command.command(
    "requeue",
    epilog=examples("""
Examples:

  penstock groups requeue math_17
  penstock groups ls --state quarantined --json | jq -r '.[].instance_id' |
    xargs penstock groups requeue
"""),
)
@click.argument("instance_id", nargs=-1, required=True, shell_complete=group_ids)
@click.option("--round", "number", type=click.IntRange(0), default=0, help="Its round; default 0.")
@click.option("--task", shell_complete=tasks, help="Its task; default: whichever has it.")
@settings_options
def requeue(instance_id: tuple[str, ...], number: int, task: str | None) -> int:
    """Make quarantined or discarded groups ready again. Exits with 1 if one could not be."""

    async def put_back(reader: FleetReader) -> list[Changed]:
        changes = Changes(reader, Author.at_terminal("groups"))
        return [await changes.requeue_group(task, id, number) for id in instance_id]

    changed = _with_reader(put_back)
    for id, one in zip(instance_id, changed, strict=True):
        if one.refusal:
            say(f"penstock: {id}: {one.refusal}", err=True)
        else:
            say(f"{id} is ready again")
    return int(any(one.refusal for one in changed))


@command.command(
    "versions",
    epilog=examples("""
Examples:

  penstock groups versions                what is under way, by age in versions
  penstock groups versions --json | jq '.[].waits_for'
"""),
)
@click.option("--task", shell_complete=tasks, help="Of this task only.")
@json_array
@settings_options
def show_versions(task: str | None, as_json: bool) -> None:
    """Show how old the groups of tasks with a policy are, and what takes wait for."""

    async def looked(reader: FleetReader) -> list[dict[str, Any]]:
        found = [(one.task, await one.versions()) for one in await _buffers(reader, task)]
        return [
            {"task": name, **asdict(now), "dropped_share": now.dropped_share}
            for name, now in found
            if now.version is not None
        ]

    rows = _with_reader(looked)
    nothing = "no task in this run has a policy on versions"
    show_list(rows, _versions_table, nothing, as_json=as_json)
    for row in () if as_json else rows:
        if row["waiting"]:
            wait = "ask for slots waits" if row["waiting"] == 1 else "asks for slots wait"
            asks = f"{row['task']}: {row['waiting']:,} {wait}"
            say(f"{asks}, the first for {row['waited']:.0f} s: {row['held_by']}")


def _versions_table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(
        "task", "version", "line", "taken", "under way by age", "ready by age", "slots",
        "parked", "again", "asks", "waits for", "dropped", "dropped most",
    )  # fmt: skip
    for row in rows:
        table.add(
            row["task"], str(row["version"]), str(row["line"]), str(row["taken"]),
            _counted(row["outstanding"]), _counted(row["ready"]), str(row["slots"]),
            str(row["parked"]), str(row["again"]), str(row["waiting"]),
            ", ".join(one["instance_id"] or one["slot"] for one in row["waits_for"]),
            f"{row['dropped_share']:.1%}" if row["dropped_by"] else "", _counted(row["dropped"]),
        )  # fmt: skip
    return table


def _counted(counts: dict[Any, int]) -> str:
    return ", ".join(f"{name}: {n}" for name, n in counts.items() if n)


async def _buffers(reader: FleetReader, task: str | None) -> list[RolloutBuffer]:
    """The buffer of one task, or those of all."""
    return [one for one in await reader.open_buffers() if task in (None, one.task)]


def _with_reader(asked: Callable[[FleetReader], Awaitable[_T]]) -> _T:
    settings = given_settings()

    async def answered(url: str) -> _T:
        async with FleetReader(url, settings.run) as reader:
            return await asked(reader)

    with fleets_redis(settings) as url:
        return run_in_order(answered(url))


def _table(groups: Sequence[Group], now: float) -> Table:
    table = Table(
        "task", "group", "round", "state", "items", "bytes", "age", "reason",
        right=("round", "items", "bytes", "age"),
    )  # fmt: skip
    for group in groups:
        age = f"{max(0.0, now - group.since):.0f} s" if group.since else ""
        table.add(
            group.task, str(group.instance_id), str(group.round), group.state, str(group.items),
            str(group.bytes), age, group.reason,
        )  # fmt: skip
    return table
