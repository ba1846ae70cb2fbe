"""What redis-py alone takes on an event loop: the least that is asked, and awaited, one by one.

python redis_floor.py URL COUNT
"""

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import redis.asyncio

URL, COUNT = sys.argv[1], int(sys.argv[2])


async def main() -> None:
    client: Any = redis.asyncio.Redis.from_url(URL)
    sha = await client.script_load("return 1")
    pings = await one_by_one(client.ping)
    scripts = await one_by_one(lambda: client.evalsha(sha, 0))
    await client.aclose()
    ordered = statistics.quantiles(pings, n=100)
    print(json.dumps({
        "round trip ms, p50": ordered[49],
        "round trip ms, p99": ordered[98],
        "pings/s": COUNT * 1000 / sum(pings),
        "empty scripts/s": COUNT * 1000 / sum(scripts),
    }))  # fmt: skip


async def one_by_one(ask: Callable[[], Awaitable[Any]]) -> list[float]:
    """Milliseconds of each."""
    await ask()
    took = []
    for _ in range(COUNT):
        began = time.perf_counter()
        await ask()
        took.append((time.perf_counter() - began) * 1000)
    return took


asyncio.run(main())
