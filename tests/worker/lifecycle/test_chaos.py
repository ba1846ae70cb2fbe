"""Many starts from many processes, killed at random, against a provider that fails at random."""

import asyncio
import contextlib
import random
import time
from pathlib import Path

import pytest

from limiter import StartingGate
from tests.harness import doomed, killing
from tests.worker.lifecycle.cloud import Cloud, CloudProvider, ask
from tests.worker.lifecycle.conftest import quick
from worker.lifecycle import LifecycleSettings, SandboxLifecycle, StartFailed
from worker.lifecycle.reaper.reaper import Reaper

CAP = 16
FAULTS = {
    "latency": [0.01, 0.2],
    "create_fails": 0.06,
    "reply_lost": 0.04,
    "create_hangs": 0.025,
    "never_ready": 0.025,
}


def settings() -> LifecycleSettings:
    return quick(startup_timeout=2.0, sandbox_lease=2.0, sandbox_grace=3.0, teardown_timeout=2.0)


async def a_cloud(address: str) -> None:
    """A process: the provider."""
    await Cloud(address, **FAULTS).serve(lambda: doomed.reached("serving"))


async def works(url: str, address: str, starts: int, seed: int) -> None:
    """A process: so many starts, some of them cancelled, and a reaper as every worker has one."""
    draw = random.Random(seed)
    life = SandboxLifecycle(
        url, CloudProvider(address), run="chaos", settings=settings(), max_starting=CAP
    )
    reaper = asyncio.create_task(Reaper(url, settings=settings()).work())

    async def one() -> None:
        with contextlib.suppress(StartFailed, TimeoutError):
            async with asyncio.timeout(draw.uniform(0.05, 0.5) if draw.random() < 0.15 else None):
                async with life.open() as sandbox:
                    await sandbox.is_alive()
                    await asyncio.sleep(draw.uniform(0, 0.1))  # any moment will do
        doomed.reached("one")

    await asyncio.gather(*(one() for _ in range(starts)))
    reaper.cancel()


class Crew:
    """Processes that are killed and replaced until all their starts are done, or were killed."""

    def __init__(self, url: str, address: str) -> None:
        self.url, self.address = url, address
        self.kills = 0
        self._seed = 0

    def run(self, processes: int, starts: int, kills: int) -> None:
        draw = random.Random(7)
        share = starts // processes
        children = [self._child(share) for _ in range(processes)]
        try:
            while self.kills < kills:
                time.sleep(draw.uniform(0.05, 0.4))
                slot = draw.randrange(processes)
                children[slot].kill()
                left = max(2, share - self._done(children[slot]))
                children[slot].__exit__(None, None, None)
                children[slot] = self._child(left)
                self.kills += 1
            for child in children:
                child.outcome(180)
        finally:
            for child in children:
                child.__exit__(None, None, None)

    def _child(self, starts: int) -> killing.Child:
        self._seed += 1
        return killing.Child(works, self.url, self.address, starts, self._seed)

    def _done(self, child: killing.Child) -> int:
        return len(child.outcome().reports)


async def nothing_left(url: str, address: str) -> float:
    """Until all is as if nothing had been; how long that took."""
    eye, began = Reaper(url, settings=settings()), time.monotonic()
    life = SandboxLifecycle(
        url, CloudProvider(address), run="chaos", settings=settings(), max_starting=CAP
    )
    gate = StartingGate(url, limit=CAP)
    async with asyncio.timeout(100):
        while (
            ask(address, "stats")["live"]
            or life.registry.look().count
            or (await gate.status()).in_flight
        ):
            await eye.look()
            await asyncio.sleep(0.05)
    life.registry.close()
    await eye.close()
    return time.monotonic() - began


async def chaos(url, folder: Path, monkeypatch, processes: int, starts: int, kills: int):
    address = str(folder / "cloud.sock")
    monkeypatch.setenv("TEST_CLOUD", address)
    monkeypatch.setenv("PENSTOCK_ALLOW", CloudProvider(address).name)  # by which reapers make it
    with killing.Child(a_cloud, address) as cloud:
        cloud.wait_for("serving")
        crew = Crew(url, address)
        await asyncio.to_thread(crew.run, processes, starts, kills)
        took = await nothing_left(url, address)
        stats = ask(address, "stats")
    return stats, took


async def test_the_cap_holds_and_nothing_is_left_whoever_is_killed(
    private_redis, tmp_path, monkeypatch
):
    url = private_redis(aof=False).url
    stats, _ = await chaos(url, tmp_path, monkeypatch, processes=4, starts=120, kills=6)
    assert CAP / 2 < stats["peak"] <= CAP
    assert stats["live"] == 0


@pytest.mark.soak
async def test_five_hundred_starts_of_eight_processes(private_redis, tmp_path, monkeypatch):
    url = private_redis(aof=False).url
    stats, took = await chaos(url, tmp_path, monkeypatch, processes=8, starts=504, kills=30)
    print(f"peak {stats['peak']}, creates {stats['creates']}, empty after {took:.1f} s")
    assert CAP / 2 < stats["peak"] <= CAP
    assert stats["creates"] >= 400
    assert stats["live"] == 0
