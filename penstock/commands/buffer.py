"""`penstock buffer serve`: the rollout buffer's HTTP server."""

from pathlib import Path
from typing import Any

import click

from buffer.settings import BufferSettings
from ground.extras import needed_by
from penstock.interrupts import Loading
from penstock.named_or_own_redis import running_redis
from penstock.options import examples, given_settings, settings_options, without_token_option


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

  penstock buffer serve                         on port 8889, on an embedded Redis
  penstock buffer serve --generators ./mine --inputs ./data
                                                with *_generator.py files of yours
  penstock --redis-url redis://10.0.0.5 buffer serve --port 8890
"""),
)
@click.option("--host", "buffer_host", help="Address to listen on [PENSTOCK_BUFFER_HOST].")
@click.option("--port", "buffer_port", type=int, help="Port to listen on [PENSTOCK_BUFFER_PORT].")
@click.option(
    "--generators",
    type=click.Path(path_type=Path),
    help="Folder of *_generator.py files [PENSTOCK_GENERATORS].",
)
@click.option(
    "--inputs",
    "input_folders",
    metavar="FOLDERS",
    help="Folders that a rollout's input_file may lie in: data,/srv/sets [PENSTOCK_INPUT_FOLDERS].",
)
@without_token_option
@settings_options
def serve(without_token: bool, **given: Any) -> None:
    """Serve all tasks of a run. Start as many servers on one Redis as you like."""
    with Loading(), needed_by("penstock buffer serve"):
        from buffer.http.app import serve as serve_until_stopped

    ground = given_settings()
    settings = BufferSettings.load(**{k: v for k, v in given.items() if v is not None})
    with running_redis(ground) as url:
        serve_until_stopped(url, ground.run, settings, without_token=without_token)
