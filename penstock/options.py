"""Options that every subcommand takes, before or after its name, and the settings they make."""

import math
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ground import visible
from ground.logs import configure_logging
from ground.settings import GroundSettings, variable
from penstock.variables import misspelt

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_Command = TypeVar("_Command", bound=Callable[..., Any])
_GIVEN = "penstock.options."


class Seconds(click.FloatRange):
    """A finite number of seconds. A range alone takes `nan`, which is beyond no bound of it."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        seconds: float = super().convert(value, param, ctx)
        if not math.isfinite(seconds):
            self.fail(f"{value!r} is no number of seconds.", param, ctx)
        return seconds


def examples(text: str) -> str:
    """An epilog whose lines stay as they are written."""
    keep = "\b\n"  # Click's mark, one a paragraph
    return "\n\n".join(keep + paragraph for paragraph in text.strip("\n").split("\n\n"))


def say(text: str, *, err: bool = False) -> None:
    """Print a line to stdout or stderr. Names in it come from others, so they steer no terminal."""
    click.echo(visible(text), err=err)


def console(*, stderr: bool = False) -> "Console":
    """A console on which names are shown as they are: no markup, no escapes of a terminal."""
    from rich.console import Console  # here: most commands draw nothing
    from rich.segment import Segment

    class Plain(Console):
        def render_str(self, text: str, **kwargs: Any) -> "Text":  # before room is made for it
            return super().render_str(visible(text), **kwargs)

        def render(self, *args: Any, **kwargs: Any) -> Iterable[Segment]:
            for segment in super().render(*args, **kwargs):
                text, style, control = segment
                yield segment if control else Segment(visible(text), style)

    return Plain(stderr=stderr, markup=False, emoji=False)


def settings_options(function: _Command) -> _Command:
    """Add `--redis-url`, `--run` and `--log-format`; `given_settings` reads them."""
    for option in (
        _option("--log-format", "[text|json]", "How log lines on stderr are written."),
        _option(
            "--run",
            "NAME",
            "Name of this run: separates buffer tasks and session sandboxes. Queues and gates are "
            "shared by all runs.",
        ),
        _option(
            "--redis-url",
            "URL",
            "The Redis to use; a password is safer in PENSTOCK_REDIS_URL. "
            "Without either, commands that run something start an embedded one; others join it.",
        ),
    ):
        function = option(function)
    return function


def read_weights(
    context: click.Context, option: click.Parameter, words: tuple[str, ...]
) -> dict[str, float | None]:
    """A callback for arguments like `training=4`, a share and its weight; `training=` has none."""
    weights: dict[str, float | None] = {}
    for word in words:
        share, given, weight = word.rpartition("=")
        try:
            weights[share] = float(weight) if weight else None
        except ValueError:
            given = ""
        if not given:
            raise click.BadParameter(f"{word!r} is no NAME=WEIGHT, such as training=4")
    return weights


without_token_option = click.option(
    "--without-token",
    is_flag=True,
    help="Listen beyond loopback though no token is set [PENSTOCK_WITHOUT_TOKEN].",
)


def given_settings() -> GroundSettings:
    """The environment's settings, with the options of this call over them; starts the log."""
    context = click.get_current_context()
    settings = settings_in(context)
    for name, value in _given(context).items():  # for all that reads the environment later
        os.environ.pop(f"{variable(GroundSettings, name)}_FILE", None)
        os.environ[variable(GroundSettings, name)] = value
    configure_logging(settings.log_format, settings.log_level)
    for name, meant in misspelt(os.environ).items():
        click.echo(f"penstock: {name} is not a setting; did you mean {meant}?", err=True)
    if settings.redis_url is None and os.environ.get("REDIS_URL"):  # as RQ and many others call it
        click.echo("penstock: REDIS_URL is not read; did you mean PENSTOCK_REDIS_URL?", err=True)
    return settings


def settings_in(context: click.Context) -> GroundSettings:
    """The environment's settings, with the options that were read before over them."""
    return GroundSettings.load(**_given(context))


def _given(context: click.Context) -> dict[str, str]:
    return {
        name.removeprefix(_GIVEN): value
        for name, value in context.meta.items()
        if name.startswith(_GIVEN)
    }


def _option(name: str, metavar: str, help: str) -> Callable[[_Command], _Command]:
    # No `envvar` and no type: the settings model reads the environment and judges the value.
    return click.option(name, metavar=metavar, help=help, expose_value=False, callback=_remember)


def _remember(context: click.Context, option: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.meta[f"{_GIVEN}{option.name}"] = value
