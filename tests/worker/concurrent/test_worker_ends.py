"""Whatever is wrong with a job or its outcome, its execution ends, and says why."""

import asyncio
import logging
import os
import signal
import threading
import time
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import rq
from redis.exceptions import RedisError
from rq import Callback, Queue, Retry
from rq.command import send_stop_job_command
from rq.defaults import UNSERIALIZABLE_RETURN_VALUE_PAYLOAD
from rq.job import Job
from rq.serializers import JSONSerializer
from rq.utils import now as rq_now

import ground
from ground.redis.connect import target_of
from ground.redis.connection import Connection
from limiter import TokenBucket
from tests.harness import killing
from tests.harness.servers import until, url_of
from tests.worker.concurrent import chores
from tests.worker.concurrent.crew import (
    HEIR,
    at_work,
    burst,
    new_worker,
    nothing_left,
    open_queue,
    parked,
    work_in_process,
)
from worker.concurrent import end_or_retry_by_rq, finish, heartbeat, parking, shift
from worker.concurrent.commands import SCRIPTS, WorkCommands, read_claim
from worker.concurrent.end_or_retry_by_rq import Ending
from worker.concurrent.finish import BARE, Finisher
from worker.concurrent.heartbeat import Heartbeat
from worker.concurrent.running import ClaimedJob, RunningJobs
from worker.concurrent.threads import Threads

GATED: dict[str, Any] = {"gate": "code", "gate_limit": 2}
ONE: dict[str, Any] = {"gate": "code", "gate_limit": 1}
PLAIN: dict[str, Any] = {}
IN_RQS_WAY: dict[str, Any] = {"on_failure": Callback(chores.on_any_end)}
pytestmark = pytest.mark.in_turns("way")
BOTH_WAYS = pytest.mark.parametrize("way", [PLAIN, IN_RQS_WAY], ids=["plain", "in RQ's way"])


@pytest.fixture
def queue(real_redis: Any) -> Queue:
    return open_queue(real_redis)


def reason_of(client: Any, job: Job, **settings: Any) -> str:
    """Why it failed, at a worker that goes on afterwards, with all its permits."""
    with at_work(client, **GATED, **settings):
        until(lambda: job.get_status() == "failed", "the job to fail")
        until(lambda: nothing_left(client) == {}, "everything to be put away")
        after = [open_queue(client).enqueue(chores.meets, 2) for _ in range(2)]
        until(lambda: all(job.get_status() == "finished" for job in after), "the worker to go on")
    assert client.hget(job.key, "penstock_attempts") == b"1"
    assert TokenBucket(client, "code", limit=2).sync.status().in_flight == 0
    assert job.id in open_queue(client).failed_job_registry
    (result,) = job.results()
    return result.exc_string or ""


@BOTH_WAYS
def test_an_error_whose_words_cannot_be_encoded_is_recorded_escaped(
    real_redis, queue, way, monkeypatch
) -> None:
    # RQ logs the words as they are, and pytest-xdist could not say what was logged.
    monkeypatch.setattr(logging.getLogger("rq.worker"), "disabled", True)
    job = queue.enqueue(chores.fail_unwritably, **way)
    assert "ValueError: half of a pair: \\udcff" in reason_of(real_redis, job)


@BOTH_WAYS
def test_an_error_without_words_is_recorded_by_its_name(real_redis, queue, way) -> None:
    job = queue.enqueue(chores.fail_unprintably, **way)
    assert "Unprintable" in reason_of(real_redis, job)


@pytest.mark.parametrize(
    "kind", ["GeneratorExit", "SystemExit", "KeyboardInterrupt", "StopIteration", "CancelledError"]
)
@pytest.mark.parametrize(
    "function", [chores.leaves_by, chores.leaves_later_by, chores.awaits_what_leaves_by]
)
@BOTH_WAYS
def test_whatever_a_function_raises_is_its_failure(real_redis, queue, way, function, kind) -> None:
    job = queue.enqueue(function, kind, **way)
    reason = reason_of(real_redis, job)
    assert kind in reason or "its words" in reason
    assert "Traceback" in reason
    assert "Work-horse" not in reason


