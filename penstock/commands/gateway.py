"""`penstock gateway`: serve agents, and look at the sessions that they keep."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeVar

import click

from buffer.link import Link
from buffer.task import listed_tasks
from ground.extras import needed_by
from penstock.commands.completion import tasks
from penstock.in_order import run_in_order
from penstock.interrupts import Loading
from penstock.listing import json_array, show_list
from penstock.named_or_own_redis import fleets_redis, running_redis
from penstock.options import (
    examples,
    given_settings,
    say,
    settings_options,
    without_token_option,
)
from penstock.tables import Styled, Table, coloured

if TYPE_CHECKING:
    from gateway.log import SessionLog
    from gateway.training_rows import Row

_T = TypeVar("_T")
TRAINED, MASKED, CONTEXT = {"fg": "green"}, {"fg": "yellow"}, {"dim": True}


@click.group(
    "gateway",
    epilog=examples("""
Examples:

  penstock gateway serve --engines sglang=http://10.0.0.7:30000
  penstock gateway ls                     open sessions of every task
  penstock gateway show math 6f1c…        its turns as a tree, and what is trained on
"""),
)
def command() -> None:
    """Agents' turns, kept token by token."""


@command.command(
    "serve",
    epilog=examples("""
Examples:

  penstock gateway serve --engines sglang=http://10.0.0.7:30000
  penstock gateway serve --engines vllm=http://10.0.0.7:8000,vllm=http://10.0.0.8:8000
"""),
)
@click.option("--host", "gateway_host", help="Address to listen on [PENSTOCK_GATEWAY_HOST].")
@click.option("--port", "gateway_port", type=int, help="Port to listen on [PENSTOCK_GATEWAY_PORT].")
@click.option(
    "--engines",
    "gateway_engines",
    metavar="LIST",
    help="Engines, as KIND=URL with commas between; kinds are vllm, vllm-plain and sglang "
    "[PENSTOCK_GATEWAY_ENGINES].",
)
@without_token_option
@settings_options
def serve(without_token: bool, **given: Any) -> None:
    """Serve all tasks of a run. Start as many gateways on one Redis as you like."""
    with Loading(), needed_by("penstock gateway serve"):
        from gateway.server.app import serve as serve_until_stopped
        from gateway.settings import GatewaySettings

    ground = given_settings()
    settings = GatewaySettings.load(**{k: v for k, v in given.items() if v is not None})
    with running_redis(ground) as url:
        serve_until_stopped(url, ground.run, settings, without_token=without_token)


@command.command(
    "ls",
    epilog=examples("""
Examples:

  penstock gateway ls
  penstock gateway ls --task math --json | jq '.[].sid'
"""),
)
@click.option("--task", shell_complete=tasks, help="Of this task only.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="At most.")
@json_array
@settings_options
def list_sessions(task: str | None, limit: int, as_json: bool) -> None:
    """List open sessions."""

    async def listed(log: "SessionLog", link: Link) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for name in await listed_tasks(link, log.run):
            if task in (None, name):
                found += [{"task": name, **one} for one in await log.listed(name, limit)]
        return found[:limit]

    show_list(_with_log(listed), _table, "no session is open in this run", as_json=as_json)


def _table(found: Sequence[Mapping[str, Any]]) -> Table:
    rows = Table("task", "session", "uid", "state", "calls", "tokens", right=("calls", "tokens"),
                 whole=("session",))  # fmt: skip
    for one in found:
        rows.add(one["task"], one["sid"], one.get("uid", ""), one.get("state", ""),
                 one.get("seq", "0"), one.get("tokens", "0"))  # fmt: skip
    return rows


@command.command(
    "show",
    epilog=examples("""
Examples:

  penstock gateway show math 6f1c0e5a9b3d4c27
  penstock gateway show math 6f1c0e5a9b3d4c27 --tokens
  penstock gateway show math 6f1c0e5a9b3d4c27 --json | jq '.rows[].trained'
"""),
)
@click.argument("task", shell_complete=tasks)
@click.argument("session")
@click.option("--tokens", is_flag=True, help="Each row's tokens: green ones are trained on.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@settings_options
def show(task: str, session: str, tokens: bool, as_json: bool) -> int:
    """Show a session's turns as a tree, and the rows that it would give now.

    Exits with 1 if there is no such session, or it is finalized.
    """
    from gateway.errors import SessionOver, SessionUnknown
    from gateway.log import Session
    from gateway.show import described, lines
    from gateway.training_rows import rows_of

    async def read(log: "SessionLog", _: Link) -> Any:
        found = await log.read(Session(log.run, task, session, {}))
        return found, rows_of(found, log.settings.gateway_on_hole)

    try:
        found, rows = _with_log(read)
    except (SessionOver, SessionUnknown):
        say(f"penstock: task {task!r} has no open session {session!r}; list them with "
            "penstock gateway ls", err=True)  # fmt: skip
        return 1
    about = described(found, rows, tokens=tokens)
    if as_json:
        click.echo(json.dumps(about, indent=2))
        return 0
    for line in lines(about["calls"]):
        say(line)
    for number, row in enumerate(rows.rows, 1):
        why = f", masked: {row.cause}" if row.masked else ""
        calls = "-".join(str(id) for id, *_ in row.calls)
        trained = about["rows"][number - 1]["trained"]
        say(f"row {number}: turns {calls}, {len(row.tokens)} tokens, {trained} trained{why}")
        if tokens:
            click.echo(_painted(row))
    return 0


def _painted(row: "Row") -> str:
    """A row's ids: context dim, trained on green, sampled but masked yellow."""
    from gateway.packing import spread

    start = len(row.tokens) - row.response_length
    mask = [0] * start + spread(row.mask)
    sampled = [False] * len(row.tokens)
    for _, begin, end, _ in row.calls:
        sampled[begin:end] = [True] * (end - begin)
    styles = [
        TRAINED if trained else MASKED if own else CONTEXT
        for trained, own in zip(mask, sampled, strict=True)
    ]
    pairs = zip(styles, row.tokens, strict=True)
    return " ".join(
        coloured(Styled(" ".join(str(token) for _, token in run), style))
        for style, run in groupby(pairs, key=lambda pair: pair[0])
    )


def _with_log(ask: "Callable[[SessionLog, Link], Awaitable[_T]]") -> _T:
    from gateway.log import SessionLog

    ground = given_settings()

    async def asked(url: str) -> _T:
        link = Link(url)
        log = SessionLog(link, ground.run)
        try:
            return await ask(log, link)
        finally:
            await log.aclose()
            await link.aclose()

    with fleets_redis(ground) as url:
        return run_in_order(asked(url))
