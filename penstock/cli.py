"""The `penstock` command: its options, and how it ends.

stdout is data, and messages go to stderr. It exits with 0 when what was asked is done, and with 1
when the answer is bad news. It exits with 2 when it could not be asked (a wrong setting, no Redis),
and with 130 after Ctrl-C. Each subcommand lives in a folder of its own and is imported when it is
called.
"""

import errno
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import click
import redis.exceptions

from ground import PenstockError, SettingError, tracing, visible
from ground.redis.check import too_few_permissions
from ground.settings import PREFIX
from penstock.interrupts import INTERRUPTED, Loading
from penstock.options import examples, settings_options
from penstock.release import __version__

COMMANDS = {
    "bench": "penstock.commands.bench",
    "buffer": "penstock.commands.buffer",
    "cases": "penstock.commands.cases",
    "demo": "penstock.demo.command",
    "doctor": "penstock.doctor.command",
    "gateway": "penstock.commands.gateway",
    "groups": "penstock.commands.groups",
    "health": "penstock.commands.health",
    "images": "penstock.commands.images",
    "limits": "penstock.gates.command",
    "monitor": "penstock.monitor.command",
    "openenv": "penstock.openenv",
    "queues": "penstock.queues.command",
    "reap": "penstock.commands.reap",
    "run": "penstock.commands.run",
    "sandbox": "penstock.commands.sandbox",
    "status": "penstock.commands.status",
    "top": "penstock.top.command",
    "up": "penstock.up.command",
    "version": "penstock.commands.version",
    "why": "penstock.commands.why",
    "worker": "penstock.commands.worker",
}
ALIASES = {"sandboxes": "sandbox"}  # understood, and not listed


class _Rooms(click.Group):
    """Subcommands by name, imported when asked for: a start costs only what it uses."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        cmd_name = ALIASES.get(cmd_name, cmd_name)
        if cmd_name not in COMMANDS:
            return None
        try:
            with Loading():
                found: click.Command = importlib.import_module(COMMANDS[cmd_name]).command
        except ImportError:
            from penstock.doctor.packages import require_own_packages

            require_own_packages()  # a clash of package names is the better explanation
            raise
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        named = args[0]
        known = named in COMMANDS or named in ALIASES
        if near := get_close_matches(named, () if known else COMMANDS, n=1):
            raise click.UsageError(f"No such command {named!r}. Did you mean {near[0]!r}?", ctx)
        tracing.named(f"penstock-{named}")
        return super().resolve_command(ctx, args)


@click.group(
    cls=_Rooms,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=examples("""
Examples:

  penstock demo                       watch it work, on an embedded Redis
  penstock up                         everything on this machine, with a web page
  penstock status                     is the fleet healthy?
  penstock doctor                     is this machine ready?
  penstock --redis-url redis://10.0.0.5 doctor --json

Options that every subcommand has can be set as variables too, such as PENSTOCK_REDIS_URL;
the option wins. Exit codes: 0 done, 1 bad news, 2 it could not run (a wrong setting, no
Redis), 130 after Ctrl-C. Data goes to stdout, messages to stderr.

Completion in bash; in zsh use zsh_source; in fish pipe fish_source into `source`:

  eval "$(_PENSTOCK_COMPLETE=bash_source penstock)"
"""),
)
@click.version_option(__version__, message="penstock %(version)s")
@settings_options
def command() -> None:
    """Run model-written code and collect rollouts for RL training, on one Redis."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and end the process. What users can fix is one sentence on stderr."""
    signal.signal(signal.SIGTERM, _end_in_order)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup starts us
        signal.signal(signal.SIGHUP, _end_in_order)
    try:
        ended: Any = command.main(arguments, prog_name="penstock", standalone_mode=False)
        sys.stdout.flush()
    except PenstockError as error:
        said = _as_typed(error, sys.argv[1:] if arguments is None else arguments)
        click.echo(visible(f"penstock: {said}"), err=True)
        sys.exit(2)
    except redis.exceptions.NoPermissionError as refusal:
        click.echo(visible(f"penstock: Redis {too_few_permissions(refusal)}"), err=True)
        sys.exit(2)
    except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError) as away:
        click.echo(visible(f"penstock: Redis does not answer: {away}"), err=True)
        sys.exit(2)
    except redis.exceptions.RedisError as refusal:  # its disk is full, a key is of another kind
        click.echo(visible(f"penstock: Redis refused: {refusal}"), err=True)
        sys.exit(2)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("penstock: interrupted", err=True)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # The reader went away (`penstock … | head`): nobody reads the output any more.
        _print_no_more()
        sys.exit(1)
    except OSError as trouble:
        if trouble.errno != errno.ENOSPC:
            raise
        click.echo(f"penstock: {trouble}; the output is incomplete", err=True)
        _print_no_more()
        sys.exit(1)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # one more Ctrl-C is no traceback either
    sys.exit(ended if isinstance(ended, int) else 0)


def _print_no_more() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _end_in_order(number: int, frame: object) -> None:
    # An exception, so that every `with` on the way out ends what it started.
    sys.exit(128 + number)


def _as_typed(error: PenstockError, words: Sequence[str]) -> str:
    """The message. It names the option that was typed, if the setting was given as one."""
    if not isinstance(error, SettingError) or error.setting.startswith("-"):
        return str(error)
    setting = error.setting.removeprefix(PREFIX).lower()
    room = next((word for word in words if word in COMMANDS), "")
    for option in (word.partition("=")[0] for word in words if word.startswith("--")):
        name = option.removeprefix("--").replace("-", "_")
        # `monitor --port` is PENSTOCK_MONITOR_PORT; --gate-limit is the `limit` of a gate.
        if setting in (name, f"{room}_{name}", name.removeprefix("gate_")):
            variable = f" ({error.setting})" if error.setting.startswith(PREFIX) else ""
            return f"{option}{variable}{str(error).removeprefix(error.setting)}"
    return str(error)
