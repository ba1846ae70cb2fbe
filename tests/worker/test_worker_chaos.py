"""Four workers killed at random: one result a job, and never more in flight than the limit.

What ran is counted by the scripted sandbox, which shares no code with us.
"""

import json
import random
import threading
import time
from typing import Any

import pytest
from rq import Queue

from limiter import TokenBucket
from tests.harness import killing
from tests.harness.servers import until
from tests.worker.crew import nothing_left, open_queue, work_in_process
from tests.worker.scripted_answers import Answer
from tests.worker.scripted_fusion import ScriptedFusion
from tests.worker.test_worker_delivery import url_of

LIMIT = 16
MAIL = "penstock:client:{chaos}:done"
SETTINGS: dict[str, Any] = {
    "job_lease": 1.0, "gate": "code", "gate_limit": LIMIT, "concurrency": 64, "job_deaths": 20,
}  # fmt: skip


class Crew:
    """Worker processes, some of which are killed while the others work."""

    def __init__(self, url: str, size: int, seed: int) -> None:
        self._url = url
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
        return killing.Child(work_in_process, self._url, ["code"], SETTINGS)


def enqueue(client: Any, count: int) -> list[str]:
    queue = open_queue(client)
    ids = [f"job{n:06d}" for n in range(count)]
    jobs = [
        Queue.prepare_data(
            "worker.jobs.run_code", ({"code": id, "correlation_id": id},), job_id=id,
            timeout=300, result_ttl=3600, failure_ttl=3600,
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


def run_chaos(client: Any, fusion: ScriptedFusion, count: int, every: float, within: float) -> None:
    TokenBucket(client, "code", limit=LIMIT).sync.status()  # makes the gate
    ids = enqueue(client, count)
    crew = Crew(url_of(client), 4, seed=count)
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
    expect_one_result_each(client, ids)
    executions = sum(fusion.executions.values())
    assert set(fusion.executions) == set(ids)
    assert count <= executions <= count + crew.kills * LIMIT, crew.kills
    assert crew.kills >= 3
    assert fusion.peak <= LIMIT


def expect_one_result_each(client: Any, ids: list[str]) -> None:
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
    assert all(json.loads(notice[b"result"])["error_kind"] == "none" for notice in notices)


@pytest.mark.timeout(150)
def test_jobs_survive_workers_that_are_killed_at_random(real_redis, monkeypatch) -> None:
    with ScriptedFusion(default=Answer.ok("ok\n", seconds=0.05)) as fusion:
        monkeypatch.setenv("PENSTOCK_SANDBOX_FUSION_URL", fusion.url)
        run_chaos(real_redis, fusion, 1_500, every=0.8, within=120)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_ten_thousand_jobs_survive_workers_that_are_killed_at_random(
    real_redis, monkeypatch
) -> None:
    with ScriptedFusion(default=Answer.ok("ok\n", seconds=0.05)) as fusion:
        monkeypatch.setenv("PENSTOCK_SANDBOX_FUSION_URL", fusion.url)
        run_chaos(real_redis, fusion, 10_000, every=1.0, within=1000)
