"""What RQ's documentation promises, kept by the concurrent worker.

docs/reference/rq.md lists the tests.
"""

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py
import rq.command
from rq import Callback, Queue, Repeat, Retry
from rq.command import (
    send_kill_horse_command,
    send_shutdown_command,
    send_stop_job_command,
)
from rq.registry import FailedJobRegistry
from rq.serializers import DefaultSerializer, JSONSerializer
from rq.suspension import resume, suspend
from rq.worker import DequeueStrategy

from limiter import existing_gate
from tests.harness import killing, leash
from tests.harness.servers import until, url_of
from tests.worker.concurrent import chores
from tests.worker.concurrent.crew import (
    PATIENT,
    at_work,
    burst,
    new_worker,
    nothing_left,
    open_queue,
    strand,
    work_in_process,
)
from worker import ConcurrentWorker
from worker.concurrent import shift
from worker.concurrent.commands import WorkCommands
from worker.concurrent.heartbeat import Heartbeat
from worker.concurrent.shift import Shift

ROOT = Path(__file__).parents[3]


@pytest.fixture
def queue(real_redis: Any) -> Queue:
    return open_queue(real_redis)


def asked_to_stop(client: Any, worker: str) -> bool:
    return bool(client.hexists(f"rq:worker:{worker}", "shutdown_requested_date"))


def results(job: Any) -> list[Any]:
    return [result.return_value for result in job.results()]


# Running


def test_sync_and_async_jobs_run_and_keep_their_results(real_redis, queue) -> None:
    jobs = [queue.enqueue(chores.add, 1, n) for n in range(20)]
    jobs += [queue.enqueue(chores.add_later, 1, b=n) for n in range(20)]
    burst(real_redis)
    assert [job.return_value() for job in jobs] == [1 + n for n in range(20)] * 2
    assert {job.get_status() for job in jobs} == {"finished"}
    assert nothing_left(real_redis) == {}


def test_hundreds_run_at_once(real_redis, queue) -> None:
    jobs = [queue.enqueue(chores.meets, 256) for _ in range(256)]
    burst(real_redis)
    assert {job.get_status() for job in jobs} == {"finished"}


def test_no_more_run_at_once_than_the_concurrency_allows(real_redis, queue) -> None:
    jobs = [queue.enqueue(chores.overlap, url_of(real_redis), "x") for _ in range(12)]
    burst(real_redis, concurrency=3)
    assert max(job.return_value() for job in jobs) <= 3


def test_sync_jobs_run_in_threads_of_their_own(real_redis, queue) -> None:
    job = queue.enqueue(chores.which_thread)
    burst(real_redis)
    assert job.return_value() != threading.get_ident()


def test_each_job_knows_itself_among_the_others(real_redis, queue) -> None:
    jobs = [queue.enqueue(f) for f in (chores.who_am_i, chores.who_am_i_later) for _ in range(10)]
    burst(real_redis)
    assert [job.return_value() for job in jobs] == [job.id for job in jobs]


def test_a_job_may_save_its_meta(real_redis, queue) -> None:
    job = queue.enqueue(chores.save_meta, "hello")
    burst(real_redis)
    assert job.get_meta(refresh=True) == {"said": "hello"}
    assert job.get_status() == "finished"


def test_jobs_are_recorded_as_rq_records_them(real_redis, queue) -> None:
    job = queue.enqueue(chores.add, 1, 2, result_ttl=77)
    worker = burst(real_redis)
    job.refresh()
    result = job.latest_result()
    assert job.enqueued_at <= job.started_at <= job.ended_at
    assert (job.worker_name, result.worker_name) == (worker.name, worker.name)
    assert result.execution_id
    assert 0 < real_redis.ttl(job.key) <= 77
    assert 0 < real_redis.ttl(f"rq:results:{job.id}") <= 77
    assert job.id in queue.finished_job_registry.get_job_ids()
    worker.refresh()
    assert (worker.successful_job_count, worker.failed_job_count) == (1, 0)


