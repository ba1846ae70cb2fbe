"""The `penstock` command as a process, and what processes it leaves."""

import contextlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from penstock.cli import command
from tests.harness import commands
from tests.harness.servers import url_of

HERE = ("--sandbox", "local")
CHORES = (*HERE, "--allow", "tests.worker.concurrent.chores.*")


def start(*arguments: str, **env: str) -> subprocess.Popen[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return commands.start(arguments, env=clean() | env, **pipes)


def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return commands.run(arguments, env=clean() | env)


def clean() -> dict[str, str]:
    """The environment without settings of ours."""
    return {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}


def refusal(result: subprocess.CompletedProcess[str]) -> str:
    """The one sentence on stderr of a command that was refused."""
    assert (result.returncode, result.stdout) == (2, ""), result
    (sentence,) = result.stderr.splitlines()
    assert sentence.startswith("penstock: ")
    return sentence.removeprefix("penstock: ")


def processes_of(folder: Path) -> list[str]:
    return [words for _, words in processes_with(folder)]


def processes_with(folder: Path) -> list[tuple[str, str]]:
    """Command lines and environments of live processes that name this folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if str(folder).encode() in words and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                found.append((entry.name, (entry / "cmdline").read_text()))
    return [(pid, words) for pid, words in found if words]


def penstock_worker(client: Any, *options: str, **environment: str) -> "subprocess.Popen[bytes]":
    words = ["--redis-url", url_of(client), "worker", *options]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return commands.start(words, env=clean() | environment, **pipes)


def parsed(words: Sequence[str]) -> click.Context:
    """As `penstock` parses them, without running it."""
    context = command.make_context("penstock", list(words))
    while isinstance(context.command, click.Group):
        name, found, rest = context.command.resolve_command(
            context, [*context._protected_args, *context.args]
        )
        assert found is not None
        context = found.make_context(name, rest, parent=context)
    return context
