"""The rollout buffer beside slime's own server: writes over HTTP, reads, memory, restart.

slime's servers run where their folders are named: `--peer slime-v0=…` and
`--peer slime-v1=…` are `slime_plugins/rollout_buffer` of 3db3545cd and of today.
Without them ours is measured alone. v0 looks at all groups in every write, so it is
measured at no more than 2,000 pending groups; v1 does not, and is at no more than 10,000.

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
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from bench import _buffer_library, _buffer_load
from bench._buffer_servers import Process, Server
from bench.peers import FOLDERS
from bench.suite import Ratio, Run, Suite, Target
from buffer import RolloutBuffer, TaskConfig
from ground import EmbeddedServer, connect_async

CONNECTIONS = 32
PEERS = {"v0": 2_000, "v1": 10_000}
_client = httpx.Client(timeout=60)


def measure(quick: bool) -> Suite:
    with ExitStack() as starting:
        home = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
        starting.callback(shutil.rmtree, home, ignore_errors=True)
        redis = starting.enter_context(EmbeddedServer(home / "redis"))
        ours = [starting.enter_context(Server.ours(redis.url)) for _ in range(2)]
        seconds, pending = 2.0, [0, 2_000] if quick else [0, 2_000, 10_000, 100_000]
        kept = 10_000 if quick else 100_000
        contenders: dict[str, Run] = {
            "one server": lambda: _ours(redis.url, ours[:1], pending, seconds),
            "two servers": lambda: _ours(redis.url, ours, pending[:1], seconds),
            "library": lambda: _buffer_library.figures(home, kept),
        }
        ratios = [Ratio("writes/s at 0 pending", "two servers", "one server")]
        targets = _targets(kept)
        for version, most in PEERS.items():
            if folder := FOLDERS.get(f"slime-{version}"):
                levels = [groups for groups in pending if groups <= most]
                contenders[f"slime {version}"] = _their_run(folder, levels, seconds)
                ratios += _beside(version)
                targets += _beside_targets(version)
        return Suite(
            contenders=contenders,
            rounds=1 if quick else 3,
            conditions={
                "connections": CONNECTIONS, "item bytes": _buffer_library.ITEM_BYTES,
                "redis": "AOF on", "load process": "on the same cores",
            },
            ratios=ratios,
            targets=targets,
            clean_up=starting.pop_all().close,
        )  # fmt: skip


def _ours(
    redis_url: str, servers: Sequence[Server], pending: Sequence[int], seconds: float
) -> Mapping[str, float]:
    store = Process(asyncio.run(_info(redis_url, "server"))["process_id"])
    paid_by = [*(server.used for server in servers), store]
    found: dict[str, float] = {}
    for groups in pending:
        task = f"bench-{uuid.uuid4().hex}"
        at = f"/tasks/{task}"
        config = TaskConfig(group_size=_buffer_load.GROUP, max_bytes=1 << 40)
        _client.put(f"{servers[0].url}/v1{at}", json=config.model_dump()).raise_for_status()
        asyncio.run(_buffer_library.fill(redis_url, task, groups))
        asyncio.run(_settled(redis_url))
        urls = [f"{server.url}{at}" for server in servers]
        memory = asyncio.run(_info(redis_url, "memory"))["used_memory"]
        load, items = _loaded(urls, paid_by, groups, seconds)
        found |= load
        if groups == pending[0]:
            grown = asyncio.run(_info(redis_url, "memory"))["used_memory"] - memory
            found["memory kB per item"] = grown / items / 1000
            found["read ms per 1,000 items"] = _read_ms(urls[0])
        asyncio.run(_drop(redis_url, task))
    reached = [rate for name, rate in found.items() if name.startswith("writes/s")]
    found["slowest/fastest writes/s"] = min(reached) / max(reached)
    return found


def _their_run(folder: Path, pending: Sequence[int], seconds: float) -> Run:
    """A server for each level: what it holds, it holds in its memory."""

    def run() -> Mapping[str, float]:
        found: dict[str, float] = {}
        for groups in pending:
            with Server.slimes(folder, _buffer_load.GROUP) as server:
                if groups:
                    _load([server.url], 1, 600, groups)
                memory = server.used.memory_bytes
                load, items = _loaded([server.url], [server.used], groups, seconds)
                found |= load
                if groups == pending[0]:
                    grown = server.used.memory_bytes - memory
                    found["memory kB per item"] = grown / items / 1000
                    found["read ms per 1,000 items"] = _read_ms(server.url)
        return found

    return run


def _loaded(
    urls: Sequence[str], paid_by: Sequence[Process], groups: int, seconds: float
) -> tuple[dict[str, float], float]:
    """Full load for a while, on top of what is there; and how many items it was."""
    cpu = sum(process.cpu_seconds for process in paid_by)
    parts = _load(urls, _buffer_load.GROUP, seconds)
    items = sum(part["items"] for part in parts)
    cpu = sum(process.cpu_seconds for process in paid_by) - cpu
    found = {
        f"writes/s at {groups} pending": sum(part["rate"] for part in parts),
        f"write p50 ms at {groups} pending": max(part["p50"] for part in parts),
        f"CPU us per write at {groups} pending": cpu / items * 1e6,
    }
    return found, items


def _load(
    urls: Sequence[str], group: int, seconds: float, most: int = 10**9
) -> list[dict[str, float]]:
    """One load process a server, the connections shared out."""
    share = str(CONNECTIONS // len(urls))
    running = [
        subprocess.Popen(
            [sys.executable, _buffer_load.__file__, url, share, uuid.uuid4().hex[:8],
             str(group), str(seconds), str(most)],
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


async def _drop(url: str, task: str) -> None:
    buffer = RolloutBuffer(url, task)
    await buffer.reset()
    await buffer.aclose()


def _beside(version: str) -> list[Ratio]:
    peer = f"slime {version}"
    metrics = ["writes/s at 0 pending", "writes/s at 2000 pending",
               "CPU us per write at 0 pending", "CPU us per write at 2000 pending",
               "read ms per 1,000 items", "memory kB per item"]  # fmt: skip
    ratios = [Ratio(metric, "one server", peer) for metric in metrics]
    return [*ratios, Ratio(metrics[0], "two servers", peer)]


def _beside_targets(version: str) -> list[Target]:
    if version == "v0":
        return [Target("one server writes/s at 2000 pending vs slime v0", at_least=10)]
    return [
        Target("one server writes/s at 0 pending vs slime v1", at_least=1.2),
        Target("two servers writes/s at 0 pending vs slime v1", at_least=2),
    ]


def _targets(pending: int) -> list[Target]:
    return [
        Target("one server slowest/fastest writes/s", at_least=0.8),
        Target("library batch writes/s", at_least=20_000),
        Target(f"library take 128x8 ms at {pending} pending", at_most=50),
    ]
