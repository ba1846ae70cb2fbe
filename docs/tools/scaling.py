"""How the time of Redis' core per operation changes with what is there: four sizes, three decades.

    python -m docs.tools.scaling [NAME…]   measures, and keeps it in docs/tools/kept/scaling.json
    make docs                              writes docs/inside/scaling.md from that

The time is the server's own (`INFO`, CPU seconds), so that a busy machine changes little.
"""

import asyncio
import contextlib
import json
import math
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from rq import Queue
from rq.serializers import JSONSerializer

import ground
from buffer import RolloutBuffer, TaskConfig
from docs.tools.sizing import ITEM, PROGRAM, Nowhere, Server
from gateway.calls import Call, Sent
from gateway.log import Asked, Fresh, Session, SessionLog
from gateway.packing import floats_of, ids_of
from ground import EmbeddedServer
from jail.judge import Cases, JudgeCase
from limiter import TokenBucket
from worker import CodeQueue, ConcurrentWorker
from worker.lifecycle import SandboxLifecycle
from worker.settings import WorkerSettings

KEPT = Path(__file__).parent / "kept" / "scaling.json"
SIZES = (10, 100, 1_000, 10_000)
OPERATIONS = 1_000
ROUNDS = 2
IDLE, SLICES = 2.0, 8  # seconds, in so many parts: in one of them it does nothing else


async def cost(server: Server, work: Callable[[], Awaitable[object]], count: int) -> float:
    """Microseconds of the server for each of so many operations, less what it does anyway. A
    rewrite of its file, which copies what changes, is over before."""
    client: Any = ground.connect(server.url)
    with contextlib.closing(client):
        while client.info("persistence")["aof_rewrite_in_progress"]:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    slices = []
    for _ in range(SLICES):
        _, before = await asyncio.to_thread(server.now)
        await asyncio.sleep(IDLE / SLICES)
        _, after = await asyncio.to_thread(server.now)
        slices.append((after - before) / IDLE * SLICES)
    began = time.monotonic()
    _, took = await server.cost(work, count)
    idle = min(slices) * (time.monotonic() - began)
    return took - idle / count * 1e6


async def pairs(server: Server, *, waiters: int = 1, held: int = 0, shares: int = 1) -> float:
    """One permit goes from hand to hand, while so many wait for it, or so many others are held."""
    gate = TokenBucket(server.url, "room", limit=held + 1)
    kept = [await gate.acquire() for _ in range(held)]
    done, enough = 0, asyncio.Event()

    async def waits(n: int) -> None:
        nonlocal done
        while True:
            permit = await gate.acquire(share=f"s{n % shares}" if shares > 1 else "")
            done += 1
            permit.release()
            if done >= OPERATIONS:
                enough.set()

    first = await gate.acquire()
    tasks = [asyncio.create_task(waits(n)) for n in range(waiters)]
    while (await gate.status()).waiting < waiters:  # noqa: ASYNC110 - it tells nobody
        await asyncio.sleep(0.05)

    async def work() -> None:
        first.release()
        await enough.wait()

    took = await cost(server, work, OPERATIONS)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for permit in kept:
        permit.release()
    return took


async def jobs(server: Server, *, queued: int = 0, workers: int = 0, shares: int = 1) -> float:
    """Jobs from their submission to their result, while so many others wait behind them."""
    queue = CodeQueue(server.url, "code", abandon="keep")
    client: Any = ground.connect(server.url)
    soon = (time.time() + 3600) * 1e6
    for n in range(workers):  # as others that live; their heartbeats come on top
        client.zadd("penstock:work:{code}:workers", {f"other-{n}": soon})
        client.sadd("rq:workers:code", f"rq:worker:other-{n}")

    def share(n: int) -> str:
        return f"s{n % shares}" if shares > 1 else ""

    async def submit(count: int) -> None:
        for at in range(0, count, 500):
            some = range(at, min(count, at + 500))
            await asyncio.gather(*(queue.submit(PROGRAM, share=share(n)) for n in some))

    await submit(queued)
    submitted = await cost(server, lambda: submit(OPERATIONS), OPERATIONS)
    worker = ConcurrentWorker(
        [Queue("code", connection=client, serializer=JSONSerializer)],
        serializer=JSONSerializer, connection=client,
        settings=WorkerSettings.load(sandbox="docs.tools.sizing.Instant", concurrency=64),
    )  # fmt: skip
    options = {"logging_level": "ERROR", "max_jobs": OPERATIONS}
    ran = await cost(server, lambda: asyncio.to_thread(worker.work, **options), OPERATIONS)
    client.close()
    return submitted + ran


