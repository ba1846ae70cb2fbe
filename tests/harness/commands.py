"""The `penstock` command, or a program, as a process that has imported our modules already.

    process = commands.start(["limits", "ls"], env=environment, stdout=subprocess.PIPE)
    result = commands.run_program("program.py", env=environment, cwd=folder)
    with commands.on_path(folder):    # for shells: `penstock` in that folder

An interpreter that imports them takes half a second of a processor each time; a fork of the
nursery takes milliseconds. For the rest it is as if a shell had started it. What is tried of the
start itself (a stream that is closed, modules in the working directory) is started anew.
"""

import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.harness.nursery import IMPORTED, Born

PENSTOCK = Path(sys.executable).with_name("penstock")
_WANTED = (
    *IMPORTED, "aiohttp", "fastapi", "httptools", "openai", "rich.console", "rich.table", "uvicorn",
    "penstock.cli", "penstock.commands.sandboxes", "penstock.commands.worker",
    "penstock.demo.agents", "penstock.demo.command", "penstock.demo.story",
    "penstock.demo.screen", "penstock.doctor.command", "penstock.gates.command",
    "penstock.monitor.command", "penstock.monitor.app", "penstock.queues.command",
    "penstock.top.command", "penstock.top.program", "penstock.up.screen", "buffer.http.app",
    "worker.reward", "worker.e2b.app", "jail.serve",
)  # fmt: skip
# The environment of a host has not all of these packages.
MODULES = tuple(name for name in _WANTED if find_spec(name.partition(".")[0]))


def start(
    words: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | str | None = None,
    **streams: Any,
) -> "subprocess.Popen[Any]":
    """`subprocess.Popen(["penstock", *words], …)`, with nothing to read and in its own session."""
    environment = dict(os.environ if env is None else env)
    return _Command([PENSTOCK, *words], env=environment, cwd=cwd or os.getcwd(), **streams)


def run(
    words: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | str | None = None,
    timeout: float = 100,
) -> "subprocess.CompletedProcess[str]":
    """`subprocess.run(["penstock", *words], capture_output=True, text=True, …)`."""
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return _ended(start(words, env=env, cwd=cwd, **streams), timeout)


def run_program(
    file: str, *, env: Mapping[str, str], cwd: Path, timeout: float = 100
) -> "subprocess.CompletedProcess[str]":
    """`subprocess.run([sys.executable, file], …)`, with all that it prints in `stdout`."""
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return _ended(start_program([file], env=env, cwd=cwd, **streams), timeout)


def start_program(
    words: Sequence[str | Path], *, env: Mapping[str, str], cwd: Path, **streams: Any
) -> "subprocess.Popen[Any]":
    """`subprocess.Popen([sys.executable, *words], …)`, as `start` does it."""
    return _Program(words, env=env, cwd=cwd, **streams)


def _ended(process: "subprocess.Popen[Any]", timeout: float) -> "subprocess.CompletedProcess[str]":
    with process:
        try:
            said = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, *said)


@contextmanager
def on_path(folder: Path) -> Iterator[None]:
    """A program `penstock` in this folder, until the end; see `stand_in`."""
    program, address = folder / "penstock", folder / "penstock.sock"
    stand_in = f"{sys.executable} -I -S {Path(__file__).with_name('stand_in.py')}"
    program.write_text(f'#!/bin/sh\nexec {stand_in} {address} "$@"\n')
    program.chmod(0o755)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(address))
        listening.listen()
        threading.Thread(target=_stand_for_all, args=(listening,), daemon=True).start()
        try:
            yield
        finally:
            listening.shutdown(socket.SHUT_RDWR)


def _stand_for_all(listening: socket.socket) -> None:
    with suppress(OSError):  # it is shut
        while True:
            line, _ = listening.accept()
            threading.Thread(target=_stand_for, args=(line,), daemon=True).start()


def _stand_for(line: socket.socket) -> None:
    """Fork the command of one stand-in, and end it if that is killed."""
    with line:
        asked, streams, _, _ = socket.recv_fds(line, 1 << 20, 3)
        words, cwd, environment = json.loads(asked)
        try:
            born = _born(become, [str(PENSTOCK), *words], cwd, environment, streams)
        finally:
            for stream in streams:
                os.close(stream)
        line.send(str(born.pid).encode())
        either: list[Any] = [line, born]
        while not born.has_ended(0):
            if line in select.select(either, [], [])[0]:
                born.send_signal(signal.SIGKILL)
                born.wait()
        with suppress(OSError):
            line.send(str(born.wait()).encode())


def _born(
    becomes: Callable[[list[str], str], None],
    words: list[str],
    folder: str,
    environment: Mapping[str, str],
    streams: Sequence[int],
) -> Born:
    address = f"tests.harness.commands:{becomes.__name__}"
    spec = {"scenario": address, "arguments": [words, folder], "at": None}
    reports = os.open(os.devnull, os.O_WRONLY)
    try:
        return Born(spec, reports, streams=streams, environment=environment, imported=MODULES)
    finally:
        os.close(reports)


def become(words: list[str], folder: str) -> None:
    """In the child."""
    _settle(words, folder)
    from penstock.entry import main

    main()


def become_program(words: list[str], folder: str) -> None:
    """In the child."""
    _settle(words, folder)
    sys.path.insert(0, folder)
    runpy.run_path(words[0], run_name="__main__")


def _settle(words: list[str], folder: str) -> None:
    os.chdir(folder)
    sys.argv = words
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    tempfile.tempdir = None  # its environment may name another


class _Command(subprocess.Popen[Any]):
    """A Popen whose process is forked by the nursery, which also tells how it ends."""

    becomes = staticmethod(become)

    def _execute_child(self, args: Any, *more: Any) -> None:
        cwd, env, pipes = more[4], more[5], more[9:15]
        taken, _, output, errors = pipes[0], pipes[1], pipes[3], pipes[5]
        assert taken == -1, "it has nothing to read"
        words = [str(word) for word in args]
        outputs = (1 if output == -1 else output, 2 if errors == -1 else errors)
        try:
            self._born = _born(self.becomes, words, str(cwd), env, outputs)
        finally:
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]
        self.pid = self._born.pid
        self._child_created = True

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        return self._ended_within(0)

    def _wait(self, timeout: float | None) -> int:
        code = self._ended_within(timeout)
        if code is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def _ended_within(self, timeout: float | None) -> int | None:
        if self.returncode is None and self._born.has_ended(timeout):
            self.returncode = self._born.wait()
        return self.returncode


class _Program(_Command):
    becomes = staticmethod(become_program)
