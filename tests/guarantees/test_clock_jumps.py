"""The wall clock of Redis jumps, and that of a process: what each object does about it.

Redis' clock is the only one that leases have. Forward by more than a lease it ends what is held, as
if its holder had been frozen. Back it makes leases longer, and nothing else.
"""

import asyncio
import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import ground
from buffer import LeaseLost, Policy, RolloutBuffer, SlotLost, TaskConfig
from limiter import PermitLost, TokenBucket
from tests.buffer.conftest import item
from tests.harness.clock import Clock, library
from tests.harness.servers import PrivateRedis, until
from tests.worker.concurrent.crew import HEIR, at_work, nothing_left
from tests.worker.lifecycle.cloud import CloudThread
from tests.worker.lifecycle.conftest import quick
from tests.worker.scripted_answers import Answer
from worker import CodeQueue
from worker.lifecycle import SandboxLifecycle, SandboxLost
from worker.lifecycle.reaper.reaper import Reaper

SOON = 100.0
LEASE = 300.0  # no heartbeat is due before the test is over
HOUR = 3600.0

Jump = Callable[[float], Any]


@pytest.fixture
def clock(tmp_path: Path) -> Iterator[Clock]:
    if library() is None:
        pytest.fail("CI has libfaketime") if os.environ.get("CI") else pytest.skip("no libfaketime")
    with contextlib.closing(Clock(tmp_path / "clock")) as clock:
        yield clock


@pytest.fixture
def server(private_redis: Callable[..., PrivateRedis], clock: Clock) -> PrivateRedis:
    return private_redis(environment=clock.environment)


@pytest.fixture
def jump(server: PrivateRedis, clock: Clock) -> Jump:
    return partial(asyncio.to_thread, clock.jump_of, server)


@pytest.fixture
def client(server: PrivateRedis) -> Iterator[Any]:
    with contextlib.closing(ground.connect(server.target)) as client:
        yield client


async def test_a_permit_over_which_the_clock_jumps_may_be_anothers_by_a_newer_fence(
    server, jump
) -> None:
    first, second = (TokenBucket(server.target, "code", limit=1, lease=LEASE) for _ in range(2))
    permit = await first.acquire(timeout=SOON)
    await jump(HOUR)
    newer = await second.acquire(timeout=SOON)
    assert newer.fence > permit.fence
    with pytest.raises(PermitLost):
        await permit.renew()
    permit.release()
    assert (await second.status()).in_flight == 1
    newer.release()


async def test_no_permit_is_lost_by_a_clock_that_goes_back_and_fences_grow_on(server, jump) -> None:
    gate = TokenBucket(server.target, "code", limit=1, lease=LEASE)
    permit = await gate.acquire(timeout=SOON)
    await jump(-HOUR)
    await permit.renew()
    assert not permit.lost
    permit.release()
    newer = await gate.acquire(timeout=SOON)
    assert newer.fence > permit.fence
    newer.release()


async def test_a_rate_goes_on_when_the_clock_went_back(server, jump) -> None:
    gate = TokenBucket(server.target, "calls", rate=100, burst=2)
    (await gate.acquire(timeout=SOON)).release()
    await jump(-HOUR)
    for _ in range(5):
        (await gate.acquire(timeout=SOON)).release()


async def test_a_job_over_which_the_clock_jumps_runs_again_and_has_one_result(
    server, client, jump, fusion
) -> None:
    fusion.default = Answer.ok("42\n", seconds=math.inf)
    queue = CodeQueue(server.target, "code")
    job = await queue.submit("1", timeout=100)
    with at_work(client, **HEIR):
        await asyncio.to_thread(fusion.wait_until, lambda: fusion.in_flight == 1)
        await jump(60)
        await asyncio.to_thread(fusion.wait_until, lambda: fusion.executions[job.id] == 2)
        fusion.default = Answer.ok("42\n")
        fusion.finish_held()
        assert (await job.result()).stdout == "42\n"
        until(lambda: nothing_left(client) == {}, "everything to be put away")
    assert fusion.executions == {job.id: 2}
    assert client.xlen(f"rq:results:{job.id}") == 1


async def test_a_job_goes_on_when_the_clock_went_back(server, client, jump, fusion) -> None:
    fusion.default = Answer.ok("42\n", seconds=math.inf)
    queue = CodeQueue(server.target, "code")
    job = await queue.submit("1", timeout=100)
    with at_work(client, **HEIR):
        await asyncio.to_thread(fusion.wait_until, lambda: fusion.in_flight == 1)
        await jump(-HOUR)
        fusion.default = Answer.ok("42\n")
        fusion.finish_held()
        assert (await job.result()).stdout == "42\n"
        assert (await queue.run("1", timeout=100)).stdout == "42\n"
        until(lambda: nothing_left(client) == {}, "everything to be put away")
    assert set(fusion.executions.values()) == {1}


