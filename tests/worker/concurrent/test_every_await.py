"""A job ended at any await of its way, and a worker at any of its own, leaves nothing behind.

The first await is none: the task is cancelled before it has run at all.
"""

import asyncio
import contextlib
import threading
from typing import Any

import pytest
from rq import Callback

from limiter import existing_gate
from tests.harness.cancelling import Strikes
from tests.worker.concurrent import chores
from tests.worker.concurrent.crew import (
    burst,
    expire_all_leases,
    new_worker,
    nothing_left,
    open_queue,
)
from worker import CodeQueue
from worker.concurrent.worker import ConcurrentWorker

GATED: dict[str, Any] = {
    "gate": "code",
    "gate_limit": 8,
}  # a killed program keeps its permit for as long as it may run
WITHIN = 100.0


# What is run


def a_program(client: Any) -> str:
    return CodeQueue(client, "code", abandon="keep").sync.submit("print(42)").id


def a_coroutine(client: Any) -> str:
    return str(open_queue(client).enqueue(chores.add_later, 1, 2).id)


def a_function(client: Any) -> str:
    return str(open_queue(client).enqueue(chores.add, 1, 2).id)


def a_job_that_rq_ends(client: Any) -> str:
    ends = Callback(chores.on_success)
    return str(open_queue(client).enqueue(chores.add_later, 1, 2, on_success=ends).id)


# What ends it, and how it stands when all is over; it may have been over before


def is_stopped(worker: ConcurrentWorker, job: str) -> None:
    worker._obey({"command": "stop-job", "job_id": job})


def is_killed(worker: ConcurrentWorker, job: str) -> None:
    worker._kill_jobs()


def is_lost(worker: ConcurrentWorker, job: str) -> None:
    jobs = worker._shift.jobs
    jobs.lose(list(jobs.values()))


def is_cancelled(worker: ConcurrentWorker, job: str) -> None:
    """All of the worker is, as asyncio does after an error in it."""
    worker.own_task.cancel()


ENDS = {is_stopped: {b"stopped"}, is_killed: {b"failed"}, is_lost: set(), is_cancelled: set()}


def run(
    client: Any, given: Any, monkeypatch: pytest.MonkeyPatch, of: str, step: int, ends: Any
) -> tuple[str, Strikes]:
    """A worker's burst. At that await of a task of its own, something ends its job, or itself."""
    job, worker = given(client), new_worker(client, **GATED)
    strikes = Strikes(of, step, lambda: ends(worker, job))
    work = worker._work

    async def watched(*given: Any) -> bool:
        loop = asyncio.get_running_loop()
        strikes.watch(loop)
        worker.own_task = loop.create_task(work(*given))
        return await worker.own_task

    def works() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            worker.work(burst=True, logging_level="ERROR")

    monkeypatch.setattr(worker, "_work", watched)
    thread = threading.Thread(target=works, daemon=True)
    thread.start()
    thread.join(WITHIN)
    assert not thread.is_alive(), f"ended {strikes.where}, its worker does not end"
    if ends is not is_cancelled:
        assert not worker._shift.jobs, f"ended {strikes.where}, its slot is taken"
    return job, strikes


def is_balanced(client: Any, job: str, where: str, statuses: set[bytes]) -> None:
    """Nothing is stuck beyond its lease: the job is over, the permit is back, no list has it."""
    expire_all_leases(client)
    burst(client, **GATED)
    status = client.hget(f"rq:job:{job}", "status")
    assert status in statuses, f"ended {where}, it is {status}"
    assert nothing_left(client) == {}, f"ended {where}"
    gate = existing_gate(client, "code").sync.status()
    assert (gate.in_flight, gate.waiting) == (0, 0), f"ended {where}"


def end_at_every_await(
    client: Any, given: Any, monkeypatch: pytest.MonkeyPatch, of: str, ends: Any
) -> set[str]:
    """At one after the other, until it comes to its end. Returns where."""
    places, step, where = set(), 0, "before its first step"
    while where:
        job, strikes = run(client, given, monkeypatch, of, step, ends)
        where = strikes.where
        is_balanced(client, job, where, ENDS[ends] | {b"finished"})
        places.add(where)
        step += 1
    return places - {""}


@pytest.mark.parametrize("ends", [is_stopped, is_killed, is_lost])
@pytest.mark.parametrize(
    ("given", "least"), [(a_program, 3), (a_coroutine, 2), (a_function, 2)],
    ids=lambda given: getattr(given, "__name__", ""),
)  # fmt: skip
def test_a_job_that_is_ended_at_any_await_leaves_nothing(
    real_redis: Any, fusion: Any, monkeypatch: pytest.MonkeyPatch, given: Any, least: int, ends: Any
) -> None:
    places = end_at_every_await(real_redis, given, monkeypatch, "Shift._run", ends)
    print(places)
    assert len(places) >= least


@pytest.mark.parametrize(
    ("of", "least"),
    [("ConcurrentWorker._work", 5), ("Shift._run", 3), ("Finisher._flush", 2),
     ("Finisher._record_by_rq", 3)],
)  # fmt: skip
def test_a_worker_that_is_cancelled_at_any_await_leaves_nothing(
    real_redis: Any, fusion: Any, monkeypatch: pytest.MonkeyPatch, of: str, least: int
) -> None:
    given = a_job_that_rq_ends if of == "Finisher._record_by_rq" else a_program
    places = end_at_every_await(real_redis, given, monkeypatch, of, is_cancelled)
    print(places)
    assert len(places) >= least
