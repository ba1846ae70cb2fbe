"""The ACL file of docs/guide/redis.md allows what Penstock does, and nothing else."""

import asyncio
import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import NoPermissionError

import ground
from buffer import RolloutBuffer, TaskConfig
from limiter import TokenBucket
from penstock.fleet import FleetReader
from tests.architecture.source import ROOT
from tests.buffer.conftest import item
from tests.harness.servers import PrivateRedis, until
from tests.limiter.in_flight import in_line, served
from tests.worker.concurrent import chores
from tests.worker.concurrent.crew import HEIR, at_work, open_queue
from tests.worker.lifecycle.cloud import CloudThread
from tests.worker.lifecycle.conftest import quick
from worker import CodeQueue
from worker.lifecycle import SandboxLifecycle

PAGE = (ROOT / "docs" / "guide" / "redis.md").read_text()
FILE = re.search(r"```text users\.acl\n(.*?)```", PAGE, re.DOTALL)[1]  # type: ignore[index]
PASSWORD = "CHANGE-ME"
RULES = re.search(rf"user penstock (.*>{PASSWORD}.*)", FILE)[1].split()  # type: ignore[index]


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """Of a server with the page's file, as its user."""
    server = PrivateRedis(tmp_path / "redis", config=["aclfile users.acl"])
    (server.folder / "users.acl").write_text(FILE)
    with server:
        yield f"redis://penstock:{PASSWORD}@127.0.0.1:{server.port}/0"


@pytest.fixture
def client(url: str) -> Iterator[Any]:
    with contextlib.closing(ground.connect(url)) as client:
        yield client


def test_the_user_has_penstocks_keys_and_no_others(client: Any) -> None:
    for command in (("SET", "mine", 1), ("FLUSHALL",), ("CONFIG", "GET", "*"), ("KEYS", "*")):
        with pytest.raises(NoPermissionError):
            client.execute_command(*command)


async def test_gates_jobs_and_what_shows_them_work(client: Any, url: str, fusion) -> None:
    gate = TokenBucket(url, "code", limit=1)
    permit = await gate.acquire(timeout=100)
    waiter = await in_line(gate, 1)
    permit.release()
    (await served(waiter)).release()
    queue = open_queue(client)
    after = queue.enqueue(chores.add, 1, 2, depends_on=queue.enqueue(chores.add, 1, 1))
    with at_work(client, gate="code", with_scheduler=True, **HEIR):
        results = await CodeQueue(url, "code").run_many([str(n) for n in range(20)], timeout=60)
        until(lambda: after.get_status() == "finished", "what RQ's own code ends")
    assert all(result.ok for result in results)
    reader = FleetReader(url)
    fleet = await reader.read()
    await reader.aclose()
    assert {seen.name for seen in fleet.queues} == {"code"}


async def test_groups_and_session_sandboxes_work(client: Any, url: str, tmp_path: Path) -> None:
    buffer = RolloutBuffer(url, "math", TaskConfig(group_size=2))
    await buffer.write_many([item("a", "u0", 1), item("a", "u1", 0)])
    batch = await buffer.take(wait=30)
    assert batch is not None
    await buffer.ack(batch)
    await buffer.aclose()
    with CloudThread(tmp_path) as cloud:
        life = SandboxLifecycle(client, cloud.provider, run="test", settings=quick())
        async with life.open():
            assert cloud.live == 1
        assert cloud.live == 0
        life.registry.close()


def test_the_doctor_is_content(url: str) -> None:
    said = subprocess.run(
        [sys.executable, "-m", "penstock", "--redis-url", url, "doctor", "--quiet"],
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert said.returncode == 0, said.stdout + said.stderr


async def test_sentinels_nodes_know_the_user_after_a_failover(sentinel_pair) -> None:
    nodes = (sentinel_pair.primary, sentinel_pair.replica)
    for node in nodes:
        node.ask("ACL", "SETUSER", "penstock", *RULES)
    try:
        where = sentinel_pair.url.replace("://", f"://penstock:{PASSWORD}@")
        gate = TokenBucket(where, "code", limit=1)
        permit = await gate.acquire(timeout=100)
        sentinel_pair.replica.until_in_step(sentinel_pair.primary)
        await asyncio.to_thread(sentinel_pair.failover)
        async with asyncio.timeout(100):
            await permit.renew()
        permit.release()
    finally:
        for node in nodes:
            node.ask("ACL", "DELUSER", "penstock")


async def test_a_clusters_nodes_are_found_as_the_user(redis_cluster) -> None:
    for node in redis_cluster.servers:
        node.ask("ACL", "SETUSER", "penstock", *RULES)
    try:
        where = redis_cluster.url.replace("://", f"://penstock:{PASSWORD}@")
        for number in range(3):
            permit = await TokenBucket(where, f"gate-{number}", limit=1).acquire(timeout=100)
            permit.release()
    finally:
        for node in redis_cluster.servers:
            node.ask("ACL", "DELUSER", "penstock")
