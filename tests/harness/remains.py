"""What is left behind: the processes that still work in a directory."""

import asyncio
from pathlib import Path

from tests.harness.servers import until


def processes_in(folder: Path) -> list[int]:
    """Who has it as the working directory, as a server and its keeper do (Linux)."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink() == folder.resolve():
                found.append(int(process.name))
        except OSError:
            continue  # it has ended meanwhile, or is a zombie, which works nowhere
    return found


def processes_named(word: str) -> list[int]:
    """Whose command line has this word in it, as a fork server's clones keep it (Linux)."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if word.encode() in (process / "cmdline").read_bytes():
                found.append(int(process.name))
        except OSError:
            continue  # it has ended meanwhile
    return found


async def until_processes(word: str, *, count: int) -> None:
    """As many are there. A namespace that is killed ends in its own time."""
    async with asyncio.timeout(100):
        while len(processes_named(word)) != count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def until_nothing_runs_in(folder: Path) -> None:
    until(lambda: not processes_in(folder), f"{folder} to be left")
