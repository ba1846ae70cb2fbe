"""A lease that is over, of a worker dead, frozen or late: its job runs again, with one result."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rq import Callback, Queue, Retry, SimpleWorker
from rq.job import Job
from rq.serializers import JSONSerializer

import ground
from ground.lua import Command
from ground.redis.connect import target_of
from ground.redis.connection import Connection
from tests.harness import killing
from tests.harness.servers import until, url_of
from tests.worker.concurrent import chores
from tests.worker.concurrent.crew import (
    HEIR,
    LEASE,
    at_work,
    burst,
    nothing_left,
    open_queue,
    parked,
    work_in_process,
)
from tests.worker.kill_points import CLEANUP, ENDING, FENCED, FINISHER, READ_CLAIM, SHIFT
from worker.concurrent import parking
from worker.concurrent.commands import SCRIPTS, WorkCommands, read_claim
from worker.concurrent.finish import LOST, RECORDED
from worker.concurrent.heartbeat import Heartbeat

QUICK: dict[str, Any] = {"job_lease": LEASE}


@pytest.fixture
def ask(real_redis: Any) -> Iterator[Callable[[Command], Any]]:
    """Sends one command, as a worker does."""
    wire = Connection(target_of(real_redis), 60.0, SCRIPTS)
    yield lambda command: wire.converse([command])[0]
    wire.close()


def run_again_and_expect_one_result(client: Any, job: Job) -> None:
    with at_work(client, **HEIR):
        until(lambda: job.get_status() == "finished", f"{job.id} to be run again")
        until(lambda: nothing_left(client) == {}, "everything to be put away")
    assert [result.return_value for result in job.results()] == ["it"]
    assert 1 <= int(client.hget("ran", "it")) <= 2
    assert client.ttl(job.key) > 0


def test_a_job_that_fell_into_a_dead_workers_hand_comes_back(real_redis) -> None:
    url = url_of(real_redis)
    at = killing.before(f"{SHIFT}._look", hit=2)  # the first finds nothing, and it parks
    with killing.Child(work_in_process, url, ["code"], QUICK, at=at) as child:
        until(lambda: b"cmd=blmove" in real_redis.execute_command("CLIENT", "LIST"), "a parked one")
        job = open_queue(real_redis).enqueue(chores.reaches_running, url, "it")
        assert child.outcome().killed
    run_again_and_expect_one_result(real_redis, job)


def test_nothing_is_claimed_before_the_first_heartbeat(redis, monkeypatch) -> None:
    order: list[str] = []
    claimed, beat, claim = threading.Event(), Heartbeat._beat, WorkCommands.claim

    def slow(self: Heartbeat, began: float) -> None:
        claimed.wait(1.0)  # a claim that does not wait has its chance
        beat(self, began)
        order.append("beat")

    def noted(self: WorkCommands, *args: Any) -> Any:
        order.append("claim")
        claimed.set()
        return claim(self, *args)

    monkeypatch.setattr(Heartbeat, "_beat", slow)
    monkeypatch.setattr(WorkCommands, "claim", noted)
    burst(redis)
    assert order[:2] == ["beat", "claim"]


def test_one_burst_brings_back_what_a_dead_worker_left(real_redis) -> None:
    """What the dead left is looked for before the queues are; stock workers never look for it."""
    url = url_of(real_redis)
    job = open_queue(real_redis).enqueue(chores.reaches_running, url, "it")
    killing.run(work_in_process, url, ["code"], QUICK, at=killing.named("running"))
    leases = "penstock:work:{code}:leases"

    def over() -> bool:
        seconds, micros = real_redis.time()
        return bool(real_redis.zcount(leases, "-inf", seconds * 1_000_000 + micros))

    until(over, "its lease to end")
    SimpleWorker(["code"], connection=real_redis, serializer=JSONSerializer).work(burst=True)
    assert job.get_status() == "started", "RQ's own maintenance comes an hour later"
    burst(real_redis)
    assert job.get_status() == "finished"
    assert nothing_left(real_redis) == {}


def test_a_frozen_worker_loses_its_jobs_and_its_late_result_is_refused(real_redis) -> None:
    url = url_of(real_redis)
    at = killing.freezing(killing.before(f"{FINISHER}.finish"))
    job = open_queue(real_redis).enqueue(chores.reaches_running, url, "it")
    with killing.Child(work_in_process, url, ["code"], QUICK, at=at) as child:
        child.wait_for(f"{FINISHER}.finish")
        run_again_and_expect_one_result(real_redis, job)
        finished = real_redis.hget(job.key, "ended_at")
        child.thaw()
        real_redis.delete("ran")
        second = open_queue(real_redis).enqueue(chores.reaches_running, url, "second")
        until(lambda: second.get_status() == "finished", "the thawed one to work on")
    assert len(job.results()) == 1
    assert real_redis.hget(job.key, "ended_at") == finished
    assert real_redis.hget("ran", "it") is None


def test_a_job_that_falls_to_a_frozen_worker_comes_back_and_is_not_run_late(real_redis) -> None:
    """The server knows nothing of the freeze: who is blocked gets, and claims, what is pushed."""
    url = url_of(real_redis)
    with killing.Child(work_in_process, url, ["code"], {"job_lease": 3.0}) as child:
        until(lambda: parked(real_redis) == 1, "it to be parked")
        child.freeze()
        job = open_queue(real_redis).enqueue(chores.told, url, "it")
        with at_work(real_redis, **HEIR):
            until(lambda: job.get_status() == "finished", "the job")
        child.thaw()
        second = open_queue(real_redis).enqueue(chores.told, url, "second")
        until(lambda: second.get_status() == "finished", "the thawed one to work on")
    assert real_redis.hgetall("ran") == {b"it": b"1", b"second": b"1"}


def test_one_free_place_is_for_whichever_queue_gets_a_job(real_redis, monkeypatch) -> None:
    monkeypatch.setattr(parking, "_BLOCK", 3000.0)
    url = url_of(real_redis)
    with at_work(real_redis, "first", "second", concurrency=1, job_lease=9000.0):
        for name in ("second", "first", "second"):
            until(lambda: parked(real_redis) == 2, "it to wait at both")
            job = open_queue(real_redis, name).enqueue(chores.told, url, name)
            until(lambda job=job: job.get_status() == "finished", "the job")  # type: ignore[misc]


def test_a_worker_without_room_leaves_what_comes_to_others(real_redis, monkeypatch) -> None:
    monkeypatch.setattr(parking, "_BLOCK", 3000.0)
    url, one = url_of(real_redis), {"concurrency": 1, "job_lease": 9000.0}
    with at_work(real_redis, "first", "second", **one):
        until(lambda: parked(real_redis) == 2, "it to wait at both")
        long = open_queue(real_redis, "first").enqueue(chores.waits_for, url, "go")
        until(lambda: long.get_status() == "started", "it to be busy")
        with at_work(real_redis, "second", **one):
            until(lambda: parked(real_redis) == 2, "the other to wait")
            job = open_queue(real_redis, "second").enqueue(chores.told, url, "it")
            until(lambda: job.get_status() == "finished", "the other to run it")
            real_redis.rpush("go", "now")
            until(lambda: long.get_status() == "finished", "the first job")


@pytest.mark.parametrize("gate", [{}, {"gate": "code", "gate_limit": 1}], ids=["no gate", "gated"])
def test_a_claim_that_is_read_after_its_lease_is_not_started(real_redis, gate) -> None:
    """Frozen between the server's answer and our reading it, while another worker runs the job."""
    url = url_of(real_redis)
    job = open_queue(real_redis).enqueue(chores.reaches_running, url, "it")
    at = killing.freezing(killing.after(READ_CLAIM))
    with killing.Child(work_in_process, url, ["code"], QUICK | gate, at=at) as child:
        child.wait_for(READ_CLAIM)
        with at_work(real_redis, **HEIR, **gate):
            until(lambda: job.get_status() == "finished", "another one to run it")
        child.thaw()
        second = open_queue(real_redis).enqueue(chores.told, url, "second")
        until(lambda: second.get_status() == "finished", "the thawed one to work on")
        until(lambda: nothing_left(real_redis) == {}, "everything to be put away")
    assert real_redis.hgetall("ran") == {b"it": b"1", b"second": b"1"}


