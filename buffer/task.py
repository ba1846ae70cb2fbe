"""A task of one run in Redis has its keys, its settings and its scripts here."""

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from redis.exceptions import NoPermissionError, RedisError, ResponseError

from buffer.errors import NoPolicy, RolloutReplaced, UnknownTask
from buffer.group_functions import GroupFunctions
from buffer.link import Link, scored
from buffer.settings import TaskConfig
from ground import PenstockError
from ground.keys import check_name, in_run, tagged
from ground.lua import Script, load_script

_STRIKE = load_script("buffer", "strike")


class _Listed(NamedTuple):
    name: str
    score: float
    alive: bool


async def listed_tasks(link: Link, run: str) -> list[str]:
    """Every task of the run that has not expired, the current one last."""
    return [task.name for task in await _look(link, run) if task.alive]


async def tidied_tasks(link: Link, run: str) -> list[str]:
    """All tasks, after those that have expired are struck off; who only looks must not write."""
    found = await _look(link, run)
    for task in found:
        if not task.alive:
            await strike_off(link, run, task.name, task.score)
    return [task.name for task in found if task.alive]


async def _look(link: Link, run: str) -> list[_Listed]:
    rows = await link.command("ZRANGE", tagged("buffer", run, "tasks"), 0, -1, "WITHSCORES")
    listed = [(name.decode(errors="replace"), score) for name, score in scored(rows)]
    alive = await _alive(link, run, [name for name, _ in listed])
    return [_Listed(*row, bool(lives)) for row, lives in zip(listed, alive, strict=True)]


async def _alive(link: Link, run: str, names: Sequence[str]) -> list[int]:
    keys = [tagged("buffer", in_run(run, name), "config") for name in names]
    return await link.commands([("EXISTS", key) for key in keys])


async def enter_started(link: Link, run: str, task: str) -> None:
    """List it as the one last started: a request without a task now means this one."""
    now = await link.command("TIME")
    micros = int(now[0]) * 1_000_000 + int(now[1])
    await link.command("ZADD", tagged("buffer", run, "tasks"), micros, task)


async def enter(link: Link, run: str, task: str) -> None:
    """List it before all that were started; where it is listed already it keeps its place."""
    await link.command("ZADD", tagged("buffer", run, "tasks"), "NX", 0, task)


async def strike_off(link: Link, run: str, task: str, score: float) -> None:
    """Take a task off the list whose keys had expired when it was listed with that score."""
    struck = await link.run(_STRIKE, [tagged("buffer", run, "tasks")], [task, score])
    if struck and any(await _alive(link, run, [task])):
        await enter(link, run, task)  # a process that found it listed began it again


log = logging.getLogger(__name__)
_SHARE = 0.5
_FAREWELL = 2.0  # seconds
_MORE = 2
# Every fixed key of a task; the scripts in lua/ reach them by these names.
PARTS = (
    "config", "state", "open", "changed", "ready", "leased", "kept", "leases", "delivered",
    "discarded", "unreported", "quarantine", "quarantined", "rounds", "seen", "rewards", "raw",
    "aside", "bell", "rollout", "policy", "versions", "slots", "starts", "aged", "parked", "again",
    "used", "undone", "trained", "aiming", "waiting", "asks", "dropped", "ages", "targets",
    "targeted",
)  # fmt: skip


# The scripts on an item's path have a plain form, for a task of which no version is published.
PLAIN = frozenset(("write", "claim", "seal", "ack"))


@cache
def _script(name: str) -> Script:
    return load_script("buffer", name, "full")


@cache
def _plain(name: str) -> Script:
    return load_script("buffer", name)


