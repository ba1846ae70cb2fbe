"""agent-sandbox's client, unmodified, under our lifecycle, against a stand-in of its servers."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from ground import SettingError
from tests.worker.lifecycle.clouds.agent_sandbox_stand_in import KUBECONFIG, Cluster
from tests.worker.lifecycle.clouds.conftest import (
    MakeLife,
    keeps_the_contract,
    killed_during_a_creation,
    throttled,
)
from tests.worker.lifecycle.clouds.machines import Machines, serving
from tests.worker.lifecycle.conftest import LEAVES_OPEN, gate_of
from worker.lifecycle import Kind, SandboxLost, SandboxSpec, StartRefused
from worker.lifecycle.provider import provider_named

pytest.importorskip("k8s_agent_sandbox", reason="penstock-rl[agent-sandbox] is not installed")
pytest.importorskip("kubernetes_asyncio", reason="penstock-rl[agent-sandbox] is not installed")

pytestmark = LEAVES_OPEN
POOL = SandboxSpec(image="python-pool")


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machines]:
    with serving(Cluster, tmp_path) as (machines, url):
        file = tmp_path / "kubeconfig"
        file.write_text(KUBECONFIG.format(url=url))
        monkeypatch.setenv("KUBECONFIG", str(file))  # the client reads it when it is imported
        monkeypatch.setattr(
            "kubernetes_asyncio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(file)
        )
        monkeypatch.setenv("PENSTOCK_AGENT_SANDBOX_URL", f"{url}/router")
        monkeypatch.setenv("PENSTOCK_AGENT_SANDBOX_NAMESPACE", "rl")
        yield machines
    gc.collect()  # what the client left open, here, where that is ignored


async def test_the_contract(machines: Machines) -> None:
    await keeps_the_contract(lambda: provider_named("agent-sandbox"), spec=POOL)


@pytest.mark.soak
async def test_large_files(machines: Machines) -> None:
    await keeps_the_contract(lambda: provider_named("agent-sandbox"), spec=POOL, large=True)


async def test_a_sandbox_has_its_name_and_tags_from_its_creation_on(
    machines: Machines, life_of: MakeLife
) -> None:
    life = life_of("agent-sandbox", run="team:a/exp@7")
    async with life.open(SandboxSpec(image="python-pool", env={"WORD": "said"})) as sandbox:
        (box,) = machines.living()
        assert (box.name, box.labels["pool"]) == (sandbox.name, "python-pool")
        assert box.labels["penstock-fleet"] == life.registry.look().facts["fleet"]
        assert box.labels["penstock-run"].startswith("sha-"), "a label takes no such name"
        provider = provider_named("agent-sandbox")  # of this test's loop
        tags = {"penstock-run": life.run}
        assert [ref.name async for ref in provider.list(tags)] == [sandbox.name]
        assert [ref.name async for ref in provider.list({"penstock-run": "other"})] == []
        await provider.close()
        assert (await sandbox.exec(["sh", "-c", "echo $WORD"])).stdout == b"said\n"
        assert (await gate_of(life).status()).in_flight == 0
        machines.end(box)
        with pytest.raises(SandboxLost):
            await sandbox.exec(["true"])
    assert machines.living() == []


async def test_what_is_refused_for_good_says_what_to_do(
    machines: Machines, life_of: MakeLife, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = life_of("agent-sandbox")
    for spec, words in (
        (SandboxSpec(), "image must name a SandboxWarmPool"),
        (SandboxSpec(image="absent"), "WarmPool.*it names a SandboxWarmPool"),
        (SandboxSpec(image="p", memory_mb=512), "set by the pool's template"),
        (SandboxSpec(image="p", options={"no-such": 1}), "'no-such' is none of"),
    ):
        with pytest.raises(StartRefused, match=words):
            await life.start(spec, attempts=5)
    assert (machines.creations, machines.living()) == (1, []), "a claim without a pool is ended"
    assert life.registry.look().count == 0
    monkeypatch.delenv("PENSTOCK_AGENT_SANDBOX_URL")
    with pytest.raises(SettingError, match="the address of the sandbox router"):
        provider_named("agent-sandbox")


async def test_throttling_cuts_a_gate_that_adapts(machines: Machines, life_of: MakeLife) -> None:
    refusal = (429, {"Retry-After": "7"}, {"message": "too many requests"})
    machines.refuse = [refusal]
    await throttled(life_of("agent-sandbox"), "429", spec=POOL)
    quota = (403, {}, {"message": "sandboxclaims is forbidden: exceeded quota: rl"})
    provider = provider_named("agent-sandbox")
    for said, seconds in ((refusal, 7.0), (quota, 5.0)):
        machines.refuse = [said]
        with pytest.raises(Exception, match=r"too many|exceeded quota") as problem:
            await provider.create(POOL, name="box", tags={}, ttl=60)
        verdict = provider.classify(problem.value)
        found = (verdict.kind, verdict.retry_after, verdict.nothing_made)
        assert found == (Kind.THROTTLED, seconds, True)
    await provider.close()


async def test_a_sandbox_whose_owner_was_killed_during_its_creation_is_found_by_its_name(
    machines: Machines, life_of: MakeLife
) -> None:
    await killed_during_a_creation(
        life_of("agent-sandbox"),
        "worker.lifecycle.clouds.agent_sandbox:AgentSandboxProvider.create",
        image="python-pool",
    )
    assert machines.living() == []
    assert machines.creations == 1
