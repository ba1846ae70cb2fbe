"""The rollout buffer beside slime's own server: writes over HTTP, reads, memory, restart.

slime's servers run where their folders are named: `--peer slime-v0=…` and
`--peer slime-v1=…` are `slime_plugins/rollout_buffer` of 3db3545cd and of today.
Without them Penstock is measured alone. v0 looks at all groups in every write, so it is
measured with no more than 2,000 pending groups.

CPU time is the server's and Redis' together: it says more than a rate where the machine
is busy with other work.
"""

import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import httpx

from bench import _buffer_library, _buffer_load
from bench._buffer_servers import Process, Server
from bench.peers import FOLDERS
from bench.suite import Ratio, Run, Suite, Target
from buffer import TaskConfig
from ground import EmbeddedServer
from ground.redis.connect import connect_async

CONNECTIONS, _WARM = 32, 0.5
_READ = "read ms per 1,000 items"
_client = httpx.Client(timeout=60)


def measure(quick: bool) -> Suite:
    with ExitStack() as starting:
        home = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
        starting.callback(shutil.rmtree, home, ignore_errors=True)
        levels, seconds = [0, 2_000] if quick else [0, 2_000, 10_000, 100_000], 1.0
        contenders: dict[str, Run] = {}
        for groups in levels:
            place = starting.enter_context(Place.filled(home, 1, groups))
            contenders[_named("one server", groups)] = place.run(seconds)
        place = starting.enter_context(Place.filled(home, 2, 0))
        contenders["two servers"] = place.run(seconds)
        ratios = [Ratio("writes/s", "two servers", "one server")]
        for version, theirs in (("v0", levels[:2]), ("v1", levels)):
            if folder := FOLDERS.get(f"slime-{version}"):
                for groups in theirs:
                    run = _their_run(folder, groups, seconds)
                    contenders[_named(f"slime {version}", groups)] = run
                ratios += _beside(f"slime {version}", theirs)
        contenders["library"] = lambda: _buffer_library.figures(home, levels[-1])
        ratios += [
            Ratio(metric, _named("one server", groups), "one server")
            for groups in levels[1:]
            for metric in ("writes/s", "CPU us per write")
        ]
        return Suite(
            contenders=contenders,
            rounds=1 if quick else 3,
            conditions={
                "connections": CONNECTIONS, "item bytes": _buffer_library.ITEM_BYTES,
                "redis": "AOF on", "load process": "on the same cores",
            },
            ratios=ratios,
            targets=_targets(levels),
            clean_up=starting.pop_all().close,
        )  # fmt: skip


class Place:
    """A store with so many pending groups, and servers on it. Each level has its own, and they
    are loaded in turns, so that the machine's ups and downs are alike for all."""

    def __init__(self, redis: str, servers: Sequence[Server], groups: int) -> None:
        self._redis = redis
        store = Process(asyncio.run(_info(redis, "server"))["process_id"])
        self._paid_by = [*(server.used for server in servers), store]
        task = "bench"
        config = TaskConfig(group_size=_buffer_load.GROUP, max_bytes=1 << 40)
        self._urls = [f"{server.url}/tasks/{task}" for server in servers]
        put = f"{servers[0].url}/v1/tasks/{task}"
        _client.put(put, json=config.model_dump()).raise_for_status()
        _load(self._urls, _WARM)  # the first second of a process is slower
        _read_ms(self._urls[0])
        asyncio.run(_buffer_library.fill(redis, task, groups))

    @classmethod
    @contextmanager
    def filled(cls, home: Path, servers: int, groups: int) -> Iterator[Self]:
        with ExitStack() as stack:
            redis = stack.enter_context(EmbeddedServer(Path(tempfile.mkdtemp(dir=home))))
            own = [stack.enter_context(Server.penstock(redis.url)) for _ in range(servers)]
            yield cls(redis.url, own, groups)

    def run(self, seconds: float) -> Run:
        def once() -> Mapping[str, float]:
            asyncio.run(_settled(self._redis))
            memory = asyncio.run(_info(self._redis, "memory"))["used_memory"]
            found, items = _loaded(self._urls, self._paid_by, seconds)
            grown = asyncio.run(_info(self._redis, "memory"))["used_memory"] - memory
            read = _read_ms(self._urls[0])
            return {**found, "memory kB per item": grown / items / 1000, _READ: read}

        return once


