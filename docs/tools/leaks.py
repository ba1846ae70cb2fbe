"""What is left of much work: memory, descriptors, threads and keys, after each of some rounds.

    python -m docs.tools.leaks [NAME…]   measures, and keeps it in docs/tools/kept/leaks.json
    make docs                            writes docs/inside/scaling.md from that

Each kind has a process of its own, which is client and worker at once, and a Redis of its own.
After a round it waits until all that has a lifetime is gone: what is there then, stays.
"""

import asyncio
import contextlib
import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from rq import Queue
from rq.command import send_shutdown_command
from rq.serializers import JSONSerializer

import ground
from buffer import RolloutBuffer, TaskConfig
from docs.tools.quoted import slope
from docs.tools.scaling import play
from docs.tools.sizing import Nowhere
from gateway.log import SessionLog
from ground import EmbeddedServer
from limiter import TokenBucket
from worker import CodeQueue, ConcurrentWorker
from worker.lifecycle import SandboxLifecycle
from worker.settings import WorkerSettings

KEPT = Path(__file__).parent / "kept" / "leaks.json"
ROUNDS = 8
BEFORE = 2  # rounds that fill caches and pools, and lists that are kept to 10,000
AT_ONCE = 16
TURNS = 2  # of a session
LIFETIMES = {
    "PENSTOCK_GATEWAY_TOMBSTONE": "1", "PENSTOCK_GATEWAY_SESSION_IDLE": "10",
    "PENSTOCK_RESULT_TTL": "60", "PENSTOCK_GATEWAY_CACHE_BYTES": "100000",
}  # fmt: skip
"""Short ones, and a small cache: what is kept to a size has it before the first round."""

Work = Callable[[int], Awaitable[None]]


async def at_once(count: int, one: Callable[[int], Awaitable[object]]) -> None:
    """So many of them, some at once."""
    numbers = iter(range(count))

    async def some() -> None:
        for n in numbers:
            await one(n)

    await asyncio.gather(*(some() for _ in range(AT_ONCE)))


@contextlib.asynccontextmanager
async def permits(url: str) -> AsyncIterator[Work]:
    """Taken and returned, by two shares that wait for each other."""
    gate = TokenBucket(url, "room", limit=AT_ONCE // 2)

    async def one(n: int) -> None:
        (await gate.acquire(share="ab"[n % 2])).release()

    yield lambda count: at_once(count, one)


@contextlib.asynccontextmanager
async def jobs(url: str) -> AsyncIterator[Work]:
    """From their submission to their result, under a gate."""
    queue = CodeQueue(url, "code")
    client: Any = ground.connect(url)
    worker = ConcurrentWorker(
        [Queue("code", connection=client, serializer=JSONSerializer)],
        serializer=JSONSerializer, connection=client, maintenance_interval=5,
        settings=WorkerSettings.load(
            sandbox="docs.tools.sizing.Instant", concurrency=AT_ONCE, gate="code", gate_limit=32
        ),
    )  # fmt: skip
    thread = threading.Thread(target=worker.work, kwargs={"logging_level": "ERROR"}, daemon=True)
    thread.start()

    async def one(n: int) -> None:
        ran = await queue.run(f"print({n})")
        assert ran.ok, ran

    yield lambda count: at_once(count, one)
    send_shutdown_command(client, worker.name)
    thread.join()
    client.close()


@contextlib.asynccontextmanager
async def turns(url: str) -> AsyncIterator[Work]:
    """Of sessions that are opened, finalized, and taken by a trainer."""
    terms = TaskConfig(group_size=1, dialect="v1", retain=1, grace=1, late_window=1, done_max=500)
    buffer, log = RolloutBuffer(url, "math", terms), SessionLog(url, "default")
    await buffer.config()
    made = 0

    async def session(n: int) -> None:
        opened = (await log.open("math", f"u{made + n}", f"i{made + n}")).session
        await play(log, opened, range(1, TURNS + 1), 50)
        await log.finalize(opened, n % 2)
        if (batch := await buffer.take(1)) is not None:
            await buffer.ack(batch)

    async def some(count: int) -> None:
        nonlocal made
        await at_once(count // TURNS, session)
        made += count // TURNS
        while (batch := await buffer.take(100)) is not None:
            await buffer.ack(batch)

    yield some
    await log.aclose()
    await buffer.aclose()


@contextlib.asynccontextmanager
async def sandboxes(url: str) -> AsyncIterator[Work]:
    """Session sandboxes of a provider that has names alone."""
    provider: Any = Nowhere()
    lifecycle = SandboxLifecycle(url, provider)

    async def one(_: int) -> None:
        await lifecycle.stop(await lifecycle.start())

    yield lambda count: at_once(count, one)
    lifecycle.registry.close()


KINDS: dict[str, tuple[int, Callable[[str], Any]]] = {
    "permits": (1_000_000, permits),
    "jobs": (1_000_000, jobs),
    "turns": (200_000, turns),
    "session sandboxes": (100_000, sandboxes),
}
"""How many, and what is done."""
FACTS = ("memory", "descriptors", "threads", "keys", "memory of Redis")


def looked_at(client: Any) -> dict[str, float]:
    gc.collect()
    status = Path("/proc/self/status").read_text()
    found = dict(line.split(":\t", 1) for line in status.splitlines())
    return {
        "memory": float(found["VmRSS"].split()[0]),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": float(found["Threads"]),
        "keys": client.dbsize(),
        "memory of Redis": client.info("memory")["used_memory"] / 1000,
    }


async def until_lifetimes_are_over(client: Any) -> None:
    """Then the keys by which processes say that they live are the only ones that end some day, and
    RQ has forgotten what has ended."""

    def some_are_not() -> bool:
        ends = client.info("keyspace")["db0"]["expires"]
        return bool(ends > 4 * AT_ONCE or client.exists("rq:finished:code"))

    while await asyncio.to_thread(some_are_not):  # noqa: ASYNC110 - it tells nobody
        await asyncio.sleep(0.5)


async def rounds(name: str, count: int, url: str) -> list[dict[str, float]]:
    client: Any = ground.connect(url)
    found = []
    async with KINDS[name][1](url) as work:
        for n in range(BEFORE + ROUNDS):
            await work(count // ROUNDS)
            await until_lifetimes_are_over(client)
            found.append(looked_at(client))
            print(f"{name}, round {n}: {found[-1]}", file=sys.stderr, flush=True)
    client.close()
    return found[BEFORE:]


def is_flat(values: list[float], count: int) -> bool:
    """Whether it grows by no more than its noise, or by no more than a twentieth in all."""
    grows, error = slope(values, count)
    return grows <= 3 * error or grows * count / 1000 <= values[0] / 20


def measured(name: str, count: int) -> dict[str, list[float]]:
    """By fact: its value after each round. In a process of its own."""
    command = [sys.executable, "-m", "docs.tools.leaks", "--one", name]
    environment = {**os.environ, **LIFETIMES}
    ran = subprocess.run([*command, str(count)], stdout=-1, env=environment, text=True, check=True)
    found = json.loads(ran.stdout)
    return {fact: [each[fact] for each in found] for fact in FACTS}


def main(names: list[str]) -> None:
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    for name in names or KINDS:
        count = KINDS[name][0]
        kept[name] = {"count": count, **measured(name, count)}
        KEPT.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        with tempfile.TemporaryDirectory() as folder, EmbeddedServer(folder) as server:
            found = asyncio.run(rounds(sys.argv[2], int(sys.argv[3]), server.url))
        print(json.dumps(found))
    else:
        main(sys.argv[1:])
