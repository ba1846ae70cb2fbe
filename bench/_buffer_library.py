"""The buffer as a library, without HTTP: batch writes, takes, what an item costs, a restart."""

import asyncio
import json
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench import _buffer_load
from bench._buffer_servers import Process
from buffer import RolloutBuffer, TaskConfig
from ground import EmbeddedServer
from ground.redis.connect import connect_async

ITEM_BYTES = len(json.dumps(_buffer_load.item("pending", 1), separators=(",", ":")))
_WRITTEN, _AT_ONCE, _TAKES = 20_480, 2_048, 10
_TASK = "bench"


def figures(home: Path, pending: int) -> Mapping[str, float]:
    """On a server of its own, which is then restarted with all that it holds."""
    folder = Path(tempfile.mkdtemp(dir=home))
    with EmbeddedServer(folder) as server:
        found = asyncio.run(_figures(server.url, pending))
    began = time.perf_counter()
    with EmbeddedServer(folder) as server:
        left = asyncio.run(_open_groups(server.url))
        found[f"restart ms with {pending} groups"] = (time.perf_counter() - began) * 1000
    if left != pending:
        raise RuntimeError(f"{left} of {pending} groups were there after the restart")
    shutil.rmtree(folder)
    return found


async def fill(url: str, task: str, groups: int) -> None:
    """Open groups of one item each."""
    buffer = RolloutBuffer(url, task)
    for start in range(0, groups, _AT_ONCE):
        numbers = range(start, min(start + _AT_ONCE, groups))
        await buffer.write_many([_buffer_load.item("pending", n, group=1) for n in numbers])
    await buffer.aclose()


async def _figures(url: str, pending: int) -> dict[str, float]:
    buffer = RolloutBuffer(url, _TASK, TaskConfig(group_size=_buffer_load.GROUP, max_bytes=1 << 40))
    redis: Any = connect_async(url)
    store = Process((await redis.info("server"))["process_id"])
    await buffer.config()
    found = await _written(buffer, redis, store)
    before = (await redis.info("memory"))["used_memory"]
    await fill(url, _TASK, pending)
    after = (await redis.info("memory"))["used_memory"]
    found["Redis bytes beyond the item, alone in its group"] = (
        after - before
    ) / pending - ITEM_BYTES
    found |= await _taken(buffer, store, pending)
    await redis.aclose()
    await buffer.aclose()
    return found


async def _written(buffer: RolloutBuffer, redis: Any, store: Process) -> dict[str, float]:
    items = [_buffer_load.item("full", number) for number in range(_WRITTEN)]
    memory = (await redis.info("memory"))["used_memory"]
    began, cpu = time.perf_counter(), time.process_time() + store.cpu_seconds
    for start in range(0, len(items), _AT_ONCE):
        await buffer.write_many(items[start : start + _AT_ONCE])
    spent = time.perf_counter() - began
    cpu = time.process_time() + store.cpu_seconds - cpu
    grown = (await redis.info("memory"))["used_memory"] - memory
    return {
        "batch writes/s": len(items) / spent,
        "CPU us per batch write": cpu / len(items) * 1e6,
        "Redis bytes beyond the item, in a group of 8": grown / len(items) - ITEM_BYTES,
    }


async def _taken(buffer: RolloutBuffer, store: Process, pending: int) -> dict[str, float]:
    takes, costs = [], []
    for _ in range(_TAKES):
        began, cpu = time.perf_counter(), time.process_time() + store.cpu_seconds
        batch = await buffer.take(128)
        takes.append((time.perf_counter() - began) * 1000)
        costs.append((time.process_time() + store.cpu_seconds - cpu) * 1000)
        if batch is None or len(batch.groups) != 128:
            raise RuntimeError("a take found less than was written")
        await buffer.ack(batch)
    return {
        f"take 128x8 ms at {pending} pending": sorted(takes)[_TAKES // 2],
        f"take 128x8 CPU ms at {pending} pending": sum(costs) / _TAKES,
    }


async def _open_groups(url: str) -> int:
    buffer = RolloutBuffer(url, _TASK)
    found = (await buffer.catalog.stats())["open_groups"]
    await buffer.aclose()
    return found