NOT_MEANT = pytest.mark.parametrize("kind", ["GeneratorExit", "SystemExit", "KeyboardInterrupt"])


@NOT_MEANT
@BOTH_WAYS
def test_a_result_that_raises_anything_as_it_is_written_is_said_to_be_so(
    real_redis, queue, way, kind
) -> None:
    job = queue.enqueue(chores.returns_what_raises, kind, **way)
    with at_work(real_redis, **GATED):
        until(lambda: job.get_status() == "finished", "the job to finish")
        until(lambda: nothing_left(real_redis) == {}, "everything to be put away")
        after = queue.enqueue(chores.meets, 1)
        until(lambda: after.get_status() == "finished", "the worker to go on")
    assert job.return_value() == UNSERIALIZABLE_RETURN_VALUE_PAYLOAD
    assert real_redis.hget(job.key, "penstock_attempts") == b"1"


@NOT_MEANT
@BOTH_WAYS
def test_an_error_that_raises_anything_as_it_is_described_is_a_failure(
    real_redis, queue, way, kind
) -> None:
    job = queue.enqueue(chores.fails_indescribably, kind, **way)
    assert "its traceback cannot be written" in reason_of(real_redis, job)


@NOT_MEANT
def test_whatever_is_raised_as_an_end_is_recorded_it_ends(
    real_redis, queue, monkeypatch, kind
) -> None:
    monkeypatch.setattr(Ending, "record", lambda _: chores.leaves_by(kind))
    job = queue.enqueue(chores.add, 1, 2, **IN_RQS_WAY)
    assert kind in reason_of(real_redis, job)


@BOTH_WAYS
def test_a_coroutine_whose_part_is_cancelled_fails_with_its_traceback(
    real_redis, queue, way
) -> None:
    job = queue.enqueue(chores.a_part_of_it_is_cancelled, **way)
    reason = reason_of(real_redis, job)
    assert "in a_part_of_it_is_cancelled" in reason
    assert "CancelledError" in reason


MALFORMED = [
    (chores.nothing, "timeout", "soon"),
    (chores.nothing, "timeout", b"\xff"),
    (chores.nothing, "enqueued_at", "yesterday"),
    (chores.nothing, "result_ttl", "soon"),
    (chores.nothing, "result_ttl", "1" + "0" * 18),
    (chores.nothing, "result_ttl", "1" + "0" * 30),
    (chores.fail_unwritably, "failure_ttl", "soon"),
    (chores.fail_unwritably, "failure_ttl", "-1" + "0" * 30),
    (chores.fail_unwritably, "retries_left", "some"),
]


@pytest.mark.parametrize(("function", "field", "value"), MALFORMED)
@BOTH_WAYS
def test_a_job_with_a_malformed_field_fails_and_the_field_is_named(
    real_redis, queue, way, function, field, value
) -> None:
    job = queue.create_job(function, **way)
    job.save()
    real_redis.hset(job.key, field, value)
    queue.push_job_id(job.id)
    real_redis.hset(job.key, "status", "queued")
    assert field in reason_of(real_redis, job)


def test_a_result_takes_the_place_of_what_is_no_result(redis) -> None:
    queue = open_queue(redis)
    jobs = [queue.enqueue(chores.add, 1, n) for n in range(3)]
    redis.set(f"rq:results:{jobs[1].id}", "a string, where RQ has a stream")
    burst(redis)
    assert [job.return_value() for job in jobs] == [1, 2, 3]
    assert len(queue.finished_job_registry) == 3


UNSENDABLE: Any = (object(),) * 4 + (b"",) * 4


def test_an_end_that_no_script_takes_is_that_jobs_failure_alone(
    real_redis, queue, monkeypatch
) -> None:
    row = Finisher._row
    jobs = [queue.enqueue(chores.meets, 2) for _ in range(2)]
    monkeypatch.setattr(
        Finisher,
        "_row",
        lambda self, end: UNSENDABLE if end.claimed.id == jobs[0].id else row(self, end),
    )
    with at_work(real_redis):
        until(lambda: ended(*jobs), "both ends")
    assert [job.get_status() for job in jobs] == ["failed", "finished"]
    assert nothing_left(real_redis) == {}


