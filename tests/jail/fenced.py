"""A sandbox of a weaker level, inside namespaces that end with it.

What a weaker level may fail to hold must not reach the machine that tests it. `Fenced` is the
test's end; `python -m tests.jail.fenced LEVEL START FOLDER DISK` is the other, which
enters namespaces, starts the sandbox there, and runs what comes by lines of JSON.
"""

import asyncio
import base64
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from jail import Limits, Outcome
from jail.inside import namespaces, syscalls
from jail.isolation import levels
from jail.jails import Jails
from jail.launch import ServerConfig
from jail.outcome import Program, Step
from tests.jail.restricted import enter_user_namespace

from .conftest import config_for, reachable_python

_LARGEST_LINE = 64 << 20
_FAREWELL = 0
_DISK = "size=512m"


class Fenced:
    """Programs into the other process, outcomes back."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._waiting: dict[int, asyncio.Future[Outcome]] = {}
        self.facts: dict[str, Any] = {}
        self._reader: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, level: str, start: str, folder: str, disk: str = _DISK) -> "Fenced":
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.jail.fenced", level, start, folder, disk),
            cwd=Path(__file__).parents[2],
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_LARGEST_LINE,
        )
        fenced = cls(process)
        assert process.stdout is not None
        fenced.facts = json.loads(await process.stdout.readline())
        fenced._reader = asyncio.ensure_future(fenced._read())
        return fenced

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            number, said = json.loads(line)
            if number == _FAREWELL:
                self.facts |= said
            else:
                self._waiting.pop(number).set_result(_outcome(said))

    async def run(self, program: Program) -> Outcome:
        assert self._process.stdin is not None
        number = id(program)
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        self._process.stdin.write(json.dumps([number, _plain(asdict(program))]).encode() + b"\n")
        return await answer

    async def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()
        if self._reader:
            await self._reader


async def fenced(level: str, start: str, disk: str = _DISK) -> AsyncIterator[Fenced]:
    """For a fixture: one that leaves no file behind."""
    with tempfile.TemporaryDirectory() as folder:
        sandbox = await Fenced.start(level, start, folder, disk)
        yield sandbox
        await sandbox.close()
    assert sandbox.facts["left"] == []


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _read(value: Any) -> Any:
    if isinstance(value, dict) and set(value) == {"base64"}:
        return base64.b64decode(value["base64"])
    if isinstance(value, dict):
        return {key: _read(item) for key, item in value.items()}
    return value


def _outcome(said: dict[str, Any]) -> Outcome:
    facts = _read(said)
    steps = {name: facts[name] and Step(**facts[name]) for name in ("run", "compile")}
    return Outcome(**{**facts, **steps})


def enter(folder: str, disk: str) -> None:
    """Processes, mounts, network, IPC and users of its own, with /proc and a tmpfs to match."""
    enter_user_namespace()
    syscalls.unshare(syscalls.NEW_NS | syscalls.NEW_PID | syscalls.NEW_NET | syscalls.NEW_IPC)
    if child := os.fork():
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    syscalls.mount("proc", "/proc", "proc")
    syscalls.mount("scratch", folder, "tmpfs", options=f"{disk},mode=1777")
    tempfile.tempdir = folder
    namespaces.loopback()


def config(level: levels.Level, start: str) -> ServerConfig:
    """Without mounts the interpreter must be within reach of an ordinary user."""
    given = config_for(start)
    if os.getuid() == 0:
        python = reachable_python(given.start_as or given.uid)
        given = replace(given, python=python or given.python)
    return replace(given, level=level)


async def serve(level: levels.Level, start: str) -> None:
    loop = asyncio.get_running_loop()
    async with Jails(config(level, start), concurrency=80, use_cgroups=False) as jails:
        print(json.dumps({"level": jails.level, "probes": len(jails.findings)}), flush=True)

        async def run(line: bytes) -> None:
            number, said = json.loads(line)
            facts = _read(said)
            program = Program(**{**facts, "limits": Limits(**facts["limits"])})
            outcome = asdict(await jails.run(program))
            print(json.dumps([number, _plain(outcome)]), flush=True)

        running = []
        while line := await loop.run_in_executor(None, sys.stdin.buffer.readline):
            running.append(asyncio.ensure_future(run(line)))
        await asyncio.gather(*running)
    left = os.listdir(tempfile.gettempdir())
    print(json.dumps([_FAREWELL, {"left": left}]), flush=True)


if __name__ == "__main__":
    enter(sys.argv[3], sys.argv[4])
    asyncio.run(serve(sys.argv[1], sys.argv[2]))  # type: ignore[arg-type]
