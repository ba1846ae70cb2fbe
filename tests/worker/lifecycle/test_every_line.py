"""Killed at any line of a start, a teardown, a reap or a session's turn: nothing is left.

`make test` takes a sample of the lines, `make soak` takes all.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from tests.harness import killing
from tests.harness.servers import PrivateRedis
from tests.worker.lifecycle.cloud import CloudProvider, CloudThread
from tests.worker.lifecycle.conftest import gate_of, quick
from worker.lifecycle import LifecycleSettings, SandboxLifecycle, SandboxSpec
from worker.lifecycle.reaper.reaper import Reaper

START = [
    "worker.lifecycle.starting:Start",
    *(
        f"worker.lifecycle.keeper:Keeper.{name}"
        for name in ("permits", "recorded", "_record", "advance", "_freed")
    ),
]
TEARDOWN = [
    *(f"worker.lifecycle.keeper:Keeper.{name}" for name in ("_ended", "_torn_down", "_terminated")),
    "worker.lifecycle.teardown:guarded",
]
REAP = [
    "worker.lifecycle.reaper.reaper:Reaper",
    "worker.lifecycle.reaper.dead_owners:Reaping",
    "worker.lifecycle.reaper.reaper:Offices",
    "worker.lifecycle.reaper.dead_owners:Strays",
]
SESSION = ["worker.lifecycle.sessions:Sessions", "worker.lifecycle.box:held"]


def settings() -> LifecycleSettings:
    return quick(
        sandbox_lease=6.0, sandbox_grace=0.5, teardown_timeout=1.0, session_idle=0.1,
        startup_timeout=20.0,
    )  # fmt: skip


@asynccontextmanager
async def a_lifecycle(url: str, address: str) -> AsyncIterator[SandboxLifecycle]:
    life = SandboxLifecycle(
        url, CloudProvider(address), run="test", settings=settings(), max_starting=500
    )
    try:
        yield life
    finally:
        life.registry.close()


async def opens_and_ends(url: str, address: str) -> None:
    async with a_lifecycle(url, address) as life, life.open() as sandbox:
        await sandbox.is_alive()


async def takes_a_turn(url: str, address: str) -> None:
    name = f"sample-{time.monotonic_ns()}"
    async with a_lifecycle(url, address) as life, life.session(name) as sandbox:
        await sandbox.is_alive()


async def reaps(url: str, address: str) -> None:
    """One that is ready, one whose id nobody noted, and one that is in no registry."""
    async with a_lifecycle(url, address) as life:
        ready, provider, registry = await life.start(), life.provider, life.registry
        tags = {"penstock-fleet": registry.look(0).facts["fleet"]}
        tags["penstock-run"] = "test"
        unnoted, stray = f"unnoted-{ready.name}", f"stray-{ready.name}"
        registry.open(unnoted, "nobody", 0.0, provider=provider.name, instance="", permits=(),
                      dies_after=600.0)  # fmt: skip
        for name in (unnoted, stray):
            await provider.create(SandboxSpec(), name=name, tags=tags, ttl=600)
        reaper = Reaper(url, settings=settings())
        await reaper.end("test", [ready.name], "by hand")
        await reaper.look(strays_now=True, wait=False)
        await life.stop(ready)
        await reaper.close()


async def nothing_left(server: PrivateRedis, cloud: CloudThread) -> None:
    async with a_lifecycle(server.url, cloud.address) as life:
        reaper = Reaper(server.url, settings=settings())
        deadline = time.monotonic() + 100
        while True:
            await reaper.look()
            seen, gate = life.registry.look(), await gate_of(life).status()
            left = cloud.stats()["names"], seen.records, gate.leases
            if not any(left) and not gate.in_flight and not life.registry.permits():
                break
            assert time.monotonic() < deadline, f"left are {left}"
            await asyncio.sleep(0.05)
        await reaper.close()


SCENARIOS = [
    pytest.param(opens_and_ends, START, id="a start"),
    pytest.param(opens_and_ends, TEARDOWN, id="a teardown"),
    pytest.param(reaps, REAP, id="a reap"),
    pytest.param(takes_a_turn, SESSION, id="a session's turn"),
]
SAMPLE = 29  # every so many-th line


@pytest.mark.parametrize(("scenario", "of"), SCENARIOS)
async def test_killed_at_one_of_many_lines(
    private_redis: Callable[..., PrivateRedis], cloud: CloudThread,
    scenario: Callable[..., object], of: list[str],
) -> None:  # fmt: skip
    server = private_redis(aof=False)
    killing.run_at_every_line(scenario, server.url, cloud.address, of=of, every=SAMPLE)
    await nothing_left(server, cloud)


@pytest.mark.soak
@pytest.mark.parametrize(("scenario", "of"), SCENARIOS)
async def test_killed_at_every_line(
    private_redis: Callable[..., PrivateRedis], cloud: CloudThread,
    scenario: Callable[..., object], of: list[str],
) -> None:  # fmt: skip
    server = private_redis(aof=False)
    killed = killing.run_at_every_line(scenario, server.url, cloud.address, of=of)
    print(f"killed at {killed} lines")
    await nothing_left(server, cloud)