@pytest.mark.parametrize("ttl", [0, -1])
def test_a_result_ttl_may_be_none_or_for_ever(real_redis, queue, ttl) -> None:
    job = queue.enqueue(chores.add, 1, 2, result_ttl=ttl)
    burst(real_redis)
    assert real_redis.exists(job.key) == (0 if ttl == 0 else 1)
    assert real_redis.ttl(job.key) == (-2 if ttl == 0 else -1)
    assert nothing_left(real_redis) == {}


def test_a_requeued_job_outlives_its_failure_ttl_while_it_runs(real_redis, queue) -> None:
    job = queue.enqueue(chores.fails_once_then_returns_its_ttl, url_of(real_redis), failure_ttl=60)
    burst(real_redis)
    job.refresh()
    job.requeue()
    burst(real_redis)
    assert job.return_value() == -1


def test_a_job_whose_time_to_live_is_over_is_not_run(real_redis, queue) -> None:
    job = queue.enqueue(chores.add, 1, 2, ttl=1)
    real_redis.delete(job.key)  # as Redis does then
    assert burst(real_redis).successful_job_count == 0
    assert nothing_left(real_redis) == {}


def test_a_result_that_cannot_be_written_is_said_to_be_so(real_redis, queue) -> None:
    job = queue.enqueue(chores.unreadable_result)
    burst(real_redis)
    assert job.get_status() == "finished"
    assert "nserializable" in job.return_value()


# Failing


def test_a_worker_whose_jobs_cannot_be_imported_says_why_as_it_starts(
    real_redis, monkeypatch
) -> None:
    monkeypatch.setitem(sys.modules, "worker.jobs", None)
    with pytest.raises(ImportError, match=r"worker\.jobs"):
        burst(real_redis)


@pytest.mark.parametrize("words", ["plain", "with callback"])
def test_a_job_that_raises_fails_with_its_traceback(real_redis, queue, words) -> None:
    callback = Callback(chores.on_failure) if words == "with callback" else None
    job = queue.enqueue(chores.fail, words, on_failure=callback, failure_ttl=99)
    worker = burst(real_redis)
    assert job.get_status() == "failed"
    assert f"ValueError: {words}" in job.latest_result().exc_string
    assert job.id in queue.failed_job_registry
    assert 0 < real_redis.ttl(job.key) <= 99
    worker.refresh()
    assert worker.failed_job_count == 1
    assert nothing_left(real_redis) == {}


@pytest.mark.parametrize(
    "name", ["no.such.module.f", "tests.worker.concurrent.chores.no_such_function"]
)
def test_a_job_whose_function_is_missing_fails_and_the_worker_goes_on(real_redis, queue, name):
    bad, good = queue.enqueue(name), queue.enqueue(chores.add, 1, 2)
    burst(real_redis)
    assert (bad.get_status(), good.get_status()) == ("failed", "finished")


def test_a_pickle_job_fails_with_a_sentence_and_the_worker_goes_on(real_redis, queue) -> None:
    bad = Queue("code", connection=real_redis).enqueue(chores.add, 1, 2)
    good = queue.enqueue(chores.add, 1, 2)
    burst(real_redis)
    assert good.get_status() == "finished"
    said = bad.latest_result().exc_string
    assert "cannot be read with JSONSerializer" in said
    assert "serializer that this worker was started with" in said


@pytest.mark.parametrize(("serializer", "warned"), [(DefaultSerializer, 1), (JSONSerializer, 0)])
def test_a_worker_that_reads_pickle_says_so_as_it_starts(
    real_redis, serializer, warned, caplog
) -> None:
    worker = ConcurrentWorker(["code"], connection=real_redis, serializer=serializer)
    worker.work(burst=True, logging_level="WARNING")
    assert caplog.text.count("start it with --serializer rq.serializers.JSONSerializer") == warned


