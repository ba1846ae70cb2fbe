"""Power fails before the append-only file is on disk: what each object does about it.

The server starts again without the end of its file. Nobody else is restarted: they remember
what Redis has forgotten.
"""

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import ground
from buffer import LeaseLost, Policy, RolloutBuffer, SlotLost, TaskConfig
from limiter import TokenBucket
from tests.buffer.conftest import item
from tests.harness.servers import PrivateRedis, until
from tests.limiter.in_flight import in_line, served, settled
from tests.worker.concurrent.crew import HEIR, at_work, nothing_left
from tests.worker.lifecycle.cloud import CloudThread
from tests.worker.lifecycle.conftest import quick
from tests.worker.scripted_answers import Answer
from worker import CodeQueue, ResultExpired
from worker.lifecycle import SandboxLifecycle
from worker.lifecycle.reaper.reaper import Reaper

SOON = 100.0


@pytest.fixture
def server(private_redis: Callable[..., PrivateRedis]) -> PrivateRedis:
    return private_redis(aof=True)


@pytest.fixture
def client(server: PrivateRedis) -> Iterator[Any]:
    with contextlib.closing(ground.connect(server.target)) as client:
        yield client


def answers(client: Any) -> bool:
    try:
        return bool(client.ping())
    except Exception:  # noqa: BLE001 - whatever it is, it does not answer yet
        return False


async def test_a_permit_that_was_forgotten_is_registered_again(server) -> None:
    gate = TokenBucket(server.target, "code", limit=1)
    await gate.status()
    before = server.written()
    permit = await gate.acquire(timeout=SOON)
    waiter = await in_line(gate, 1)
    await asyncio.to_thread(server.lose_since, before)
    async with asyncio.timeout(SOON):
        await permit.renew()
    await settled(gate, in_flight=1, waiting=1)
    assert (await gate.status()).readmitted == 1
    assert not permit.lost
    permit.release()
    (await served(waiter)).release()


async def test_a_release_that_was_forgotten_ends_with_its_lease(server) -> None:
    gate = TokenBucket(server.target, "code", limit=1, lease=1.0)
    permit = await gate.acquire(timeout=SOON)
    before = server.written()
    permit.release()
    await settled(gate, in_flight=0)
    await asyncio.to_thread(server.lose_since, before)
    (await gate.acquire(timeout=SOON)).release()


async def test_a_job_that_was_forgotten_is_its_callers_to_submit_again(server, fusion) -> None:
    queue = CodeQueue(server.target, "code")
    first = await queue.submit("1", timeout=100)
    before = server.written()
    lost = await queue.submit("2", timeout=100, token="lost")
    await asyncio.to_thread(server.lose_since, before)
    with contextlib.closing(ground.connect(server.target)) as client:
        until(lambda: answers(client), "Redis")
        with at_work(client, **HEIR):
            assert (await first.result()).ok
            with pytest.raises(ResultExpired, match="It can be submitted again"):
                await lost.result()
            assert (await (await queue.submit("2", timeout=100, token="lost")).result()).ok
    assert fusion.executions == {first.id: 1, "lost": 1}


async def test_a_claim_that_was_forgotten_is_made_again_and_the_job_has_one_result(
    server, client, fusion
) -> None:
    fusion.default = Answer.ok("42\n", seconds=math.inf)
    queue = CodeQueue(server.target, "code")
    job = await queue.submit("1", timeout=100)
    before = server.written()
    with at_work(client, **HEIR):
        await asyncio.to_thread(fusion.wait_until, lambda: fusion.in_flight == 1)
        await asyncio.to_thread(server.lose_since, before)
        await asyncio.to_thread(fusion.wait_until, lambda: fusion.executions[job.id] == 2)
        fusion.default = Answer.ok("42\n")
        fusion.finish_held()
        assert (await job.result()).stdout == "42\n"
        until(lambda: nothing_left(client) == {}, "everything to be put away")
    assert fusion.executions == {job.id: 2}
    assert client.xlen(f"rq:results:{job.id}") == 1


async def test_a_result_that_was_forgotten_is_made_again_when_its_lease_ends(
    server, client, fusion
) -> None:
    """Its caller has it already, and is told nothing else."""
    queue = CodeQueue(server.target, "code")
    fusion.default = Answer.ok("42\n", seconds=math.inf)
    job = await queue.submit("1", timeout=100)
    with at_work(client, **HEIR) as worker:
        await asyncio.to_thread(fusion.wait_until, lambda: fusion.in_flight == 1)
        before = server.written()
        fusion.default = Answer.ok("43\n")
        fusion.finish_held()
        assert (await job.result()).stdout == "42\n"
        # The caller's notice may be read first; a worker without its reply records the end again.
        until(lambda: not worker._shift.jobs, "the worker to know that the end is recorded")
        await asyncio.to_thread(server.lose_since, before)
        await asyncio.to_thread(fusion.wait_until, lambda: fusion.executions[job.id] == 2)
        until(lambda: nothing_left(client) == {}, "everything to be put away")
    assert client.xlen(f"rq:results:{job.id}") == 1
    assert (await job.result()).stdout == "42\n"