def test_an_end_that_no_script_takes_keeps_no_execution(real_redis, queue, monkeypatch) -> None:
    """The last net: it is let go, and run again when its lease ends."""
    bare = (b"", b"", BARE, object()) + (b"",) * 4
    monkeypatch.setattr(Finisher, "_row", lambda *_: UNSENDABLE)
    monkeypatch.setattr(Finisher, "_bare_row", lambda *_: bare)
    job = queue.enqueue(chores.add, 1, 2)
    with at_work(real_redis) as worker:
        until(lambda: worker._shift.started == 1 and not worker._shift.jobs, "its end")
    assert job.get_status() == "started"


def test_a_handler_that_raises_is_the_jobs_failure(real_redis, queue) -> None:
    job = queue.enqueue(chores.fail, "words", retry=Retry(max=1))
    with at_work(real_redis, exception_handlers=[chores.callback_that_raises]):
        until(lambda: job.get_status() == "failed", "the job to fail")
    reason = job.latest_result().exc_string or ""
    assert "ValueError: words" in reason
    assert "ValueError: in the callback" in reason
    assert int(real_redis.hget(job.key, "penstock_attempts")) == 2
    assert nothing_left(real_redis) == {}


def test_a_stopped_callback_that_exits_ends_no_worker(real_redis, queue) -> None:
    job = queue.enqueue(
        chores.lasts, url_of(real_redis), "it", on_stopped=Callback(chores.callback_that_exits)
    )
    with at_work(real_redis):
        until(partial(stopped, real_redis, job), "the stop")
        after = queue.enqueue(chores.add, 1, 2)
        until(lambda: after.get_status() == "finished", "the worker to go on")
    assert job.get_status() == "stopped"


def test_a_job_that_is_lost_and_ends_all_the_same_is_let_go(real_redis, queue) -> None:
    """It swallowed its cancellation, and returned."""
    job = queue.enqueue(chores.swallows_its_cancellation, url_of(real_redis), "it")
    with at_work(real_redis, job_lease=9.0, job_deaths=0) as worker:
        until(lambda: real_redis.hget("ran", "it") == b"1", "the job")
        real_redis.delete("penstock:work:{code}:leases")
        until(lambda: real_redis.hget("ran", "it ended") == b"1", "its end")
        until(lambda: not worker._shift.jobs, "it to be let go")
    assert job.get_status() == "started"  # as those who took the lease away left it


# What the worker says of itself


def test_a_worker_is_idle_again_however_its_last_job_ended(real_redis, queue) -> None:
    url = url_of(real_redis)
    with at_work(real_redis) as worker:

        def state() -> Any:
            return real_redis.hget(worker.key, "state")

        until(lambda: state() == b"idle", "it to have begun")
        for way in (PLAIN, IN_RQS_WAY, {"on_success": Callback(chores.on_any_end)}):
            for function, args in ((chores.nothing, ()), (chores.fail, ("words",))):
                job = queue.enqueue(chores.waits_for, url, "go", **way)
                until(lambda: state() == b"busy", "it to be busy")
                last = queue.enqueue(function, *args, **way)
                real_redis.rpush("go", "now")
                until(partial(ended, job, last), "both to end")
                assert (state(), nothing_left(real_redis)) == (b"idle", {})
        for way in (PLAIN, {"on_stopped": Callback(chores.on_any_end)}):
            job = queue.enqueue(chores.lasts, url, "it", **way)
            until(lambda: state() == b"busy", "it to be busy")
            until(partial(stopped, real_redis, job), "the stop")
            assert state() == b"idle"


def ended(*jobs: Job) -> bool:
    return all(job.get_status() in ("finished", "failed", "stopped") for job in jobs)


def stopped(client: Any, job: Job) -> bool:
    """A command is heard by a worker that listens already."""
    if job.get_status() == "started":
        send_stop_job_command(client, job.id, serializer=JSONSerializer)
    return ended(job)


