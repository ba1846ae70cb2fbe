"""`penstock sandbox ls`, `reap` and `kill`: the session sandboxes of every machine, as Redis has
them."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from typing import Any

import click

from ground import connect
from ground.settings import GroundSettings
from penstock.changes import Author, Changed, Changes
from penstock.commands.completion import sandboxes as sandbox_names
from penstock.fleet import FleetReader
from penstock.fleet.lines import Waiter
from penstock.in_order import run_in_order
from penstock.listing import show_list
from penstock.named_or_own_redis import fleets_redis
from penstock.options import examples, given_settings, say, settings_options
from penstock.sessions.command import list_sessions
from penstock.tables import Table, terminal_width
from worker.lifecycle import LifecycleSettings
from worker.lifecycle.registry.records import Record, Registered
from worker.lifecycle.registry.registry import Registry, runs


@click.command(
    "ls",
    epilog=examples("""
Examples:

  penstock sandbox ls
  penstock sandbox ls --run exp7 --json | jq '.[].sandboxes[] | select(.error != "")'
  penstock sandbox ls --here --json | jq '.[] | select(.memory > 1e9) | .name'
"""),
)
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON array on stdout, one entry per run."
)
@click.option("--here", is_flag=True, help="This machine's, with their memory; asks no Redis.")
@settings_options
def list_sandboxes(as_json: bool, here: bool) -> None:
    """List the session sandboxes of every run, or of the one that is named."""
    if here:
        given_settings()
        list_sessions(as_json=as_json)
        return
    with _registries() as (url, registries):
        seen = {registry.run: registry.look(10_000) for registry in registries}
        lines = {} if as_json else run_in_order(_starting_lines(url))
    found = [each for each in seen.items() if as_json or each[1].count]
    rows = [_plain(run, registered) for run, registered in found]
    show_list(rows, lambda _: _table(seen), "no sandbox is registered", as_json=as_json)
    if not as_json:
        _print_troubles(seen.values())
        for gate, line in lines.items():
            wait = "start waits" if len(line) == 1 else "starts wait"
            say(f"{len(line)} {wait} at gate {gate!r}: {line[0].waits}")


async def _starting_lines(url: str) -> dict[str, list[Waiter]]:
    async with FleetReader(url) as reader:
        return await reader.starting_lines()


def _print_troubles(seen: Iterable[Registered]) -> None:
    for registered in seen:
        for record in registered.records:
            if trouble := record.trouble(registered.now):
                say(f"{record.name}: {trouble}")


@click.command(
    "reap",
    epilog=examples("""
Examples:

  penstock sandbox reap
  penstock sandbox reap --strays         also those that are in no registry, of any age
"""),
)
@click.option("--strays", is_flag=True, help="End unregistered sandboxes without the grace time.")
@settings_options
def reap(strays: bool) -> None:
    """End the sandboxes whose owners' leases are over. Exits with 1 if one could not be ended."""
    settings = given_settings()
    with fleets_redis(settings) as url:
        named = named_run(settings)
        names = [named] if named else runs(url)
        found = _changed(url, names, lambda changes, run: changes.reap(run, strays_now=strays))
    if not found:
        say("no run has registered a sandbox")
    for run, one in found.items():
        ended, others, failed = (one.found[what] for what in ("ended", "strays", "failed"))
        say(f"{run}: {len(ended)} ended, {len(others)} strays ended, {len(failed)} failed")
        for name, why in failed.items():
            say(f"{name}: {why}", err=True)
    if any(one.refusal for one in found.values()):
        raise SystemExit(1)


