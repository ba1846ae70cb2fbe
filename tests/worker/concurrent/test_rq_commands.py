"""RQ's own commands, run as a user runs them, on jobs that our worker runs."""

import math
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import rq.defaults
from redis.exceptions import TimeoutError
from rq import Queue
from rq.command import send_kill_horse_command, send_shutdown_command, send_stop_job_command
from rq.group import Group
from rq.job import Job
from rq.serializers import JSONSerializer

from ground import SettingError
from tests.harness import killing
from tests.harness.servers import until, url_of
from tests.worker.concurrent import chores, stock
from tests.worker.concurrent.crew import PATIENT, at_work, burst, nothing_left, open_queue, parked
from tests.worker.concurrent.webhooks import WEBHOOK, both, listener
from tests.worker.scripted_answers import Answer
from tests.worker.scripted_fusion import ScriptedFusion
from worker import CodeQueue, ConcurrentWorker


@pytest.fixture
def queue(real_redis: Any) -> Queue:
    return open_queue(real_redis)


def test_rq_requeue_runs_what_failed_once_more(real_redis, queue) -> None:
    job = queue.enqueue(chores.fail_until, url_of(real_redis), "it", 1)
    burst(real_redis)
    assert job.get_status() == "failed"
    stock.call(url_of(real_redis), "requeue", *stock.JSON, "--queue", "code", "--all")
    burst(real_redis)
    assert job.get_status() == "finished"
    assert job.return_value() == 2
    assert nothing_left(real_redis) == {}


def test_rq_empty_drops_what_waits(real_redis, queue) -> None:
    for _ in range(5):
        queue.enqueue(chores.add, 1, 2)
    assert "5 jobs removed" in stock.call(url_of(real_redis), "empty", *stock.JSON, "code")
    with at_work(real_redis):
        after = queue.enqueue(chores.add, 1, 2)
        until(lambda: after.get_status() == "finished", "the next job")
    assert real_redis.keys("rq:job:*") == [after.key.encode()]


def test_rq_info_shows_the_worker_and_counts_its_jobs(real_redis, queue) -> None:
    running = [queue.enqueue(chores.takes, 60) for _ in range(2)]
    waiting = queue.enqueue(chores.add, 1, 2)
    with at_work(real_redis, concurrency=2) as worker:
        until(lambda: queue.job_ids == [waiting.id], "two to run")
        said = stock.call(url_of(real_redis), "info", "--raw")
        assert "queue code 1, 2 executing," in said
        assert f"worker {worker.name} (" in said
        assert ") busy code" in said
        assert [job.get_executions()[0].job_id for job in running] == [job.id for job in running]
        worker._call(worker._kill_jobs)
        until(lambda: waiting.get_status() == "finished", "the third")
    assert {job.get_status() for job in running} == {"failed"}


def test_what_rq_worker_prints_of_a_failed_job_is_a_line_like_its_others(real_redis, queue) -> None:
    job = queue.enqueue(chores.fail, "it")
    said = stock.run("ours", url_of(real_redis))
    assert re.search(rf"^\d\d:\d\d:\d\d job {job.id} failed: ValueError: it$", said, re.MULTILINE)


def test_the_options_of_rq_worker_hold_for_jobs_of_rq_enqueue(real_redis, queue) -> None:
    url = url_of(real_redis)
    enqueue = ("enqueue", *stock.JSON, "--queue", "code", "--job-id")
    stock.call(url, *enqueue, "sum", "tests.worker.concurrent.chores.add", ":1", ":2")
    stock.call(url, *enqueue, "bad", "tests.worker.concurrent.chores.fail", "it")
    worker = stock.start(
        "ours", url, "--burst", "--results-ttl", "77", "--worker-ttl", "120",
        "--maintenance-interval", "60", "--job-monitoring-interval", "5", "--name", "named",
        "--job-class", "tests.worker.concurrent.chores.OwnJob", "--queue-class", "rq.Queue",
        "--exception-handler", "tests.worker.concurrent.chores.on_exception",
        "--disable-job-desc-logging",
        "--logging_level", "INFO", "--log-format", "%(levelname)s said: %(message)s",
    )  # fmt: skip
    said = worker.communicate(timeout=100)[0].decode()
    assert worker.returncode == 0, said
    assert "INFO said: Worker named: started" in said
    job = queue.fetch_job("sum")
    assert job is not None
    assert (job.return_value(), 0 < real_redis.ttl(job.key) <= 77) == (3, True)
    assert real_redis.lrange("handled", 0, -1) == [b"OwnJob bad"]