def test_a_worker_that_lost_its_jobs_is_not_said_to_be_busy(real_redis, queue) -> None:
    """Another one found their leases over."""
    url = url_of(real_redis)
    job = queue.enqueue(chores.lasts, url, "it")
    with killing.Child(work_in_process, url, ["code"], {"job_lease": 1.5}) as child:
        until(lambda: real_redis.hget("ran", "it") == b"1", "the job")
        (key,) = real_redis.smembers("rq:workers:code")
        child.freeze()
        with at_work(real_redis, **HEIR):
            until(lambda: real_redis.hget("ran", "it") == b"2", "another one to run it")
            assert real_redis.hget(key, "state") == b"idle"
            until(lambda: stopped(real_redis, job), "the stop")


@pytest.mark.parametrize("kind", ["SystemExit", "KeyboardInterrupt"])
def test_a_task_of_a_job_that_exits_ends_that_job_and_not_its_worker(
    real_redis, queue, kind
) -> None:
    """asyncio lets both out of its loop where a task of the job's own raises them."""
    url = url_of(real_redis)
    other = queue.enqueue(chores.lasts, url, "other")
    with killing.Child(work_in_process, url, ["code"], HEIR) as child:
        until(lambda: real_redis.hget("ran", "other") == b"1", "the other to run")
        job = queue.enqueue(chores.has_a_part_that_exits, kind)
        until(partial(ended, job), "the job to fail")
        assert kind in job.latest_result().exc_string
        later = queue.enqueue(chores.add, 1, 2)
        until(partial(ended, later), "a job after it: the worker goes on")
        assert other.get_status() == "started"
        until(partial(stopped, real_redis, other), "the stop")
        os.kill(child.pid, signal.SIGTERM)
        assert child.wait() == 0


@pytest.mark.parametrize("kind", ["on_success", "on_failure", "on_stopped"])
def test_a_callback_that_nothing_interrupts_is_abandoned(
    real_redis, queue, monkeypatch, kind
) -> None:
    """RQ kills its horse, or its alarm breaks off what the callback waits for."""
    monkeypatch.setattr(end_or_retry_by_rq, "GRACE", 0.1)
    here = chores.HERE = chores.Here()
    hangs = {kind: Callback(chores.on_an_end_that_waits_here, timeout=1)}
    function = {"on_success": chores.nothing, "on_failure": chores.fail_unprintably}
    if kind == "on_stopped":
        job = queue.enqueue(chores.lasts, url_of(real_redis), "it", **hangs)
    else:
        job = queue.enqueue(function[kind], **hangs)
    with at_work(real_redis):
        if kind == "on_stopped":
            until(lambda: real_redis.hget("ran", "it") == b"1", "the job")
            until(partial(stopped, real_redis, job), "the stop")
        until(partial(ended, job), "the job's end, without that of its callback")
        assert job.get_status() == ("stopped" if kind == "on_stopped" else "failed")
        assert here.reached.is_set()
        until(lambda: nothing_left(real_redis) == {}, "everything to be put away")
    if kind != "on_stopped":
        assert "maximum timeout value (1 seconds)" in job.latest_result().exc_string
    here.go_on.set()


# A worker that cannot renew its leases


@pytest.mark.parametrize("function", [chores.lasts, chores.blocks])
def test_a_worker_cut_off_ends_its_jobs_before_others_run_them(
    real_redis, queue, monkeypatch, function
) -> None:
    """Also one that began long after the last heartbeat that Redis answered."""
    url = url_of(real_redis)
    missed = threading.Semaphore(0)

    def unanswered(*_: Any) -> None:
        missed.release()
        raise ConnectionError("nobody answers")

    monkeypatch.setattr(Heartbeat, "_beat", unanswered)  # of this process: the other worker's do
    lease = {"job_lease": 9.0}  # it has a sixth of that to end them in, however busy the machine
    with at_work(real_redis, **lease, **ONE):
        for _ in range(6):  # with half a second between them
            missed.acquire()
        job = queue.enqueue(function, url, "it")
        until(lambda: real_redis.hget("ran", "it") == b"1", "the job")
        with killing.Child(work_in_process, url, ["code"], lease | ONE):
            until(lambda: real_redis.hget("ran", "it") == b"2", "the other worker to run it")
            until(partial(stopped, real_redis, job), "the stop")
            until(lambda: real_redis.hget("ran", "it ended") == b"2", "its end")
    assert real_redis.lrange("order", 0, -1) == [b"it", b"it ended"] * 2


