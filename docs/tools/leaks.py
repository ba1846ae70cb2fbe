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
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from rq import Queue
from rq.serializers import JSONSerializer

import ground
from buffer import RolloutBuffer, TaskConfig
from docs.tools.sizing import Nowhere
from gateway.calls import Call, Sent
from gateway.log import Asked, Fresh, SessionLog
from gateway.packing import floats_of, ids_of
from ground import EmbeddedServer
from limiter import TokenBucket
from worker import CodeQueue, ConcurrentWorker
from worker.lifecycle import SandboxLifecycle
from worker.settings import WorkerSettings

KEPT = Path(__file__).parent / "kept" / "leaks.json"
ROUNDS = 8  # and one before them, which fills caches and pools
AT_ONCE = 64
TURNS = 10  # of a session
LIFETIMES = {
    "PENSTOCK_GATEWAY_TOMBSTONE": "1", "PENSTOCK_GATEWAY_SESSION_IDLE": "1",
    "PENSTOCK_RESULT_TTL": "60",
}  # fmt: skip

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
        serializer=JSONSerializer, connection=client,
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
    worker.request_stop()
    thread.join()
    client.close()


@contextlib.asynccontextmanager
async def turns(url: str) -> AsyncIterator[Work]:
    """Of sessions that are opened, finalized, and taken by a trainer."""
    terms = TaskConfig(group_size=1, dialect="v1", retain=1, grace=1, late_window=1)
    buffer, log = RolloutBuffer(url, "math", terms), SessionLog(url, "default")
    await buffer.config()
    out, lps, made = ids_of(range(50)), floats_of([-1.0] * 50), 0

    async def session(n: int) -> None:
        opened = (await log.open("math", f"u{made + n}", f"i{made + n}")).session
        parent, end = None, 0
        for turn in range(1, TURNS + 1):
            asked = Asked(turn.to_bytes(16), ((turn - 1).to_bytes(16),) if parent else ())
            begun = await log.begin(opened, asked)
            assert isinstance(begun, Fresh)
            call = Call(
                begun.call, parent, end, ids_of([turn]), out, lps, ((50, 7),),
                req_digest=asked.digest,
            )  # fmt: skip
            await log.commit(opened, begun.fence, call, turn.to_bytes(16))
            log.sent(opened, begun.call, Sent.WHOLE)
            parent, end = call.id, call.end
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
    "turns": (1_000_000, turns),
    "session sandboxes": (100_000, sandboxes),
}
"""How many, and what is done."""
FACTS = ("memory", "descriptors", "threads", "keys", "memory of Redis")
UNITS = {"memory": "kB", "memory of Redis": "kB"}


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
    """But for the keys by which processes say that they live, there is none that ends soon."""
    while (await asyncio.to_thread(client.info, "keyspace"))["db0"]["expires"] > AT_ONCE:  # noqa: ASYNC110
        await asyncio.sleep(0.5)


async def rounds(name: str, count: int, url: str) -> list[dict[str, float]]:
    client: Any = ground.connect(url)
    found = []
    async with KINDS[name][1](url) as work:
        for n in range(ROUNDS + 1):
            await work(count // ROUNDS)
            await until_lifetimes_are_over(client)
            if n:
                found.append(looked_at(client))
            print(f"{name}: {n + 1} of {ROUNDS + 1} rounds, {looked_at(client)}", file=sys.stderr)
    client.close()
    return found


def slope(values: list[float], count: int) -> tuple[float, float]:
    """What a thousand add by the line that fits best, and its standard error."""
    at = [(n + 1) * count / len(values) / 1000 for n in range(len(values))]
    line = statistics.linear_regression(at, values)
    off = [value - line.intercept - line.slope * x for x, value in zip(at, values, strict=True)]
    spread = math.fsum((x - statistics.fmean(at)) ** 2 for x in at)
    error = math.sqrt(math.fsum(each**2 for each in off) / (len(at) - 2) / spread)
    return line.slope, error


def measured(name: str, count: int) -> dict[str, list[float]]:
    """By fact: its value after each round. In a process of its own."""
    command = [sys.executable, "-m", __spec__.name if __spec__ else __name__, "--one", name]
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
