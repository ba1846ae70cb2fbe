"""What every pool is put through: so many callers, each with its next call when the last is back.

On the standard library alone. A contender is run as `program SECONDS ROOM CALLERS...`; its
last line on stdout is its metrics.
"""

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable

CODE = "total = 200000 * 1.1\nprint(total)"


def main(make: Callable[[int], Callable[[], Awaitable[object]]]) -> None:
    """`make` gives, for a room of so many, a function that does one call."""
    seconds, room, *callers = sys.argv[1:]
    print(json.dumps(asyncio.run(_measured(make(int(room)), float(seconds), callers))))


async def _measured(
    call: Callable[[], Awaitable[object]], seconds: float, levels: list[str]
) -> dict[str, float]:
    metrics = {}
    await call()  # whatever starts at the first call has started
    for level in levels:
        taken: list[float] = []
        await _call(call, int(level), seconds / 4, [])
        began = time.perf_counter()
        await _call(call, int(level), seconds, taken)
        metrics[f"calls/s, {level}"] = len(taken) / (time.perf_counter() - began)
        cuts = statistics.quantiles(taken, n=100, method="inclusive")
        metrics[f"p50 ms, {level}"], metrics[f"p99 ms, {level}"] = (
            cuts[49] * 1000,
            cuts[98] * 1000,
        )
    return metrics


async def _call(
    call: Callable[[], Awaitable[object]], callers: int, seconds: float, taken: list[float]
) -> None:
    until = time.perf_counter() + seconds

    async def play() -> None:
        while (began := time.perf_counter()) < until:
            await call()
            taken.append(time.perf_counter() - began)

    await asyncio.gather(*(play() for _ in range(callers)))
