"""Fleets whose jobs wait: a queue, a gate, a share or all workers hold them."""

import datetime
import math
import subprocess
import sys
from pathlib import Path

import httpx

from ground.redis.url import parse_redis_url
from limiter import TokenBucket
from tests.fleets.surfaces import Fleet
from tests.harness.servers import free_port, until
from tests.worker.concurrent import chores
from tests.worker.concurrent.crew import open_queue
from tests.worker.scripted_answers import Answer
from tests.worker.scripted_fusion import ScriptedFusion

CHORES = ("--allow", "tests.worker.concurrent.chores.*")
RQ = Path(sys.executable).with_name("rq")


def test_a_typo_in_a_queue(fleet: Fleet) -> None:
    port = free_port()
    with ScriptedFusion() as fusion:
        fleet.worker("cdoe", "--metrics-port", str(port), PENSTOCK_SANDBOX_FUSION_URL=fusion.url)
        fleet.submit()
        name = "a typo in a queue"
        fleet.names(name, "no_worker", "no worker listens on queue 'code'", "penstock worker")
        for door in (fleet.page, f"http://127.0.0.1:{port}"):
            assert httpx.get(f"{door}/healthz").status_code == 200, "it takes a pod out of service"
        assert fleet.run("health", "worker").returncode == 0
        fleet.worker("code", PENSTOCK_SANDBOX_FUSION_URL=fusion.url)
        fleet.is_well(name)


def test_a_paused_queue(fleet: Fleet) -> None:
    with ScriptedFusion() as fusion:
        fleet.worker("code", PENSTOCK_SANDBOX_FUSION_URL=fusion.url)
        fleet.do("queues", "pause", "code")
        fleet.submit()
        name = "a paused queue"
        fleet.names(name, "queue_paused", "queue 'code' is paused", "penstock queues resume code")
        fleet.do("queues", "resume", "code")
        fleet.is_well(name)


def test_all_workers_suspended(fleet: Fleet) -> None:
    with ScriptedFusion() as fusion:
        fleet.worker("code", PENSTOCK_SANDBOX_FUSION_URL=fusion.url)
        rq(fleet, "suspend")
        fleet.submit()
        name = "all workers suspended"
        fleet.names(name, "suspended", "all workers are suspended", "rq resume")
        rq(fleet, "resume")
        fleet.is_well(name)


def test_a_closed_gate(fleet: Fleet) -> None:
    with ScriptedFusion() as fusion:
        gate_of_4(fleet, fusion)
        fleet.do("limits", "pause", "code")
        fleet.submit()
        name = "a closed gate"
        fleet.names(name, "gate_paused", "gate 'code' is paused", "penstock limits resume code")
        fleet.do("limits", "resume", "code")
        fleet.is_well(name)


def test_a_gate_that_grants_hardly_anything(fleet: Fleet) -> None:
    """A limit of 0 is refused; a rate can be as good as that."""
    with ScriptedFusion() as fusion:
        gate_of_4(fleet, fusion)
        refused = fleet.run("limits", "set", "code", "--gate-limit", "0")
        assert (refused.returncode, "must be a whole number from 1" in refused.stderr) == (2, True)
        fleet.do("limits", "set", "code", "--rate", "0.001")
        fleet.submit(3)
        name = "a gate that grants hardly anything"
        remedy = "penstock limits set code --rate"
        fleet.names(name, "held_back", "gate 'code' grants 0.001 a second", remedy)
        fleet.do("limits", "set", "code", "--rate", "1000", "--burst", "100")
        fleet.is_well(name)


def test_a_gate_that_is_full(fleet: Fleet) -> None:
    with ScriptedFusion() as fusion:
        gate_of_4(fleet, fusion)
        gate = TokenBucket(parse_redis_url(fleet.url), "code", limit=4)
        held = [gate.sync.acquire() for _ in range(4)]
        fleet.submit()
        name = "a gate that is full"
        fleet.names(name, "held_back", "gate 'code' is full, 4 of 4", "penstock limits set code")
        fleet.do("limits", "set", "code", "--gate-limit", "8")
        fleet.is_well(name)
        for permit in held:
            permit.release()


def test_a_gate_whose_holders_died(fleet: Fleet) -> None:
    with ScriptedFusion(default=Answer.ok(seconds=1000.0)) as fusion:
        words = ("code", "--gate", "code", "--gate-limit", "1")
        dead = fleet.worker(*words, PENSTOCK_SANDBOX_FUSION_URL=fusion.url)
        fleet.submit()
        until(lambda: fusion.in_flight == 1, "the program")
        fleet.worker(*words, PENSTOCK_SANDBOX_FUSION_URL=fusion.url)
        dead.kill()
        dead.wait()
        name = "a gate whose holders died"
        said = "1 of them held by dead workers"
        fleet.names(name, "gate_held_by_the_dead", said, "penstock limits revoke code ")
        fusion.default = Answer.ok()
        [permit] = fleet.client.zrange("penstock:gate:{code}:leases", 0, -1)
        fleet.do("limits", "revoke", "code", permit.decode())
        fleet.is_well(name, but="worker_silent")  # the killed one is, after a while


def test_no_worker_for_a_share(fleet: Fleet) -> None:
    with ScriptedFusion() as fusion:
        fleet.worker("other", PENSTOCK_SANDBOX_FUSION_URL=fusion.url)
        fleet.submit(2, share="evaluation")
        name = "no worker for a share"
        said = "no worker listens on queue 'code', and 2 jobs wait"
        fleet.names(name, "no_worker", said, "penstock worker")
        fleet.worker("code", PENSTOCK_SANDBOX_FUSION_URL=fusion.url)
        fleet.is_well(name)


def gate_of_4(fleet: Fleet, fusion: ScriptedFusion) -> None:
    words = ("--gate", "code", "--gate-limit", "4")
    fleet.worker("code", *words, PENSTOCK_SANDBOX_FUSION_URL=fusion.url)


def rq(fleet: Fleet, command: str) -> None:
    subprocess.run([RQ, command, "-u", fleet.url], check=True, capture_output=True)


def test_jobs_that_nobody_schedules(fleet: Fleet) -> None:
    with ScriptedFusion() as fusion:
        given = {"PENSTOCK_SANDBOX_FUSION_URL": fusion.url}
        fleet.worker("code", *CHORES, **given)
        long_ago = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=1)
        open_queue(fleet.client).enqueue_at(long_ago, chores.nothing)
        name = "jobs that nobody schedules"
        said = "queue 'code': 1 scheduled job is due, and no scheduler enqueues it"
        fleet.names(name, "not_scheduled", said, "--with-scheduler")
        fleet.worker("code", "--with-scheduler", *CHORES, **given)
        fleet.is_well(name)


def test_all_workers_ending(fleet: Fleet) -> None:
    with ScriptedFusion(default=Answer.ok(seconds=math.inf)) as fusion:
        given = {"PENSTOCK_SANDBOX_FUSION_URL": fusion.url}
        ending = fleet.worker("code", "--concurrency", "1", **given)
        fleet.submit()
        until(lambda: fusion.in_flight == 1, "its job runs")
        ending.terminate()
        fleet.submit(3)
        name = "all workers ending, and jobs wait"
        said = "the only worker of queue 'code' takes no new job, and ends when its jobs have"
        fleet.names(name, "workers_ending", said, "penstock worker")
        fusion.default = Answer.ok()
        fleet.worker("code", **given)
        fleet.is_well(name)