@pytest.mark.parametrize("seconds", [HOUR, -HOUR])
async def test_the_clock_of_a_worker_and_of_a_trainer_decides_nothing(
    server, client, fusion, monkeypatch, seconds
) -> None:
    true = time.time
    queue = CodeQueue(server.target, "code")
    with at_work(client, **HEIR):
        assert (await queue.run("1", timeout=100)).ok
        monkeypatch.setattr(time, "time", lambda: true() + seconds)
        assert (await queue.run("1", timeout=100)).ok
        until(lambda: nothing_left(client) == {}, "everything to be put away")
    assert set(fusion.executions.values()) == {1}


async def test_a_batch_over_which_the_clock_jumps_is_delivered_again(server, jump) -> None:
    buffer = RolloutBuffer(server.target, "math", TaskConfig(group_size=2, lease=LEASE))
    await buffer.write_many([item("a", "u0", 1), item("a", "u1", 0)])
    first = await buffer.take()
    assert first is not None
    await jump(HOUR)
    again = await buffer.take(wait=SOON)
    assert again is not None
    assert again.groups == first.groups
    with pytest.raises(LeaseLost):
        await buffer.ack(first)
    await buffer.ack(again)
    await buffer.aclose()


async def test_a_slot_over_which_the_clock_jumps_is_anothers(server, jump) -> None:
    one, other = (RolloutBuffer(server.target, "m", TaskConfig(group_size=1)) for _ in range(2))
    await one.set_policy(Policy(groups_per_version=1, max_age=1, depth=0, slot_lease=LEASE))
    await one.publish(0)
    (slot,) = await one.admit(1, instances=["a"])
    await jump(HOUR)
    (again,) = await other.admit(1, instances=["a"], wait=SOON)
    with pytest.raises(SlotLost):
        await one.write(item("a", "u0", 1), slot=slot)
    await other.write(item("a", "u1", 1), slot=again)
    for buffer in (one, other):
        await buffer.aclose()


async def test_a_wait_is_no_longer_when_the_clock_goes_back_meanwhile(server, client, jump) -> None:
    """Redis ends a blocked command by its wall clock."""
    buffer = RolloutBuffer(server.target, "math", TaskConfig(group_size=1))
    await buffer.set_policy(Policy(groups_per_version=1, max_age=1, depth=0))
    await buffer.publish(0)
    (slot,) = await buffer.admit(1)
    waits = [
        asyncio.create_task(buffer.take(wait=3)),
        asyncio.create_task(buffer.admit(1, wait=3)),
        asyncio.create_task(buffer.published(after=0, wait=3)),
    ]

    def blocked() -> bool:
        return bool(client.info("clients")["blocked_clients"] == len(waits))

    await asyncio.to_thread(until, blocked, "all of them to wait")
    await jump(-HOUR)
    async with asyncio.timeout(SOON):
        assert await asyncio.gather(*waits) == [None, [], 0]
    await slot.end()
    await buffer.aclose()


async def test_a_sandbox_over_which_the_clock_jumps_is_ended_and_its_owner_learns_it(
    server, client, jump, tmp_path, monkeypatch
) -> None:
    with CloudThread(tmp_path) as cloud:
        monkeypatch.setenv("TEST_CLOUD", cloud.address)
        monkeypatch.setenv("PENSTOCK_ALLOW", cloud.provider.name)
        life = SandboxLifecycle(
            client, cloud.provider, run="test", settings=quick(sandbox_lease=LEASE)
        )
        reaper = Reaper(client, settings=quick())
        async with life.open() as sandbox:
            await jump(HOUR)
            async with asyncio.timeout(SOON):
                while cloud.live:
                    await reaper.look(wait=False)
                    await asyncio.sleep(0.05)
            with pytest.raises(SandboxLost):
                await sandbox.exec(["true"], timeout=60)
        life.registry.close()


async def test_a_job_that_waits_when_the_clock_jumps_over_its_clients_life_is_run(
    server, client, jump, fusion
) -> None:
    fusion.default = Answer.ok("42\n", seconds=math.inf)
    queue = CodeQueue(server.target, "code")
    with at_work(client, concurrency=1, job_lease=9000.0):
        first, second = [await queue.submit("1", timeout=1000) for _ in range(2)]
        await asyncio.to_thread(fusion.wait_until, lambda: fusion.in_flight == 1)
        await jump(60)
        fusion.default = Answer.ok("42\n")
        fusion.finish_held()
        assert [(await job.result()).stdout for job in (first, second)] == ["42\n"] * 2
    assert fusion.executions == {first.id: 1, second.id: 1}