BEFORE_RQS_TRANSACTION = [
    killing.before(f"{ENDING}.prepare"),
    killing.before(CLEANUP),
    killing.before(FENCED),
    killing.after(FENCED),
]


@pytest.mark.parametrize("point", BEFORE_RQS_TRANSACTION, ids=str)
@pytest.mark.parametrize("failures", [0, 1])
def test_a_late_end_in_rqs_own_way_is_refused_too(real_redis, point, failures) -> None:
    """Frozen just before the transaction that would succeed, or put the job back to its queue."""
    url = url_of(real_redis)
    queue = open_queue(real_redis)
    job = queue.enqueue(
        chores.fail_until, url, "it", failures, retry=Retry(max=3),
        on_success=Callback(chores.on_success),
    )  # fmt: skip
    with killing.Child(work_in_process, url, ["code"], QUICK, at=killing.freezing(point)) as child:
        child.wait_for(point.where)
        with at_work(real_redis, **HEIR):
            until(lambda: job.get_status() == "finished", "another one to run it")
            until(lambda: nothing_left(real_redis) == {}, "everything to be put away")
        before = real_redis.hgetall(job.key), real_redis.xrange(f"rq:results:{job.id}")
        child.thaw()
        second = queue.enqueue(chores.add, 1, 2)
        until(lambda: second.get_status() == "finished", "the thawed one to work on")
    after = real_redis.hgetall(job.key), real_redis.xrange(f"rq:results:{job.id}")
    assert after == before
    assert queue.job_ids == []
    # Whether another one ran it, or its end was in Redis before the process stood still.
    assert real_redis.get("tries:it") in (b"1", b"2")