@click.command(
    "kill",
    epilog=examples("""
Examples:

  penstock sandbox kill penstock-1f9c6e0a
  penstock --run exp7 sandbox kill --all
"""),
)
@click.argument("names", nargs=-1, shell_complete=sandbox_names)
@click.option("--all", "everything", is_flag=True, help="All of the run, or of every run.")
@settings_options
def kill(names: tuple[str, ...], everything: bool) -> None:
    """End sandboxes, even if they are in use. Their owners get SandboxLost.

    Exits with 1 if one could not be ended, or is not registered.
    """
    if bool(names) == everything:
        raise click.UsageError("name the sandboxes to end, or use --all")
    with _registries() as (url, registries):
        doomed = {}
        for registry in registries:
            registered = (record.name for record in registry.look(10_000).records)
            if found := [name for name in registered if everything or name in names]:
                doomed[registry.run] = found
        if everything and not doomed:
            click.echo("no sandbox is registered", err=True)
            raise SystemExit(1)
        why = "killed by an operator"
        killed = _changed(
            url, doomed, lambda changes, run: changes.end_sandboxes(run, doomed[run], why)
        )
    absent = set(names).difference(*doomed.values())
    for name in sorted(absent):
        say(f"{name}: not registered", err=True)
    for one in killed.values():
        for name in one.found.get("ended", []):
            say(f"{name}: ended")
        for name, problem in one.found.get("failed", {}).items():
            say(f"{name}: left to the reaper")
            say(f"{name}: {problem}", err=True)
    if absent or any(one.refusal for one in killed.values()):
        raise SystemExit(1)


def _changed(
    url: str, runs: Iterable[str], change: Callable[[Changes, str], Awaitable[Changed]]
) -> dict[str, Changed]:
    """Make the change in each of these runs, whatever happens in the others."""

    async def changed() -> list[Changed | BaseException]:
        some = asyncio.Semaphore(_AT_ONCE)
        async with FleetReader(url) as reader:
            changes = Changes(reader, Author.at_terminal("sandbox"))

            async def changed_in(run: str) -> Changed:
                async with some:
                    return await change(changes, run)

            return await asyncio.gather(*map(changed_in, runs), return_exceptions=True)

    found = {}
    for run, one in zip(runs, run_in_order(changed()), strict=True):
        if isinstance(one, BaseException):
            raise one
        found[run] = one
    return found


_AT_ONCE = 20  # runs: each takes connections of its own


@contextmanager
def _registries() -> Iterator[tuple[str, list[Registry]]]:
    settings = given_settings()
    fleet = LifecycleSettings.load().fleet
    with fleets_redis(settings) as url:
        named = named_run(settings)
        names = [named] if named else runs(url)
        with closing(connect(url)) as client:
            yield url, [Registry(url, run, fleet=fleet, client=client) for run in names]


def named_run(settings: GroundSettings) -> str | None:
    """Every run's, unless one was named."""
    return settings.run if "run" in settings.model_fields_set else None


def _plain(run: str, registered: Registered) -> dict[str, Any]:
    return {
        "run": run,
        "fleet": registered.facts.get("fleet", ""),
        "counters": registered.counters,
        "reaper": registered.reaper,
        "failing": registered.failing,
        "sandboxes": [asdict(record) for record in registered.records],
    }


def _table(seen: dict[str, Registered]) -> Table:
    """A row for each sandbox. In 80 columns it has the name for `kill`, and when its lease ends. A
    wider one has its provider and owner, too."""
    wide = terminal_width() >= 120
    figures = "age", "lease"
    table = Table(
        "run", "sandbox", "state", *figures, "session", *(("provider", "owner") if wide else ()),
        right=figures, whole=("sandbox", "state", *figures),
    )  # fmt: skip
    for run, registered in seen.items():
        for record in registered.records:
            cells = _cells(record, registered.now)
            table.add(run, *(cells if wide else cells[:-2]))
    return table


def _cells(record: Record, now: float) -> tuple[str, ...]:
    times = (f"{now - record.made:.0f} s", f"{record.lease_end - now:.0f} s")
    whose = (record.instance, record.provider.rpartition(".")[2], record.owner)
    return (record.name, record.state, *times, *whose)
