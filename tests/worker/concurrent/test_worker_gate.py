"""Jobs are claimed together with their permits: what waits, waits in the queue."""

import asyncio
import math
import threading
from typing import Any

import pytest
from rq import Queue

from ground.redis.connection import Connection
from jail.fusion.client import SandboxFusion
from jail.models import CodeRequest
from limiter import GateUnavailable, Permit, Report, TokenBucket, existing_gate
from limiter.commands import GateCommands
from tests.harness import killing
from tests.harness.servers import until, url_of
from tests.worker.concurrent import chores, stock
from tests.worker.concurrent.crew import (
    HEIR,
    LEASE,
    at_work,
    burst,
    nothing_left,
    open_queue,
    work_in_process,
)
from tests.worker.scripted_answers import Answer
from tests.worker.scripted_fusion import ScriptedFusion
from worker.concurrent.commands import SCRIPTS, WorkCommands, read_claim
from worker.concurrent.parking import GateWaiter, standing
from worker.concurrent.running import HELD, LOST, PERMIT_LOST
from worker.queue.code_queue import CodeQueue
from worker.settings import WorkerSettings


@pytest.fixture
def queue(real_redis: Any) -> Queue:
    return open_queue(real_redis)


def gated(limit: int) -> dict[str, Any]:
    return {"gate": "code", "gate_limit": limit}


def test_no_more_run_than_the_gate_allows_over_all_workers(real_redis, queue) -> None:
    url = url_of(real_redis)
    jobs = [queue.enqueue(chores.overlap, url, "x") for _ in range(30)]
    with at_work(real_redis, **gated(3)), at_work(real_redis, **gated(3)):
        until(lambda: all(job.get_status() == "finished" for job in jobs), "all jobs")
    most = max(job.return_value() for job in jobs)
    assert most == 3
    status = TokenBucket(real_redis, "code", limit=3).sync.status()
    assert (status.in_flight, status.waiting) == (0, 0)
    assert nothing_left(real_redis) == {}


async def test_a_worker_says_which_limit_is_in_force(real_redis, caplog) -> None:
    TokenBucket(real_redis, "code", limit=2).sync.pause()
    gate = TokenBucket(real_redis, "code", limit=64)
    assert await standing(gate, 64) == "gate code (limit 2, paused)"
    assert "--gate-limit (or PENSTOCK_GATE_LIMIT) is 64, and only for a gate" in caplog.text


async def test_a_worker_says_once_why_its_gate_does_not_answer_and_when_it_does(
    real_redis, caplog, monkeypatch
) -> None:
    caplog.set_level("INFO", "penstock.worker")
    gate, granted = TokenBucket(real_redis, "code", limit=1), asyncio.Event()
    waiter = GateWaiter(gate, granted.set)

    async def asked() -> Permit | None:
        granted.clear()
        waiter.join()
        await granted.wait()
        return waiter.take()

    with monkeypatch.context() as during:

        async def acquire(self: TokenBucket) -> Permit:
            raise GateUnavailable("code", "port 7", "refused")

        during.setattr(TokenBucket, "acquire", acquire)
        assert [await asked(), await asked()] == [None, None]
    permit = await asked()
    assert permit is not None
    permit.release()
    first, end = (each.getMessage() for each in caplog.records)
    assert first.startswith("waiting for a permit: gate 'code': Redis at port 7 could not be asked")
    assert end.startswith("waiting for a permit: it works again, after ")


def test_with_the_gate_paused_all_jobs_wait_in_the_queue_in_order(real_redis, queue) -> None:
    gate = TokenBucket(real_redis, "code", limit=2)
    gate.sync.pause()
    with at_work(real_redis, **gated(2)), at_work(real_redis, **gated(2)):
        jobs = [queue.enqueue(chores.told, url_of(real_redis), str(n)) for n in range(5)]
        until(lambda: gate.sync.status().waiting == 2, "both to be in the gate's line")
        assert queue.job_ids == [job.id for job in jobs]
        assert "queue code 5, 0 executing," in stock.call(url_of(real_redis), "info", "--raw")
        assert queue.started_job_registry.get_job_count(cleanup=False) == 0
        assert nothing_left(real_redis).keys() == {"queue"}
        gate.sync.resume()
        until(lambda: all(job.get_status() == "finished" for job in jobs), "all jobs")