@pytest.fixture
def started(real_redis: Any) -> Iterator[Any]:
    """Our worker as `rq worker` starts it, with a sandbox whose programs do not end."""
    with ScriptedFusion(default=Answer.ok("42\n", seconds=math.inf)) as fusion:
        process = stock.start(
            "ours", url_of(real_redis), "--name", "ours",
            PENSTOCK_SANDBOX_FUSION_URL=fusion.url, PENSTOCK_JOB_LEASE=str(PATIENT),
        )  # fmt: skip
        try:
            until(lambda: parked(real_redis) == 1, "the worker to wait for jobs")
            yield process, fusion
        finally:
            said = stock.end(process)
        assert "Traceback" not in said, said


def test_rq_suspend_and_resume_reach_a_running_worker(real_redis, started) -> None:
    stock.call(url_of(real_redis), "suspend")
    job = stock.enqueue(real_redis, code="1")
    _, fusion = started
    fusion.default = Answer.ok("42\n")
    # It fell into the worker's hand, unless its wait had ended before.
    until(
        lambda: real_redis.hexists(job.key, "penstock_returned") or not parked(real_redis),
        "it to put the job back",
    )
    assert (job.get_status(), fusion.requests) == ("queued", 0)
    stock.call(url_of(real_redis), "resume")
    until(lambda: job.get_status() == "finished", "the job")


def test_stop_job_and_kill_horse_end_what_runs_in_the_sandbox(real_redis, started) -> None:
    _, fusion = started
    jobs = [stock.enqueue(real_redis, code=str(n)) for n in range(4)]
    fusion.wait_until(lambda: fusion.in_flight == 4)
    for nonsense in (b"{", b"\xff", b"[1]", b"[" * 100_000):
        assert real_redis.publish("rq:pubsub:ours", nonsense) == 1, "the worker listens"
    send_stop_job_command(real_redis, jobs[0].id, serializer=JSONSerializer)
    until(lambda: jobs[0].get_status() == "stopped", "one to be stopped")
    fusion.wait_until(lambda: fusion.open_connections == 3)
    assert {job.get_status() for job in jobs[1:]} == {"started"}
    send_kill_horse_command(real_redis, "ours")
    until(lambda: {job.get_status() for job in jobs[1:]} == {"failed"}, "the others to be killed")
    fusion.wait_until(lambda: fusion.open_connections == 0)
    fusion.default = Answer.ok("42\n")
    after = stock.enqueue(real_redis, code="after")
    until(lambda: after.get_status() == "finished", "the worker to go on")
    assert nothing_left(real_redis) == {}


def test_send_shutdown_lets_what_runs_be_finished(real_redis, started) -> None:
    process, fusion = started
    running = stock.enqueue(real_redis, code="1")
    fusion.wait_until(lambda: fusion.in_flight == 1)
    send_shutdown_command(real_redis, "ours")
    until(lambda: real_redis.hexists("rq:worker:ours", "shutdown_requested_date"), "its stop")
    left = stock.enqueue(real_redis, code="2")
    fusion.finish_held()
    assert process.wait(100) == 0
    assert (running.get_status(), left.get_status()) == ("finished", "queued")