async def test_items_that_were_forgotten_are_written_again_by_their_uid(server) -> None:
    buffer = RolloutBuffer(server.target, "math", TaskConfig(group_size=4))
    rewards = [1, 0, 1, 0]
    items = [item("a", f"u{n}", reward) for n, reward in enumerate(rewards)]
    await buffer.write_many(items[:2])
    before = server.written()
    await buffer.write(items[2])
    await asyncio.to_thread(server.lose_since, before)
    await buffer.write(items[3])
    assert await buffer.take() is None, "one of four was lost"
    await buffer.write_many(items)  # a writer that is not sure repeats all
    batch = await buffer.take()
    assert batch is not None
    assert sorted(found["uid"] for found in batch.items) == ["u0", "u1", "u2", "u3"]
    await buffer.ack(batch)
    await buffer.aclose()


async def test_an_acknowledgement_that_was_forgotten_delivers_the_batch_once_more(server) -> None:
    config = TaskConfig(group_size=2, lease=1.0)
    buffer = RolloutBuffer(server.target, "math", config)
    await buffer.write_many([item("a", "u0", 1), item("a", "u1", 0)])
    first = await buffer.take()
    assert first is not None
    before = server.written()
    await buffer.ack(first)
    await asyncio.to_thread(server.lose_since, before)
    again = await buffer.take(wait=SOON)
    assert again is not None
    assert again.groups == first.groups
    with pytest.raises(LeaseLost):
        await buffer.ack(first)
    await buffer.ack(again)
    await buffer.aclose()


async def test_a_take_that_was_forgotten_delivers_the_same_items_at_once(server) -> None:
    buffer = RolloutBuffer(server.target, "math", TaskConfig(group_size=2))
    await buffer.write_many([item("a", "u0", 1), item("a", "u1", 0)])
    before = server.written()
    first = await buffer.take()
    assert first is not None
    await asyncio.to_thread(server.lose_since, before)
    with pytest.raises(LeaseLost, match="Redis lost its newest writes"):
        await buffer.ack(first)
    again = await buffer.take(wait=SOON)
    assert again is not None
    assert again.receipt != first.receipt
    assert [one["uid"] for one in again.items] == [one["uid"] for one in first.items]
    await buffer.ack(again)
    await buffer.aclose()


async def test_a_publication_that_was_forgotten_is_made_again(server) -> None:
    buffer = RolloutBuffer(server.target, "math", TaskConfig(group_size=2))
    await buffer.set_policy(Policy(groups_per_version=1, max_age=1))
    first = await buffer.publish(0)
    before = server.written()
    await buffer.publish(1)
    await asyncio.to_thread(server.lose_since, before)
    assert await buffer.published(after=-1) == 0
    for _ in range(2):  # a repetition of one that is known changes nothing
        again = await buffer.publish(1)
        assert (again.version, again.line, again.returned) == (1, first.line, 0)
    assert await buffer.published(after=0) == 1
    await buffer.aclose()


async def test_a_slot_that_was_forgotten_is_lost_and_its_group_is_made_by_another(server) -> None:
    buffers = [RolloutBuffer(server.target, "math", TaskConfig(group_size=2)) for _ in range(2)]
    one, other = buffers
    await one.set_policy(Policy(groups_per_version=1, max_age=1, depth=0))
    await one.publish(0)
    before = server.written()
    (slot,) = await one.admit(1, instances=["a"])
    await asyncio.to_thread(server.lose_since, before)
    (again,) = await other.admit(1, instances=["a"], wait=SOON)
    with pytest.raises(SlotLost):
        await one.write(item("a", "u0", 1), slot=slot)
    await other.write_many([item("a", "u1", 1), item("a", "u2", 0)], slot=again)
    batch = await one.take(wait=SOON)
    assert batch is not None
    assert sorted(found["uid"] for found in batch.items) == ["u1", "u2"]
    await one.ack(batch)
    for buffer in buffers:
        await buffer.aclose()


async def test_a_sandbox_whose_record_was_forgotten_is_its_owners_to_end(
    server, client, tmp_path
) -> None:
    with CloudThread(tmp_path) as cloud:
        life = SandboxLifecycle(client, cloud.provider, run="test", settings=quick())
        async with life.open():
            pass  # the registry and its fleet exist
        before = server.written()
        async with life.open() as sandbox:
            await asyncio.to_thread(server.lose_since, before)
            until(lambda: answers(client), "Redis")
            assert life.registry.look().count == 0
            assert await sandbox.is_alive()
        assert cloud.live == 0
        life.registry.close()


async def test_a_sandbox_whose_record_and_owner_are_gone_is_swept_by_its_tag(
    server, client, tmp_path, monkeypatch
) -> None:
    with CloudThread(tmp_path) as cloud:
        monkeypatch.setenv("TEST_CLOUD", cloud.address)
        monkeypatch.setenv("PENSTOCK_ALLOW", cloud.provider.name)
        life = SandboxLifecycle(client, cloud.provider, run="test", settings=quick())
        async with life.open():
            pass  # the registry and its fleet exist
        before = server.written()
        await life.start()
        life.registry.close()  # as if its process were gone with the record
        await asyncio.to_thread(server.lose_since, before)
        until(lambda: answers(client), "Redis")
        eye = Reaper(client, settings=quick())
        async with asyncio.timeout(SOON):
            while cloud.live:
                await eye.look(wait=False)
                await asyncio.sleep(0.05)