def test_exception_handlers_are_called(real_redis, queue) -> None:
    heard: list[Any] = []
    job = queue.enqueue(chores.fail, "it")
    burst(
        real_redis,
        exception_handlers=[lambda job, _, error, __: heard.append((job.id, str(error)))],
    )
    assert heard == [(job.id, "it")]


def test_an_exception_handler_that_returns_false_is_the_last(real_redis, queue) -> None:
    heard: list[int] = []

    def handler(number: int, goes_on: bool | None) -> Any:
        return lambda *_: heard.append(number) or goes_on

    queue.enqueue(chores.fail, "it")
    burst(real_redis, exception_handlers=[handler(1, None), handler(2, False), handler(3, True)])
    assert heard == [1, 2]


def test_without_rqs_own_handler_a_failed_job_is_left_to_the_users(real_redis, queue) -> None:
    job = queue.enqueue(chores.fail, "it")
    burst(real_redis, disable_default_exception_handler=True)
    assert job.get_status() == "failed"
    assert job.id not in queue.failed_job_registry
    assert nothing_left(real_redis) == {}


@pytest.mark.parametrize("function", ["takes", "blocks"])
def test_a_job_has_until_its_timeout(real_redis, queue, function) -> None:
    arguments = (30,) if function == "takes" else (url_of(real_redis), "it")
    job = queue.enqueue(getattr(chores, function), *arguments, job_timeout=1)
    other = queue.enqueue(chores.takes, 0.01)
    burst(real_redis)
    assert (job.get_status(), other.get_status()) == ("failed", "finished")
    assert "exceeded maximum timeout value (1 seconds)" in job.latest_result().exc_string


# Retries, repeats, callbacks, dependents


def test_a_burst_does_not_end_by_a_look_from_before_a_job_was_queued_again(
    real_redis, queue, monkeypatch
) -> None:
    look = Shift._look

    async def late(self: Shift) -> Any:
        found = await look(self)
        while self.jobs:  # noqa: ASYNC110 - their ends are told to the shift alone
            await asyncio.sleep(0.01)
        return found

    monkeypatch.setattr(Shift, "_look", late)
    job = queue.enqueue(chores.fail_until, url_of(real_redis), "late", 2, retry=Retry(max=2))
    burst(real_redis)
    assert (job.get_status(), job.return_value()) == ("finished", 3)


def test_a_failed_job_is_retried_as_often_as_it_says(real_redis, queue) -> None:
    url = url_of(real_redis)
    good = queue.enqueue(chores.fail_until, url, "good", 2, retry=Retry(max=2))
    bad = queue.enqueue(chores.fail_until, url, "bad", 9, retry=Retry(max=2))
    burst(real_redis)
    assert (good.get_status(), good.return_value()) == ("finished", 3)
    assert (bad.get_status(), int(real_redis.get("tries:bad"))) == ("failed", 3)
    assert nothing_left(real_redis) == {}


def test_a_retry_with_an_interval_is_scheduled(real_redis, queue) -> None:
    job = queue.enqueue(
        chores.fail_until, url_of(real_redis), "it", 1, retry=Retry(max=1, interval=60)
    )
    burst(real_redis)
    assert job.get_status() == "scheduled"
    assert job.id in queue.scheduled_job_registry


def test_a_job_may_return_a_retry(real_redis, queue) -> None:
    # JSON has no Retry, so it is written as unserializable; the worker has seen the object.
    job = queue.enqueue(chores.asks_for_retries, url_of(real_redis), "it")
    burst(real_redis)
    assert (job.get_status(), job.return_value()) == ("finished", 3)


def test_a_job_repeats(real_redis, queue) -> None:
    job = queue.enqueue(chores.told, url_of(real_redis), "it", repeat=Repeat(times=2))
    burst(real_redis)
    assert real_redis.hget("ran", "it") == b"3"
    assert job.get_status() == "finished"


