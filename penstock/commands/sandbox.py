"""`penstock sandbox`: serve the embedded sandbox over HTTP, show what its probes find, and see and
end session sandboxes."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeVar, get_args

import click

from ground.extras import needed_by
from ground.settings import GroundSettings
from jail import LocalSandbox, SandboxUnavailable
from jail.errors import SandboxFailure
from jail.isolation.levels import Level
from jail.jails import Jails
from jail.settings import SandboxSettings
from penstock.interrupts import Loading
from penstock.options import (
    Seconds,
    examples,
    given_settings,
    settings_options,
    without_token_option,
)
from penstock.programs import NOT_RUN, ended, request_of
from penstock.sessions.command import shell
from worker.settings import WorkerSettings

if TYPE_CHECKING:
    from ground.http import AsgiApp
    from ground.http.guard import Receive, Scope, Send
    from worker.e2b.fleet.service import Service

_GRACE = 15  # seconds that programs have to finish once the server must end
_Command = TypeVar("_Command", bound=Callable[..., Any])


def _of_the_sandbox(function: _Command) -> _Command:
    """The options that both commands take; each is a variable too."""
    function = click.option(
        "--level",
        "sandbox_level",
        type=click.Choice(get_args(Level)),
        help="How programs are isolated. Default: ns; landlock is weaker, none isolates nothing.",
    )(function)
    for name, metavar, help in (
        ("expose", "PATHS", "Further folders that programs may read: /opt/go,/srv/data."),
        ("preload", "MODULES", "Modules to import once, before any program: numpy,pandas."),
        ("python", "FILE", "The interpreter that programs run in. Default: this one."),
    ):
        function = click.option(f"--{name}", f"sandbox_{name}", metavar=metavar, help=help)(
            function
        )
    return function


def _settings(given: dict[str, Any]) -> SandboxSettings:
    return SandboxSettings.load(
        **{name: value for name, value in given.items() if value is not None}
    )


class _Commands(click.Group):
    """Commands that ask Redis are imported when asked for: `serve` and `run` need none."""

    _OF_REDIS = ("kill", "ls", "reap")

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *self._OF_REDIS])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._OF_REDIS:
            return super().get_command(ctx, cmd_name)
        from penstock.commands import sandboxes

        found = (sandboxes.kill, sandboxes.list_sandboxes, sandboxes.reap)
        return next(command for command in found if command.name == cmd_name)


@click.group(
    cls=_Commands,
    epilog=examples("""
Examples:

  penstock sandbox selftest
  penstock sandbox serve --port 8080 --preload numpy
  penstock sandbox ls                      session sandboxes, and what went wrong with them
  penstock sandbox reap                    end those whose owners have died, now
  penstock sandbox kill penstock-1f9c…     end this one, even if it is in use
  penstock --run exp7 sandbox kill --all

"""),
)
def command() -> None:
    """Run hostile programs here, without Docker; see and end session sandboxes."""


command.add_command(shell)


@command.command(
    epilog=examples("""
Examples:

  penstock sandbox selftest
  penstock sandbox selftest --json | jq .isolation
  penstock sandbox selftest --level landlock
""")
)
@_of_the_sandbox
@click.option("--json", "as_json", is_flag=True, help="The probe table as JSON on stdout.")
def selftest(as_json: bool, **given: Any) -> int:
    """Attack the sandbox with every probe, and show the results. Exits with 1 if it is unfit."""
    settings = _settings(given)
    try:
        facts = asyncio.run(_tested(settings))
    except SandboxUnavailable as problem:
        if as_json:
            click.echo(json.dumps({"isolation": None, "problem": str(problem), "probes": []}))
        click.echo(f"penstock: {problem}", err=True)
        return 1
    if as_json:
        click.echo(json.dumps(facts))
        return 0
    for probe in facts["probes"]:
        click.echo(f"contained  {probe['probe']:36}  {probe['refused']}")
    if not facts["probes"]:
        click.echo("nothing is contained at this level, and no attack was tried")
    click.echo(
        f"level {facts['isolation']}, memory held by {facts['memory_by']}, "
        f"languages: {', '.join(facts['languages'])}"
    )
    for path, why in facts["bare"].items():
        click.echo(f"file locks below {path} can slow down the machine: {why}")
    return 0


@command.command(
    "run",
    epilog=examples("""