def test_a_job_that_kills_its_workers_fails_in_the_end_with_a_sentence(real_redis) -> None:
    url = url_of(real_redis)
    job = open_queue(real_redis).enqueue(chores.reaches_running, url, "it")
    settings = QUICK | {"job_deaths": 1}
    for _ in range(2):
        killing.run(work_in_process, url, ["code"], settings, at=killing.named("running"))
    with at_work(real_redis, **settings | HEIR):
        until(lambda: job.get_status() == "failed", "the verdict")
    assert "2 workers died while they ran it" in (job.latest_result().exc_string or "")
    assert real_redis.hget("ran", "it") == b"2"
    assert nothing_left(real_redis) == {}


def test_rqs_retry_bounds_the_deaths_where_a_job_has_one(real_redis) -> None:
    url = url_of(real_redis)
    job = open_queue(real_redis).enqueue(chores.reaches_running, url, "it", retry=Retry(max=1))
    for _ in range(2):
        killing.run(work_in_process, url, ["code"], QUICK, at=killing.named("running"))
    with at_work(real_redis, **HEIR):
        until(lambda: job.get_status() == "failed", "the verdict")
    assert real_redis.hget("ran", "it") == b"2"


def test_a_busy_loop_does_not_lose_its_jobs(real_redis) -> None:
    """It blocks until the lease that it began with is over."""
    queue, leases = open_queue(real_redis), "penstock:work:{code}:leases"
    blocking = queue.enqueue(chores.blocks_the_loop, url_of(real_redis), "go")
    with at_work(real_redis, job_lease=9.0):
        until(lambda: real_redis.zcard(leases) == 1, "it to be claimed")
        ((claimed, first),) = real_redis.zrange(leases, 0, -1, withscores=True)
        until(lambda: real_redis.zscore(leases, claimed) > first + 9e6, "a later renewal")
        real_redis.rpush("go", "now")
        until(lambda: blocking.get_status() == "finished", "the job that blocks")
    assert real_redis.hget(blocking.key, "penstock_attempts") == b"1"


def test_a_full_redis_keeps_running_jobs_until_it_has_room(private_redis) -> None:
    """One runs on, one ends and cannot say so. The other worker looks for orphans all the time."""
    here = chores.HERE = chores.Here()
    server = private_redis(aof=False)
    client: Any = ground.connect(server.target)
    queue, leases = open_queue(client), "penstock:work:{code}:leases"
    with at_work(client, job_lease=9.0), at_work(client, job_lease=9.0):
        jobs = [queue.enqueue(chores.waits_for, server.url, "go"), queue.enqueue(chores.waits_here)]
        until(lambda: client.zcard(leases) == 2 and here.reached.is_set(), "both to run")
        claimed = dict(client.zrange(leases, 0, -1, withscores=True))
        client.config_set("maxmemory", 1)
        here.go_on.set()

        def all_renewed() -> bool:
            now = dict(client.zrange(leases, 0, -1, withscores=True))
            assert now.keys() == claimed.keys(), "they were not taken away"
            return all(now[each] > claimed[each] + 10e6 for each in claimed)

        until(all_renewed, "leases that end long after the first ones")
        client.config_set("maxmemory", 0)
        client.rpush("go", "now")
        until(lambda: {job.get_status() for job in jobs} == {"finished"}, "both to end")
    for job in jobs:
        assert client.hmget(job.key, "penstock_attempts", "penstock_deaths") == [b"1", None]
    client.close()


def test_an_end_that_is_sent_twice_is_recorded_once_and_no_late_one_is(real_redis, ask) -> None:
    """Its reply was lost, or another worker has run the job since."""
    job = open_queue(real_redis).enqueue(chores.add, 1, 2)
    late, me = (WorkCommands("code", name, 60.0, None) for name in ("late", "me"))

    def claim_and_end(commands: WorkCommands) -> Command:
        ((id, execution, _),) = read_claim(ask(commands.claim(1)), 0.0).jobs
        return commands.finish([(id, execution, 1, 500, b"", "0", "", b"", 0)])

    too_late = claim_and_end(late)
    real_redis.zadd(late.leases, dict.fromkeys(real_redis.zrange(late.leases, 0, -1), 1))
    ask(me.reap(3))
    end = claim_and_end(me)
    assert [ask(end) for _ in range(3)] == [[RECORDED]] * 3
    assert ask(too_late) == [LOST]
    assert len(job.results()) == 1
    assert real_redis.hget("penstock:work:{code}", "finished") == b"1"


