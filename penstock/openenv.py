"""`penstock openenv`: an OpenEnv server whose environment runs and judges programs."""

import asyncio
from typing import Any

import click

from ground import SettingError
from ground.extras import needed_by
from penstock.interrupts import Loading
from penstock.options import (
    Seconds,
    examples,
    given_settings,
    settings_options,
    without_token_option,
)
from worker.settings import HostSettings

_GRACE = 15  # seconds that steps have to finish once the server must end


@click.command(
    "openenv",
    epilog=examples("""
Examples:

  penstock openenv                       programs on the queue `code` of PENSTOCK_REDIS_URL
  penstock openenv --sessions            the programs of an episode share one sandbox
  penstock openenv --on-failure none     a reward of None in place of an error, as TRL takes it
"""),
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8000, show_default=True, help="Port; 0 picks a free one.")
@click.option(
    "--clients",
    type=click.IntRange(1),
    default=64,
    show_default=True,
    help="Clients at once, at most.",
)
@click.option("--queue", default="code", show_default=True, help="The queue of the programs.")
@click.option(
    "--patience",
    type=Seconds(0, min_open=True),
    default=120.0,
    show_default=True,
    help="Seconds beyond --timeout until a run_code without a result fails.",
)
@click.option(
    "--timeout",
    type=Seconds(0, min_open=True),
    default=30.0,
    show_default=True,
    help="Seconds for a program.",
)
@click.option(
    "--case-timeout",
    type=Seconds(0, min_open=True),
    default=10.0,
    show_default=True,
    help="Seconds of processor time for a case.",
)
@click.option("--sessions", is_flag=True, help="One session sandbox per episode.")
@click.option(
    "--on-failure",
    type=click.Choice(["raise", "none"]),
    default="raise",
    show_default=True,
    help="What a step is if the sandbox or Penstock failed, not the program: an error, "
    "or a reward of None.",
)
@without_token_option
@settings_options
def command(
    host: str, port: int, clients: int, queue: str, patience: float, timeout: float,
    case_timeout: float, sessions: bool, on_failure: Any, without_token: bool,
) -> None:  # fmt: skip
    """Serve an OpenEnv environment: `run_code`, then `submit` for the reward.

    Clients are those of the package openenv, which must be installed here too. Without
    PENSTOCK_REDIS_URL programs run in the embedded sandbox of this process. With
    PENSTOCK_OPENENV_TOKEN, or a file that PENSTOCK_OPENENV_TOKEN_FILE names, clients need that
    bearer token.
    """
    with Loading(), needed_by("penstock openenv"):
        from ground.http import HttpGuard, listen, require_token, serve_on

    url = given_settings().redis_url
    token = HostSettings.load().openenv_token
    require_token(host, token, "PENSTOCK_OPENENV_TOKEN", without=without_token)
    if sessions and url is None:
        raise SettingError("PENSTOCK_REDIS_URL", "is not set, and --sessions needs a Redis")
    with Loading():
        try:
            from worker.hosts.openenv import app
        except ModuleNotFoundError as missing:
            raise SettingError(
                "openenv", f"cannot be imported ({missing.name} is missing): pip install openenv"
            ) from None
        from worker.hosts.grading import Grader
        from worker.queue.code_queue import CodeQueue

    redis = url.get_secret_value() if url else None
    served = app(
        most=clients, sessions=sessions, timeout=timeout, patience=patience, on_failure=on_failure,
        grader=Grader(on=redis or "local", queue=queue, case_timeout=case_timeout),
        queue=CodeQueue(redis, queue) if redis else None,
    )  # fmt: skip
    guarded = HttpGuard(served, health=_nothing, figures=_no_figures, token=token, host=host)
    listener = listen(host, port, "--port")
    click.echo(f"http://{host}:{listener.getsockname()[1]}")
    asyncio.run(serve_on(listener, guarded, grace=_GRACE, websockets=True))


async def _nothing() -> dict[str, Any]:
    return {}


async def _no_figures() -> list[Any]:
    return []