def test_callbacks_are_called(real_redis, queue) -> None:
    good = queue.enqueue(chores.add, 1, 2, on_success=Callback(chores.on_success))
    bad = queue.enqueue(chores.fail, "it", on_failure=Callback(chores.on_failure))
    burst(real_redis)
    called = set(real_redis.lrange("called back", 0, -1))
    assert called == {f"success {good.id} 3".encode(), f"failure {bad.id} it".encode()}


def test_dependents_run_after_what_they_depend_on(real_redis, queue) -> None:
    url = url_of(real_redis)
    first = queue.enqueue(chores.told, url, "first")
    second = queue.enqueue(chores.told, url, "second", depends_on=first)
    third = queue.enqueue(chores.told, url, "third", depends_on=[first, second])
    burst(real_redis)
    assert real_redis.lrange("order", 0, -1) == [b"first", b"second", b"third"]
    assert third.get_status() == "finished"


def test_dependents_of_a_failed_job_stay_deferred(real_redis, queue) -> None:
    first = queue.enqueue(chores.fail, "it")
    second = queue.enqueue(chores.add, 1, 2, depends_on=first)
    burst(real_redis)
    assert second.get_status() == "deferred"


# Order


def test_jobs_start_in_the_order_they_came(real_redis, queue) -> None:
    for n in range(30):
        queue.enqueue(chores.told, url_of(real_redis), str(n), at_front=n == 29)
    burst(real_redis, concurrency=1)
    wanted = [b"29", *(str(n).encode() for n in range(29))]
    assert real_redis.lrange("order", 0, -1) == wanted


@pytest.mark.parametrize(("strategy", "order"), [("default", "aaabbb"), ("round_robin", "ababab")])
def test_queues_are_served_as_the_strategy_says(real_redis, strategy, order) -> None:
    for name in "aaabbb":
        open_queue(real_redis, name).enqueue(chores.told, url_of(real_redis), name)
    worker = new_worker(real_redis, "a", "b", concurrency=1)
    worker.work(burst=True, logging_level="WARNING", dequeue_strategy=DequeueStrategy(strategy))
    assert b"".join(real_redis.lrange("order", 0, -1)).decode() == order


def test_a_random_strategy_serves_all_queues(real_redis) -> None:
    for name in "aaabbb":
        open_queue(real_redis, name).enqueue(chores.told, url_of(real_redis), name)
    worker = new_worker(real_redis, "a", "b")
    worker.work(burst=True, logging_level="WARNING", dequeue_strategy=DequeueStrategy.RANDOM)
    assert sorted(real_redis.lrange("order", 0, -1)) == [b"a"] * 3 + [b"b"] * 3


# Ends of the worker


def test_max_jobs_ends_it(real_redis, queue) -> None:
    for _ in range(5):
        queue.enqueue(chores.add, 1, 2)
    worker = new_worker(real_redis)
    assert worker.work(max_jobs=3, logging_level="WARNING")
    assert (len(queue), queue.finished_job_registry.get_job_count()) == (2, 3)


def test_max_jobs_holds_over_all_queues(real_redis) -> None:
    for name in "aabbbb":
        open_queue(real_redis, name).enqueue(chores.add, 1, 2)
    worker = new_worker(real_redis, "a", "b")
    assert worker.work(max_jobs=3, logging_level="WARNING")
    assert (len(open_queue(real_redis, "a")), len(open_queue(real_redis, "b"))) == (0, 3)


def test_max_idle_time_ends_it(real_redis) -> None:
    assert not new_worker(real_redis).work(max_idle_time=1, logging_level="WARNING")


def test_a_warm_shutdown_finishes_what_runs_and_leaves_the_rest(real_redis, queue) -> None:
    url = url_of(real_redis)
    running = queue.enqueue(chores.waits_for, url, "go")
    settings = {"concurrency": 1, "name": "w1"}
    with killing.Child(work_in_process, url, ["code"], settings) as child:
        until(lambda: running.get_status() == "started", "the first job")
        waiting = [queue.enqueue(chores.add, 1, n) for n in range(3)]
        os.kill(child.pid, 15)
        until(lambda: asked_to_stop(real_redis, "w1"), "it to be told")
        real_redis.rpush("go", 1)
        child.outcome()
    assert running.get_status() == "finished"
    assert queue.job_ids == [job.id for job in waiting]
    assert nothing_left(real_redis).keys() == {"queue"}