def test_at_a_shut_gate_with_ten_thousand_waiting_a_worker_sends_nothing_but_heartbeats(
    real_redis, queue
) -> None:
    gate = TokenBucket(real_redis, "code", limit=1)
    gate.sync.pause()
    jobs = [Queue.prepare_data(chores.told, (url_of(real_redis), f"{n}")) for n in range(10_000)]
    queue.enqueue_many(jobs)

    def calls() -> dict[str, int]:
        stats = real_redis.info("commandstats")
        ours = {"cmdstat_info", "cmdstat_client|setinfo"}  # this test asking, and connecting to ask
        return {name: stat["calls"] for name, stat in stats.items() if name not in ours}

    def quiet() -> bool:
        before = calls()
        threading.Event().wait(1.0)
        return calls() == before

    with at_work(real_redis, job_lease=30.0, **gated(1)):
        until(lambda: gate.sync.status().waiting == 1, "it to be in line")
        until(quiet, "a second between its heartbeats in which it sends nothing")
        assert len(queue) == 10_000
        gate.sync.resume()
        until(lambda: real_redis.llen("order") >= 20, "some to be run")
        gate.sync.pause()
    first = [int(name) for name in real_redis.lrange("order", 0, -1)]
    assert first == list(range(len(first)))


@pytest.mark.parametrize("first", ["empty", "paused"])
def test_a_permit_that_was_waited_for_is_for_whichever_queue_has_a_job(
    real_redis, queue, first
) -> None:
    if first == "paused":
        open_queue(real_redis, first).enqueue(chores.add, 1, 2)
        real_redis.hset("penstock:work:{paused}", "paused", 1)
    gate, ran = TokenBucket(real_redis, "code", limit=1), threading.Event()

    def be_behind() -> None:
        permit = gate.sync.acquire()
        ran.wait(200)
        permit.release()

    behind = threading.Thread(target=be_behind)
    with at_work(real_redis, first, "code", **gated(1)):
        permit = gate.sync.acquire()
        queue.enqueue(chores.told, url_of(real_redis), "it")
        until(lambda: gate.sync.status().waiting == 1, "the worker to be in line")
        behind.start()
        until(lambda: gate.sync.status().waiting == 2, "the other to be behind it")
        permit.release()
        until(lambda: real_redis.hget("ran", "it") == b"1", "the job, before the other's turn")
        ran.set()
    behind.join(100)


def test_a_permit_that_no_queue_needs_any_more_is_passed_on(real_redis, queue) -> None:
    gate = TokenBucket(real_redis, "code", limit=1)
    with at_work(real_redis, "empty", "code", **gated(1)):
        permit = gate.sync.acquire()
        job = queue.enqueue(chores.add, 1, 2)
        until(lambda: gate.sync.status().waiting == 1, "the worker to be in line")
        job.cancel()
        permit.release()
        gate.sync.acquire(timeout=100).release()
        until(lambda: gate.sync.status().in_flight == 0, "all permits to be back")


def test_a_killed_workers_permit_comes_back_with_its_job(real_redis, queue) -> None:
    url = url_of(real_redis)
    job = queue.enqueue(chores.reaches_running, url, "it")
    settings = {"job_lease": LEASE} | gated(1)
    killing.run(work_in_process, url, ["code"], settings, at=killing.named("running"))
    with at_work(real_redis, **settings | HEIR):
        until(lambda: job.get_status() == "finished", "the job")
    assert TokenBucket(real_redis, "code", limit=1).sync.status().in_flight == 0


def patient_fusion(settings: WorkerSettings) -> SandboxFusion:
    return SandboxFusion(settings.fusion_urls, margin=3.0)


def test_a_killed_workers_permit_stays_for_as_long_as_its_program_may_run(
    real_redis, queue, monkeypatch
) -> None:
    """Sandbox Fusion runs on, and does not notice: nobody else may take that place meanwhile."""
    request = {"code": "long", "run_timeout": 1.5, "compile_timeout": 0.5}
    job = queue.enqueue("worker.jobs.run_code", request, job_timeout=60)
    with ScriptedFusion(default=Answer.ok("ok", seconds=2.0)) as fusion:
        monkeypatch.setenv("PENSTOCK_SANDBOX_FUSION_URL", fusion.url)
        settings = {
            "sandbox": "tests.worker.concurrent.test_worker_gate.patient_fusion",
            "job_lease": LEASE,
        }
        with killing.Child(
            work_in_process, url_of(real_redis), ["code"], settings | gated(1)
        ) as it:
            fusion.wait_until(lambda: fusion.in_flight == 1)
            it.kill()
        with at_work(real_redis, **settings | HEIR, **gated(1)):
            until(lambda: job.get_status() == "finished", "the job")
        assert fusion.executions.total() == 2
        assert fusion.peak == 1
    assert TokenBucket(real_redis, "code", limit=1).sync.status().in_flight == 0


