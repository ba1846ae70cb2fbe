"""Whoever dies, and whenever: a job has one result, its trainer has it, and nothing is left.

Three may die (the trainer, its worker, Redis) at each place on a job's way (`kill_points`), with
a gate and without. The quick run has each place with each death; the long one each gate too.
"""

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from rq import Callback

import ground
from limiter import TokenBucket
from tests.harness import doomed, killing
from tests.harness.servers import PrivateRedis, until, url_of
from tests.worker.concurrent import chaos, chores
from tests.worker.concurrent.crew import (
    HEIR,
    LEASE,
    TIMES,
    at_work,
    nothing_left,
    open_queue,
    parked,
    work_in_process,
)
from tests.worker.kill_points import RQS_WAY, TRAINERS_WAY, WORKERS_WAY, KillPoint
from worker import CodeQueue, CodeRequest

TOKEN = "the-job"
FOREVER = {"job_lease": 60.0}  # no lease ends: what runs twice was run twice by mistake
GATES: dict[str, dict[str, Any]] = {"no gate": {}, "gated": {"gate": "code", "gate_limit": 1}}
BRISK = {"sandbox": "tests.worker.concurrent.crew.brisk_fusion"}


def cells(points: list[KillPoint], who: list[str]) -> list[Any]:
    """Each place with each death, and either gate by turns; the other one in the long run."""
    marks = itertools.cycle([[], [pytest.mark.soak], [pytest.mark.soak], []])
    return [
        pytest.param(point, dies, gate, marks=next(marks), id=f"{dies} dies as {point}, {gate}")
        for point, dies, gate in itertools.product(points, who, GATES)
    ]


@dataclass
class Scene:
    """A Redis that may die, and what the workers on it are told."""

    client: Any
    url: str
    settings: dict[str, Any]
    redis_dies: Callable[[], object]

    def worker(self, at: killing.Point | None = None, **more: Any) -> killing.Child:
        return killing.Child(work_in_process, self.url, ["code"], self.settings | more, at=at)

    def heir(self) -> contextlib.AbstractContextManager[Any]:
        return at_work(self.client, **self.settings | HEIR)

    def expect_one_result(self, job: str) -> None:
        until(lambda: nothing_left(self.client) == {}, "everything to be put away")
        assert self.client.hget(f"rq:job:{job}", "status") == b"finished"
        assert self.client.xlen(f"rq:results:{job}") == 1
        assert self.client.ttl(f"rq:job:{job}") > 0
        if "gate" in self.settings:
            gate = TokenBucket(self.client, "code", limit=1)
            until(lambda: gate.sync.status().in_flight == 0, "the permit to be back")


@pytest.fixture
def scene(request: pytest.FixtureRequest, dies: str, gate: str) -> Iterator[Scene]:
    settings = GATES[gate] | BRISK
    if dies != "Redis":
        client = request.getfixturevalue("real_redis")
        yield Scene(client, url_of(client), settings, lambda: None)
        return
    start: Callable[..., PrivateRedis] = request.getfixturevalue("private_redis")
    server = start(aof=True, config=["appendfsync always"])
    with contextlib.closing(ground.connect(server.target)) as client:
        yield Scene(client, server.url, settings, server.restart)


async def train(url: str) -> bool:
    """The trainer, whose next life asks for the same token."""
    queue = CodeQueue(url, "code", abandon="keep")
    handle = await queue.submit(CodeRequest(code="1", **TIMES), token=TOKEN, timeout=100)
    doomed.reached("waits")
    result = await handle.result()
    doomed.reached("has the result")
    return result.ok


