"""Replies of Redis get lost, and a buffer's server stands still: each item counts once."""

from pathlib import Path

import httpx
import pytest

from buffer import RolloutBuffer, TaskConfig
from tests.buffer.conftest import item
from tests.buffer.serving import ServerProcess
from tests.harness import leash

SIZE = 4


@pytest.mark.parametrize("lost", [1, 2, 3])
async def test_a_write_whose_reply_is_lost_is_stored_once(proxy, real_redis, lost: int) -> None:
    buffer = RolloutBuffer(proxy.target, "math", TaskConfig(group_size=SIZE))
    await buffer.write(item("warm", "w0", 1))
    proxy.lose_replies(lost)
    for n in range(SIZE):
        await buffer.write(item("a", f"u{n}", n % 2))
    batch = await buffer.take()
    assert batch is not None
    assert sorted(found["uid"] for found in batch.items) == [f"u{n}" for n in range(SIZE)]
    assert proxy.losing == 0
    await buffer.aclose()


@pytest.mark.parametrize("lost", [1, 2, 3])
async def test_a_batch_is_taken_and_acknowledged_once_though_replies_are_lost(
    proxy, real_redis, lost: int
) -> None:
    buffer = RolloutBuffer(proxy.target, "math", TaskConfig(group_size=2))
    await buffer.write_many([item("a", "u0", 1), item("a", "u1", 0)])
    proxy.lose_replies(lost)
    batch = await buffer.take(wait=30)
    assert batch is not None
    proxy.lose_replies(lost)
    await buffer.ack(batch)
    assert proxy.losing == 0
    assert (await buffer.catalog.stats())["consumed"] == 1
    assert await buffer.take() is None
    await buffer.aclose()


def test_a_server_that_stands_still_holds_up_no_other(real_redis, shared_server, tmp_path: Path):
    """Servers keep nothing; what one had acknowledged the other one hands out."""
    one = ServerProcess(shared_server.url, tmp_path)
    other = ServerProcess(shared_server.url, tmp_path)
    with one, other, httpx.Client(timeout=150) as client:
        task = f"{one.url}/v1/tasks/math"
        assert client.put(task, json={"group_size": SIZE}).status_code == 200
        for n in range(SIZE - 1):
            written = client.post(f"{one.url}/buffer/write", json=item("a", f"u{n}", n % 2))
            assert written.status_code == 200
        assert one._process is not None
        leash.freeze(one._process)
        last = item("a", f"u{SIZE - 1}", 1)
        assert client.post(f"{other.url}/buffer/write", json=last).status_code == 200
        taken = client.post(
            f"{other.url}/v1/tasks/math/take", json={"groups": 1, "wait": 30}
        ).json()
        (group,) = taken["groups"]
        assert sorted(found["uid"] for found in group["items"]) == [f"u{n}" for n in range(SIZE)]
