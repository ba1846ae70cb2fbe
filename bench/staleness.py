"""What each policy on versions does to slow problems, and what versions cost Redis.

The first part is an experiment: `_staleness_run.py` trains in virtual time on the real scripts.
The second counts the server's own microseconds, by `INFO commandstats`, which other work on the
machine disturbs less than a rate.
"""

import asyncio
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from bench import _buffer_load
from bench._staleness_run import simulated
from bench.suite import Ratio, Run, Suite, Target
from buffer import Policy, RolloutBuffer, TaskConfig
from ground import EmbeddedServer
from ground.redis.connect import connect_async

POLICIES = ("wait", "again", "mask", "drop", "fresh")
_ITEMS, _AT_ONCE = 8_192, 1_024
_numbers = count()


def measure(quick: bool) -> Suite:
    with ExitStack() as starting:
        home = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
        starting.callback(shutil.rmtree, home, ignore_errors=True)
        url = starting.enter_context(EmbeddedServer(home)).url
        versions = 60 if quick else 250
        contenders: dict[str, Run] = {
            when_old: partial(_once, simulated, url, when_old, versions) for when_old in POLICIES
        }
        contenders["writes without versions"] = partial(_once, _written, url, False)
        contenders["writes with versions"] = partial(_once, _written, url, True)
        for waiters in (10, 1_000):
            contenders[f"admit, {waiters:,} waiting"] = partial(_once, _admitted, url, waiters)
        contenders["admit, 100,000 outstanding"] = partial(_once, _granted, url, 100_000)
        contenders["admit in batches"] = partial(_once, _in_batches, url, 0)
        return Suite(
            contenders=contenders,
            rounds=1 if quick else 3,
            conditions={"slow problems": "20%, ten times slower", "max_age": 8},
            ratios=[
                Ratio("server us per item", "writes without versions", "writes with versions"),
                Ratio("server us per ask", "admit, 1,000 waiting", "admit, 10 waiting"),
            ],
            targets=[
                Target("wait fair share of slow problems", at_least=0.97),
                Target("again fair share of slow problems", at_least=0.97),
                Target("mask fair share of slow problems", at_least=0.97),
                Target(
                    "writes without versions server us per item vs writes with versions",
                    at_least=0.95,
                ),
                Target("admit, 1,000 waiting server us per ask vs admit, 10 waiting", at_most=2),
                Target("admit, 100,000 outstanding server us per ask", at_most=120),
                Target("admit in batches admissions/s", at_least=10_000),
            ],
            clean_up=starting.pop_all().close,
        )


def _once(
    work: Callable[..., Awaitable[Mapping[str, float]]], url: str, *words: Any
) -> Mapping[str, float]:
    """Each time on a task, or with a seed, of its own."""
    found: Any = asyncio.run(work(url, *words, next(_numbers)))  # type: ignore[arg-type]
    return dict(found)


async def _written(url: str, versions: bool, number: int) -> Mapping[str, float]:
    buffer, redis = await _buffer(url, number, policy=versions)
    more = {"version_start": 5, "version_end": 5} if versions else {}
    items = [_buffer_load.item(f"w{number}", n) | more for n in range(_ITEMS)]
    await redis.config_resetstat()
    for start in range(0, _ITEMS, _AT_ONCE):
        await buffer.write_many(items[start : start + _AT_ONCE])
    spent = await _microseconds(redis)
    await _leave(buffer, redis)
    return {"server us per item": spent / _ITEMS}


async def _admitted(url: str, waiters: int, number: int) -> Mapping[str, float]:
    """Asks that end in the line, behind this many others."""
    buffer, redis = await _buffer(url, number, policy=True, groups=1)
    await buffer.admit(100)
    for n in range(waiters):
        await buffer._task.call("grant_slots", f"{n:032x}", "bench", 1, 600_000)
    await redis.config_resetstat()
    for n in range(waiters, waiters + 500):
        await buffer._task.call("grant_slots", f"{n:032x}", "bench", 1, 600_000)
    spent = await _microseconds(redis)
    await _leave(buffer, redis)
    return {"server us per ask": spent / 500}


async def _granted(url: str, slots: int, number: int) -> Mapping[str, float]:
    """Asks that get a slot at once, while so many are held: nothing renews them, for a minute."""
    buffer, redis = await _buffer(url, number, policy=True, groups=slots)
    for n in range(slots // 1_000):
        await buffer._task.call("grant_slots", f"{n:032x}", "bench", 1_000, 0)
    await redis.config_resetstat()
    for n in range(slots, slots + 2_000):
        reply = await buffer._task.call("grant_slots", f"{n:032x}", "bench", 1, 0)
        assert len(reply) == 12
    spent = await _microseconds(redis)
    await _leave(buffer, redis)
    return {"server us per ask": spent / 2_000}


async def _in_batches(url: str, _: int, number: int) -> Mapping[str, float]:
    buffer, redis = await _buffer(url, number, policy=True, groups=100_000)
    began, got = time.perf_counter(), 0
    for _ in range(200):
        got += len(await buffer.admit(100))
    spent = time.perf_counter() - began
    await _leave(buffer, redis)
    return {"admissions/s": got / spent}


async def _buffer(
    url: str, number: int, *, policy: bool, groups: int = 1_000
) -> tuple[RolloutBuffer, Any]:
    config = TaskConfig(group_size=_buffer_load.GROUP, max_bytes=1 << 40)
    buffer = RolloutBuffer(url, f"bench-{number}", config)
    await buffer.config()
    if policy:
        await buffer.set_policy(Policy(groups_per_version=groups, max_age=4, depth=4))
        await buffer.publish(5)
    return buffer, connect_async(url)


async def _microseconds(redis: Any) -> float:
    said = await redis.info("commandstats")
    return float(said["cmdstat_evalsha"]["usec"])


async def _leave(buffer: RolloutBuffer, redis: Any) -> None:
    await redis.flushall()
    await redis.aclose()
    await buffer.aclose()
