"""Stand-ins of clouds, which their unmodified SDKs are pointed at, and what holds at each."""

import asyncio
from collections.abc import Callable, Iterator, Mapping

import pytest

import ground
from limiter import Adaptive
from tests.harness import killing
from tests.worker.e2b.serving import KEY, E2bServer
from tests.worker.lifecycle.conftest import gate_of, quick
from tests.worker.lifecycle.leases import leases_end
from worker.contract import provider_contract
from worker.lifecycle import Provider, SandboxLifecycle, SandboxSpec, StartFailed
from worker.lifecycle.reaper.reaper import Reaper

MakeLife = Callable[..., SandboxLifecycle]


@pytest.fixture
def life_of(real_redis: ground.Client) -> Iterator[MakeLife]:
    """Lifecycles on a provider, with short times."""
    made: list[SandboxLifecycle] = []

    def make(provider: str | Provider, run: str = "test", **more: object) -> SandboxLifecycle:
        settings = quick(**{"startup_timeout": 60.0, "teardown_timeout": 20.0} | more)
        life = SandboxLifecycle(real_redis, provider, run=run, settings=settings)
        made.append(life)
        return life

    yield make
    for life in made:
        life.sync.close()


@pytest.fixture(scope="module")
def e2b_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[E2bServer]:
    """`penstock sandbox serve --e2b`, where E2B's SDK finds it."""
    pytest.importorskip("e2b", reason="penstock-rl[e2b] is not installed")
    with (
        E2bServer(tmp_path_factory.mktemp("e2b")) as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("E2B_API_KEY", KEY)
        patch.setenv("E2B_API_URL", server.url)
        patch.setenv("E2B_SANDBOX_URL", server.url)
        yield server


async def throttled(life: SandboxLifecycle, words: str, spec: SandboxSpec | None = None) -> None:
    """A start that its cloud throttles fails, and cuts a gate that adapts."""
    gate = gate_of(life)
    await gate.configure(limit=Adaptive(start=8, min=1, max=16))
    with pytest.raises(StartFailed, match=words):
        await life.start(spec, attempts=1)
    status = await gate.status()
    assert status.adaptive is not None
    found = status.adaptive.throttled, status.adaptive.cuts, status.in_flight
    assert found == (1, 1, 0)
    assert life.registry.look().count == 0, "nothing was made: there is nothing to look for"


async def starts_one(url: str, provider: str, image: str) -> None:
    """A process: it is killed once its cloud has answered, before it can note the sandbox's id."""
    life = SandboxLifecycle(url, provider, run="test", settings=quick(startup_timeout=60.0))
    await life.start(SandboxSpec(image=image))


async def killed_during_a_creation(life: SandboxLifecycle, create: str, image: str = "") -> None:
    """Its sandbox is found by its name, and a reaper ends it."""
    name = life.provider.name
    url = f"redis://127.0.0.1:{life.target.nodes[0][1]}/0"
    assert killing.run(starts_one, url, name, image, at=killing.after(create)).killed
    tags = {"penstock-run": "test"}
    (left,) = [ref.name async for ref in life.provider.list(tags)]
    (record,) = life.registry.look().records
    assert (record.name, record.ref) == (left, None)
    leases_end(life.target)
    await reaped(life)
    assert [ref async for ref in life.provider.list(tags)] == []
    assert (await gate_of(life).status()).in_flight == 0
    await life.provider.close()


async def reaped(life: SandboxLifecycle) -> None:
    """Until no sandbox of dead owners is registered."""
    reaper = Reaper(life.target, settings=quick())
    async with asyncio.timeout(100):
        while life.registry.look().count:
            await reaper.look(wait=False)
            await asyncio.sleep(0.05)
    await reaper.close()


async def keeps_the_contract(
    make: Callable[[], Provider],
    exceptions: Mapping[str, str] | None = None,
    spec: SandboxSpec | None = None,
    *,
    large: bool = False,
) -> None:
    """All checks beside each other, for most of each is waiting. `large`: those of large files."""
    checks = [
        check
        for check in provider_contract(exceptions, spec=spec)
        if ("64_mib" in check.name) == large
    ]
    broken = await asyncio.gather(*(check(make) for check in checks), return_exceptions=True)
    assert checks
    assert [problem for problem in broken if problem is not None] == []
