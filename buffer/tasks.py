"""The tasks of a run, in one list: by when a server was last asked to start them, others first.

The list has a tag of its own, so no script of a task can keep it: a server strikes off what has
expired.
"""

import asyncio
from typing import NamedTuple

from buffer.link import Link, scored
from ground import in_run, load_script, tagged

_STRIKE = load_script("buffer", "strike")


class _Listed(NamedTuple):
    name: str
    score: float
    alive: bool


async def listed_tasks(link: Link, run: str) -> list[str]:
    """Every task of the run that has not expired, the current one last."""
    return [task.name for task in await _look(link, run) if task.alive]


async def tidied_tasks(link: Link, run: str) -> list[str]:
    """The same, after those that have expired are struck off; who only looks must not write."""
    found = await _look(link, run)
    for task in found:
        if not task.alive:
            await strike_off(link, run, task.name, task.score)
    return [task.name for task in found if task.alive]


async def _look(link: Link, run: str) -> list[_Listed]:
    rows = await link.command("ZRANGE", tagged("buffer", run, "tasks"), 0, -1, "WITHSCORES")
    listed = [(name.decode(), score) for name, score in scored(rows)]
    alive = await asyncio.gather(*(_is_alive(link, run, name) for name, _ in listed))
    return [_Listed(*row, lives) for row, lives in zip(listed, alive, strict=True)]


async def enter_started(link: Link, run: str, task: str) -> None:
    """List it as the one last started: a request without a task now means this one."""
    now = await link.command("TIME")
    micros = int(now[0]) * 1_000_000 + int(now[1])
    await link.command("ZADD", tagged("buffer", run, "tasks"), micros, task)


async def enter(link: Link, run: str, task: str) -> None:
    """List it before all that were started; where it is listed already it keeps its place."""
    await link.command("ZADD", tagged("buffer", run, "tasks"), "NX", 0, task)


async def strike_off(link: Link, run: str, task: str, score: float) -> None:
    """A task whose keys had expired when it was listed with that score."""
    struck = await link.run(_STRIKE, [tagged("buffer", run, "tasks")], [task, score])
    if struck and await _is_alive(link, run, task):  # begun anew meanwhile, by who found it listed
        await enter(link, run, task)


async def _is_alive(link: Link, run: str, task: str) -> bool:
    return bool(await link.command("EXISTS", tagged("buffer", in_run(run, task), "config")))
