"""rq-dashboard beside our workers: it shows them and their jobs, and its buttons work."""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness import leash
from tests.harness.nursery import ROOT
from tests.harness.servers import free_port, until, url_of
from tests.worker.concurrent import chores
from tests.worker.concurrent.crew import at_work, nothing_left, open_queue
from worker import CodeQueue

BIN = Path(sys.executable).parent
DOCUMENTED = {
    line.removeprefix("$ ")
    for page in ("watch.md", "rq.md")
    for line in (ROOT / "docs" / "guide" / page).read_text().splitlines()
    if line.startswith("$ rq-dashboard ")
}


class Dashboard:
    """Started as the docs say."""

    def __init__(self, url: str) -> None:
        self._at = f"http://127.0.0.1:{(port := free_port())}"
        (command,) = DOCUMENTED
        self.process = leash.start(
            ["sh", "-c", f"exec {command} --port {port}"],
            env=os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}", "PENSTOCK_REDIS_URL": url},
            cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def page(self, path: str) -> str:
        with urllib.request.urlopen(self._at + path, timeout=150) as answer:
            return answer.read().decode()

    def data(self, path: str) -> Any:
        return json.loads(self.page(f"/0/data/{path}"))

    def press(self, path: str) -> Any:
        request = urllib.request.Request(self._at + path, data=b"", method="POST")
        with urllib.request.urlopen(request, timeout=150) as answer:
            return json.loads(answer.read())

    def answers(self) -> bool:
        assert self.process.poll() is None, "rq-dashboard does not start"
        try:
            return bool(self.page("/"))
        except OSError:
            return False


@pytest.fixture
def dashboard(real_redis: Any) -> Iterator[Dashboard]:
    dashboard = Dashboard(url_of(real_redis))
    until(dashboard.answers, "rq-dashboard")
    yield dashboard
    dashboard.process.kill()
    dashboard.process.wait()


def jobs(dashboard: Dashboard, registry: str) -> list[str]:
    return [job["id"] for job in dashboard.data(f"jobs/code/{registry}/8/asc/1.json")["jobs"]]


def test_it_shows_workers_and_jobs_in_every_state(real_redis, dashboard) -> None:
    queue, url = open_queue(real_redis), url_of(real_redis)
    with at_work(real_redis, concurrency=2) as worker:
        done, failed = queue.enqueue(chores.add, 1, 2), queue.enqueue(chores.fail, "no such thing")
        until(lambda: failed.get_status() == "failed", "the one that fails")
        running = [queue.enqueue(chores.lasts, url, f"{n}") for n in range(2)]
        waiting = queue.enqueue(chores.add, 3, 4)
        until(lambda: real_redis.hlen("ran") == 2, "two to run")
        (shown,) = dashboard.data("queues.json")["queues"]
        counts = {name: shown[f"{name}_job_registry_count"] for name in ("started", "finished")}
        assert (shown["name"], shown["count"]) == ("code", 1)
        assert counts == {"started": 2, "finished": 1}
        assert set(jobs(dashboard, "started")) == {job.id for job in running}
        assert jobs(dashboard, "queued") == [waiting.id]
        assert jobs(dashboard, "failed") == [failed.id]
        assert dashboard.data(f"job/{done.id}.json")["result"] == 3
        assert "no such thing" in dashboard.data(f"job/{failed.id}.json")["exc_info"]
        (busy,) = dashboard.data("workers.json")["workers"]
        assert busy["current_job"]["job_id"] in {job.id for job in running}
        assert (busy["name"], busy["state"], busy["queues"]) == (worker.name, "busy", ["code"])
        assert (busy["successful_job_count"], busy["failed_job_count"]) == (1, 1)
        for page in ("/", "/0/view/workers", "/0/view/jobs", f"/0/view/job/{running[0].id}"):
            assert "RQ dashboard" in dashboard.page(page)
        worker._call(worker._kill_jobs)
        until(lambda: nothing_left(real_redis) == {}, "everything to be put away")


def test_jobs_of_a_share_are_shown_in_its_queue_and_its_buttons_lose_none(
    real_redis, dashboard
) -> None:
    queue = CodeQueue(real_redis, "code", abandon="keep").sync
    for n in range(4):
        queue.submit("1", share="training", token=f"job{n}")
    shown = dashboard.data("jobs/code~training/queued/8/asc/1.json")["jobs"]
    assert [job["id"] for job in shown] == ["job1", "job2", "job3"]  # job0 is next, in `code`
    assert dashboard.press("/job/job2/delete") == {"status": "OK"}
    shown = dashboard.data("jobs/code~training/queued/8/asc/1.json")["jobs"]
    assert [job["id"] for job in shown] == ["job1", "job3"]
    assert dashboard.press("/queue/code~training/compact") == {"status": "OK"}
    assert real_redis.lrange("rq:queue:code~training", 0, -1) == [b"job1", b"job3"]
    assert dashboard.press("/queue/code~training/queued/empty") == {"status": "OK"}
    counts = {one["name"]: one["count"] for one in dashboard.data("queues.json")["queues"]}
    assert counts == {"code": 1, "code~training": 0}


def test_what_is_requeued_emptied_or_deleted_there_is_so_for_our_workers(
    real_redis, dashboard
) -> None:
    queue, url = open_queue(real_redis), url_of(real_redis)
    with at_work(real_redis, concurrency=1):
        job = queue.enqueue(chores.fail_until, url, "it", 1)
        until(lambda: job.get_status() == "failed", "the one that fails")
        assert dashboard.press("/requeue/code") == {"status": "OK", "count": 1}
        until(lambda: job.get_status() == "finished", "it to be run once more")
        held = queue.enqueue(chores.waits_for, url, "go")
        until(lambda: held.get_status() == "started", "one to run")
        waiting = [queue.enqueue(chores.told, url, str(n)) for n in range(3)]
        assert dashboard.press(f"/job/{waiting[0].id}/delete") == {"status": "OK"}
        assert queue.job_ids == [job.id for job in waiting[1:]]
        assert dashboard.press("/queue/code/queued/empty") == {"status": "OK"}
        real_redis.rpush("go", "now")
        until(lambda: held.get_status() == "finished", "the one that ran")
        after = queue.enqueue(chores.add, 1, 2)
        until(lambda: after.get_status() == "finished", "the next")
    assert real_redis.hlen("ran") == 0
    assert nothing_left(real_redis) == {}
