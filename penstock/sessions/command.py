"""`penstock sandbox ls --here` and `shell`: what lives on this machine, and a terminal in it."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import termios
import time
import tty
from collections.abc import Iterator, Sequence
from typing import Any

import click

from ground import PenstockError
from ground.settings import GroundSettings
from jail.sessions import (
    CommandRequest,
    Exit,
    LocalSessions,
    Output,
    Process,
    SessionError,
    SessionGone,
    SessionInfo,
    Terminal,
    Usage,
)
from penstock.listing import show_list
from penstock.options import examples, given_settings, say, settings_options
from penstock.tables import Table, terminal_width
from worker.lifecycle.registry.registry import Registry

_SHELL = "command -v bash >/dev/null && exec bash -l; exec sh -l"
_TYPED = 1 << 16
_ENDED = 1  # the exit code where the sandbox ended under the command
_TEMPLATE = "e2b.template"


def list_sessions(*, as_json: bool) -> None:
    """Show the session sandboxes of this machine and user."""
    nothing = "no session sandbox lives on this machine"
    show_list(asyncio.run(_rows()), _table, nothing, as_json=as_json)


async def _rows() -> list[dict[str, Any]]:
    sessions = LocalSessions()
    living = sorted([info async for info in sessions.list()], key=lambda info: info.created)
    used = await asyncio.gather(*(_usage(sessions, info) for info in living))
    now, machine = time.time(), socket.gethostname()
    return [
        {
            "name": info.name, "image": info.image or info.tags.get(_TEMPLATE, ""),
            "age": now - info.created, "ends_in": info.ends - now, "memory": usage.memory,
            "disk": usage.disk, "processes": usage.processes,
            "last_command": info.last_command, "machine": machine, "isolation": info.isolation,
        }
        for info, usage in zip(living, used, strict=True)
        if usage is not None
    ]  # fmt: skip


async def _usage(sessions: LocalSessions, info: SessionInfo) -> Usage | None:
    """The usage of a session; None if it has ended meanwhile."""
    try:
        return await sessions.named(info.name).usage()
    except SessionGone:
        return None


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    wide = terminal_width() >= 120
    figures = "age", "memory", "processes"
    table = Table(
        "sandbox", "image", *figures, "last command", *(["machine"] if wide else []),
        right=figures, whole=("sandbox", "image", *figures),
    )  # fmt: skip
    most = 60 if wide else 24
    for row in rows:
        cells = [
            row["name"], row["image"], f"{row['age']:.0f} s", f"{row['memory'] >> 20} MB",
            str(row["processes"]), _short(row["last_command"], most),
            *([row["machine"]] if wide else []),
        ]  # fmt: skip
        table.add(*cells)
    return table


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


@click.command(
    "shell",
    context_settings={"allow_interspersed_args": False},  # what follows the name is the command's
    epilog=examples("""
Examples:

  penstock sandbox shell i4f1c…
  penstock sandbox shell i4f1c… top -d 1
"""),
)
@click.argument("name")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[COMMAND]...")
@settings_options
def shell(name: str, words: tuple[str, ...]) -> int:
    """Open a terminal in a session sandbox of this machine.

    Runs bash, or sh, or the given command. Exits with its exit code, with 128 and the number of the
    signal that ended it, or with 1. What runs is ended if you close it.
    """
    settings = given_settings()
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("a terminal is needed on stdin and stdout")
    try:
        return asyncio.run(_attached(name, list(words) or ["sh", "-c", _SHELL]))
    except SessionGone as gone:
        say(f"penstock: {_elsewhere(name, settings) or gone}", err=True)
        return _ENDED
    except SessionError as problem:
        say(f"penstock: {problem}", err=True)
        return _ENDED


def _elsewhere(name: str, settings: GroundSettings) -> str:
    """The other machine that has it, by Redis."""
    if settings.redis_url is None:
        return ""
    with contextlib.suppress(PenstockError, OSError):
        registry = Registry(settings.redis_url.get_secret_value(), settings.run, patience=0.0)
        with contextlib.closing(registry):
            if (record := registry.record(name)) and record.scope:
                return f"sandbox {name} is at {record.scope}: run this command there"
    return ""


async def _attached(name: str, words: list[str]) -> int:
    session = await LocalSessions().get(name)
    env = {key: os.environ[key] for key in ("TERM", "COLORTERM") if key in os.environ}
    command = CommandRequest(words, env, terminal=_size())
    process = await session.start(command)
    loop = asyncio.get_running_loop()
    typed: asyncio.Queue[bytes] = asyncio.Queue()
    resizing: set[asyncio.Task[None]] = set()

    def resize() -> None:
        task = loop.create_task(process.resize(_size()))
        resizing.add(task)
        task.add_done_callback(resizing.discard)

    with _raw():
        loop.add_reader(0, _hear, loop, 0, typed)
        loop.add_signal_handler(signal.SIGWINCH, resize)
        feeding = loop.create_task(_feed(process, typed))
        try:
            end = await _shown(process)
        finally:
            loop.remove_reader(0)
            loop.remove_signal_handler(signal.SIGWINCH)
            feeding.cancel()
            await asyncio.gather(feeding, *resizing, return_exceptions=True)
            await process.close()
    if end is None or end.why == "session_ended":
        say(f"penstock: sandbox {name} has ended", err=True)
        return _ENDED
    if end.message:
        say(f"penstock: {end.message}", err=True)
    return end.code if end.code is not None else 128 + (end.signal or 0)


def _hear(loop: asyncio.AbstractEventLoop, keys: int, typed: "asyncio.Queue[bytes]") -> None:
    """Take what was typed. A terminal that hung up is always readable, and has nothing more."""
    try:
        text = os.read(keys, _TYPED)
    except OSError:
        text = b""
    if not text:
        loop.remove_reader(keys)
    typed.put_nowait(text)


async def _feed(process: Process, typed: "asyncio.Queue[bytes]") -> None:
    while text := await typed.get():
        await process.write(text)


async def _shown(process: Process) -> Exit | None:
    """Write what the process writes, until it has ended; None if its sandbox ended without a
    word."""
    async with contextlib.aclosing(process.events()) as events:
        async for event in events:
            if isinstance(event, Exit):
                return event
            _write(event)
    return None


def _write(output: Output) -> None:
    left = output.data
    while left:
        left = left[os.write(1, left) :]


def _size() -> Terminal:
    size = os.get_terminal_size(1)
    return Terminal(size.columns or 80, size.lines or 24)  # some terminals have none


@contextlib.contextmanager
def _raw() -> Iterator[None]:
    """Each key goes inside, Ctrl-C too. The terminal is as before afterwards."""
    before = termios.tcgetattr(0)
    try:
        tty.setraw(0, termios.TCSADRAIN)  # what was typed before is typed inside
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
