"""A sandbox that its caller makes, in `lifecycle.recorded`: capped, registered, ended."""

import asyncio

import pytest

from ground.process import process_loop
from tests.harness import doomed, killing
from tests.worker.lifecycle.cloud import CloudError, CloudProvider
from tests.worker.lifecycle.conftest import gate_of, quick, soon, until
from tests.worker.lifecycle.leases import leases_end
from worker.lifecycle import SandboxLifecycle, SandboxLost, SandboxSpec
from worker.lifecycle.reaper.reaper import Reaper


async def make(provider, sandbox):
    await provider.create(SandboxSpec(), name=sandbox.name, tags=sandbox.tags, ttl=600)


async def test_it_holds_a_permit_until_it_is_made_and_is_kept_until_it_is_stopped(lifecycle, cloud):
    life = lifecycle(limit=1)
    async with life.recorded("mine", ttl=600) as sandbox:
        (record,) = life.registry.look().records
        assert (record.name, record.state) == ("mine", "CREATING")
        assert (await gate_of(life).status()).in_flight == 1
        await make(life.provider, sandbox)
    assert [record.state for record in life.registry.look().records] == ["READY"]
    assert (await gate_of(life).status()).in_flight == 0
    assert (await sandbox.exec(["true"])).exit_code == 0
    assert [found.name async for found in life.provider.list(sandbox.tags)] == ["mine"]
    assert await life.stop(sandbox)
    assert not cloud.stats()["names"]
    assert not life.registry.look().records


async def test_what_a_block_that_fails_has_made_is_ended(lifecycle, cloud):
    life = lifecycle(limit=1)
    with pytest.raises(ValueError, match="as it went on"):
        async with life.recorded() as sandbox:
            await make(life.provider, sandbox)
            raise ValueError("as it went on")
    assert not cloud.stats()["names"]
    assert not life.registry.look().records
    assert (await gate_of(life).status()).in_flight == 0


@pytest.mark.parametrize("step", ["find", "advance"])
async def test_what_lives_is_taken_up_though_that_was_interrupted_before(
    lifecycle, cloud, monkeypatch, step
):
    life = lifecycle()
    await life.provider.create(SandboxSpec(), name="mine", tags={}, ttl=600)

    def fails(*_):
        raise OSError(f"{step} was interrupted")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="interrupted"):
        patch.setattr(life.provider if step == "find" else life.registry, step, fails)
        await life.take_up({"mine": 600.0})
    (sandbox,) = await life.take_up({"mine": 600.0})
    (record,) = life.registry.look().records
    assert (record.name, record.state) == ("mine", "READY")
    assert await life.stop(sandbox)
    assert not life.registry.look().records


@pytest.mark.parametrize("made", [True, False])
async def test_a_step_behind_a_creation_does_not_say_that_nothing_was_made(lifecycle, cloud, made):
    """Though the provider, of a creation, would take this failure for a refusal."""
    life = lifecycle(limit=1)
    with pytest.raises(CloudError):
        async with life.recorded() as sandbox:
            if made:
                await make(life.provider, sandbox)
            raise CloudError("retry", "no capacity", nothing_made=True)
    assert not cloud.stats()["names"]
    assert not life.registry.look().records
    assert (await gate_of(life).status()).in_flight == 0


async def test_its_provider_is_asked_on_one_loop_whatever_the_callers_is(
    lifecycle, cloud, monkeypatch
):
    life, loops = lifecycle(), set()

    def noted(call):
        async def noting(*arguments):
            loops.add(asyncio.get_running_loop())
            return await call(*arguments)

        return noting

    for name in ("find", "terminate"):
        monkeypatch.setattr(life.provider, name, noted(getattr(life.provider, name)))
    async with life.recorded() as sandbox:
        await make(life.provider, sandbox)
    assert await life.stop(sandbox)
    with pytest.raises(ValueError, match="as it went on"):
        async with life.recorded() as sandbox:
            await make(life.provider, sandbox)
            raise ValueError("as it went on")
    assert loops == {process_loop()}


async def test_a_block_that_has_made_nothing_has_failed(lifecycle, cloud):
    life = lifecycle(limit=1)
    with pytest.raises(SandboxLost, match="not made under this name"):
        async with life.recorded("mine"):
            pass
    assert [record.state for record in life.registry.look().records] == ["TERMINATING"]


async def test_another_one_of_that_name_lives_on(lifecycle, cloud):
    life = lifecycle(limit=1)
    cloud.ask("create", name="mine", tags={}, image="", ttl=600)
    with pytest.raises(Exception, match="exists"):
        async with life.recorded("mine") as sandbox:
            await make(life.provider, sandbox)
    assert cloud.stats()["names"] == {"sb-1": "mine"}
    assert not life.registry.look().records
    assert (await gate_of(life).status()).in_flight == 0


async def test_a_caller_that_is_cancelled_leaves_nothing(lifecycle, cloud):
    life, inside = lifecycle(limit=1), asyncio.Event()

    async def never():
        async with life.recorded() as sandbox:
            await make(life.provider, sandbox)
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(never())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: not cloud.stats()["names"] and not life.registry.look().records)


async def makes_one(url: str, address: str) -> None:
    provider = CloudProvider(address)
    life = SandboxLifecycle(url, provider, run="test", settings=quick())
    async with life.recorded("mine") as sandbox:
        await make(provider, sandbox)
        doomed.reached("made")
        await asyncio.Event().wait()


async def test_what_a_process_that_is_killed_had_made_is_reaped(private_redis, cloud):
    server = private_redis(aof=False)
    with killing.Child(makes_one, server.url, cloud.address) as owner:
        owner.wait_for("made")
        owner.kill()
    life = SandboxLifecycle(server.url, cloud.provider, run="test", settings=quick())
    assert (await gate_of(life).status()).in_flight == 1
    leases_end(server.url)
    eye = Reaper(server.url, settings=soon())
    async with asyncio.timeout(100):
        while cloud.stats()["names"] or life.registry.look().count:
            await eye.look()
            await asyncio.sleep(0.02)
        while (await gate_of(life).status()).in_flight:
            await eye.look()
            await asyncio.sleep(0.02)
    await eye.close()
    life.registry.close()