def test_a_cold_shutdown_returns_everything_to_the_front_in_order(real_redis, queue) -> None:
    url = url_of(real_redis)
    jobs = [queue.enqueue(chores.lasts if n else chores.blocks, url, str(n)) for n in range(4)]
    with killing.Child(work_in_process, url, ["code"], {"concurrency": 3}) as child:
        until(lambda: len(queue) == 1, "three jobs to run")
        worker = jobs[0].get_status() and real_redis.hget(jobs[0].key, "worker_name").decode()
        os.kill(child.pid, 15)
        until(lambda: asked_to_stop(real_redis, worker), "warm")
        threading.Event().wait(1.1)  # RQ takes two signals within a second for one
        os.kill(child.pid, 15)
        child.outcome()
    assert queue.job_ids == [job.id for job in jobs]
    assert {job.get_status() for job in jobs} == {"queued"}
    assert nothing_left(real_redis).keys() == {"queue"}


def test_a_cold_stop_returns_many_jobs_in_order_by_several_calls(
    real_redis, queue, monkeypatch
) -> None:
    """Redis refuses one call for 8,000 jobs."""
    monkeypatch.setattr(shift, "MOST", 3)
    give_back, most = WorkCommands.give_back, []

    def noted(self: WorkCommands, rows: Any, *, leaving: bool) -> Any:
        most.append(len(rows))
        return give_back(self, rows, leaving=leaving)

    monkeypatch.setattr(WorkCommands, "give_back", noted)
    jobs = [queue.enqueue(chores.takes, 3600) for _ in range(10)]
    with at_work(real_redis, gate="code", gate_limit=20) as worker:
        until(lambda: len(worker._shift.jobs) == 10, "all to run")
        worker._call(worker._shift.stop_cold)
    assert queue.job_ids == [job.id for job in jobs]
    assert max(most) == 3
    assert existing_gate(real_redis, "code").sync.status().in_flight == 0


def test_a_worker_tells_of_its_birth_and_its_death(real_redis) -> None:
    with at_work(real_redis) as worker:
        assert real_redis.sismember("rq:workers", worker.key)
        assert real_redis.sismember("rq:workers:code", worker.key)
        assert real_redis.ttl(worker.key) > 400
    assert not real_redis.sismember("rq:workers", worker.key)
    assert real_redis.hexists(worker.key, "death")


def test_a_worker_that_ends_lets_rqs_maintenance_finish(real_redis, monkeypatch) -> None:
    begun, ended, pause = threading.Event(), threading.Event(), threading.Event()

    def maintenance(worker: Any) -> None:
        begun.set()
        until(lambda: worker._shutdown_requested_date is not None, "the worker to be told")
        pause.wait(0.3)
        ended.set()

    monkeypatch.setattr(ConcurrentWorker, "run_maintenance_tasks", maintenance)
    with at_work(real_redis):
        assert begun.wait(100)
    assert ended.is_set()


def test_a_worker_that_ends_coldly_waits_for_no_maintenance(real_redis, monkeypatch) -> None:
    begun, tested = threading.Event(), threading.Event()

    def maintenance(_: Any) -> None:
        begun.set()
        tested.wait(100)

    monkeypatch.setattr("worker.concurrent.worker._LAST_WORK", 60.0)  # more than `at_work` waits
    monkeypatch.setattr(ConcurrentWorker, "run_maintenance_tasks", maintenance)
    with at_work(real_redis) as worker:
        assert begun.wait(100)
        assert worker._shift is not None
        worker._call(worker._shift.stop_cold)
    tested.set()


