"""One look at the whole fleet, and the figures made of it."""

import asyncio
import json
import shlex
import time
import zlib
from base64 import b64encode
from dataclasses import replace
from datetime import timedelta
from typing import Any

import click
import pytest
from rq.utils import now, utcformat
from rq.worker import BaseWorker, WorkerStatus

import ground
from buffer import Policy, RolloutBuffer, TaskConfig
from buffer.catalog import REWARD_STEPS
from buffer.group_functions import GroupFunctions
from ground.http import exposition
from ground.redis.connect import connect_async, target_of
from limiter import TokenBucket
from penstock.doctor.stored import check_fleet
from penstock.fleet import Fleet, FleetReader, health
from penstock.fleet.figures import families, figures
from penstock.fleet.history import KEPT, History, StoredHistory
from penstock.fleet.jobs import JOB_STATES, jobs_of, jobs_of_worker
from penstock.top.plain import lines_of
from penstock.top.views import overview_of
from tests.harness import killing
from tests.harness.servers import PrivateRedis, until
from tests.worker.concurrent import chores
from tests.worker.concurrent.crew import at_work, burst, open_queue, work_in_process
from tests.worker.lifecycle.cloud import CloudThread
from tests.worker.lifecycle.conftest import quick
from tests.worker.scripted_answers import Answer
from tests.worker.scripted_fusion import ScriptedFusion
from worker import CodeQueue, ConcurrentWorker
from worker.errors import start_a_worker
from worker.lifecycle import SandboxLifecycle
from worker.lifecycle.reaper.reaper import Reaper

SETTINGS = {"job_lease": 1.0, "gate": "code", "gate_limit": 1}


async def look(client: Any, **options: Any) -> Fleet:
    async with FleetReader(target_of(client)) as reader:
        return await reader.read(**options)


def overview(fleet: Fleet) -> list[str]:
    """What `penstock top` shows of it."""
    history = History()
    history.add(fleet)
    return [click.unstyle(line) for line in lines_of(overview_of(fleet, history), 120, 40)]


async def test_an_empty_redis_is_an_empty_fleet(redis: ground.Client) -> None:
    fleet = await look(redis)
    assert (fleet.queues, fleet.workers, fleet.gates, fleet.tasks, fleet.notes) == ((),) * 5
    assert not fleet.used


async def test_a_redis_whose_tasks_are_all_of_another_run_is_unused_in_this_one(
    redis: ground.Client,
) -> None:
    config = TaskConfig(group_size=1)
    buffer = RolloutBuffer(target_of(redis), "math", config, run="exp7")
    await buffer.begin(config)
    await buffer.aclose()
    fleet = await look(redis)
    checking = check_fleet(target_of(redis), "default")
    (finding,) = await asyncio.to_thread(list, checking)
    said = "othing has used this Redis yet in run 'default'"
    assert fleet.level == "unused"
    assert said in fleet.sentence
    assert said in finding.fact
    assert "--run names another run" in fleet.sentence
    assert "--run names another run" in finding.remedy


async def test_a_gate_that_cannot_be_read_is_an_alarm_and_the_others_are_shown(
    real_redis: ground.Client,
) -> None:
    for name in ("readable", "spoiled"):
        await TokenBucket(real_redis, name, limit=3).status()
    real_redis.hset("penstock:gate:{spoiled}", "granted", "many")
    fleet = await look(real_redis)
    assert [gate.name for gate in fleet.gates] == ["readable"]
    (alarm,) = fleet.alarms
    assert (alarm.verdict, alarm.kind, alarm.name) == ("gate_spoiled", "gate", "spoiled")
    assert "'many'" in alarm.text
    assert alarm.remedy.endswith("penstock limits rm spoiled --force")
    assert json.loads(json.dumps(fleet.as_dict()))["run"] == "default"


@pytest.mark.parametrize("spoiled", ["²", "9" * 5000])
async def test_a_jobs_number_that_is_none_ends_no_look(
    spoiled: str, real_redis: ground.Client
) -> None:
    job = open_queue(real_redis).enqueue(chores.fail, "no")
    await asyncio.to_thread(burst, real_redis)
    real_redis.hset(f"rq:job:{job.id}", "penstock_attempts", spoiled)
    with at_work(real_redis) as worker:
        real_redis.sadd(f"rq:worker:{worker.name}:executions", f"{job.id}:{spoiled}")
        fleet = await look(real_redis)
    assert [one.attempts for one in fleet.failed] == [1]
    assert [one.job for one in fleet.workers] == [job.id]


async def test_a_look_makes_no_gate_that_somebody_removes_meanwhile(redis: ground.Client) -> None:
    await TokenBucket(redis, "g", limit=3).status()
    async with FleetReader(target_of(redis)) as reader:
        assert [gate.name for gate in (await reader.gates())[0]] == ["g"]
        redis.delete("penstock:gate:{g}")  # it is still listed
        assert await reader.gates() == ((), {})
        assert await reader.gate_status("g") is None
    assert not redis.exists("penstock:gate:{g}")