class Task:
    """A task runs scripts on one task's keys, and keeps the task's settings at hand."""

    def __init__(
        self,
        link: Link,
        run: str,
        name: str,
        *,
        config: TaskConfig | None = None,
        functions: GroupFunctions | None = None,
    ) -> None:
        if "/" in check_name(name, "a task"):
            raise ValueError(f"a task's name has no '/', which divides run and task: {name!r}")
        self.link = link
        self.run = run
        self.name = name
        self.functions = functions or GroupFunctions()
        self.wanted = config
        named = in_run(run, name)
        self.root = tagged("buffer", named)
        self._keys = {part: tagged("buffer", named, part) for part in PARTS}
        self._config: TaskConfig | None = None
        self._published = False  # whether a trainer has published a version, as far as is known

    def key(self, part: str) -> str:
        """The key of one part, e.g. `penstock:buffer:{default/math}:ready`."""
        return self._keys[part]

    def group_key(self, gid: str) -> str:
        """A group's items; `gid` is `<instance id>:<round>`."""
        return tagged("buffer", in_run(self.run, self.name), f"group:{gid}")

    def meta_key(self, gid: str) -> str:
        """The key of what is known of a group."""
        return tagged("buffer", in_run(self.run, self.name), f"group:{gid}:meta")

    def batch_key(self, receipt: str) -> str:
        """The key of what is known of a batch that was handed out."""
        return tagged("buffer", in_run(self.run, self.name), f"batch:{receipt}")

    def turn_key(self, ask: str) -> str:
        """The bell of one who waits for slots."""
        return tagged("buffer", in_run(self.run, self.name), f"turn:{ask}")

    def batch_groups_key(self, receipt: str) -> str:
        """The groups of a batch, in order."""
        return tagged("buffer", in_run(self.run, self.name), f"batch:{receipt}:groups")

    async def call(self, script: str, *args: Any) -> Any:
        """Run one of the buffer's scripts; a task unknown to Redis is configured first."""
        if script in PLAIN and not self._published:
            try:
                return await self.run_script(_plain(script), *args)
            except ResponseError as refusal:
                if not str(refusal).startswith("PUBLISHED"):
                    raise
                self._published = True  # nothing has changed in Redis
        return await self.run_script(_script(script), *args)

    async def run_script(self, script: Script, *args: Any) -> Any:
        """Run a script of any package whose only key is the task's."""
        if self._config is None:
            await self.config()
        try:
            return await self.link.run(script, [self.root], args)
        except ResponseError as refusal:
            if "NOTASK" in str(refusal):
                self._config = None  # Redis was emptied, or the idle task forgotten
                await self.config()
                return await self.link.run(script, [self.root], args)
            if "STALE" in str(refusal):
                raise RolloutReplaced(self.name) from None
            if "NOPOLICY" in str(refusal):
                raise NoPolicy(self.name) from None
            raise

    async def call_to_its_end(self, script: str, *args: Any) -> Any:
        """Run one that does its work in bounded steps, and replies 2 while some are left."""
        while (reply := await self.call(script, *args)) == _MORE:
            pass
        return reply

    async def config(self) -> TaskConfig:
        """The settings in force; our own are written only if there are none."""
        flat = await self._stored()
        if not flat and self.wanted is not None:
            flat = await self._configure(0, await self._pairs(self.wanted))
        if not flat:
            raise UnknownTask(self.name, self.run)
        before, self._config = self._config, TaskConfig.from_redis(flat)
        if before is None and self.wanted is not None:
            await enter(self.link, self.run, self.name)
            self._report_mismatch(self.wanted, self._config)
        return self._config

    async def enforce(self, config: TaskConfig, asked: dict[str, Any] | None = None) -> None:
        """Put these settings in force for everyone; `asked` are those that later starts keep."""
        self.wanted = config
        pairs = await self._pairs(config)
        if asked is not None:
            pairs += ["asked", json.dumps(asked)]
        await self._configure(1, pairs)
        self._config = None
        cursor = await self.call("recount", 0)
        while int(cursor):
            cursor = await self.call("recount", cursor)

    async def forget(self) -> None:
        """Drop all its groups and slots, some hundreds a step."""
        resets = await self.link.command("HGET", self.key("config"), "resets") or 0
        while await self.call("forget", 500, resets):
            pass

    async def leave(self) -> None:
        """Do once what is due. The next caller does it too, so this does not wait for long."""
        if self._config is None:
            return  # Redis was asked nothing
        with contextlib.suppress(PenstockError, RedisError, OSError, TimeoutError):
            async with asyncio.timeout(_FAREWELL):
                await self.link.run(_script("sweep"), [self.root], [1000, 0, 0])

    async def asked(self) -> dict[str, Any]:
        """The settings that an operator gave the task; every rollout of it has them."""
        said = await self.link.command("HGET", self.key("config"), "asked")
        return dict(json.loads(said)) if said else {}

    async def _stored(self) -> list[Any]:
        names = TaskConfig.model_fields
        found = await self.link.command("HMGET", self.key("config"), *names)
        pairs = zip(names, found, strict=True)
        return [part for name, said in pairs if said is not None for part in (name, said)]

    async def _configure(self, enforce: int, pairs: Sequence[Any]) -> list[Any]:
        args = [enforce, *pairs]
        return list(await self.link.run(_script("configure"), [self.root], args))

    async def _pairs(self, config: TaskConfig) -> list[str | int | float]:
        config.warn()  # here, and not in each read of what is stored
        return (await self._bounded(config)).to_redis(
            custom=self.functions.is_valid_group is not None,
            custom_meta=self.functions.get_group_data_meta_info is not None,
            pads=self.functions.transform_group is not None,
        )

    async def _bounded(self, config: TaskConfig) -> TaskConfig:
        if config.max_bytes is not None:
            return config
        room = await self._room()
        return config.model_copy(update={"max_bytes": int(room * _SHARE)})

    async def _room(self) -> int:
        """The bytes that Redis may use: its maxmemory, else its machine's memory, else this
        machine's."""
        try:
            info = await self.link.outlast(lambda: _memory_info(self.link))
        except (NoPermissionError, ResponseError):
            info = {}
        room = int(info.get("maxmemory") or info.get("total_system_memory") or 0)
        return room or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def _report_mismatch(self, wanted: TaskConfig, found: TaskConfig) -> None:
        asked, stored = wanted.model_dump(), found.model_dump()
        for name, value in asked.items():
            if value is not None and stored[name] != value:
                log.warning(
                    "the task has other settings already, and keeps them",
                    extra={"task": self.name, "setting": name, "given": value,
                           "in_force": stored[name]},
                )  # fmt: skip


async def _memory_info(link: Link) -> dict[str, Any]:
    client: Any = link.client()
    info: Any = await asyncio.wait_for(client.info("memory"), 5)
    nested = next(iter(info.values()), None)
    return dict(nested) if isinstance(nested, dict) else dict(info)
