"""Owners that start sandboxes at a cloud are killed at random moments: nothing is left there."""

import asyncio
import contextlib
import importlib
import os
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from tests.harness import doomed, killing
from tests.harness.servers import PrivateRedis
from tests.worker.lifecycle.clouds.agent_sandbox_stand_in import KUBECONFIG, Cluster
from tests.worker.lifecycle.clouds.daytona_stand_in import KEY, Daytona
from tests.worker.lifecycle.clouds.machines import serving
from tests.worker.lifecycle.conftest import LEAVES_OPEN, gate_of, soon
from worker.lifecycle import SandboxLifecycle, SandboxSpec, StartFailed
from worker.lifecycle.provider import provider_named
from worker.lifecycle.reaper.reaper import Reaper

pytestmark = LEAVES_OPEN
IMAGES = {"agent-sandbox": "python-pool"}
KILLS, AT_ONCE, EACH = 200, 4, 4  # processes killed, of so many at a time, with so many sandboxes
SDKS = {
    "e2b": ["worker.lifecycle.clouds.e2b"],
    "daytona": ["worker.lifecycle.clouds.daytona"],
    "agent-sandbox": ["worker.lifecycle.clouds.agent_sandbox"],
}


async def starts_and_ends(url: str, provider: str, at_once: int) -> None:
    """A process: so many sandboxes at once, each ended soon and followed by another."""
    if provider == "agent-sandbox":  # its client was imported, and read this, before it was set
        kube_config = importlib.import_module("kubernetes_asyncio.config.kube_config")
        vars(kube_config)["KUBE_CONFIG_DEFAULT_LOCATION"] = os.environ["KUBECONFIG"]
    life = SandboxLifecycle(url, provider, run="test", settings=soon(startup_timeout=60.0))
    doomed.reached("begins")

    async def one() -> None:
        while True:
            with contextlib.suppress(StartFailed):
                async with life.open(SandboxSpec(image=IMAGES.get(provider, ""))) as sandbox:
                    doomed.reached("open")
                    await sandbox.exec(["true"])

    await asyncio.gather(*(one() for _ in range(at_once)))


async def kills(url: str, provider: str, left: Callable[[], Awaitable[int]]) -> float:
    """How long it took until nothing was left."""
    # As in every worker: what a dead owner was starting keeps its permits until a reaper ends it.
    reaper = Reaper(url, settings=soon(teardown_timeout=20.0))
    reaping = asyncio.create_task(reaper.work())
    await asyncio.gather(*(one_by_one(url, provider, number) for number in range(AT_ONCE)))
    life = SandboxLifecycle(url, provider, run="test", settings=soon())
    began = time.monotonic()
    async with asyncio.timeout(100):
        while life.registry.look().count or await left():  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.2)
        while (await gate_of(life).status()).in_flight:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    reaping.cancel()
    await asyncio.wait([reaping])
    await reaper.close()
    life.registry.close()
    return time.monotonic() - began


async def one_by_one(url: str, provider: str, seed: int) -> None:
    """Its part of the kills."""
    draw = random.Random(seed)
    sdk = SDKS[provider]
    for number in range(KILLS // AT_ONCE):
        with killing.Child(starts_and_ends, url, provider, EACH, imported=sdk) as child:
            await asyncio.to_thread(child.wait_for, "begins")
            if number % 3 == 2:  # of these at least, the kill meets a sandbox that is open
                await asyncio.to_thread(child.wait_for, "open")
            await asyncio.sleep(draw.uniform(0.0, 0.6))  # any moment will do for a kill
            child.kill()


@pytest.fixture
def daytona(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    pytest.importorskip("daytona", reason="penstock-rl[daytona] is not installed")
    with serving(Daytona, tmp_path) as (_, url):
        monkeypatch.setenv("DAYTONA_API_KEY", KEY)
        monkeypatch.setenv("DAYTONA_API_URL", f"{url}/api")
        yield


@pytest.fixture
def agent_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    pytest.importorskip("k8s_agent_sandbox", reason="penstock-rl[agent-sandbox] is not installed")
    with serving(Cluster, tmp_path) as (_, url):
        file = tmp_path / "kubeconfig"
        file.write_text(KUBECONFIG.format(url=url))
        monkeypatch.setenv("KUBECONFIG", str(file))
        monkeypatch.setattr(
            "kubernetes_asyncio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(file)
        )
        monkeypatch.setenv("PENSTOCK_AGENT_SANDBOX_URL", f"{url}/router")
        monkeypatch.setenv("PENSTOCK_AGENT_SANDBOX_NAMESPACE", "rl")
        yield


@pytest.mark.soak
@pytest.mark.parametrize("provider", ["e2b", "daytona", "agent-sandbox"])
async def test_two_hundred_kills(
    provider: str, request: pytest.FixtureRequest, private_redis: Callable[..., PrivateRedis]
) -> None:
    fixture = "e2b_server" if provider == "e2b" else provider.replace("-", "_")
    request.getfixturevalue(fixture)

    async def left() -> int:
        cloud = provider_named(provider)
        try:
            return len([ref async for ref in cloud.list({"penstock-run": "test"})])
        finally:
            await cloud.close()

    began = time.monotonic()
    took = await kills(private_redis(aof=False).url, provider, left)
    made = time.monotonic() - began - took
    print(f"{provider}: {KILLS} kills in {made:.0f} s, nothing left after {took:.1f} s")
    assert took < 60