def test_an_end_on_its_way_to_redis_is_not_watched() -> None:
    """Its lease may be long over, and Redis away for minutes: nothing is left to break off."""

    async def watched(ending: bool) -> bool:
        jobs = RunningJobs(lambda: None, lease=30.0)
        claimed = ClaimedJob("code", "it", "1", {}, 0.0, lambda _: None, ending=ending)
        jobs[claimed.member] = claimed
        jobs._watch()
        return jobs._watching is not None

    assert asyncio.run(watched(ending=False))
    assert not asyncio.run(watched(ending=True))


def test_a_cold_stop_leaves_an_end_that_is_being_recorded(real_redis, queue) -> None:
    here = chores.HERE = chores.Here()
    job = queue.enqueue(chores.add, 1, 2, on_success=Callback(chores.on_an_end_that_waits_here))
    beside = queue.enqueue(chores.lasts, url_of(real_redis), "beside")
    with at_work(real_redis, job_lease=300.0) as worker:
        until(here.reached.is_set, "the job's callback")
        until(lambda: beside.get_status() == "started", "the other job")
        assert worker._shift is not None
        worker._call(worker._shift.stop_cold)
        until(lambda: beside.get_status() == "queued", "what runs to be given back")
        here.go_on.set()
    assert (job.get_status(), job.return_value()) == ("finished", 3)
    assert queue.job_ids == [beside.id]
    assert here.ends == [job.id]


def test_a_cold_stop_without_redis_interrupts_jobs_before_it_closes_their_sandbox(
    real_redis, queue, monkeypatch
) -> None:
    """Else a job would record the closed sandbox as its program's outcome."""
    running: list[int] = []

    async def refuses(*_: Any, **__: Any) -> None:
        raise RedisError("the connection was cut")

    async def closes() -> None:
        running.append(len(worker._shift.jobs))

    def works() -> None:
        with pytest.raises(RedisError):
            worker.work(logging_level="ERROR")

    monkeypatch.setattr(shift, "close_sandboxes_here", closes)
    job, worker = queue.enqueue(chores.takes, 3600), new_worker(real_redis)
    thread = threading.Thread(target=works)
    thread.start()
    until(lambda: job.get_status() == "started", "the job to run")
    monkeypatch.setattr(shift.Shift, "_give_back", refuses)
    worker._call(worker._shift.stop_cold)
    thread.join(100)
    assert running == [0]


def test_a_cold_stop_gives_up_an_end_that_redis_does_not_take(private_redis, monkeypatch) -> None:
    monkeypatch.setattr(finish, "_COLD_RETRY_FOR", 0.0)
    here = chores.HERE = chores.Here()
    server = private_redis(aof=False)
    client: Any = ground.connect(server.target)
    worker = new_worker(client)

    def works() -> None:
        with pytest.raises(RedisError):  # it can say no more that nothing runs here
            worker.work(logging_level="CRITICAL")

    thread = threading.Thread(target=works, daemon=True)
    thread.start()
    open_queue(client).enqueue(chores.waits_here)
    until(here.reached.is_set, "the job")
    server.kill()
    here.go_on.set()
    until(lambda: all(each.ending for each in [*worker._shift.jobs.values()]), "its end")
    worker._call(worker._shift.stop, "warm")
    worker._call(worker._shift.stop_cold)
    thread.join(60)
    assert not thread.is_alive()
    client.close()


# A job that is deleted while it runs


