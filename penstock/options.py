"""Options that every subcommand takes, before or after its name, and the settings they make."""

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ground import GroundSettings, configure_logging
from penstock.variables import misspelt

if TYPE_CHECKING:
    from rich.console import Console

_Command = TypeVar("_Command", bound=Callable[..., Any])
_GIVEN = "penstock.options."


def examples(text: str) -> str:
    """An epilog whose lines stay as they are written."""
    keep = "\b\n"  # Click's mark, one a paragraph
    return "\n\n".join(keep + paragraph for paragraph in text.strip("\n").split("\n\n"))


def for_data() -> "Console":
    """Tables on stdout: as wide as the terminal, and whole where none reads."""
    from rich.console import Console  # here: most commands draw nothing

    return Console(width=None if sys.stdout.isatty() else 200)


def settings_options(function: _Command) -> _Command:
    """Add `--redis-url`, `--run` and `--log-format`; `given_settings` reads them."""
    for option in (
        _option("--log-format", "[text|json]", "How log lines on stderr are written."),
        _option("--run", "NAME", "Namespace of this run; two runs on one Redis do not meet."),
        _option(
            "--redis-url",
            "URL",
            "The Redis to use; a password is safer in PENSTOCK_REDIS_URL. "
            "Without either, a private server is started where one is of use.",
        ),
    ):
        function = option(function)
    return function


def given_settings() -> GroundSettings:
    """The environment's settings, with the options of this call over them; starts the log."""
    given = {
        name.removeprefix(_GIVEN): value
        for name, value in click.get_current_context().meta.items()
        if name.startswith(_GIVEN)
    }
    settings = GroundSettings.load(**given)
    configure_logging(settings.log_format, settings.log_level)
    for name, meant in misspelt(os.environ).items():
        click.echo(f"penstock: {name} is no setting; did you mean {meant}?", err=True)
    return settings


def _option(name: str, metavar: str, help: str) -> Callable[[_Command], _Command]:
    # No `envvar` and no type: the settings model reads the environment and judges the value.
    return click.option(name, metavar=metavar, help=help, expose_value=False, callback=_remember)


def _remember(context: click.Context, option: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.meta[f"{_GIVEN}{option.name}"] = value
