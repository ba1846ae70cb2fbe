"""RQ's own commands, run as a user runs them, on jobs that our worker runs."""

import subprocess
from typing import Any

import pytest
from rq import Queue
from rq.group import Group

from tests.harness import killing
from tests.harness.servers import until
from tests.worker import chores, stock
from tests.worker.crew import at_work, burst, nothing_left, open_queue
from tests.worker.test_worker_delivery import QUICK, url_of


@pytest.fixture
def queue(real_redis: Any) -> Queue:
    return open_queue(real_redis)


def rq(*words: str, client: Any) -> str:
    command, *rest = words
    done = subprocess.run(
        [stock.RQ, command, "-u", url_of(client), *rest],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, check=True,
    )  # fmt: skip
    return done.stdout


def test_rq_requeue_runs_what_failed_once_more(real_redis, queue) -> None:
    job = queue.enqueue(chores.fail_until, url_of(real_redis), "it", 1)
    burst(real_redis)
    assert job.get_status() == "failed"
    rq("requeue", *stock.JSON, "--queue", "code", "--all", client=real_redis)
    burst(real_redis)
    assert job.get_status() == "finished"
    assert job.return_value() == 2
    assert nothing_left(real_redis) == {}


def test_rq_empty_drops_what_waits(real_redis, queue) -> None:
    for _ in range(5):
        queue.enqueue(chores.add, 1, 2)
    assert "5 jobs removed" in rq("empty", *stock.JSON, "code", client=real_redis)
    with at_work(real_redis, **QUICK):
        after = queue.enqueue(chores.add, 1, 2)
        until(lambda: after.get_status() == "finished", "the next job")
    assert real_redis.keys("rq:job:*") == [after.key.encode()]


def test_rq_info_shows_the_worker_and_counts_its_jobs(real_redis, queue) -> None:
    running = queue.enqueue(chores.takes, 60)
    with at_work(real_redis, concurrency=1, **QUICK) as worker:
        until(lambda: running.get_status() == "started", "the first")
        queue.enqueue(chores.add, 1, 2)
        said = rq("info", "--raw", client=real_redis)
        assert "queue code 1" in said
        assert f"worker {worker.name} (" in said
        assert ") busy code" in said
        worker._call(worker._rq_commands.kill_all)
        until(lambda: running.get_status() == "failed", "its end")


def test_a_result_that_asks_for_a_retry_too_often_fails(real_redis, queue) -> None:
    job = queue.enqueue(chores.always_asks_for_a_retry, url_of(real_redis), "it")
    burst(real_redis)
    assert job.get_status() == "failed"
    assert real_redis.hget("ran", "it") == b"3"  # the first, and two retries
    assert nothing_left(real_redis) == {}


def test_a_group_knows_its_jobs_and_is_forgotten_with_them(real_redis, queue) -> None:
    group = Group.create(connection=real_redis)
    wanted = [Queue.prepare_data(chores.add, (1, n), job_id=f"g{n}") for n in range(3)]
    jobs = group.enqueue_many(queue, wanted)
    burst(real_redis)
    assert {job.id for job in group.get_jobs()} == {"g0", "g1", "g2"}
    assert [job.return_value() for job in jobs] == [1, 2, 3]
    assert nothing_left(real_redis) == {}


def test_the_jobs_of_a_dead_trainer_are_dropped_where_it_said_so(real_redis, queue) -> None:
    """`abandon="cancel"`: its key in Redis is its life."""
    url = url_of(real_redis)
    with killing.Child(trains_until_it_is_killed, url) as trainer:
        until(lambda: len(queue) == 4, "its jobs")
        trainer.kill()
    (key,) = [key for key in real_redis.keys("penstock:client:*") if not key.endswith(b":done")]
    assert 0 < real_redis.ttl(key) <= 60
    real_redis.delete(key)  # as its expiry would, a minute later
    ids = queue.job_ids
    burst(real_redis)
    assert len(queue) == 0
    assert {real_redis.hget(f"rq:job:{id}", "status") for id in ids} == {b"canceled"}
    assert nothing_left(real_redis) == {}


async def trains_until_it_is_killed(url: str) -> None:
    from worker import CodeQueue

    code = CodeQueue(url, "code", abandon="cancel")
    for n in range(3):
        await code.submit(f"print({n})")
    await code.run("print(3)")
