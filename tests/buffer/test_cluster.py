"""One task is one slot: the buffer on a Redis Cluster."""

import asyncio

import httpx

from buffer import RolloutBuffer, TaskConfig
from buffer.http.app import Front, make_app
from buffer.settings import BufferSettings
from tests.buffer.conftest import item
from tests.harness.cluster import Cluster


async def test_groups_of_several_tasks_pass_through_a_cluster(redis_cluster: Cluster) -> None:
    for task in ("red", "green", "blue"):
        buffer = RolloutBuffer(redis_cluster.target, task, TaskConfig(group_size=2))
        await buffer.write_many([item(f"g{n // 2}", f"u{n}", n % 2) for n in range(40)])
        batch = await buffer.take(wait=5)
        assert batch is not None
        assert len(batch.groups) == 20
        assert await buffer.fetch(batch.receipt) == batch
        await buffer.ack(batch)
        assert (await buffer.catalog.stats())["consumed"] == 20
        assert await buffer.take(wait=0.05) is None
        await buffer.aclose()


async def test_a_server_serves_from_a_cluster(redis_cluster: Cluster) -> None:
    app = make_app(redis_cluster.target, "default", BufferSettings())
    front = app.app
    assert isinstance(front, Front)
    async with front.app.router.lifespan_context(front.app):
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            assert (await client.get("/healthz")).status_code == 200
            put = await client.put("/v1/tasks/served", json={"group_size": 2})
            assert put.status_code == 200
            for n in range(2):
                found = await client.post("/buffer/write", json=item("a", f"u{n}", n))
                assert found.status_code == 200
            found = await client.post("/get_rollout_data", json={})
            assert len(found.json()["data"]["data"]) == 2


async def test_who_waits_and_who_writes_outlast_a_cluster_that_is_down(
    redis_cluster: Cluster,
) -> None:
    buffer = RolloutBuffer(redis_cluster.target, "red", TaskConfig(group_size=2))
    try:
        await buffer.write(item("a", "u0", 0))
        waits = asyncio.create_task(buffer.take(1, wait=60))
        await asyncio.sleep(0.2)  # in which the reader comes to wait
        for node in redis_cluster.nodes:
            node.kill()
        writes = asyncio.create_task(buffer.write(item("a", "u1", 1)))
        await asyncio.sleep(0.2)  # in which no node answers
        for node in redis_cluster.nodes:
            await asyncio.to_thread(node.start)
        assert await writes == "stored"
        batch = await waits
        assert batch is not None
        assert batch.finished_groups == ["a"]
    finally:
        await buffer.aclose()