@pytest.mark.parametrize(("named", "said"), [(3, 0), (5, 1)])
def test_a_worker_that_names_another_limit_than_the_gates_says_which_applies(
    real_redis, queue, caplog, named: int, said: int
) -> None:
    TokenBucket(real_redis, "code", limit=3).sync.status()  # makes the gate
    job = queue.enqueue(chores.told, url_of(real_redis), "it")
    with caplog.at_level("WARNING", logger="penstock.worker"):
        burst(real_redis, **gated(named))
    assert job.get_status() == "finished"
    lines = [line for line in caplog.messages if line.startswith("gate 'code' has the limit 3")]
    assert len(lines) == said
    assert all("penstock limits set code --gate-limit 5" in line for line in lines)
    assert existing_gate(real_redis, "code").sync.status().limit == 3


@pytest.mark.parametrize("how", ["finished", "paused"])
def test_a_late_heartbeat_does_not_bring_a_permit_back(real_redis, queue, how) -> None:
    """It was on its way while the execution ended, or gave its permit back."""
    gate = TokenBucket(real_redis, "code", limit=1)
    gate.sync.status()
    job = queue.enqueue(chores.add, 1, 2)
    at = GateCommands("code", gate.terms, "me")
    commands = WorkCommands("code", "me", 30.0, at)
    wire = Connection(gate.target, 5.0, SCRIPTS)
    (reply,) = wire.converse([commands.claim(1)])
    execution, fence = reply[4][1].decode(), int(reply[4][3])
    heartbeat = commands.beat("2026-01-01T00:00:00.000000Z", [(job.id, execution, fence, 0)])
    assert wire.converse([heartbeat]) == [[HELD]]
    row = (job.id, execution, 1, 500, b"", "0", "", b"", 0)
    end = {
        "finished": commands.finish([row]),
        "paused": commands.free_permit(f"{job.id}:{execution}", fence, Report.SUCCESS),
    }[how]
    assert wire.converse([end, heartbeat])[1] == [{"finished": LOST, "paused": PERMIT_LOST}[how]]
    wire.close()
    assert gate.sync.status().in_flight == 0


def test_a_stopped_job_and_one_that_fails_give_their_permits_back(real_redis, queue) -> None:
    jobs = [queue.enqueue(chores.fail, "x", retry=None), queue.enqueue(chores.add, 1, 2)]
    jobs.append(queue.enqueue(chores.add, 1, 2, depends_on=jobs[1]))
    burst(real_redis, **gated(1))
    assert [job.get_status() for job in jobs] == ["failed", "finished", "finished"]
    assert TokenBucket(real_redis, "code", limit=1).sync.status().in_flight == 0


def test_a_code_job_holds_no_permit_while_it_backs_off(real_redis, queue, monkeypatch) -> None:
    gate = TokenBucket(real_redis, "code", limit=1)
    with ScriptedFusion(Answer.busy(retry_after=1)) as fusion:
        monkeypatch.setenv("PENSTOCK_SANDBOX_FUSION_URL", fusion.url)
        first = queue.enqueue("worker.jobs.run_code", {"code": "first"}, job_timeout=30)
        second = queue.enqueue("worker.jobs.run_code", {"code": "second"}, job_timeout=30)
        url = url_of(real_redis)
        with killing.Child(work_in_process, url, ["code"], gated(1)):
            until(lambda: second.get_status() == "finished", "the second")
            assert first.get_status() == "started"
            until(lambda: first.get_status() == "finished", "the first")
            until(lambda: gate.sync.status().in_flight == 0, "its permit to be back")
        assert first.return_value()["attempts"] == 2
        assert fusion.peak == 1


def test_a_program_that_was_given_up_keeps_its_permit_beyond_the_jobs_end(
    real_redis, queue, monkeypatch
) -> None:
    """Its answer was cut off, and another attempt has succeeded meanwhile."""
    gate = TokenBucket(real_redis, "code", limit=2)
    with ScriptedFusion(Answer.cut()) as fusion:
        monkeypatch.setenv("PENSTOCK_SANDBOX_FUSION_URL", fusion.url)
        request = {"code": "1", "run_timeout": 300.0}
        job = queue.enqueue("worker.jobs.run_code", request, job_timeout=600)
        with at_work(real_redis, **gated(2)):
            until(lambda: job.get_status() == "finished", "the second attempt")
    assert (job.return_value()["attempts"], gate.sync.status().in_flight) == (2, 1)