def _their_run(folder: Path, groups: int, seconds: float) -> Run:
    """A new server each time: what it holds, it holds in its memory."""

    def once() -> Mapping[str, float]:
        with Server.slimes(folder, _buffer_load.GROUP, groups) as server:
            memory = server.used.memory_bytes
            warmed_up = sum(part["items"] for part in _load([server.url], _WARM))
            found, items = _loaded([server.url], [server.used], seconds)
            items += warmed_up  # not read in between: what it freed would count for nothing
            grown = server.used.memory_bytes - memory
            read = _read_ms(server.url)
            return {**found, "memory kB per item": grown / items / 1000, _READ: read}

    return once


def _loaded(
    urls: Sequence[str], paid_by: Sequence[Process], seconds: float
) -> tuple[dict[str, float], float]:
    """Full load for a while, on top of what is there; and how many items it was."""
    cpu = sum(process.cpu_seconds for process in paid_by)
    parts = _load(urls, seconds)
    items = sum(part["items"] for part in parts)
    cpu = sum(process.cpu_seconds for process in paid_by) - cpu
    found = {
        "writes/s": sum(part["rate"] for part in parts),
        "write p50 ms": max(part["p50"] for part in parts),
        "CPU us per write": cpu / items * 1e6,
    }
    return found, items


def _load(urls: Sequence[str], seconds: float) -> list[dict[str, float]]:
    """One load process a server, the connections shared out."""
    share = str(CONNECTIONS // len(urls))
    running = [
        subprocess.Popen(
            [sys.executable, _buffer_load.__file__, url, share, uuid.uuid4().hex[:8], str(seconds)],
            stdout=subprocess.PIPE, text=True,
        )
        for url in urls
    ]  # fmt: skip
    said = [process.communicate()[0] for process in running]
    if any(process.returncode for process in running):
        raise RuntimeError(f"the load process of {urls} failed")
    return [json.loads(found) for found in said]


def _read_ms(url: str) -> float:
    """A read of all that is finished, as slime's clients do it."""
    began = time.perf_counter()
    answer = _client.post(f"{url}/get_rollout_data", json={}).raise_for_status().json()
    spent = time.perf_counter() - began
    if not answer["success"]:
        raise RuntimeError(f"{url} was written to, and has nothing to read: {answer}")
    return spent * 1000 / len(answer["data"]["data"]) * 1000


async def _info(url: str, section: str) -> Any:
    redis: Any = connect_async(url)
    found = await redis.info(section)
    await redis.aclose()
    return found


async def _settled(url: str) -> None:
    """Until Redis has freed what was dropped and rewritten its file for what was filled in."""
    redis: Any = connect_async(url)
    while True:
        file, memory = await redis.info("persistence"), await redis.info("memory")
        if not (file["aof_rewrite_in_progress"] or memory["lazyfree_pending_objects"]):
            break
        await asyncio.sleep(0.1)
    await redis.aclose()


def _named(contender: str, groups: int) -> str:
    return f"{contender}, {groups:,} pending" if groups else contender


def _beside(peer: str, levels: Sequence[int]) -> list[Ratio]:
    ratios = [
        Ratio(metric, _named("one server", groups), _named(peer, groups))
        for groups in levels
        for metric in ("writes/s", "CPU us per write", "memory kB per item", _READ)
    ]
    return [*ratios, Ratio("writes/s", "two servers", peer)]


def _targets(levels: Sequence[int]) -> list[Target]:
    targets = [
        Target(f"{_named('one server', groups)} writes/s vs one server", at_least=0.8)
        for groups in levels[1:]
    ]
    if "slime-v0" in FOLDERS:
        own, peer = _named("one server", 2_000), _named("slime v0", 2_000)
        targets.append(Target(f"{own} writes/s vs {peer}", at_least=10))
    if "slime-v1" in FOLDERS:
        targets.append(Target("one server writes/s vs slime v1", at_least=1.2))
        targets.append(Target("two servers writes/s vs slime v1", at_least=2))
    return targets
