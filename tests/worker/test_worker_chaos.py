"""Four workers killed at random: one result a job, and never more in flight than the limit.

What ran is counted by the scripted sandbox, which shares no code with us.
"""

import json
import random
import sys
import tempfile
import threading
import time
from typing import Any

import pytest
from rq import Queue

from limiter import TokenBucket
from tests.harness import killing
from tests.harness.remains import processes_named
from tests.harness.servers import until
from tests.worker.crew import nothing_left, open_queue, work_in_process
from tests.worker.scripted_answers import Answer
from tests.worker.scripted_fusion import ScriptedFusion
from tests.worker.test_worker_delivery import url_of
from worker.sandbox.fusion import SandboxFusion
from worker.settings import WorkerSettings

LIMIT = 16
TIMES = {"run_timeout": 0.5, "compile_timeout": 0.1}
MAIL = "penstock:client:{chaos}:done"
SETTINGS: dict[str, Any] = {
    "job_lease": 1.0, "gate": "code", "gate_limit": LIMIT, "concurrency": 64, "job_deaths": 20,
}  # fmt: skip


class Crew:
    """Worker processes, some of which are killed while the others work."""

    def __init__(self, url: str, size: int, seed: int, settings: dict[str, Any]) -> None:
        self._url = url
        self._settings = settings
        self._random = random.Random(seed)
        self._children = [self._new() for _ in range(size)]
        self.kills = 0

    def kill_one(self) -> None:
        at = self._random.randrange(len(self._children))
        self._children[at].kill()
        self._children[at].__exit__(None, None, None)
        self._children[at] = self._new()
        self.kills += 1

    def dismiss(self) -> None:
        for child in self._children:
            child.__exit__(None, None, None)

    def _new(self) -> killing.Child:
        return killing.Child(work_in_process, self._url, ["code"], self._settings)


def enqueue(client: Any, count: int, code: str) -> list[str]:
    queue = open_queue(client)
    ids = [f"job{n:06d}" for n in range(count)]
    jobs = [
        Queue.prepare_data(
            "worker.jobs.run_code", ({"code": code.format(id), "correlation_id": id} | TIMES,),
            job_id=id, timeout=300, result_ttl=3600, failure_ttl=3600,
        )
        for id in ids
    ]  # fmt: skip
    for i in range(0, count, 500):
        queue.enqueue_many(jobs[i : i + 500])
    with client.pipeline(transaction=False) as pipe:
        for id in ids:
            pipe.hset(f"rq:job:{id}", "penstock_reply_to", MAIL)
        pipe.execute()
    return ids


def finished(client: Any) -> int:
    return int(client.zcard("rq:finished:code")) + int(client.zcard("rq:failed:code"))


def brisk_fusion(settings: WorkerSettings) -> SandboxFusion:
    """A dead worker's permits are held for as long as its programs may run: here not for long."""
    return SandboxFusion(settings.fusion_urls, margin=1.4)


def in_scripted_sandbox(client: Any, count: int, every: float, within: float) -> None:
    with ScriptedFusion(default=Answer.ok("ok\n", seconds=0.05)) as fusion:
        sandbox = "tests.worker.test_worker_chaos.brisk_fusion"
        settings = SETTINGS | {"sandbox_fusion_url": fusion.url, "sandbox": sandbox}
        ids, kills, _ = run_chaos(client, count, every, within, settings, "{}")
        executions = sum(fusion.executions.values())
        assert set(fusion.executions) == set(ids)
        assert count <= executions <= count + kills * LIMIT, kills
        assert fusion.peak <= LIMIT


def in_embedded_sandbox(client: Any, count: int, every: float, within: float) -> None:
    """Each worker has a fork server of its own, which must not outlive it."""
    with tempfile.TemporaryDirectory() as mark, pytest.MonkeyPatch.context() as environment:
        environment.setenv("PENSTOCK_SANDBOX_EXPOSE", mark)
        settings = SETTINGS | {"sandbox": "local", "concurrency": 8}
        ids, _, outputs = run_chaos(client, count, every, within, settings, "print('{}')")
        assert outputs == {id: f"{id}\n" for id in ids}
        until(lambda: processes_named(mark) == [], "every sandbox to be dead")


def run_chaos(
    client: Any, count: int, every: float, within: float, settings: dict[str, Any], code: str
) -> tuple[list[str], int, dict[str, str]]:
    """The jobs, the kills among those who ran them, and what each job's program printed."""
    TokenBucket(client, "code", limit=LIMIT).sync.status()  # makes the gate
    ids = enqueue(client, count, code)
    crew = Crew(url_of(client), 4, count, settings)
    pause, deadline = threading.Event(), time.monotonic() + within
    try:
        while finished(client) < count:
            assert time.monotonic() < deadline, (finished(client), nothing_left(client))
            pause.wait(every)
            if finished(client) < count * 0.9:
                crew.kill_one()
        until(lambda: nothing_left(client) == {}, "everything to be put away")
    finally:
        crew.dismiss()
    assert crew.kills >= 3
    return ids, crew.kills, expect_one_result_each(client, ids)


def expect_one_result_each(client: Any, ids: list[str]) -> dict[str, str]:
    with client.pipeline(transaction=False) as pipe:
        for id in ids:
            pipe.xlen(f"rq:results:{id}")
            pipe.hget(f"rq:job:{id}", "status")
            pipe.ttl(f"rq:job:{id}")
        replies = pipe.execute()
    assert set(replies[::3]) == {1}
    assert set(replies[1::3]) == {b"finished"}
    assert min(replies[2::3]) > 0
    notices = [fields for _, fields in client.xrange(MAIL)]
    assert sorted(notice[b"job"].decode() for notice in notices) == ids
    results = {n[b"job"].decode(): json.loads(n[b"result"]) for n in notices}
    assert {result["error_kind"] for result in results.values()} == {"none"}
    return {id: result["run_result"]["stdout"] for id, result in results.items()}


@pytest.mark.timeout(150)
def test_jobs_survive_workers_that_are_killed_at_random(real_redis) -> None:
    in_scripted_sandbox(real_redis, 1_500, every=1.5, within=120)


@pytest.mark.skipif(sys.platform != "linux", reason="the embedded sandbox is Linux's")
@pytest.mark.timeout(150)
def test_jobs_in_the_embedded_sandbox_survive_the_death_of_their_workers(real_redis) -> None:
    in_embedded_sandbox(real_redis, 300, every=1.5, within=120)


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("run", [in_scripted_sandbox, in_embedded_sandbox])
def test_ten_thousand_jobs_survive_workers_that_are_killed_at_random(real_redis, run) -> None:
    run(real_redis, 10_000, every=3.0, within=1000)