def is_told_to_stop_at_its_end(url: str) -> bool:
    """Whether it leaves in order when SIGTERM comes after its shift, during maintenance."""
    over, stop = threading.Event(), Heartbeat.stop

    def stopped(heartbeat: Heartbeat) -> None:
        stop(heartbeat)
        over.set()

    def maintenance(worker: Any) -> None:
        assert over.wait(100)
        os.kill(os.getpid(), signal.SIGTERM)
        until(lambda: worker._shutdown_requested_date is not None, "the worker to be told")

    Heartbeat.stop = stopped  # type: ignore[method-assign]
    ConcurrentWorker.run_maintenance_tasks = maintenance  # type: ignore[method-assign]
    client: Any = redis_py.Redis.from_url(url)
    return bool(client.hexists(burst(client).key, "death"))


def test_sigterm_breaks_off_no_worker_that_is_ending(real_redis) -> None:
    assert killing.run(is_told_to_stop_at_its_end, url_of(real_redis)).returned is True


# Commands


@pytest.mark.parametrize("function", [chores.lasts, chores.blocks])
def test_a_job_is_stopped_by_command(real_redis, queue, function, caplog) -> None:
    url = url_of(real_redis)
    job = queue.enqueue(
        function, url, "it", on_stopped=Callback(chores.on_stopped), retry=Retry(max=3)
    )
    other = queue.enqueue(chores.lasts, url, "other")
    with at_work(real_redis):
        until(lambda: real_redis.hlen("ran") == 2, "both to run")
        send_stop_job_command(real_redis, job.id, serializer=JSONSerializer)
        until(lambda: job.get_status() == "stopped", "the job to be stopped")
        assert job.id in FailedJobRegistry(queue=queue)
        assert real_redis.lrange("called back", 0, -1) == [f"stopped {job.id}".encode()]
        # A thread is told at its next line, which may be after its job's end was written.
        until(lambda: real_redis.hget("ran", "it ended") == b"1", "its end")
        assert other.get_status() == "started"
        send_stop_job_command(real_redis, other.id, serializer=JSONSerializer)
    gc.collect()
    assert [record for record in caplog.records if record.name == "asyncio"] == []


@pytest.mark.skipif(not hasattr(rq.command, "send_stop_execution_command"), reason="RQ 3 has it")
def test_one_execution_is_stopped_by_command(real_redis, queue) -> None:
    url = url_of(real_redis)
    job, other = (queue.enqueue(chores.lasts, url, name) for name in ("it", "other"))
    with at_work(real_redis) as worker:
        until(lambda: real_redis.hlen("ran") == 2, "both to run")
        gone = {"job_id": other.id, "execution_id": "an earlier one"}
        rq.command.send_command(real_redis, worker.name, "stop-execution", **gone)
        (execution,) = job.get_executions()
        rq.command.send_stop_execution_command(real_redis, job.id, execution.id)
        until(lambda: job.get_status() == "stopped", "the job to be stopped")
        assert other.get_status() == "started"
        send_stop_job_command(real_redis, other.id, serializer=JSONSerializer)


def test_kill_horse_ends_all_jobs_of_the_worker(real_redis, queue) -> None:
    url = url_of(real_redis)
    jobs = [queue.enqueue(chores.lasts, url, str(n)) for n in range(3)]
    with at_work(real_redis) as worker:
        until(lambda: real_redis.hlen("ran") == 3, "all to run")
        send_kill_horse_command(real_redis, worker.name)
        until(lambda: all(job.get_status() == "failed" for job in jobs), "their end")
        assert "terminated unexpectedly" in jobs[0].latest_result().exc_string
        assert queue.enqueue(chores.add, 1, 2).latest_result(timeout=100).return_value == 3