@pytest.mark.parametrize(
    ("point", "dies", "gate"), cells(WORKERS_WAY, ["trainer", "worker", "Redis"])
)
def test_at_each_place_of_the_workers_way(scene: Scene, point, dies, fusion) -> None:
    with killing.Child(train, scene.url) as trainer:
        trainer.wait_for("waits")
        if dies == "worker":
            with scene.worker(point.at, job_lease=LEASE) as worker:
                assert worker.outcome().killed
            with scene.heir():
                assert trainer.outcome().returned is True
                scene.expect_one_result(TOKEN)
        else:
            with scene.worker(point.frozen, **FOREVER) as worker:
                worker.wait_for(point.at.where)
                trainer.kill() if dies == "trainer" else scene.redis_dies()
                worker.thaw()
                if dies == "trainer":
                    assert killing.run(train, scene.url).returned is True
                else:
                    assert trainer.outcome().returned is True
                scene.expect_one_result(TOKEN)
    assert fusion.executions == {TOKEN: point.runs if dies == "worker" else 1}


@pytest.mark.parametrize(
    ("point", "dies", "gate"), cells(TRAINERS_WAY, ["trainer", "worker", "Redis"])
)
def test_at_each_place_of_the_trainers_way(scene: Scene, point, dies, fusion) -> None:
    lease = {"job_lease": LEASE} if dies == "worker" else FOREVER
    at = point.at if dies == "trainer" else point.frozen
    with contextlib.ExitStack() as running:
        worker = running.enter_context(scene.worker(**lease))
        until(lambda: parked(scene.client) == 1, "the worker to wait for a job")
        trainer = running.enter_context(killing.Child(train, scene.url, at=at))
        if dies == "trainer":
            assert trainer.outcome().killed
            assert killing.run(train, scene.url).returned is True
            scene.expect_one_result(TOKEN)
        else:
            trainer.wait_for(point.at.where)
            worker.kill() if dies == "worker" else scene.redis_dies()
            trainer.thaw()
            with scene.heir() if dies == "worker" else contextlib.nullcontext():
                assert trainer.outcome().returned is True
                scene.expect_one_result(TOKEN)
    assert fusion.executions[TOKEN] in ((1, 2) if dies == "worker" else (1,))


@pytest.mark.parametrize(("point", "dies", "gate"), cells(RQS_WAY, ["worker", "Redis"]))
def test_at_each_place_of_an_end_in_rqs_own_way(scene: Scene, point, dies) -> None:
    """Its trainer only enqueues, so that its death is none of the job's."""
    queue = open_queue(scene.client)
    callback = Callback(chores.on_success)
    job = queue.enqueue(chores.told, scene.url, "it", on_success=callback)
    after = queue.enqueue(chores.add, 1, 2, depends_on=job)
    at, lease = (point.at, {"job_lease": LEASE}) if dies == "worker" else (point.frozen, FOREVER)
    with scene.worker(at, **lease) as worker:
        if dies == "worker":
            assert worker.outcome().killed
        else:
            worker.wait_for(point.at.where)
            scene.redis_dies()
            worker.thaw()
        with scene.heir() if dies == "worker" else contextlib.nullcontext():
            until(lambda: after.get_status() == "finished", "the dependent")
            scene.expect_one_result(job.id)
    assert scene.client.hget("ran", "it") == str(point.runs if dies == "worker" else 1).encode()


# And at random


SHARES = ("training", "evaluation", "")


def test_jobs_of_several_shares_survive_workers_that_are_killed_at_random(real_redis) -> None:
    chaos.in_scripted_sandbox(real_redis, 1_000, every=200, within=250, shares=SHARES)


@pytest.mark.skipif(sys.platform != "linux", reason="the embedded sandbox is Linux's")
def test_jobs_in_the_embedded_sandbox_survive_the_death_of_their_workers(real_redis) -> None:
    chaos.in_embedded_sandbox(real_redis, 300, every=40, within=250)


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("run", [chaos.in_scripted_sandbox, chaos.in_embedded_sandbox])
def test_ten_thousand_jobs_survive_workers_that_are_killed_at_random(real_redis, run) -> None:
    run(real_redis, 10_000, every=200, within=1000)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_ten_thousand_jobs_of_several_shares_survive_four_kills(real_redis) -> None:
    ran = chaos.in_scripted_sandbox(real_redis, 10_000, every=2_000, within=1000, shares=SHARES)
    assert ran["kills"] >= 4
