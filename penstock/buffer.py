"""`penstock buffer serve`: the rollout buffer's HTTP server."""

from pathlib import Path

import click

from buffer import BufferSettings
from penstock.entry import Loading
from penstock.options import examples, given_settings, settings_options
from penstock.startup import running_redis


@click.group(
    "buffer",
    epilog=examples("""
Example:

  penstock buffer serve --generators ./mine
"""),
)
def command() -> None:
    """slime's Rollout Buffer, on Redis."""


@command.command(
    "serve",
    epilog=examples("""
Examples:

  penstock buffer serve                         on port 8889, on a private server
  penstock buffer serve --generators ./mine     with *_generator.py files of yours
  penstock --redis-url redis://10.0.0.5 buffer serve --port 8890
"""),
)
@click.option("--host", help="Address to listen on [PENSTOCK_BUFFER_HOST].")
@click.option("--port", type=int, help="Port to listen on [PENSTOCK_BUFFER_PORT].")
@click.option(
    "--generators",
    type=click.Path(path_type=Path),
    help="Folder of *_generator.py files [PENSTOCK_GENERATORS].",
)
@settings_options
def serve(host: str | None, port: int | None, generators: Path | None) -> None:
    """Serve all tasks of a run; start as many servers on one Redis as you like."""
    with Loading():
        from buffer.serve import serve as serve_until_told

    ground = given_settings()
    given = {"buffer_host": host, "buffer_port": port, "generators": generators}
    settings = BufferSettings.load(**{k: v for k, v in given.items() if v is not None})
    with running_redis(ground) as url:
        serve_until_told(url, ground.run, settings)
