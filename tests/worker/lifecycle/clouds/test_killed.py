"""Owners that start sandboxes at a cloud are killed at random moments: nothing is left there."""

import asyncio
import contextlib
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
from tests.worker.lifecycle.conftest import LEAVES_OPEN, gate_of, quick, soon
from worker.lifecycle import SandboxLifecycle, SandboxSpec, StartFailed, provider_named
from worker.lifecycle.reaper.reaper import Reaper

pytestmark = LEAVES_OPEN
IMAGES = {"agent-sandbox": "python-pool"}


async def starts_and_ends(url: str, provider: str, at_once: int) -> None:
    """A process: so many sandboxes at once, each ended soon and followed by another."""
    life = SandboxLifecycle(url, provider, run="test", settings=soon(startup_timeout=60.0))
    doomed.reached("begins")

    async def one() -> None:
        while True:
            with contextlib.suppress(StartFailed):
                async with life.open(SandboxSpec(image=IMAGES.get(provider, ""))) as sandbox:
                    doomed.reached("open")
                    await sandbox.exec(["true"])

    await asyncio.gather(*(one() for _ in range(at_once)))


async def kills(url: str, provider: str, count: int, left: Callable[[], Awaitable[int]]) -> float:
    """How long it took until nothing was left."""
    draw = random.Random(7)
    # As in every worker: what a dead owner was starting keeps its permits until a reaper ends it.
    reaper = Reaper(url, settings=soon())
    reaping = asyncio.create_task(reaper.work())
    for number in range(count):
        with killing.Child(starts_and_ends, url, provider, 4) as child:
            await asyncio.to_thread(child.wait_for, "begins")
            if number % 3 == 2:  # of these at least, the kill meets a sandbox that is open
                await asyncio.to_thread(child.wait_for, "open")
            await asyncio.sleep(draw.uniform(0.0, 0.6))
            child.kill()
    life = SandboxLifecycle(url, provider, run="test", settings=quick())
    began = time.monotonic()
    async with asyncio.timeout(100):
        while await left() or life.registry.look().count:  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.05)
        while (await gate_of(life).status()).in_flight:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    reaping.cancel()
    await asyncio.wait([reaping])
    life.registry.close()
    return time.monotonic() - began


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


async def nothing_stays(server: PrivateRedis, provider: str, count: int) -> None:
    async def left() -> int:
        cloud = provider_named(provider)
        try:
            return len([ref async for ref in cloud.list({"penstock-run": "test"})])
        finally:
            await cloud.close()

    took = await kills(server.url, provider, count, left)
    print(f"{provider}: {count} kills, nothing left after {took:.1f} s")
    assert took < 60


async def test_three_kills_at_e2b(
    e2b_server: object, private_redis: Callable[..., PrivateRedis]
) -> None:
    await nothing_stays(private_redis(aof=False), "e2b", 3)


@pytest.mark.soak
@pytest.mark.parametrize("provider", ["e2b", "daytona", "agent-sandbox"])
async def test_two_hundred_kills(
    provider: str, request: pytest.FixtureRequest, private_redis: Callable[..., PrivateRedis]
) -> None:
    fixture = "e2b_server" if provider == "e2b" else provider.replace("-", "_")
    request.getfixturevalue(fixture)
    await nothing_stays(private_redis(aof=False), provider, 200)
