"""A job that is ended before its task's first step is ended all the same."""

from collections.abc import Callable
from typing import Any

import pytest

from limiter import existing_gate
from tests.harness.servers import until, url_of
from tests.worker.concurrent import chores
from tests.worker.concurrent.crew import HEIR, at_work, nothing_left, open_queue
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