@WEBHOOK
def test_webhooks_are_called(real_redis, queue) -> None:
    with listener() as (url, heard):
        good = queue.enqueue(chores.add, 1, 2, webhooks=both(f"{url}/good"))
        bad = queue.enqueue(chores.fail, "no such thing", webhooks=both(f"{url}/bad"))
        gone = queue.enqueue(chores.add, 3, 4, webhooks=both("http://127.0.0.1:9/nobody"))
        burst(real_redis)
    said = dict(heard)
    assert said.keys() == {"/good", "/bad"}
    assert (said["/good"]["job_id"], said["/good"]["status"]) == (good.id, "finished")
    assert (said["/bad"]["job_id"], said["/bad"]["status"]) == (bad.id, "failed")
    assert "no such thing" in said["/bad"]["exc_info"]
    assert gone.get_status() == "finished"
    assert nothing_left(real_redis) == {}


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
    code = CodeQueue(url, "code", abandon="cancel")
    for n in range(3):
        await code.submit(f"print({n})")
    await code.run("print(3)")


def test_a_prefix_for_rqs_keys_is_refused_by_both_sides(real_redis, monkeypatch) -> None:
    monkeypatch.setattr(rq.defaults, "RQ_KEY_PREFIX", "mine", raising=False)
    with pytest.raises(SettingError, match=r"RQ_KEY_PREFIX: is 'mine', .* unset it"):
        burst(real_redis)
    with pytest.raises(SettingError, match="RQ_KEY_PREFIX"):
        CodeQueue(real_redis, "code")


class PrefixedJob(Job):
    redis_job_namespace_prefix = "mine:job:"


class PrefixedQueue(Queue):
    redis_queue_namespace_prefix = "mine:queue:"


class PrefixedWorker(ConcurrentWorker):
    redis_worker_namespace_prefix = "mine:worker:"


@pytest.mark.parametrize(
    ("option", "made"),
    [
        ("--job-class: tests.worker.concurrent.test_rq_commands.PrefixedJob",
         {"job_class": PrefixedJob}),
        ("--queue-class: tests.worker.concurrent.test_rq_commands.PrefixedQueue",
         {"queue_class": PrefixedQueue}),
        ("--worker-class: tests.worker.concurrent.test_rq_commands.PrefixedWorker",
         {"worker": PrefixedWorker}),
    ],
    ids=["job", "queue", "worker"],
)  # fmt: skip
def test_a_class_with_keys_of_its_own_is_refused_as_the_worker_starts(
    real_redis, option, made
) -> None:
    """Its jobs could not be found, and their ids would be dropped from the queue."""
    given = {"connection": real_redis, "serializer": JSONSerializer}
    kind = made.pop("worker", ConcurrentWorker)
    queue_class = made.get("queue_class", Queue)
    job_class = made.get("job_class", Job)
    job = queue_class("code", job_class=job_class, **given).enqueue(chores.add, 1, 2)
    worker = kind(["code"], **given, **made)
    with pytest.raises(SettingError, match=f"{option} has keys of its own, 'mine:"):
        worker.work(burst=True, logging_level="WARNING")
    assert job.get_status() == "queued"
    assert worker.key not in {key.decode() for key in real_redis.smembers("rq:workers")}


def test_commands_are_heard_after_a_connection_that_timed_out(real_redis: Any) -> None:
    """RQ would listen no longer."""
    with at_work(real_redis) as worker:
        pubsub: Any = worker.pubsub
        timed_out = threading.Event()

        def times_out(**_: Any) -> None:
            del pubsub.get_message
            timed_out.set()
            raise TimeoutError("Timeout connecting to server")

        pubsub.get_message = times_out
        real_redis.publish(worker.pubsub_channel_name, "{}")  # it waits in the real one
        assert timed_out.wait(100)
        send_shutdown_command(real_redis, worker.name)
        until(lambda: real_redis.hexists(worker.key, "shutdown_requested_date"), "its stop")