Examples:

  penstock sandbox run solution.py
  echo 'print(6 * 7)' | penstock sandbox run -
  penstock sandbox run -i solution.cpp < input.txt

It exits as the program did: 128 + n after signal n, 124 if its time ran out, 137 at
another limit. 125: the program was not run.
"""),
)
@click.argument("program", type=click.File("rb"), metavar="FILE|-")
@click.option("-i", "--stdin", "with_input", is_flag=True, help="Give it stdin as its input.")
@click.option("--language", help="Default: by the file's name, else python.")
@click.option("--timeout", type=Seconds(0, min_open=True), default=10.0,
              show_default=True, help="Seconds that it may run.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="The whole result as JSON on stdout.")
@_of_the_sandbox
def run(
    program: BinaryIO, with_input: bool, language: str | None, timeout: float, as_json: bool,
    **given: Any,
) -> int:  # fmt: skip
    """Run one program here, without a worker or Redis; exit as it exits."""
    request = request_of(program, language, timeout, with_input=with_input)
    try:
        with LocalSandbox.from_settings(_settings(given)).sync as sandbox:
            result = sandbox.run(request)
    except SandboxFailure as failure:
        click.echo(f"penstock: {failure}", err=True)
        return NOT_RUN
    return ended(result, as_json=as_json)


async def _tested(settings: SandboxSettings) -> dict[str, Any]:
    async with Jails(settings.config()) as jails:
        return {
            "isolation": jails.level,
            "memory_by": jails.memory_by,
            "languages": jails.languages,
            "bare": jails.not_overlaid,
            "probes": [{"probe": f.probe, "refused": f.refused} for f in jails.findings],
        }


@command.command(
    epilog=examples("""
Examples:

  penstock sandbox serve                      on 127.0.0.1:8080
  penstock sandbox serve --preload numpy --concurrency 16
  PENSTOCK_SANDBOX_MEMORY_MB=512 penstock sandbox serve --port 0
