"""What a trainer's side of the queue does a second, and what it costs it.

    python our_client.py URL COUNT

A worker serves the queue `bench`, whose sandbox answers at once. COUNT round trips are of
one job after the other; completions are of COUNT jobs outstanding at once, in processor time of
this process from the last enqueue on; enqueues go to a queue that nobody serves.
"""

import asyncio
import json
import resource
import statistics
import sys
import time
from typing import Any

from worker import CodeQueue, CodeRequest

URL, COUNT = sys.argv[1], int(sys.argv[2])
PROGRAM = CodeRequest(code="print('ok')")


async def main() -> None:
    served, unserved = CodeQueue(URL, "bench"), CodeQueue(URL, "unserved", no_workers_after=600)
    await served.run(PROGRAM, timeout=60)
    figures = await round_trips(served) | await completions(served) | await enqueues(unserved)
    print(json.dumps(figures))


async def round_trips(queue: CodeQueue) -> dict[str, float]:
    took = []
    for _ in range(COUNT):
        began = time.perf_counter()
        await queue.run(PROGRAM, timeout=60)
        took.append((time.perf_counter() - began) * 1000)
    ordered = statistics.quantiles(took, n=100)
    return {"round trip ms, p50": ordered[49], "round trip ms, p99": ordered[98]}


async def completions(queue: CodeQueue) -> dict[str, float]:
    handles = await asyncio.gather(*(queue.submit(PROGRAM, timeout=300) for _ in range(COUNT)))
    waiting = [handle for handle in handles if not handle.done]
    before = _processor()
    async for _ in queue.as_completed(waiting):
        pass
    return {"us per completion": (_processor() - before) / max(1, len(waiting)) * 1e6}


async def enqueues(queue: CodeQueue) -> dict[str, float]:
    async def one() -> Any:
        return await queue.submit(PROGRAM)

    before, began = _processor(), time.perf_counter()
    await asyncio.gather(*(one() for _ in range(COUNT)))
    batched, spent = COUNT / (time.perf_counter() - began), _processor() - before
    began = time.perf_counter()
    for _ in range(COUNT // 4):
        await one()
    singly = COUNT // 4 / (time.perf_counter() - began)
    return {
        "enqueued/s, batched": batched,
        "enqueued/s, awaited singly": singly,
        "us per enqueue, batched": spent / COUNT * 1e6,
    }


def _processor() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


asyncio.run(main())