def test_an_end_of_a_deleted_job_that_is_sent_twice_counts_once(real_redis, ask) -> None:
    """It was deleted while it ran, or its result was kept for less than the reply took."""
    job = open_queue(real_redis).enqueue(chores.add, 1, 2)
    me = WorkCommands("code", "me", 60.0, None)
    ((id, execution, _),) = read_claim(ask(me.claim(1)), 0.0).jobs
    job.delete()
    end = me.finish([(id, execution, 1, 500, b"", "0", "", b"", 0)])
    assert [ask(end) for _ in range(2)] == [[RECORDED], [LOST]]
    assert real_redis.hget("penstock:work:{code}", "finished") == b"1"
    assert nothing_left(real_redis) == {}


@pytest.mark.parametrize("deaths", [3, 0], ids=["it may run again", "it died too often"])
def test_a_job_that_rq_cancels_while_it_runs_is_not_run_again_for_a_dead_worker(
    real_redis, ask, deaths
) -> None:
    queue = open_queue(real_redis)
    dead, heir = (WorkCommands("code", name, 60.0, None) for name in ("dead", "heir"))
    queue.enqueue(chores.add, 1, 2)
    ((id, _, _),) = read_claim(ask(dead.claim(1)), 0.0).jobs
    job = queue.fetch_job(id.decode())
    job.cancel()
    real_redis.zadd(dead.leases, dict.fromkeys(real_redis.zrange(dead.leases, 0, -1), 1))
    assert ask(heir.reap(deaths)) == [0, 0]
    assert (job.get_status(), nothing_left(real_redis)) == ("canceled", {})


def test_a_job_that_rq_cancels_while_it_runs_does_not_return_from_a_cold_stop(
    real_redis, ask
) -> None:
    queue, me = open_queue(real_redis), WorkCommands("code", "me", 60.0, None)
    queue.enqueue(chores.add, 1, 2)
    ((id, execution, _),) = read_claim(ask(me.claim(1)), 0.0).jobs
    job = queue.fetch_job(id.decode())
    job.cancel()
    assert ask(me.give_back([(id, execution, 0)], leaving=True)) == [0, 0]
    assert (job.get_status(), nothing_left(real_redis)) == ("canceled", {})


def large_jobs(client: Any, name: str) -> list[Job]:
    """A queue of 30 jobs of 1 MB each."""
    jobs = [open_queue(client, name).enqueue(chores.add, n, 1) for n in range(30)]
    for job in jobs:
        client.hset(job.key, "large", b"x" * (1 << 20))
    return jobs


def test_a_claim_takes_no_more_than_a_worker_reads_soon(real_redis, ask) -> None:
    large_jobs(real_redis, "code")
    claim = read_claim(ask(WorkCommands("code", "me", 60.0, None).claim(128)), 0.0)
    assert 16 <= len(claim.jobs) <= 24
    assert claim.left == 30 - len(claim.jobs)
    assert not claim.shut


def test_a_queue_that_needs_several_claims_still_comes_before_the_next(real_redis) -> None:
    first, second = large_jobs(real_redis, "first"), large_jobs(real_redis, "second")
    burst(real_redis, "first", "second", concurrency=60)
    assert {job.get_status() for job in first + second} == {"finished"}
    started = [max(real_redis.hget(job.key, "started_at") for job in first)]
    started += [min(real_redis.hget(job.key, "started_at") for job in second)]
    assert started == sorted(started)


def test_many_orphans_are_queued_again_in_order_at_a_bounded_cost(real_redis, ask) -> None:
    """The commands of the last heartbeat are no more than a few per orphan."""
    queue = open_queue(real_redis)
    data = [Queue.prepare_data(chores.add, (n, 1), job_id=f"{n}") for n in range(1500)]
    ids = [job.id for job in queue.enqueue_many(data)]
    dead, heir = (WorkCommands("code", name, 60.0, None) for name in ("dead", "heir"))
    while real_redis.llen(queue.key):
        ask(dead.claim(500))
    leases = dead.leases
    claimed = real_redis.zrange(leases, 0, -1)
    real_redis.zadd(leases, {member: int(member.split(b":")[0]) for member in claimed})
    calls = []
    while real_redis.zcard(leases):
        real_redis.config_resetstat()
        requeued, *_ = ask(heir.reap(3))
        stats = real_redis.info("commandstats").values()
        calls.append(sum(stat["calls"] for stat in stats) / requeued)
    assert queue.job_ids == ids
    assert len(calls) > 5
    assert max(calls) < 100