def test_shutdown_is_warm(real_redis, queue) -> None:
    job = queue.enqueue(chores.waits_for, url_of(real_redis), "go")
    with at_work(real_redis) as worker:
        until(lambda: job.get_status() == "started", "the job")
        send_shutdown_command(real_redis, worker.name)
        until(lambda: asked_to_stop(real_redis, worker.name), "it to be told")
        real_redis.rpush("go", 1)
        until(lambda: real_redis.hexists(worker.key, "death"), "its end")
        assert job.get_status() == "finished"


def test_suspended_workers_take_nothing_until_resumed(real_redis, queue) -> None:
    with at_work(real_redis):
        until(lambda: b"cmd=blmove" in real_redis.execute_command("CLIENT", "LIST"), "it to park")
        suspend(real_redis)
        job = queue.enqueue(chores.add, 1, 2)
        until(lambda: queue.job_ids == [job.id], "the job to be back in its queue")
        resume(real_redis)
        until(lambda: job.get_status() == "finished", "the job")


def test_a_suspension_for_some_time_ends_by_itself(real_redis, queue) -> None:
    suspend(real_redis, ttl=1)
    job = queue.enqueue(chores.add, 1, 2)
    with at_work(real_redis):
        until(lambda: job.get_status() == "finished", "the job")
    assert not real_redis.exists("rq:suspended")


def test_a_burst_ends_while_suspended(real_redis, queue) -> None:
    suspend(real_redis)
    job = queue.enqueue(chores.add, 1, 2)
    burst(real_redis)
    assert queue.job_ids == [job.id]


def test_canceled_jobs_do_not_run(real_redis, queue) -> None:
    job = queue.enqueue(chores.told, url_of(real_redis), "it")
    job.cancel()
    queue.push_job_id(job.id)  # as a cleaner's duplicate would
    burst(real_redis)
    assert real_redis.hget("ran", "it") is None
    assert job.get_status() == "canceled"


def test_a_job_twice_in_the_queue_runs_once(real_redis, queue) -> None:
    job = queue.enqueue(chores.reaches_running, url_of(real_redis), "it")
    queue.push_job_id(job.id)
    burst(real_redis)
    assert real_redis.hget("ran", "it") == b"1"
    assert results(job) == ["it"]


# With others


def test_the_scheduler_runs_beside_it(real_redis, queue) -> None:
    job = queue.enqueue_in(timedelta(seconds=1), chores.add, 1, 2)
    url = url_of(real_redis)
    with rq_worker(url, "--with-scheduler"):
        until(lambda: job.get_status() == "finished", "the scheduled job")


@contextlib.contextmanager
def rq_worker(url: str, *options: str) -> Iterator[Any]:
    process = leash.start(
        [sys.executable, "-m", "rq.cli", "worker", "--url", url, "--worker-class",
         "worker.ConcurrentWorker", "--serializer", "rq.serializers.JSONSerializer", *options,
         "code"],
        cwd=ROOT, env=os.environ | {"PENSTOCK_JOB_LEASE": str(PATIENT)},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.terminate()
        assert process.wait(100) == 0


def test_what_a_stock_worker_took_and_never_began_runs_after_all(real_redis, queue) -> None:
    job = queue.enqueue(chores.add, 1, 2, retry=Retry(max=1))
    strand(queue)
    for _ in range(2):  # the first one's maintenance may be later than its look at the queue
        burst(real_redis)
    assert job.return_value() == 3
    assert nothing_left(real_redis) == {}


def test_it_runs_beside_a_stock_worker(real_redis, queue) -> None:
    from rq import SimpleWorker

    jobs = [queue.enqueue(chores.add, 1, n) for n in range(40)]
    with at_work(real_redis):
        client: Any = redis_py.Redis.from_url(url_of(real_redis))
        stock = SimpleWorker(["code"], connection=client, serializer=JSONSerializer)
        stock._install_signal_handlers = lambda: None
        stock.work(burst=True, logging_level="WARNING")
        until(lambda: {job.get_status() for job in jobs} == {"finished"}, "all jobs")
        client.close()
    assert [job.return_value() for job in jobs] == [1 + n for n in range(40)]
