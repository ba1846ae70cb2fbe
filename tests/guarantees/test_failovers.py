"""Sentinel moves the primary: groups, batches and session sandboxes move with it.

Permits and jobs have theirs beside their other tests.
"""

import asyncio
from functools import partial
from typing import Any

import pytest

import ground
from buffer import Policy, RolloutBuffer, TaskConfig
from tests.buffer.conftest import item
from tests.harness.servers import PrivateRedis, until
from tests.worker.lifecycle.cloud import CloudThread
from tests.worker.lifecycle.conftest import quick
from worker.lifecycle import SandboxLifecycle

HOW = ["failover", "kill_primary"]


async def move(pair: Any, how: str) -> None:
    pair.replica.until_in_step(pair.primary)
    await asyncio.to_thread(getattr(pair, how))
    if how == "failover":  # what the old primary accepts until Sentinel says this, is lost
        pair.replica.ask("REPLICAOF", "127.0.0.1", pair.primary.port)


@pytest.mark.parametrize("how", HOW)
async def test_a_failover_loses_no_item_and_no_batch_that_the_replica_knew(
    sentinel_pair, how
) -> None:
    buffer = RolloutBuffer(sentinel_pair.target, "math", TaskConfig(group_size=2))
    await buffer.write_many([item("a", "u0", 1), item("a", "u1", 0), item("b", "u2", 1)])
    taken = await buffer.take()
    assert taken is not None
    await move(sentinel_pair, how)
    await buffer.write_many([item("b", "u2", 1), item("b", "u3", 0)])
    assert await buffer.fetch(taken.receipt) == taken
    await buffer.ack(taken)
    other = await buffer.take()
    assert other is not None
    assert sorted(found["uid"] for found in other.items) == ["u2", "u3"]
    await buffer.ack(other)
    assert await buffer.take() is None
    await buffer.aclose()


@pytest.mark.parametrize("how", HOW)
async def test_a_failover_keeps_a_slot_that_the_replica_knew(sentinel_pair, how) -> None:
    buffer = RolloutBuffer(sentinel_pair.target, "math", TaskConfig(group_size=2))
    await buffer.set_policy(Policy(groups_per_version=1, max_age=1, depth=0))
    await buffer.publish(0)
    (slot,) = await buffer.admit(1, instances=["a"])
    await buffer.write(item("a", "u0", 1), slot=slot)
    await move(sentinel_pair, how)
    assert await buffer.admit(1) == [], "the only slot is out"
    await buffer.write(item("a", "u1", 0), slot=slot)
    batch = await buffer.take(wait=100)
    assert batch is not None
    assert (batch.version, len(batch.items)) == (0, 2)
    await buffer.ack(batch)
    await buffer.aclose()


@pytest.mark.parametrize("how", HOW)
async def test_a_session_sandbox_is_used_and_ended_after_a_failover(
    sentinel_pair, how, tmp_path
) -> None:
    client = ground.connect(sentinel_pair.target)
    with CloudThread(tmp_path) as cloud:
        settings = quick(sandbox_lease=20.0)
        life = SandboxLifecycle(client, cloud.provider, run="test", settings=settings)
        async with life.open() as sandbox:
            until(partial(knows_it, sentinel_pair.replica), "the replica to have the record")
            await move(sentinel_pair, how)
            assert (await sandbox.exec(["echo", "well"])).stdout == b"well\n"
        assert cloud.live == 0
        until(lambda: life.registry.look().count == 0, "the record to be gone")
        async with life.open():
            assert cloud.live == 1
        life.registry.close()
    client.close()


def knows_it(replica: PrivateRedis) -> bool:
    return bool(replica.ask("KEYS", "penstock:sandbox*"))