@pytest.mark.parametrize("function", [chores.waits_here, chores.waits_here_and_fails])
@pytest.mark.parametrize("way", [{}, {"retry": Retry(max=1, interval=60)}], ids=["plain", "RQ's"])
@pytest.mark.parametrize("again", [False, True], ids=["gone", "there again"])
def test_a_job_deleted_while_it_runs_stays_deleted(real_redis, queue, function, way, again) -> None:
    """It runs to its end; then its permit comes back, and its result is dropped."""
    here = chores.HERE = chores.Here()
    on_success = Callback(chores.on_any_end) if way else None
    job = queue.enqueue(function, on_success=on_success, **way)
    with at_work(real_redis, **GATED, job_lease=6.0) as worker:
        until(here.reached.is_set, "the job")
        job.delete()
        if again:
            real_redis.hset(job.key, mapping={"origin": "code", "status": "deferred"})
        before = beats(real_redis, worker)
        until(lambda: beats(real_redis, worker) != before, "a heartbeat")
        here.go_on.set()
        until(lambda: nothing_left(real_redis) == {}, "its end")
        until(lambda: not worker._shift.jobs, "its worker to know")
        until(lambda: real_redis.hget(worker.key, "state") == b"idle", "its worker to rest")
    assert job.exists(job.id, real_redis) is again
    assert real_redis.hmget(job.key, "status", "ended_at") == [b"deferred" if again else None, None]
    assert job.results() == []
    assert TokenBucket(real_redis, "code", limit=2).sync.status().in_flight == 0


@pytest.mark.skipif(not hasattr(rq, "RateLimit"), reason="this RQ has no rate limits")
def test_the_end_of_a_deleted_job_lets_the_next_of_its_rate_limit_in(real_redis, queue) -> None:
    here = chores.HERE = chores.Here()
    limit = rq.RateLimit("reports", concurrency=1)
    job = queue.enqueue(chores.waits_here, rate_limit=limit)
    after = queue.enqueue(chores.add, 1, 2, rate_limit=limit)
    with at_work(real_redis):
        until(here.reached.is_set, "the job")
        job.delete()
        assert after.get_status() == "rate_limited"
        here.go_on.set()
        until(partial(ended, after), "the job after it")
    assert not job.exists(job.id, real_redis)


def beats(client: Any, worker: Any) -> Any:
    return client.hget(worker.key, "last_heartbeat")


# A machine without another thread


async def test_a_call_that_gets_no_thread_never_runs(monkeypatch) -> None:
    def none_left(*_: Any, **__: Any) -> None:
        raise RuntimeError("can't start new thread")

    threads, ran = Threads(), list[str]()
    with monkeypatch.context() as limited:
        limited.setattr(threading, "Thread", none_left)
        with pytest.raises(RuntimeError):
            threads.start(lambda: ran.append("refused"))
    await threads.run(lambda: ran.append("next"))
    await threads.run(lambda: ran.append("last"))
    assert ran == ["next", "last"]


# A job that its workers died of, requeued


@BOTH_WAYS
def test_a_requeued_job_may_lose_as_many_workers_as_a_new_one(real_redis, queue, way) -> None:
    job = queue.enqueue(chores.add, 1, 2, **way)
    for _ in range(2):
        loses_its_worker(real_redis)
    with at_work(real_redis, job_deaths=1, **HEIR):
        until(lambda: job.get_status() == "failed", "the verdict")
    queue.failed_job_registry.requeue(job.id)
    loses_its_worker(real_redis)
    with at_work(real_redis, job_deaths=1, **HEIR):
        until(lambda: job.get_status() == "finished", "it to be run again")


def test_rqs_own_cleaning_leaves_the_jobs_of_a_dead_worker_to_ours(real_redis, queue) -> None:
    job = queue.enqueue(chores.add, 1, 2)
    dead = WorkCommands("code", "dead", 0.0, None)
    wire = Connection(target_of(real_redis), 5.0, SCRIPTS)
    wire.converse([dead.claim(1)])
    wire.close()
    queue.started_job_registry.cleanup()  # as `rq info` does
    assert (job.get_status(), queue.job_ids) == ("started", [])
    with at_work(real_redis, **HEIR):
        until(lambda: job.get_status() == "finished", "it to be run again")