async def items(server: Server, *, ready: int) -> float:
    """Items written, taken and acknowledged, while so many groups of 8 are ready before them."""
    buffer = RolloutBuffer(server.url, "math", TaskConfig(group_size=8))

    async def write(name: str, groups: int) -> None:
        for at in range(0, groups, 12):
            some = range(at, min(groups, at + 12))
            await buffer.write_many(
                ITEM | {"instance_id": f"{name}{n}", "reward": m % 2}
                for n in some
                for m in range(8)
            )

    await write("before", ready)

    async def work() -> None:
        await write("new", OPERATIONS // 8)
        for _ in range(OPERATIONS // 8 // 25):
            batch = await buffer.take(25)
            assert batch is not None
            await buffer.ack(batch)

    took = await cost(server, work, OPERATIONS)
    await buffer.aclose()
    return took


async def play(log: SessionLog, session: Session, turns: range, tokens: int) -> None:
    """These turns of a session, each of one token in and so many out."""
    out, lps = ids_of(range(tokens)), floats_of([-1.0] * tokens)
    parent, end = (turns.start - 1) or None, (tokens + 1) * (turns.start - 1)
    for turn in turns:
        asked = Asked(turn.to_bytes(16), ((turn - 1).to_bytes(16),) if parent else ())
        begun = await log.begin(session, asked)
        assert isinstance(begun, Fresh)
        call = Call(
            begun.call, parent, end, ids_of([turn]), out, lps, ((tokens, 7),),
            req_digest=asked.digest,
        )  # fmt: skip
        await log.commit(session, begun.fence, call, turn.to_bytes(16))
        log.sent(session, begun.call, Sent.WHOLE)
        parent, end = call.id, call.end


async def turns(server: Server, *, sessions: int = 1, before: int = 0) -> float:
    """Turns of 250 tokens, of a session among so many others, or with so many turns before."""
    buffer = RolloutBuffer(server.url, "math", TaskConfig(group_size=1, dialect="v1"))
    await buffer.config()
    log = SessionLog(server.url, "default")
    opened = [(await log.open("math", f"u{n}", f"i{n}")).session for n in range(sessions)]
    count = OPERATIONS // 2
    await play(log, opened[0], range(1, before + 1), 250)
    played = range(before + 1, before + count + 1)
    took = await cost(server, lambda: play(log, opened[0], played, 250), count)
    await log.aclose()
    await buffer.aclose()
    return took


async def judged(server: Server, *, cases: int) -> float:
    """Jobs that are judged by so many cases, from their submission until Redis has them."""
    queue = CodeQueue(server.url, "code", abandon="keep")
    given = Cases([JudgeCase(input=f"{n}", expected=f"{n}") for n in range(cases)])
    count, asked = OPERATIONS // 5, list[Any]()

    async def submit() -> None:
        asked.extend(
            asyncio.create_task(queue.judge(f"print(input()) # {n}", given)) for n in range(count)
        )
        client: Any = ground.connect(server.url)
        with contextlib.closing(client):
            while await asyncio.to_thread(client.llen, "rq:queue:code") < count:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    took = await cost(server, submit, count)
    for task in asked:
        task.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    return took


async def sandboxes(server: Server, *, open_ones: int) -> float:
    """Session sandboxes that are started and ended, while so many others are open."""
    provider: Any = Nowhere()
    lifecycle = SandboxLifecycle(server.url, provider)

    async def start(count: int) -> list[Any]:
        found = []
        for at in range(0, count, 100):
            some = range(min(100, count - at))
            found += await asyncio.gather(*(lifecycle.start() for _ in some))
        return found

    kept, count = await start(open_ones), OPERATIONS // 5

    async def work() -> None:
        await asyncio.gather(*map(lifecycle.stop, await start(count)))

    took = await cost(server, work, count)
    await asyncio.gather(*map(lifecycle.stop, kept))
    lifecycle.registry.close()
    return took


# What grows; and what is done, at each size.
CURVES: dict[str, Callable[[Server, int], Awaitable[float]]] = {
    "waiters at a gate": lambda server, n: pairs(server, waiters=n),
    "permits held": lambda server, n: pairs(server, waiters=8, held=n),
    "shares that wait at a gate": lambda server, n: pairs(server, waiters=n, shares=n),
    "jobs queued": lambda server, n: jobs(server, queued=n),
    "shares that wait at a queue": lambda server, n: jobs(server, queued=n, shares=n),
    "workers of a queue": lambda server, n: jobs(server, workers=n),
    "cases of a judged job": lambda server, n: judged(server, cases=n),
    "groups ready": lambda server, n: items(server, ready=n),
    "sessions open": lambda server, n: turns(server, sessions=n),
    "turns of a session": lambda server, n: turns(server, before=n),
    "session sandboxes open": lambda server, n: sandboxes(server, open_ones=n),
}


def measure(name: str) -> list[float]:
    """Microseconds of the server per operation, at each size: the least of all rounds, in which
    the sizes take turns. What else the machine does can only add to it."""
    least = [math.inf] * len(SIZES)
    for _ in range(ROUNDS):
        for n, size in enumerate(SIZES):
            with tempfile.TemporaryDirectory() as folder, EmbeddedServer(folder) as server:
                least[n] = min(least[n], asyncio.run(CURVES[name](Server(server.url), size)))
            print(f"{name}, {size:,}: {least[n]:.1f} µs", file=sys.stderr, flush=True)
    return least


def main(names: list[str]) -> None:
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {"curves": {}}
    kept["sizes"] = SIZES
    for name in names or CURVES:
        kept["curves"][name] = measure(name)
        KEPT.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
