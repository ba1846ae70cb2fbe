"""A trainer, its workers and its children: each in a process of its own."""

import asyncio
import multiprocessing
import os
import signal

import pytest

from limiter import TokenBucket
from tests.harness import doomed, killing
from tests.worker.concurrent import stock
from tests.worker.scripted_answers import Answer
from worker import CodeQueue, JobCancelled


@pytest.fixture
def worker(shared_server, fusion):
    """Starts stock workers; they are ended with the test."""
    started = []

    def start(kind: str, *more: str):
        environment = {"PENSTOCK_SANDBOX_FUSION_URL": fusion.url}
        started.append(stock.start(kind, shared_server.url, *more, **environment))
        return started[-1]

    yield start
    for process in started:
        stock.end(process)


async def test_a_running_job_is_stopped_by_its_cancellation(real_redis, worker, fusion):
    fusion.default = Answer.ok(seconds=3600)
    queue = CodeQueue(real_redis, "code")
    worker("preloaded")
    handle = await queue.submit("for ever", timeout=60)
    await asyncio.to_thread(fusion.wait_until, lambda: fusion.in_flight == 1)
    await handle.cancel()
    with pytest.raises(JobCancelled):
        await handle.result()
    while real_redis.hget(f"rq:job:{handle.id}", "status") != b"stopped":  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def test_an_operator_stops_a_job_and_its_caller_hears_of_it(real_redis, worker, fusion):
    from rq.command import send_stop_job_command

    fusion.default = Answer.ok(seconds=3600)
    worker("preloaded")
    handle = await CodeQueue(real_redis, "code").submit("for ever", timeout=60)
    await asyncio.to_thread(fusion.wait_until, lambda: fusion.in_flight == 1)
    send_stop_job_command(real_redis, handle.id, serializer="json")
    with pytest.raises(JobCancelled, match="was stopped"):
        await handle.result()


@pytest.mark.parametrize("kind", ["preloaded", "simple", "ours"])
async def test_results_come_back_from_stock_workers_and_from_ours(real_redis, worker, fusion, kind):
    queue = CodeQueue(real_redis, "code")
    worker(kind)
    results = await queue.run_many([str(n) for n in range(4)], timeout=60)
    assert [result.stdout for result in results] == ["42\n"] * 4
    (notices,) = real_redis.keys("penstock:client:*:done")
    assert real_redis.xlen(notices) == 4, "all were told of where this process is blocked"


async def trainer_that_dies(url: str) -> None:
    queue = CodeQueue(url, "code", abandon="keep")
    await queue.submit("1")
    doomed.reached("submitted")
    await asyncio.sleep(3600)


async def trainer_that_leaves(url: str, abandon: str) -> None:
    await CodeQueue(url, "code", abandon=abandon).submit("1")


@pytest.mark.parametrize(("abandon", "left"), [("cancel", 0), ("keep", 1)])
def test_a_trainer_that_ends_takes_its_queued_jobs_along_or_leaves_them(
    real_redis, shared_server, abandon, left
):
    killing.run(trainer_that_leaves, shared_server.url, abandon)
    assert real_redis.llen("rq:queue:code") == left
    assert real_redis.keys("penstock:client:*") == []


def submits_and_returns(url: str) -> None:
    CodeQueue(url, "code").sync.submit("1")
    TokenBucket(url, "g", limit=1).sync.acquire()


@pytest.mark.parametrize("how", ["fork", "spawn", "forkserver"])
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_child_of_multiprocessing_that_just_returns_takes_its_queued_jobs_along(
    how, real_redis, shared_server
):
    """At once, also where `atexit` is not called; and its permits."""
    args = (shared_server.url,)
    child = multiprocessing.get_context(how).Process(target=submits_and_returns, args=args)
    child.start()
    child.join(100)
    assert child.exitcode == 0
    assert real_redis.llen("rq:queue:code") == 0
    assert real_redis.keys("penstock:client:*") == []
    assert TokenBucket(real_redis, "g", limit=1).sync.status().in_flight == 0


def test_a_dead_trainers_key_is_gone_in_a_minute(real_redis, shared_server):
    at = killing.named("submitted")
    killing.run(trainer_that_dies, shared_server.url, at=at)
    (key,) = real_redis.keys("penstock:client:*")
    assert 0 < real_redis.ttl(key) <= 60


def parent_and_child(url: str) -> bool:
    queue = CodeQueue(url, "code")
    handle = queue.sync.submit("parent", timeout=60)
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        os._exit(0 if queue.sync.run("child", timeout=60).ok else 1)
    _, status = os.waitpid(child, 0)
    return status == 0 and handle.result().ok


def test_parent_and_child_each_wait_for_their_own_jobs(real_redis, shared_server, worker, fusion):
    worker("simple")
    assert killing.run(parent_and_child, shared_server.url).returned is True
    assert fusion.codes == {"parent": 1, "child": 1}
