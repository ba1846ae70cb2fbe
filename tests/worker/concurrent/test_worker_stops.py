"""What ends a job, and what ends a worker: at any moment, and only if it is meant."""

import logging
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from limiter import existing_gate
from tests.harness import killing
from tests.harness.servers import until, url_of
from tests.worker.concurrent import chores
from tests.worker.concurrent.crew import (
    HEIR,
    at_work,
    burst,
    nothing_left,
    open_queue,
    work_in_process,
)
from worker.concurrent import shift
from worker.concurrent.running import ClaimedJob
from worker.concurrent.worker import ConcurrentWorker

Ends = Callable[[ConcurrentWorker, ClaimedJob], None]


def is_stopped(worker: ConcurrentWorker, claimed: ClaimedJob) -> None:
    worker._obey({"command": "stop-job", "job_id": claimed.id})


def is_killed(worker: ConcurrentWorker, claimed: ClaimedJob) -> None:
    worker._kill_jobs()


def is_lost(worker: ConcurrentWorker, claimed: ClaimedJob) -> None:
    worker._shift.jobs.lose([claimed])


@pytest.mark.parametrize(
    ("ends", "status", "runs"),
    [(is_stopped, "stopped", None), (is_killed, "failed", None), (is_lost, "finished", b"1")],
)
def test_a_job_ended_before_its_first_step_leaves_nothing(
    real_redis: Any, monkeypatch: pytest.MonkeyPatch, ends: Ends, status: str, runs: bytes | None
) -> None:
    claimed_job, first = shift.claimed_job, [True]

    def claimed_and_ended(worker: ConcurrentWorker, *row: Any) -> ClaimedJob:
        claimed = claimed_job(worker, *row)
        if first.pop() if first else False:
            worker._call(ends, worker, claimed)  # as RQ's thread does: before the task's first step
        return claimed

    monkeypatch.setattr(shift, "claimed_job", claimed_and_ended)
    job = open_queue(real_redis).enqueue(chores.told, url_of(real_redis), "it")
    with at_work(real_redis, gate="code", gate_limit=1, **HEIR) as worker:
        until(lambda: job.get_status() == status, "the job to be over")
        until(lambda: nothing_left(real_redis) == {}, "everything to be put away")
        until(lambda: not worker._shift.jobs, "the worker to have its slot back")
        gate = existing_gate(real_redis, "code")
        until(lambda: gate.sync.status().in_flight == 0, "the permit to be back")
    assert real_redis.hget("ran", "it") == runs


def test_a_job_may_use_processes_and_end_them(real_redis: Any) -> None:
    queue, url = open_queue(real_redis), url_of(real_redis)
    ended, pooled = queue.enqueue(chores.ends_a_child), queue.enqueue(chores.uses_a_pool)
    with killing.Child(work_in_process, url, ["code"], HEIR) as worker:
        until(lambda: ended.is_finished and pooled.is_finished, "both jobs")
        assert (ended.return_value(), pooled.return_value()) == (-signal.SIGTERM, [1, 2])
        later = queue.enqueue(chores.add, 1, 2)
        until(lambda: later.is_finished, "a job after them: the worker goes on")
        os.kill(worker.pid, signal.SIGTERM)
        assert worker.wait() == 0


def test_a_worker_says_why_it_ends(
    real_redis: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "penstock.worker")
    queue = open_queue(real_redis)
    worker = burst(real_redis)
    assert (
        f"Worker {worker.name} ends: it works in a burst, and its queues are empty" in caplog.text
    )

    queue.enqueue(chores.nothing)
    with at_work(real_redis, max_jobs=1):
        until(lambda: "ends: it has started the 1 jobs that it may" in caplog.text, "its words")
    with at_work(real_redis, max_idle_time=0):
        until(lambda: "ends: it has been idle for 0 s" in caplog.text, "its words")
    with at_work(real_redis) as worker:
        worker._call(worker._obey, {"command": "shutdown"})
        until(lambda: "ends: the command `shutdown` came by Redis" in caplog.text, "its words")
    with at_work(real_redis) as worker:
        worker._call(worker._signalled, signal.SIGTERM)
        until(lambda: "ends: SIGTERM was sent to it" in caplog.text, "its words")
