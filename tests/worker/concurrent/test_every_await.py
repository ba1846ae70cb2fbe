"""A job ended at any await of its way, and a worker at any of its own, leaves nothing behind.

The first await is none: the task is cancelled before it has run at all.
"""

import asyncio
import contextlib
import gc
import itertools
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from rq import Callback

from limiter import TokenBucket, existing_gate
from tests.harness.cancelling import Strikes
from tests.harness.servers import until
from tests.worker.concurrent import chores
from tests.worker.concurrent.crew import (
    burst,
    expire_all_leases,
    new_worker,
    nothing_left,
    open_queue,
    parked,
)
from worker import CodeQueue
from worker.concurrent.worker import ConcurrentWorker

GATED: dict[str, Any] = {
    "gate": "code",
    "gate_limit": 8,
}  # a killed program keeps its permit for as long as it may run
WITHIN = 100.0
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(autouse=True)
def its_connections_end_with_it() -> Iterator[None]:
    """A worker that is cancelled leaves its sandbox's open, which end with its process; here it is
    a thread, and the next test would be blamed."""
    yield
    gc.collect()


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


@contextlib.contextmanager
def working(
    worker: ConcurrentWorker, strikes: Strikes, monkeypatch: pytest.MonkeyPatch, **given: Any
) -> Iterator[threading.Thread]:
    """Begun on a thread, with its tasks watched; it comes to its end after the block."""
    work = worker._work

    async def watched(*given: Any) -> bool:
        loop = asyncio.get_running_loop()
        strikes.watch(loop)
        worker.own_task = loop.create_task(work(*given))
        return await worker.own_task

    def works() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            worker.work(logging_level="ERROR", **given)

    monkeypatch.setattr(worker, "_work", watched)
    thread = threading.Thread(target=works, daemon=True)
    thread.start()
    yield thread
    thread.join(WITHIN)
    assert not thread.is_alive(), f"ended {strikes.where}, its worker does not end"


def run(
    client: Any, given: Any, monkeypatch: pytest.MonkeyPatch, of: str, step: int, ends: Any
) -> tuple[str, Strikes]:
    """A worker's burst. At that await of a task of its own, something ends its job, or itself."""
    job, worker = given(client), new_worker(client, **GATED)
    strikes = Strikes(of, step, lambda: ends(worker, job))
    with working(worker, strikes, monkeypatch, burst=True):
        pass
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
    assert len(places) >= least


def test_a_parked_worker_that_is_cancelled_at_any_await_leaves_nothing(
    real_redis: Any, fusion: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[str] = []
    for step in itertools.count():
        worker = new_worker(real_redis, **GATED)

        def is_cancelled_as_a_job_comes(worker: ConcurrentWorker = worker) -> None:
            jobs.append(a_program(real_redis))
            worker.own_task.cancel()

        strikes = Strikes("Parking._wait", step, is_cancelled_as_a_job_comes)
        with working(worker, strikes, monkeypatch, max_jobs=1) as thread:
            until(lambda: parked(real_redis) > 0 or not thread.is_alive(), "it to be parked")
            jobs.append(a_program(real_redis))
        for job in jobs:
            is_balanced(real_redis, job, strikes.where, {b"finished"})
        if not strikes.where:
            break
    assert step > 2


@pytest.mark.parametrize("released", [False, True])
def test_a_worker_in_a_gates_line_that_is_cancelled_at_any_await_leaves_nothing(
    real_redis: Any, fusion: Any, monkeypatch: pytest.MonkeyPatch, released: bool
) -> None:
    gate = TokenBucket(real_redis, "code", limit=8)
    for step in itertools.count():
        held = [gate.sync.acquire() for _ in range(8)]
        job, worker = a_program(real_redis), new_worker(real_redis, **GATED)

        def is_cancelled_in_line(worker: Any = worker, held: Any = held) -> None:
            if released:  # it is cancelled as it is let in
                held.pop().release()
            worker.own_task.cancel()

        strikes = Strikes("GateWaiter._wait", step, is_cancelled_in_line)
        with working(worker, strikes, monkeypatch, max_jobs=1) as thread:
            until(lambda: gate.sync.status().waiting or not thread.is_alive(), "it to be in line")
            if not strikes.where:
                held.pop().release()
        for permit in held:
            permit.release()
        is_balanced(real_redis, job, strikes.where, {b"finished"})
        if not strikes.where:
            break
    assert step > 1