def test_a_retry_keeps_its_place_before_the_jobs_that_wait(real_redis, queue, monkeypatch) -> None:
    gate = TokenBucket(real_redis, "code", limit=1)
    with ScriptedFusion() as fusion:
        monkeypatch.setenv("PENSTOCK_SANDBOX_FUSION_URL", fusion.url)
        fusion.programs["blocker"] = Answer.ok(seconds=math.inf)
        names = ["early", "blocker", "late 1", "late 2"]
        jobs = [
            queue.enqueue("worker.jobs.run_code", {"code": name}, job_timeout=60) for name in names
        ]
        fusion.programs["early"] = Answer.refusal(429, retry_after=0, seconds=math.inf)
        with killing.Child(work_in_process, url_of(real_redis), ["code"], gated(1)):
            fusion.wait_until(lambda: fusion.requests == 1)
            until(lambda: gate.sync.status().waiting == 1, "the worker to be in line")
            fusion.programs["early"] = Answer.ok()
            fusion.finish_held()  # early is told to come again; the blocker is next
            fusion.wait_until(lambda: "blocker" in fusion.codes)
            until(lambda: gate.sync.status().waiting == 2, "early to be back in line")
            fusion.finish_held()
            until(lambda: {job.get_status() for job in jobs} == {"finished"}, "all jobs")
        asked = [body["code"] for body in fusion.bodies]
    assert asked == ["early", "blocker", "early", "late 1", "late 2"]


SLOW = {"builds": 1e-6}  # per second


def test_a_claim_takes_no_more_than_each_amount_has_and_takes_it_once(real_redis, queue) -> None:
    gate = TokenBucket(real_redis, "code", limit=20, rates=SLOW, bursts={"builds": 10})
    gate.sync.status()  # makes it
    real_redis.hset("penstock:gate:{code}", "tokens:builds", 5)
    for _ in range(20):
        queue.enqueue(chores.add, 1, 2)
    permit = gate.sync.acquire()
    commands = WorkCommands("code", "me", 30.0, GateCommands("code", gate.terms, "me"))
    wire = Connection(gate.target, 5.0, SCRIPTS)
    (reply,) = wire.converse([commands.claim(20, permit.id)])
    wire.close()
    claim = read_claim(reply, 0.0)
    assert (len(claim.jobs), claim.shut) == (5, True)
    assert abs(float(real_redis.hget("penstock:gate:{code}", "tokens:builds"))) < 0.1


def test_a_worker_waits_for_what_a_gate_earns_of_an_amount(real_redis, queue) -> None:
    gate = TokenBucket(real_redis, "code", limit=20, rates=SLOW)
    gate.sync.status()  # makes it
    jobs = [queue.enqueue(chores.add, 1, 2) for _ in range(5)]
    with at_work(real_redis, **gated(20)):
        until(lambda: gate.sync.status().waiting == 1, "the worker to be in line")
        assert len(queue) == 5
        gate.sync.configure(rates={"builds": 50.0})
        until(lambda: {job.get_status() for job in jobs} == {"finished"}, "all jobs")


def test_jobs_take_what_they_cost_of_the_gate(real_redis, monkeypatch) -> None:
    gate, jobs = TokenBucket(real_redis, "code", limit=8), CodeQueue(real_redis).sync
    with ScriptedFusion(default=Answer.ok(seconds=math.inf)) as fusion:
        monkeypatch.setenv("PENSTOCK_SANDBOX_FUSION_URL", fusion.url)
        handles = [jobs.submit(CodeRequest(code=f"{n}", cost=4)) for n in range(4)]
        with killing.Child(work_in_process, url_of(real_redis), ["code"], gated(8)):
            until(lambda: fusion.in_flight == 2, "two programs to run")
            until(lambda: gate.sync.status().waiting > 0, "the others to wait")
            assert (gate.sync.status().cost, fusion.in_flight) == (8, 2)

            def all_ended() -> bool:
                fusion.finish_held()
                return all(handle.done for handle in handles)

            until(all_ended, "all jobs")
            assert {handle.result(timeout=100).status for handle in handles} == {"Success"}
            until(lambda: gate.sync.status().cost == 0, "their costs to be back")
        assert fusion.peak == 2


def test_under_rqs_own_worker_a_job_takes_what_it_costs(real_redis, monkeypatch) -> None:
    handle = CodeQueue(real_redis).sync.submit(CodeRequest(code="1", cost=4))
    with ScriptedFusion() as fusion:
        stock.run(
            "simple", url_of(real_redis), PENSTOCK_SANDBOX_FUSION_URL=fusion.url,
            PENSTOCK_GATE="code", PENSTOCK_GATE_LIMIT="8",
        )  # fmt: skip
    assert handle.result(timeout=100).status == "Success"
    assert real_redis.hget("penstock:gate:{code}", "weighs") == b"1"
    assert TokenBucket(real_redis, "code", limit=8).sync.status().cost == 0
