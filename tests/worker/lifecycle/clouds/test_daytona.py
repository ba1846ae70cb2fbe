"""Daytona's SDK, unmodified, under our lifecycle, against a stand-in of its servers."""

import gc
from collections.abc import Iterator

import pytest

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

pytest.importorskip("daytona", reason="penstock-rl[daytona] is not installed")

from tests.worker.lifecycle.clouds.daytona_stand_in import KEY, Daytona

pytestmark = LEAVES_OPEN


@pytest.fixture
def machines(tmp_path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machines]:
    with serving(Daytona, tmp_path) as (machines, url):
        monkeypatch.setenv("DAYTONA_API_KEY", KEY)
        monkeypatch.setenv("DAYTONA_API_URL", f"{url}/api")
        yield machines
    gc.collect()  # what the client left open, here, where that is ignored


async def test_the_contract(machines: Machines) -> None:
    await keeps_the_contract(lambda: provider_named("daytona"))


@pytest.mark.soak
async def test_large_files(machines: Machines) -> None:
    await keeps_the_contract(lambda: provider_named("daytona"), large=True)


async def test_a_sandbox_has_its_name_and_tags_from_its_creation_on(
    machines: Machines, life_of: MakeLife
) -> None:
    life = life_of("daytona")
    spec = SandboxSpec(image="debian:12", cpu=0.5, memory_mb=1500, env={"WORD": "said"})
    async with life.open(spec) as sandbox:
        (box,) = machines.living()
        assert (box.name, box.labels["penstock-name"]) == (sandbox.name, sandbox.name)
        assert box.labels["penstock-run"] == "test"
        assert box.labels["penstock-fleet"] == life.registry.look().facts["fleet"]
        assert (await sandbox.exec(["sh", "-c", "echo $WORD"])).stdout == b"said\n"
        assert (await gate_of(life).status()).in_flight == 0
    assert machines.living() == []


async def test_one_that_dies_in_use_is_lost(machines: Machines, life_of: MakeLife) -> None:
    async with life_of("daytona").open() as sandbox:
        machines.end(machines.living()[0])
        with pytest.raises(SandboxLost):
            await sandbox.exec(["true"])


async def test_what_is_refused_for_good_says_what_to_do(
    machines: Machines, life_of: MakeLife, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = life_of("daytona")
    for spec, words in (
        (SandboxSpec(options={"snapshot": "absent"}), "absent not found.*Check the names"),
        (SandboxSpec(options={"no-such": 1}), "'no-such' is no parameter"),
        (SandboxSpec(memory_mb=512), "name an image instead"),
    ):
        with pytest.raises(StartRefused, match=words):
            await life.start(spec, attempts=5)
    monkeypatch.setenv("DAYTONA_API_KEY", "wrong")
    with pytest.raises(StartRefused, match="Set DAYTONA_API_KEY"):
        await life_of("daytona").start(attempts=5)
    assert machines.creations == 1
    assert life.registry.look().count == 0


async def test_throttling_cuts_a_gate_that_adapts(machines: Machines, life_of: MakeLife) -> None:
    refusal = (429, {"Retry-After": "7"}, {"statusCode": 429, "message": "Rate limit exceeded"})
    machines.refuse = [refusal]
    await throttled(life_of("daytona"), "Rate limit exceeded")
    provider = provider_named("daytona")  # of this test's loop
    quota = {"statusCode": 403, "message": "Total CPU limit exceeded. Maximum allowed: 10."}
    for said, seconds in ((refusal, 7.0), ((403, {}, quota), 5.0)):
        machines.refuse = [said]
        with pytest.raises(Exception, match="exceeded") as problem:
            await provider.create(SandboxSpec(), name="box", tags={}, ttl=60)
        verdict = provider.classify(problem.value)
        found = (verdict.kind, verdict.retry_after, verdict.nothing_made)
        assert found == (Kind.THROTTLED, seconds, True)
    await provider.close()


async def test_a_sandbox_whose_owner_was_killed_during_its_creation_is_found_by_its_name(
    machines: Machines, life_of: MakeLife
) -> None:
    await killed_during_a_creation(
        life_of("daytona"), "worker.lifecycle.clouds.daytona:DaytonaProvider.create"
    )
    assert machines.living() == []
    assert machines.creations == 1