async def test_many_gates_and_runs_are_seen_by_the_few_connections_of_a_look(
    real_redis: ground.Client,
) -> None:
    for n in range(101):
        real_redis.hset(f"penstock:gate:{{g{n:03}}}", "limit", n)
        real_redis.sadd("penstock:gates", f"g{n:03}")
        real_redis.sadd("penstock:sandboxes", f"run{n}")
    before: Any = real_redis.info("stats")
    fleet = await look(real_redis)
    after: Any = real_redis.info("stats")
    assert [gate.limit for gate in fleet.gates] == [*range(101)]
    assert len(fleet.registries) == 101
    assert after["total_connections_received"] <= before["total_connections_received"] + 5


def test_a_worker_that_ends_in_order_never_seems_dead(
    real_redis: ground.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def looked_at(worker: ConcurrentWorker) -> None:
        """Its last step, after it has left its queues."""
        seen.extend(one.state for one in asyncio.run(look(real_redis)).workers)
        BaseWorker.teardown(worker)

    monkeypatch.setattr(ConcurrentWorker, "teardown", looked_at, raising=False)
    burst(real_redis)
    assert seen == ["idle"]


async def test_records_that_hold_more_than_we_know_are_read_as_far_as_we_do(
    redis: ground.Client,
) -> None:
    redis.sadd("rq:queues", "rq:queue:code", b"rq:queue:caf\xe9")
    redis.hset("penstock:work:{code}", mapping={"note": "of a newer version", "finished": 7})
    redis.sadd("rq:workers", "rq:worker:newer")
    redis.hset("rq:worker:newer", mapping={
        "queues": "code", "successful_job_count": "3.0", "birth": utcformat(now()),
    })  # fmt: skip
    fleet = await look(redis)
    assert [queue.name for queue in fleet.queues] == ["caf\ufffd", "code"]
    assert fleet.queues[1].counters["finished"] == 7
    assert [worker.finished for worker in fleet.workers] == [0]


async def test_what_another_program_wrote_among_our_keys_does_not_end_the_look(
    real_redis: ground.Client,
) -> None:
    strange = b"caf\xe9"
    queue = open_queue(real_redis)
    queue.enqueue(chores.add, 1, 2)
    for key in ("penstock:gates", "penstock:sandboxes"):
        real_redis.sadd(key, strange)
    real_redis.set("penstock:monitor:{default}:seen", "abc")
    real_redis.zadd("penstock:work:{code}:workers", {strange: 1})
    for state in ("finished", "failed", "wip"):
        real_redis.zadd(f"rq:{state}:code", {strange: 1})
    real_redis.rpush("rq:queue:code", strange)
    buffer = RolloutBuffer(target_of(real_redis), "t", TaskConfig(group_size=1))
    await buffer.begin(TaskConfig(group_size=1))
    await buffer.aclose()
    real_redis.hset("penstock:buffer:{default/t}:gateways", strange, "now {")
    real_redis.hset(b"rq:job:caf\xe9", strange, strange)
    real_redis.sadd("rq:worker:a:executions", strange)
    real_redis.set("rq:worker:b:executions", strange)
    for name, pace, forgotten in (("a", "nan 1", "x"), ("b", "1e400 1", "inf")):
        real_redis.sadd("rq:workers", f"rq:worker:{name}")
        real_redis.hset(f"rq:worker:{name}", mapping={
            "queues": "code", "birth": utcformat(now()), "last_heartbeat": utcformat(now()),
            "penstock_pace": pace, "penstock_forgotten": forgotten,
        })  # fmt: skip
    async with FleetReader(target_of(real_redis)) as reader:
        fleet = await reader.read()
        assert fleet.monitor is None
        assert [(one.name, one.pace, one.forgotten) for one in fleet.workers] == [
            ("a", (0, 1.0), 0.0), ("b", (0, 1.0), 0.0),
        ]  # fmt: skip
        assert [task.gateways for task in fleet.tasks] == [()]
        assert await reader.sandboxes() == []
        assert [gate.name for gate in fleet.gates] == []
        for state in JOB_STATES:
            await jobs_of(reader.client, "code", state)
        await jobs_of_worker(reader.client, fleet.workers[0])


async def test_a_queue_that_nobody_works_on_is_called_that(redis: ground.Client) -> None:
    open_queue(redis).enqueue(chores.add, 1, 2)
    fleet = await look(redis)
    (queue,) = fleet.queues
    assert (queue.name, queue.depth, queue.workers, queue.verdict) == ("code", 1, 0, "no workers")
    assert fleet.notes == (
        "no worker listens on queue 'code', and 1 job waits; start one: penstock worker --sandbox "
        "local code, or with Sandbox Fusion PENSTOCK_SANDBOX_FUSION_URL=http://… penstock worker "
        "code",
    )


async def test_a_queue_whose_workers_are_all_busy_says_so(redis: ground.Client) -> None:
    open_queue(redis).enqueue(chores.add, 1, 2)
    found = []
    for name in ("a", "b"):
        redis.sadd("rq:workers", f"rq:worker:{name}")
        redis.hset(f"rq:worker:{name}", mapping={
            "queues": "code", "state": "busy", "birth": utcformat(now()),
            "last_heartbeat": utcformat(now()),
        })  # fmt: skip
        found.append((await look(redis)).queues[0].reason)
    assert found == ["the only worker is busy", "all 2 workers are busy"]


async def test_a_queue_that_is_named_as_a_share_is_seen_as_a_queue(redis: ground.Client) -> None:
    open_queue(redis).enqueue(chores.add, 1, 2)
    shared = open_queue(redis).enqueue(chores.add, 1, 2)
    open_queue(redis).remove(shared)
    open_queue(redis, "code~share").push_job_id(shared.id)
    redis.sadd("rq:queues", "rq:queue:code~share")
    for _ in range(3):
        open_queue(redis, "code~gpu").enqueue(chores.add, 1, 2)
    found = {one.name: one.depth for one in (await look(redis)).queues}
    assert found == {"code": 2, "code~gpu": 3}


async def test_a_paused_queue_that_nobody_works_on_is_called_both(redis: ground.Client) -> None:
    redis.hset("penstock:work:{code}", "paused", 1)
    redis.sadd("rq:queues", "rq:queue:code")
    (queue,) = (await look(redis)).queues
    said = ("paused", "queue 'code' is paused, and no worker listens")
    assert (queue.verdict, queue.reason) == said
    open_queue(redis).enqueue(chores.add, 1, 2)
    (note,) = (await look(redis)).notes
    assert note.startswith("no worker listens on queue 'code', which is paused, and 1 job waits;")
    assert note.endswith(" code; and `penstock queues resume code` ends the pause")


async def test_workers_that_pass_the_gate_of_others_by_are_told(real_redis: ground.Client) -> None:
    with at_work(real_redis, gate="code", gate_limit=4, job_lease=60.0):
        until(lambda: b"code" in gates_of_workers(real_redis), "the first")
        assert (await look(real_redis)).notes == ()
        with at_work(real_redis, job_lease=60.0):
            until(lambda: b"" in gates_of_workers(real_redis), "the second")
            fleet = await look(real_redis)
            checking = check_fleet(target_of(real_redis), "default")
            examined = await asyncio.to_thread(list, checking)
    said = (
        "workers of queue 'code' differ: 1 takes permits of 'code', 1 takes none, so no limit holds"
    )
    assert fleet.notes == (f"{said}; start all with --gate code",)
    assert overview(fleet)[0].startswith(f"! {said}")
    (finding,) = examined
    assert (finding.verdict, finding.fact, finding.remedy) == (
        "warn", said, "start all with --gate code",
    )  # fmt: skip


async def test_a_paused_gate_is_told_beside_a_queue_of_its_name_that_nobody_works_on(
    redis: ground.Client,
) -> None:
    open_queue(redis).enqueue(chores.add, 1, 2)
    gate = TokenBucket(redis, "code", limit=1)
    await gate.pause()
    waiting = asyncio.create_task(gate.acquire())
    while not (await gate.status()).waiting:  # noqa: ASYNC110 - it waits on a connection of its own
        await asyncio.sleep(0.01)
    fleet = await look(redis)
    waiting.cancel()
    assert [(one.kind, one.verdict) for one in fleet.alarms] == [
        ("queue", "no_worker"), ("gate", "gate_paused"),
    ]  # fmt: skip


def gates_of_workers(client: Any) -> set[bytes | None]:
    return {client.hget(key, "penstock_gate") for key in client.smembers("rq:workers")}


async def test_a_paused_queue_without_jobs_is_in_the_sentence(redis: ground.Client) -> None:
    redis.sadd("rq:queues", "rq:queue:code")
    redis.hset("penstock:work:{code}", "paused", 1)
    first = overview(await look(redis))[0]
    assert first.startswith("All is well, but queue 'code' is paused: 0 workers run 0 jobs")


async def test_what_ended_is_told_with_its_times(real_redis: ground.Client) -> None:
    queue = open_queue(real_redis)
    good, bad = queue.enqueue(chores.add, 1, 2), queue.enqueue(chores.add, 1, "x")
    await asyncio.to_thread(burst, real_redis)
    fleet = await look(real_redis)
    ((done,), (failed,)) = fleet.recent, fleet.failed
    assert (done.id, done.status, failed.id, failed.status) == (
        good.id, "finished", bad.id, "failed",
    )  # fmt: skip
    assert done.took is not None
    assert done.waited is not None
    assert 0 <= done.took < 60
    assert (fleet.queues[0].counters["finished"], fleet.queues[0].counters["failed"]) == (1, 1)


def put_failed(client: Any, id: str, ago: float, kept: float, error: str = "", **more: str) -> None:
    """A job that failed, as RQ keeps it."""
    ended = now() - timedelta(seconds=ago)
    client.sadd("rq:queues", "rq:queue:code")
    row = {"status": "failed", "origin": "code", "ended_at": utcformat(ended), **more}
    client.hset(f"rq:job:{id}", mapping=row)
    client.zadd("rq:failed:code", {id: ended.timestamp() + kept})
    if error:
        client.xadd(f"rq:results:{id}", {"exc_string": b64encode(zlib.compress(error.encode()))})


async def test_the_jobs_that_failed_last_are_first_however_long_others_are_kept(
    redis: ground.Client,
) -> None:
    for n in range(40):
        put_failed(redis, f"old{n:02}", ago=250_000 + n, kept=31_536_000)
    put_failed(redis, "new0", ago=20, kept=86_400)
    put_failed(redis, "new1", ago=10, kept=3_600)
    async with FleetReader(target_of(redis)) as reader:
        fleet = await reader.read()
        first, *_ = pages = [
            await jobs_of(reader.client, "code", "failed", start=start, count=30)
            for start in (0, 30)
        ]
    ids = ["new1", "new0", *(f"old{n:02}" for n in range(40))]
    assert [job.id for job in fleet.failed] == ids[:30] == [job.id for job in first.jobs]
    assert [job.id for page in pages for job in page.jobs] == ids
    assert fleet.sentence.startswith("2 jobs failed in the last 15 minutes")


async def test_jobs_that_their_callers_stop_are_no_failures_and_hide_none(
    redis: ground.Client,
) -> None:
    for n in range(40):
        put_failed(redis, f"stopped{n}", ago=5, kept=3600, status="stopped")
    assert (await look(redis)).level == "well"
    put_failed(redis, "bad", ago=60, kept=3600)
    fleet = await look(redis)
    assert fleet.sentence.startswith("1 job failed in the last 15 minutes")
    assert [job.id for job in fleet.failed] == ["bad"]


async def test_a_job_that_rq_gives_up_has_failed_lately(redis: ground.Client) -> None:
    """RQ notes no moment at which it ended."""
    put_failed(redis, "other", ago=60, kept=3600, error="ValueError: no")
    long_ago = utcformat(now() - timedelta(hours=2))
    put_failed(redis, "given-up", ago=0, kept=3600, error="due to AbandonedJobError",
               enqueued_at=long_ago, started_at=long_ago, ended_at="")  # fmt: skip
    async with FleetReader(target_of(redis)) as reader:
        fleet = await reader.read()
        job = await reader.job("given-up")
    assert job is not None
    assert [part["what"] for part in job["timeline"]] == ["queued", "run"]
    assert [job.id for job in fleet.failed] == ["given-up", "other"]
    assert fleet.sentence.startswith(
        "2 jobs failed in the last 15 minutes, the latest: due to AbandonedJobError"
    )


async def test_an_alarm_is_one_line_that_steers_no_terminal(redis: ground.Client) -> None:
    put_failed(redis, "bad", ago=1, kept=3600, error="ValueError: \x1b[2J\x9b31m\u202e\u061cno")
    redis.sadd("rq:queues", "rq:queue:\x1b[2Jq\nwell  All is well")
    redis.rpush("rq:queue:\x1b[2Jq\nwell  All is well", "job")
    fleet = await look(redis)
    assert len(fleet.notes) == 2
    assert all(note.isprintable() for note in (*fleet.notes, fleet.sentence)), fleet.notes
    assert r"ValueError: \u001b[2J\u009b31m\u202e\u061cno" in fleet.notes[1]


async def test_a_job_that_killed_its_workers_is_an_alarm_beside_many_later_failures(
    redis: ground.Client,
) -> None:
    died = "worker.errors.WorkerDied: 3 workers died as they ran it"
    put_failed(redis, "deadly", ago=60, kept=3600, error=died)
    for n in range(25):
        put_failed(redis, f"later{n}", ago=n, kept=3600, error="ValueError: no")
    fleet = await look(redis)
    assert [alarm.verdict for alarm in fleet.alarms] == ["job_kills_workers", "jobs_failed"]
    assert (
        fleet.alarms[1].text == "25 jobs failed in the last 15 minutes, the latest: ValueError: no"
    )
    for n in range(25, 100):
        put_failed(redis, f"later{n}", ago=100 + n, kept=3600, error="ValueError: no")
    (_, many) = (await look(redis)).alarms
    assert many.text.startswith("at least 29 jobs failed in the last 15 minutes")


async def test_a_program_whose_outcome_is_unknown_counts_as_masked_at_once(
    real_redis: ground.Client,
) -> None:
    """It is a finished job of RQ's, and no heartbeat is waited for."""
    open_queue(real_redis).enqueue("worker.jobs.run_code", {"code": "1"})
    with ScriptedFusion(default=Answer(status=500)) as fusion:
        settings = {"sandbox_fusion_url": fusion.url, "sandbox_attempts": 1}
        with at_work(real_redis, **settings, job_lease=60.0):
            until(lambda: real_redis.zcard("rq:finished:code") == 1, "the job")
            fleet = await look(real_redis)
    assert [(one.finished, one.failed, one.masked) for one in fleet.workers] == [(1, 0, 1)]
    assert fleet.queues[0].counters["masked"] == 1
    assert "masked  failed" in "\n".join(overview(fleet))


async def test_the_gate_that_holds_a_queue_back_is_named(
    real_redis: ground.Client, shared_server: PrivateRedis
) -> None:
    queue = open_queue(real_redis)
    for name in ("first", "second"):
        queue.enqueue(chores.lasts, shared_server.url, name)
    with at_work(real_redis, **SETTINGS) as worker:
        until(lambda: real_redis.hexists("ran", "first"), "the first job runs")
        until(lambda: real_redis.hexists(worker.key, "penstock_gate"), "a heartbeat")
        fleet = await look(real_redis)
        (seen,) = fleet.workers
        assert (seen.name, seen.state, seen.gate, seen.running) == (worker.name, "busy", "code", 1)
        assert abs(seen.job_since - time.time()) < 100
        assert fleet.queues[0].verdict == "held back"
        assert "gate 'code' is full, 1 of 1 permits in flight, and 1 job waits" in fleet.notes[0]
        gate = TokenBucket(real_redis, "code", limit=1)
        gate.sync.pause()
        assert "gate 'code' is paused" in (await look(real_redis)).notes[0]
        real_redis.hset("penstock:work:{code}", "paused", 1)
        both = "queue 'code' is paused, gate 'code' is paused, and 1 job waits; `penstock queues"
        assert both in (await look(real_redis)).notes[0]
        real_redis.hdel("penstock:work:{code}", "paused")
        gate.sync.configure(limit=8)
        gate.sync.resume()
        until(lambda: real_redis.hexists("ran", "second"), "the second job runs")
        assert (await look(real_redis)).queues[0].verdict == "working"
        worker._call(worker._kill_jobs)
        until(lambda: not worker._shift.jobs, "all ended")


async def test_a_killed_worker_is_seen_dead_within_its_heartbeat(
    real_redis: ground.Client, shared_server: PrivateRedis
) -> None:
    with killing.Child(work_in_process, shared_server.url, ["code"], {"job_lease": 1.0}) as child:
        until(lambda: real_redis.zcard("penstock:work:{code}:workers") == 1, "the worker lives")
        await _until_states(real_redis, idle=1)
        child.kill()
    await _until_states(real_redis, dead=1)
    fleet = await look(real_redis)
    assert [queue.workers for queue in fleet.queues] == [0]
    assert "1 worker is silent" in fleet.notes[-1]


async def test_a_worker_that_a_restart_replaced_is_no_longer_shown(
    real_redis: ground.Client, shared_server: PrivateRedis
) -> None:
    started = [["code"], {"job_lease": 1.0}]
    with (
        killing.Child(work_in_process, shared_server.url, *started) as one,
        killing.Child(work_in_process, shared_server.url, *started) as other,
    ):
        until(lambda: real_redis.zcard("penstock:work:{code}:workers") == 2, "both live")
        one.kill()
        other.kill()
    await _until_states(real_redis, dead=2)
    with at_work(real_redis, "other"):
        assert (await look(real_redis)).worker_states == {"idle": 1, "dead": 2}
    with at_work(real_redis, "code"):
        fleet = await look(real_redis)
        assert fleet.worker_states == {"idle": 1, "dead": 1}
        assert "1 worker is silent" in fleet.notes[-1]
        with at_work(real_redis, "code", "other"):
            fleet = await look(real_redis)
            assert (fleet.worker_states, fleet.notes) == ({"idle": 2}, ())


async def test_a_sandbox_that_the_workers_cannot_reach_is_named(real_redis: ground.Client) -> None:
    with ScriptedFusion() as fusion:
        fusion.stop_listening()
        settings = {"sandbox_fusion_url": fusion.url, "sandbox_attempts": 50, "job_lease": 1.0}
        queue = CodeQueue(target_of(real_redis))
        with at_work(real_redis, **settings):
            handle = await queue.submit("print(1)")
            said = f"1 worker cannot reach the sandbox {fusion.url}/run_code; start that sandbox"
            await _until_noted(real_redis, said)
            fusion.listen_again()
            await asyncio.wait_for(handle.result(), 100)
            assert (await look(real_redis)).notes == ()


async def _until_noted(client: Any, said: str) -> None:
    deadline = time.monotonic() + 100
    while said not in "".join(notes := (await look(client)).notes):
        assert time.monotonic() < deadline, f"it is not said: {said}; but {notes}"


async def _until_states(client: Any, **states: int) -> None:
    deadline = time.monotonic() + 100
    while (seen := (await look(client)).worker_states) != states:
        assert time.monotonic() < deadline, f"{seen}, and not {states}"


async def test_a_stock_worker_is_seen_by_its_own_heartbeat(real_redis: ground.Client) -> None:
    from rq import Worker

    worker = Worker([open_queue(real_redis)], connection=real_redis)
    worker.register_birth()
    worker.set_state(WorkerStatus.IDLE)
    assert (await look(real_redis)).worker_states == {"idle": 1}
    real_redis.hset(worker.key, "last_heartbeat", "2020-01-01T00:00:00.000000Z")
    assert (await look(real_redis)).worker_states == {"idle": 1}, "it has a long --worker-ttl"
    real_redis.expire(worker.key, 44)  # its heartbeat was due when 75 s were left
    assert (await look(real_redis)).worker_states == {"dead": 1}
    worker.register_death()


async def test_the_latency_is_that_of_the_last_minute(real_redis: ground.Client) -> None:
    queue = open_queue(real_redis)
    queue.enqueue(chores.add, 1, 2)
    await asyncio.to_thread(burst, real_redis)
    fleet = await look(real_redis)
    history = History()
    assert history.add(fleet).took_median is not None
    later = history.add(replace(fleet, at=fleet.at + 90))
    assert (later.took_median, later.wait_median) == (None, None)
    slow = replace(fleet.recent[0], ended=fleet.at + 89, took=7.0)
    fleet = replace(fleet, at=fleet.at + 90, recent=(slow, *fleet.recent))
    assert history.add(fleet).took_median == 7.0


async def test_monitors_of_a_run_share_a_history_of_bounded_length(redis: ground.Client) -> None:
    fleet = await look(redis)
    client: Any = connect_async(target_of(redis))
    one, other = StoredHistory(client, "exp7"), StoredHistory(client, "exp7")
    for second in range(KEPT + 100):
        point = one.add(replace(fleet, at=1e9 + second))
        await one.store(point)
        if second % 100 == 0:
            await other.store(replace(point, at=point.at + 0.5))
    await other.recall(1e9 + KEPT + 99)
    assert [point.at for point in other.points] == [point.at for point in one.points]
    key = "penstock:monitor:{exp7}:history"
    assert redis.xlen(key) == KEPT
    assert 0 < redis.ttl(key) <= KEPT
    redis.xadd(key, {"point": '{"colour": 1}'})
    late = StoredHistory(client, "exp7")
    await late.recall(1e9 + KEPT + 200)
    assert len(late.points) == KEPT - 100
    await client.aclose()


async def test_a_redis_that_takes_no_writes_is_looked_at_all_the_same(
    real_redis: ground.Client, caplog: pytest.LogCaptureFixture
) -> None:
    client: Any = connect_async(target_of(real_redis))
    history = StoredHistory(client, "exp7")
    real_redis.set("penstock:monitor:{exp7}:history", "not a stream")
    for _ in range(2):
        await history.store(history.add(await look(real_redis)))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "a restart will empty them" in caplog.text
    await client.aclose()


def _item(name: str, reward: float) -> dict[str, Any]:
    return {"instance_id": name, "uid": f"{name}{reward}", "messages": [], "reward": reward}


async def test_groups_and_quarantine_are_shown_with_their_reasons(redis: ground.Client) -> None:
    def broken(*_: object) -> None:
        raise ValueError("no such key: score")

    buffer = RolloutBuffer(
        target_of(redis), "math", TaskConfig(group_size=2),
        functions=GroupFunctions(normalize_group_data=broken),
    )  # fmt: skip
    await buffer.write_many(
        [_item(name, n) for name in "ab" for n in (0, 1)] + [_item("open", 0.5)]
    )
    fleet = await look(redis)
    (task,) = fleet.tasks
    assert (task.groups["ready"], task.groups["open"], task.mean_reward) == (2, 1, 0.5)
    assert {step: n for step, n in zip(REWARD_STEPS, task.reward_counts, strict=True) if n} == {
        "0.0": 2, "0.5": 1, "1.0": 2,
    }  # fmt: skip
    await buffer.take()
    fleet = await look(redis)
    assert {(group.instance_id, group.state) for group in fleet.quarantine} == {
        ("a", "quarantined"), ("b", "quarantined"),
    }  # fmt: skip
    assert all("no such key: score" in group.reason for group in fleet.quarantine)
    assert [alarm.text for alarm in fleet.alarms] == ["task 'math': 2 groups in quarantine"]
    await buffer.aclose()


async def test_versions_are_shown_with_what_a_take_waits_for(redis: ground.Client) -> None:
    buffer = RolloutBuffer(target_of(redis), "math", TaskConfig(group_size=1))
    await buffer.set_policy(Policy(groups_per_version=1, max_age=1))
    assert (await look(redis)).tasks[0].versions is None, "none is published yet"
    await buffer.publish(7)
    await buffer.admit(1, instances=["slow"])
    await buffer.publish(8)
    (slot,) = await buffer.admit(1, instances=["fast"])
    await buffer.write(_item("fast", 1), slot=slot)
    fleet = await look(redis)
    assert json.loads(json.dumps(fleet.as_dict()))["tasks"][0]["versions"]["version"] == 8
    said = overview(fleet)
    assert "VERSIONS" in "\n".join(said)
    (row,) = [line for line in said if "1: 1, 0: 1" in line]
    assert row.split() == ["math", "8", "0", "1:", "1,", "0:", "1", "0:", "1", "1", "0", "slow"]
    await buffer.aclose()


@pytest.mark.parametrize(("dropped", "told"), [(5800, False), (6200, True)])
async def test_a_bias_against_slow_problems_is_told(
    redis: ground.Client, dropped: int, told: bool
) -> None:
    buffer = RolloutBuffer(target_of(redis), "math", TaskConfig(group_size=1))
    await buffer.config()
    made = {"delivered_ms": 20_000, "delivered_timed": 10}
    made |= {"dropped_ms": dropped, "dropped_timed": 2}
    redis.hset("penstock:buffer:{default/math}:state", mapping=made)
    notes = (await look(redis)).notes
    words = "discarded groups took 3.1 s on average, and delivered ones 2 s"
    assert any(words in note for note in notes) is told, notes
    await buffer.aclose()


async def test_a_run_with_more_tasks_than_a_client_has_connections_is_looked_at(
    real_redis: ground.Client,
) -> None:
    for n in range(101):
        real_redis.zadd("penstock:buffer:{default}:tasks", {f"old-{n}": n})  # they have expired
    buffer = RolloutBuffer(target_of(real_redis), "math", TaskConfig(group_size=1))
    await buffer.write(_item("a", 1.0))
    await buffer.aclose()
    assert [task.name for task in (await look(real_redis)).tasks] == ["math"]


async def test_a_rollout_that_failed_is_told(redis: ground.Client) -> None:
    buffer = RolloutBuffer(target_of(redis), "math", TaskConfig(group_size=2))
    await buffer.write(_item("a", 1))
    (task,) = (await look(redis)).tasks
    assert task.rollout == ""
    redis.hset("penstock:buffer:{default/math}:rollout", "state", "failed")
    assert "task 'math': its rollout failed" in (await look(redis)).notes[0]
    await buffer.aclose()


async def test_session_sandboxes_and_why_one_does_not_end_are_shown(
    real_redis: ground.Client, cloud: CloudThread
) -> None:
    life = SandboxLifecycle(real_redis, cloud.provider, run="exp7", settings=quick())
    kept, failing = await life.start(), await life.start()
    cloud.set(down=True)
    assert not await life.stop(failing)
    fleet = await look(real_redis)
    (registry,) = fleet.registries
    assert (registry.states, registry.failing) == ({"READY": 1, "TERMINATING": 1}, 1)
    assert (registry.counters["opened"], registry.reaper) == (2, "")
    first, second = fleet.sandboxes
    assert (first.name, first.failing, first.id) == (failing.name, True, failing.id)
    assert "503: down" in first.trouble
    assert (second.name, second.state, second.starting) == (kept.name, "READY", False)
    assert "run 'exp7': 1 sandbox could not be ended" in fleet.notes[0]
    assert "no reaper watches" in fleet.notes[1]
    page = exposition(families(fleet))
    assert 'penstock_sandboxes{run="exp7",state="READY"} 1.0' in page
    assert 'penstock_sandboxes_failing{run="exp7"} 1.0' in page
    assert 'penstock_sandboxes_total{outcome="handed_over",run="exp7"} 1.0' in page
    history = History()
    assert history.add(fleet).sandboxes == {"READY": 1, "TERMINATING": 1, "failing": 1}
    assert "exp7" in "\n".join(overview(fleet))
    cloud.set(down=False)
    await life.stop(kept)
    reaper = Reaper(life.target, settings=quick())
    await reaper.end("exp7", [failing.name], "enough")
    assert (await look(real_redis)).registries[0].states == {}
    life.registry.close()
    await reaper.close()


async def test_every_figure_is_there_when_somebody_scrapes(redis: ground.Client) -> None:
    gate = TokenBucket(target_of(redis), "code", limit=2, rate=5, burst=3)
    buffer = RolloutBuffer(target_of(redis), "math", TaskConfig(group_size=2))
    await buffer.write_many([_item("a", 0.0), _item("a", 1.0), _item("b", 7.5)])
    with gate:
        async with FleetReader(target_of(redis)) as reader:
            page = exposition(await figures(reader))
    assert 'penstock_gate_in_flight{gate="code"} 1.0' in page
    assert 'penstock_gate_granted_total{gate="code"} 1.0' in page
    assert 'penstock_gate_rate{gate="code"} 5.0' in page
    assert 'penstock_workers{state="dead"} 0.0' in page
    for step, upto in (("-0.1", 0), ("0.0", 1), ("0.9", 1), ("1.0", 2), ("+Inf", 3)):
        labels = f'le="{step}",run="default",task="math"'
        assert f"penstock_buffer_reward_bucket{{{labels}}} {upto}.0" in page
    await buffer.aclose()


@pytest.mark.parametrize("gate", ["code", "heavy; rm"])
async def test_a_worker_is_started_with_the_gate_of_its_queue(
    redis: ground.Client, gate: str
) -> None:
    """Also with that which a dead worker had. Without it no limit would hold."""
    TokenBucket(redis, "code", limit=4).sync.status()
    job = open_queue(redis).enqueue(chores.add, 1, 2)
    if gate != "code":
        redis.sadd("rq:workers", "rq:worker:gone")
        redis.hset("rq:worker:gone", mapping={
            "queues": "code", "penstock_gate": gate, "birth": utcformat(now()),
            "last_heartbeat": utcformat(now() - timedelta(days=1)),
        })  # fmt: skip
    start = f"start one: {start_a_worker('code', gate)}"
    assert f"--gate {shlex.quote(gate)} code" in start
    async with FleetReader(target_of(redis)) as reader:
        assert start in (await reader.read()).notes[0]
        found = await reader.job(job.id)
    assert found is not None
    assert start in found["waits"]


async def test_a_job_that_waits_says_why_and_what_lets_it_in(redis: ground.Client) -> None:
    job = open_queue(redis).enqueue(chores.add, 1, 2)
    async with FleetReader(target_of(redis)) as reader:
        found = await reader.job(job.id)
    assert found is not None
    assert found["waits"].startswith(
        "no worker listens on queue 'code'; start one: penstock worker"
    )


async def test_figures_have_a_bounded_number_of_names(
    real_redis: ground.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: Any = TokenBucket(target_of(real_redis), "g000", limit=2)
    with made:
        pass
    names = [f"g{n:03}" for n in range(300)]
    for name in names[1:]:
        real_redis.copy("penstock:gate:{g000}", f"penstock:gate:{{{name}}}")
    real_redis.sadd("penstock:gates", *names)
    real_redis.sadd("rq:queues", *(f"rq:queue:q{n:03}" for n in range(100)))

    async def gates_and_queues(chosen: str) -> tuple[int, int, str]:
        monkeypatch.setenv("PENSTOCK_METRICS_NAMES", chosen)
        async with FleetReader(target_of(real_redis)) as reader:
            page = exposition(await figures(reader))
        return page.count("penstock_gate_limit{"), page.count("penstock_queue_depth{"), page

    *counted, page = await gates_and_queues("50")
    assert counted == [50, 50]
    assert 'penstock_names_left_out{kind="gate"} 250.0' in page
    *counted, page = await gates_and_queues("g29.|q00.")
    assert counted == [10, 10]
    assert len(page.splitlines()) < 2000


async def test_a_thousand_workers_and_ten_thousand_groups_are_one_look(
    real_redis: ground.Client,
) -> None:
    """Few round trips, however many there are; what is listed is bounded."""
    workers = 1000
    pipe = real_redis.pipeline()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime())
    for n in range(workers):
        pipe.sadd("rq:workers", f"rq:worker:w{n}")
        pipe.hset(f"rq:worker:w{n}", mapping={"birth": stamp, "state": "idle", "queues": "code",
                                              "last_heartbeat": stamp})  # fmt: skip
    for n in range(10_000):
        pipe.zadd("penstock:buffer:{default/math}:ready", {f"g{n}:0": n})
    pipe.hset("penstock:buffer:{default/math}:config", "group_size", 1)
    pipe.zadd("penstock:buffer:{default}:tasks", {"math": 1})
    pipe.execute()
    before = real_redis.info()["total_commands_processed"]
    fleet = await look(real_redis)
    commands = real_redis.info()["total_commands_processed"] - before
    assert (fleet.worker_states, len(fleet.workers)) == ({"idle": workers}, 50)
    assert (fleet.tasks[0].groups["ready"], len(fleet.groups)) == (10_000, 50)
    assert commands < 3 * workers
    assert "penstock_workers" in {family.name for family in families(fleet)}


@pytest.mark.parametrize(
    ("why", "cure"),
    [
        ("http://127.0.0.1:42971/run_code answered HTTP 500", "look at the sandbox's log"),
        ("http://127.0.0.1:15503/run_code answered HTTP 500", "look at the sandbox's log"),
        ("http://127.0.0.1:8080/run_code answered HTTP 429", "lower the gate's limit"),
        ("http://127.0.0.1:8080/run_code answered HTTP 503", "lower the gate's limit"),
    ],
)
def test_the_cure_is_for_the_status_and_not_for_a_port_with_the_same_digits(
    why: str, cure: str
) -> None:
    assert health._cure(why).startswith(cure)