""")
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8080, show_default=True, help="Port; 0 picks a free one.")
@click.option(
    "--line",
    type=click.IntRange(0),
    default=1024,
    show_default=True,
    help="Requests that may wait.",
)
@click.option(
    "--patience",
    type=Seconds(0),
    default=25.0,
    show_default=True,
    help="Seconds that a request waits before it gets 504.",
)
@click.option(
    "--concurrency",
    "sandbox_concurrency",
    type=int,
    help="Programs at once. Default: four per core.",
)
@click.option(
    "--e2b",
    "e2b_port",
    type=click.IntRange(0, 65535),
    is_flag=False,
    flag_value=3000,
    metavar="[PORT]",
    help="Speak E2B's protocol too, for session sandboxes. Its own port, 3000 unless given.",
)
@_of_the_sandbox
@without_token_option
@settings_options
def serve(
    host: str,
    port: int,
    line: int,
    patience: float,
    e2b_port: int | None,
    without_token: bool,
    **given: Any,
) -> None:
    """Serve the sandbox over HTTP, as Sandbox Fusion does.

    /run_code, /run_jupyter and /v1/ping answer as upstream's do; /submit and ScaleBox's
    /common_evaluate_batch judge the cases that come with the request. /healthz runs a program of
    nothing, /metrics is for Prometheus. With PENSTOCK_SANDBOX_TOKEN, or a file that
    PENSTOCK_SANDBOX_TOKEN_FILE names, all but /livez and /healthz needs that bearer token.
    """
    with Loading(), needed_by("penstock sandbox serve"):
        from ground.http import HttpGuard, listen, require_token, serve_on
        from jail.judge.run import Judging
        from jail.serve import App, Line

    ground = given_settings()  # starts the log
    settings = _settings(given)
    token = WorkerSettings.load().sandbox_token
    require_token(host, token, "PENSTOCK_SANDBOX_TOKEN", without=without_token)
    listener = listen(host, port, "--port")
    e2b = None if e2b_port is None else _e2b(host, e2b_port, settings, without_token, ground)

    async def run() -> None:
        jails = Jails(settings.config(), concurrency=settings.sandbox_concurrency)
        judging = Judging(jails, settings.limits(), settings.sandbox_cache_mb << 20)
        async with judging.opened(), jails, e2b.behind() if e2b else nullcontext():
            places = Line(jails.concurrency, line, patience)
            app = App(jails, settings.limits(), places, judging)
            guarded = HttpGuard(
                app, health=app.health, figures=app.figures, token=token, host=host, ending=504
            )
            click.echo(f"level {jails.level}, memory held by {jails.memory_by}", err=True)
            click.echo(f"http://{host}:{listener.getsockname()[1]}")
            serving = [serve_on(listener, guarded, grace=_GRACE, at_end=places.close)]
            if e2b:
                click.echo(f"http://{host}:{e2b.listener.getsockname()[1]}")
                e2bs = _watched(e2b.app, guarded)
                serving.append(serve_on(e2b.listener, e2bs, grace=_GRACE))
            await asyncio.gather(*serving)

    asyncio.run(run())


def _watched(app: "AsgiApp", guarded: "AsgiApp") -> "AsgiApp":
    """E2B's protocol has no path that says whether the server is well. The sandbox's guard says it
    at this port too."""

    async def answer(scope: "Scope", receive: "Receive", send: "Send") -> None:
        asked = scope["type"] == "http" and scope["path"] in ("/livez", "/healthz")
        await (guarded if asked else app)(scope, receive, send)

    return answer


class _E2b(NamedTuple):
    """The second door: E2B's clients, and the session sandboxes of this machine."""

    listener: socket.socket
    app: "AsgiApp"
    service: "Service | None"  # where a Redis is named
    warm: Callable[[Callable[..., Any]], AbstractAsyncContextManager[None]]

    @asynccontextmanager
    async def behind(self) -> AsyncIterator[None]:
        """Run beside the answers what has to run."""
        leave = self.service.leave if self.service else nullcontext
        async with self.service or nullcontext(), self.warm(leave):
            yield


def _e2b(
    host: str, port: int, settings: SandboxSettings, without_token: bool, ground: GroundSettings
) -> _E2b:
    with Loading(), needed_by("penstock sandbox serve --e2b"):
        from ground.http import listen, require_token
        from jail.sessions import LocalSessions
        from jail.sessions.settings import SessionSettings
        from worker.e2b.app import app
        from worker.e2b.boxes import Boxes
        from worker.e2b.fleet.machines import address_by
        from worker.e2b.fleet.service import Service
        from worker.e2b.fleet.warm import kept_warm
        from worker.e2b.settings import E2bSettings

    chosen, kept = E2bSettings.load(), SessionSettings.load()
    require_token(host, chosen.e2b_api_key, "PENSTOCK_E2B_API_KEY", without=without_token)
    sessions = LocalSessions(settings, kept)
    key = chosen.e2b_api_key.get_secret_value() if chosen.e2b_api_key else ""
    listener = listen(host, port, "--e2b")
    warm = partial(kept_warm, sessions, chosen.warm)
    if ground.redis_url is None:
        return _E2b(listener, app(Boxes(sessions, chosen), key, host), None, warm)
    redis = ground.redis_url.get_secret_value()
    address = chosen.e2b_address or address_by(host, listener.getsockname()[1], redis)
    service = Service(redis, ground.run, address, sessions, chosen, kept.most())
    return _E2b(listener, app(service.boxes, key, host, service.fleet), service, warm)