@pytest.mark.parametrize("at", [shift, parking], ids=["at work", "parked"])
def test_a_worker_that_stops_before_a_claims_reply_came_gives_its_jobs_back(
    real_redis, queue, monkeypatch, at
) -> None:
    """It stops in order, so it is no death of theirs; and nobody waits for the end of a lease."""
    lost = list[Any]()

    def lossy(reply: Any, sent: float) -> Any:
        claim = read_claim(reply, sent)
        if claim.jobs:
            lost.extend(claim.jobs)
            worker._shift.stop("the test says so")
            raise RedisError("the connection was cut")
        return claim

    monkeypatch.setattr(at, "read_claim", lossy)
    with at_work(real_redis, job_lease=300.0, **GATED) as worker:
        until(lambda: parked(real_redis) == 1, "the worker to be parked")
        with real_redis.pipeline() as together:
            jobs = [queue.enqueue(chores.add, 1, n, pipeline=together) for n in range(3)]
            together.execute()
        until(lambda: lost, "a claim")
    queued = {job.id.encode() for job in jobs if job.get_status() == "queued"}
    assert {id for id, *_ in lost} <= queued == set(real_redis.lrange("rq:queue:code", 0, -1))
    assert real_redis.keys("penstock:work:*:leases") == []
    assert TokenBucket(real_redis, "code", limit=2).sync.status().in_flight == 0


@pytest.mark.parametrize("at", [shift, parking], ids=["at work", "parked"])
def test_what_a_claim_took_whose_reply_got_lost_is_given_back(
    real_redis, queue, monkeypatch, at
) -> None:
    """Its worker lives, so it is no death; and nobody waits for the end of its lease."""
    lost = list[Any]()

    def lossy(reply: Any, sent: float) -> Any:
        claim = read_claim(reply, sent)
        if claim.jobs and not lost:
            lost.append(claim.jobs)
            raise RedisError("the connection was cut")
        return claim

    monkeypatch.setattr(at, "read_claim", lossy)
    with at_work(real_redis, job_lease=300.0, **GATED):
        until(lambda: parked(real_redis) == 1, "the worker to be parked")
        with real_redis.pipeline() as together:
            jobs = [queue.enqueue(chores.add, 1, n, pipeline=together) for n in range(3)]
            together.execute()
        until(lambda: ended(*jobs), "the jobs")
    assert lost
    assert [job.return_value() for job in jobs] == [1, 2, 3]
    assert [real_redis.hget(job.key, "penstock_deaths") for job in jobs] == [None] * 3
    assert nothing_left(real_redis) == {}
    assert TokenBucket(real_redis, "code", limit=2).sync.status().in_flight == 0


def test_a_job_that_its_workers_died_of_took_no_time_however_the_clocks_differ(
    real_redis, queue, monkeypatch
) -> None:
    ahead = SimpleNamespace(time=lambda: time.time() + 3600, monotonic=time.monotonic)
    for module in (heartbeat, shift):
        monkeypatch.setattr(module, "time", ahead)
    job = queue.enqueue(chores.add, 1, 2)
    for _ in range(2):
        loses_its_worker(real_redis)
    with at_work(real_redis, job_deaths=1, **HEIR) as worker:
        until(lambda: job.get_status() == "failed", "the verdict")
        worked = float(real_redis.hget(worker.key, "total_working_time"))
    assert abs(worked) < 1800


@pytest.mark.parametrize("ahead", [3600, -3600])
def test_a_job_that_rq_ends_took_its_time_however_the_clocks_differ(
    real_redis, queue, monkeypatch, ahead
) -> None:
    there = lambda: rq_now() + timedelta(seconds=ahead)  # noqa: E731
    monkeypatch.setattr(end_or_retry_by_rq, "now", there)
    job = queue.enqueue(chores.add, 1, 2, on_success=Callback(chores.on_success))
    worker = burst(real_redis)
    job.refresh()
    assert timedelta(0) <= job.ended_at - job.started_at < timedelta(minutes=30)
    assert 0 <= float(real_redis.hget(worker.key, "total_working_time")) < 1800


def loses_its_worker(client: Any) -> None:
    """It is claimed by one that is dead at once, and found by another, if it may run again."""
    dead, heir = (WorkCommands("code", name, 0.0, None) for name in ("dead", "heir"))
    wire = Connection(target_of(client), 5.0, SCRIPTS)
    (claimed, _) = wire.converse([dead.claim(1), heir.reap(1)])
    wire.close()
    assert len(claimed) == 5
