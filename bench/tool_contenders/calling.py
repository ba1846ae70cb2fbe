"""What every pool is put through: this many callers, each with its next call when the last is back.

On the standard library alone. A contender is run as `program SECONDS ROOM CALLERS...`; its
last line on stdout is its metrics.
"""

import asyncio
import contextlib
import json
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

CODE = "total = 200000 * 1.1\nprint(total)"


def main(make: Callable[[int], Callable[[], Awaitable[object]]]) -> None:
    """`make` gives, for a room of so many, a function that does one call."""
    seconds, room, *callers = sys.argv[1:]
    print(json.dumps(asyncio.run(_measured(make(int(room)), float(seconds), callers))))


async def _measured(
    call: Callable[[], Awaitable[object]], seconds: float, levels: list[str]
) -> dict[str, float]:
    metrics: dict[str, float] = {}
    await call()  # whatever starts at the first call has started
    for level in levels:
        taken: list[float] = []
        await _call(call, int(level), seconds / 4, [])
        began, spent = time.perf_counter(), _processor_seconds()
        await _call(call, int(level), seconds, taken)
        cuts = statistics.quantiles(taken, n=100, method="inclusive")
        metrics |= {
            f"calls/s, {level}": len(taken) / (time.perf_counter() - began),
            f"p50 ms, {level}": cuts[49] * 1000,
            f"p99 ms, {level}": cuts[98] * 1000,
            f"cpu ms a call, {level}": (_processor_seconds() - spent) / len(taken) * 1000,
        }
    return metrics


def _processor_seconds() -> float:
    """Of this process, of all that it started, and of those that BENCH_PIDS names."""
    parents, ticks = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            fields = stat.read_text().rpartition(")")[2].split()
            pid = int(stat.parent.name)
            parents[pid], ticks[pid] = int(fields[1]), int(fields[11]) + int(fields[12])
    own = {os.getpid(), *map(int, os.environ.get("BENCH_PIDS", "").split())}
    for _ in range(8):  # generations
        own |= {pid for pid, parent in parents.items() if parent in own}
    return sum(ticks.get(pid, 0) for pid in own) / os.sysconf("SC_CLK_TCK")


async def _call(
    call: Callable[[], Awaitable[object]], callers: int, seconds: float, taken: list[float]
) -> None:
    until = time.perf_counter() + seconds

    async def play() -> None:
        while (began := time.perf_counter()) < until or len(taken) < 2:  # a median needs two
            await call()
            taken.append(time.perf_counter() - began)

    await asyncio.gather(*(play() for _ in range(callers)))
