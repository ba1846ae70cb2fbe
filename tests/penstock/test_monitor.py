"""The monitor over HTTP: what it shows, what it changes, and for whom."""

import json
import re
import threading
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from rq import Queue
from rq.registry import FailedJobRegistry
from rq.serializers import JSONSerializer

import ground
from buffer import RolloutBuffer, TaskConfig
from ground.process import from_thread
from ground.redis.connect import target_of
from jail.models import CodeRequest
from limiter import TokenBucket, remove_gate
from limiter import engine as engines
from penstock.changes.jobs import change_jobs
from penstock.fleet import FleetReader
from penstock.monitor.page import files, page
from penstock.monitor.views import MOST
from penstock.monitor.watch import Watch
from tests.harness import patient
from tests.harness.servers import PrivateRedis, until
from tests.penstock.serving import monitor
from tests.worker.concurrent import chores
from tests.worker.concurrent.crew import at_work, burst, open_queue
from tests.worker.lifecycle.cloud import CloudThread
from tests.worker.lifecycle.conftest import quick
from worker.lifecycle import SandboxLifecycle
from worker.queue.order import data_of

TOKEN = {"Authorization": "Bearer secret"}
JSON = {"Content-Type": "application/json"}


@contextmanager
def asking(server: PrivateRedis) -> Iterator[httpx.Client]:
    """A client with the token of a monitor that is its own."""
    with (
        monitor(server.url, PENSTOCK_MONITOR_TOKEN="secret") as url,
        httpx.Client(base_url=url, headers=TOKEN, timeout=150) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def one_monitor(shared_server: PrivateRedis) -> Iterator[httpx.Client]:
    with asking(shared_server) as client:
        yield client


@pytest.fixture
def guarded(one_monitor: httpx.Client, real_redis: ground.Client) -> httpx.Client:
    """Of one monitor for all tests, over a Redis that each finds empty."""
    return one_monitor


def make_task(redis: ground.Client, name: str) -> None:
    buffer = RolloutBuffer(redis, name, TaskConfig(group_size=2)).sync
    buffer.config()
    buffer.close()


def test_all_but_health_is_behind_the_token(guarded: httpx.Client) -> None:
    for path in ("/", "/api/fleet", "/api/events", "/metrics", "/api/jobs/x", "/api/gates/x"):
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            assert patient.get(guarded.base_url.join(path), headers=headers).status_code == 401
    shown = patient.get(guarded.base_url.join("/"))
    assert "A token is needed" in shown.text
    policy = shown.headers["content-security-policy"]
    assert "default-src 'none'; script-src 'self';" in policy
    assert "require-trusted-types-for 'script'" in policy
    assert guarded.get("/").status_code == 200
    assert patient.get(guarded.base_url.join("/healthz")).json()["status"] == "healthy"
    assert "penstock_workers" in guarded.get("/metrics").text


def test_a_head_is_answered_and_a_refused_method_names_those_there_are(
    guarded: httpx.Client,
) -> None:
    for path in ("/", "/api/events", "/api/fleet"):  # on one connection
        found = guarded.head(path)
        assert (found.status_code, found.content) == (200, b"")
    assert guarded.put("/api/gates/a/b", json={}).headers["allow"] == "GET, HEAD, POST"


def test_gates_jobs_and_their_programs(guarded: httpx.Client, real_redis: ground.Client) -> None:
    gate = TokenBucket(real_redis, "runs/code", limit=2)
    gate.sync.configure(limit=2)
    at = "/api/gates/runs/code"
    assert guarded.post(at, json={"paused": True}).json()["paused"] is True
    assert guarded.post(at, json={"paused": False, "limit": 7}).json()["limit"] == 7
    assert gate.sync.status().limit == 7
    for wrong in ({"limit": 0}, {"limit": "many"}, {"burst": 5}, {"colour": 1}, {}, [1]):
        assert guarded.post(at, json=wrong).status_code == 400
    assert guarded.post("/api/gates/none", json={"limit": 1}).status_code == 404
    queue = open_queue(real_redis)
    failing = queue.enqueue(chores.add, 1, "x")
    burst(real_redis)
    seen = guarded.get(f"/api/jobs/{failing.id}").json()
    assert (seen["status"], seen["call"]["arguments"]) == ("failed", [[1, "x"], {}])
    assert "TypeError" in seen["error"]
    assert "its job failed, no fault of the program: TypeError" in seen["why"]["sentence"]
    assert guarded.get(f"/api/why/{failing.id}").json()["found"] == [seen["why"]]
    assert "nothing has the id 'x/y'" in guarded.get("/api/why/x/y").json()["message"]
    assert guarded.post(f"/api/jobs/{failing.id}/requeue").json() == {"done": True}
    assert len(queue) == 1
    assert guarded.post(f"/api/jobs/{failing.id}/requeue").status_code == 409
    assert FailedJobRegistry(queue=queue, serializer=JSONSerializer).get_job_ids() == []


def test_a_gate_whose_name_looks_like_a_path_is_the_one_that_is_changed(
    guarded: httpx.Client, real_redis: ground.Client
) -> None:
    for name in ("code", "x/../code"):
        TokenBucket(real_redis, name, limit=2).sync.configure(limit=2)
    at = "/api/gates/x%2F..%2Fcode"  # as the page has it: clients make /api/gates/code of x/../code
    answer = guarded.post(at, json={"limit": 7})
    assert answer.json().get("name") == "x/../code", answer.text
    assert TokenBucket(real_redis, "code", limit=2).sync.status().limit == 2


def test_a_look_at_a_gate_that_was_removed_does_not_make_it_again(
    guarded: httpx.Client, real_redis: ground.Client
) -> None:
    with TokenBucket(real_redis, "gone", limit=2):
        assert guarded.get("/api/gates/gone").status_code == 200
    engines.stop_all()
    remove_gate(real_redis, "gone", force=True)
    assert guarded.get("/api/gates/gone").status_code == 404
    assert guarded.post("/api/gates/gone", json={"paused": True}).status_code == 404
    assert not real_redis.exists("penstock:gate:{gone}")


def test_what_the_page_loads_comes_without_a_token_and_nothing_else_of_the_disk_does(
    guarded: httpx.Client,
) -> None:
    at = guarded.base_url
    for name, (kind, text) in files().items():
        found = patient.get(at.join(f"/static/{name}"))
        assert (found.status_code, found.text) == (200, text)
        assert found.headers["content-type"].startswith(kind)
        assert found.headers["x-content-type-options"] == "nosniff"
    for name in ("page.py", "page.html", "../page.py", "..%2Fpage.py", ""):
        assert patient.get(at.join(f"/static/{name}")).status_code in (401, 404)
    assert patient.post(at.join("/static/main.js")).status_code == 401


def test_the_page_makes_no_html_of_text_and_loads_nothing_from_elsewhere() -> None:
    sources = {name: text for name, (_, text) in files().items()} | {"page.html": page()}
    for name, text in sources.items():
        banned = ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "style=",
                  "https://", "http://", "javascript:", "@import")  # fmt: skip
        assert [word for word in banned if word in text] == [], name
        for wanted in re.findall(r'from "([^"]*)"', text):
            assert (Path("/") / name).parent.joinpath(wanted).resolve().relative_to(
                "/"
            ).as_posix() in sources, f"{name} loads {wanted}"


def test_a_program_is_shown_and_a_pickle_is_never_opened(
    guarded: httpx.Client, real_redis: ground.Client
) -> None:
    real_redis.hset(
        "rq:job:code",
        mapping={"status": "queued", "data": data_of(CodeRequest(code="print('<b>hi</b>')"), "")},
    )
    assert guarded.get("/api/jobs/code").json()["call"]["code"] == "print('<b>hi</b>')"
    real_redis.hset("rq:job:evil", mapping={"status": "queued", "data": b"\x80\x04cos\nsystem\n."})
    assert "not opened" in guarded.get("/api/jobs/evil").json()["call"]["note"]
    deep = "[" * 100_000 + "]" * 100_000
    real_redis.hset("rq:job:deep", mapping={"status": "finished", "data": deep})
    real_redis.xadd("rq:results:deep", {"type": 1, "return_value": b64encode(deep.encode())})
    seen = guarded.get("/api/jobs/deep").json()
    assert "not opened" in seen["call"]["note"]
    assert "not shown" in seen["result"]
    assert guarded.get("/api/jobs/none").status_code == 404


def test_sandboxes_are_ended_from_the_page_and_one_that_cannot_be_says_why(
    cloud: CloudThread, real_redis: ground.Client, shared_server: PrivateRedis
) -> None:
    """The monitor must know the provider."""
    life = SandboxLifecycle(real_redis, cloud.provider, run="exp7", settings=quick())
    one, other = from_thread(life.start()), from_thread(life.start())
    with asking(shared_server) as guarded:
        assert guarded.post("/api/sandboxes/exp7/reap").json()["ended"] == []
        assert guarded.post("/api/sandboxes/exp7/penstock-none/end").status_code == 404
        ended = guarded.post(f"/api/sandboxes/exp7/{one.name}/end")
        assert ended.json()["ended"] == [one.name]
        assert cloud.live == 1
        cloud.set(down=True)
        refused = guarded.post(f"/api/sandboxes/exp7/{other.name}/end")
        assert (refused.status_code, "503: down" in refused.json()["message"]) == (409, True)
        (shown,) = guarded.get("/api/fleet").json()["sandboxes"]
        assert (shown["name"], shown["failing"]) == (other.name, True)
        cloud.set(down=False)
        assert guarded.post(f"/api/sandboxes/exp7/{other.name}/end").status_code == 200
        assert cloud.live == 0
    life.registry.close()


def test_the_stream_gives_what_went_before_and_then_every_look(guarded: httpx.Client) -> None:
    events: list[tuple[str, Any]] = []
    with guarded.stream("GET", "/api/events") as stream:
        assert stream.headers["x-may-act"] == "1"
        lines = stream.iter_lines()
        while len(events) < 3:
            event = next(lines).removeprefix("event: ")
            data = json.loads(next(lines).removeprefix("data: "))
            if event != "trouble":  # a look while the test before was wiped away
                events.append((event, data))
            next(lines)
    assert [event for event, _ in events] == ["history", "fleet", "fleet"]
    assert events[2][1]["fleet"]["at"] > events[1][1]["fleet"]["at"]


async def test_a_run_that_nobody_watched_is_looked_at_before_it_is_shown(
    shared_server: PrivateRedis, real_redis: ground.Client
) -> None:
    async with FleetReader(shared_server.url, "rested") as reader:
        watch = Watch(reader, always=False)

        async def shown_first() -> float:
            async with aclosing(watch.news()) as news:
                async for said in news:
                    if said.startswith("event: fleet"):
                        return float(json.loads(said.partition("data: ")[2])["fleet"]["at"])
            raise AssertionError("it ended")

        await shown_first()
        began = await reader.now()
        assert await shown_first() > began
        await watch.close()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"round": 0}', "instance_id"),
        (b'{"instance_id": null}', "instance_id"),
        (b'{"instance_id": "a", "round": "x"}', "round: "),
        (b"[" * 4096, "parsing the body"),
        (b"{", "Expecting"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_an_action_that_makes_no_sense_is_refused_in_a_sentence(
    guarded: httpx.Client, real_redis: ground.Client, body: bytes, said: str
) -> None:
    make_task(real_redis, "math")
    refused = guarded.post("/api/groups/math/requeue", content=body, headers=JSON)
    assert refused.status_code == 400
    assert said in refused.json()["message"]


def test_a_number_that_is_none_is_refused_or_left_out(
    guarded: httpx.Client, real_redis: ground.Client
) -> None:
    make_task(real_redis, "math")
    for none in ("\u00b2", "x", "9" * 5000):
        asked = guarded.get("/api/groups/math", params={"instance_id": "a", "round": none})
        assert (asked.status_code, "round" in asked.json()["message"]) == (400, True)
        assert guarded.get("/api/fleet", params={"workers": none}).status_code == 200


def test_without_a_token_it_shows_and_changes_nothing(
    shared_server: PrivateRedis, real_redis: ground.Client
) -> None:
    TokenBucket(real_redis, "code", limit=2).sync.configure(limit=2)
    with monitor(shared_server.url) as url:
        assert patient.get(f"{url}/").status_code == 200
        assert patient.get(f"{url}/api/fleet?workers=9").json()["may_act"] is False
        refused = patient.post(f"{url}/api/gates/code", json={"paused": True})
        assert refused.status_code == 403
        assert "PENSTOCK_MONITOR_TOKEN" in refused.json()["message"]


def changed(client: httpx.Client, do: str, *ids: str) -> Any:
    return client.post("/api/jobs", json={"do": do, "ids": ids}).json()


def test_jobs_are_retried_cancelled_and_deleted_one_or_many(
    guarded: httpx.Client, real_redis: ground.Client
) -> None:
    queue = open_queue(real_redis)
    failed = queue.enqueue(chores.add, 1, "x")
    done = queue.enqueue(chores.gives, {"error_kind": "user"})
    burst(real_redis)
    real_redis.hset(done.key, "penstock_abandon", "a:trainer:that-has-gone")
    assert changed(guarded, "retry", failed.id, done.id) == {"done": 2, "refused": []}
    assert (real_redis.ttl(done.key), set(queue.job_ids)) == (-1, {failed.id, done.id})
    burst(real_redis)
    assert (done.get_status(), failed.get_status()) == ("finished", "failed")
    waiting = [queue.enqueue(chores.add, 1, 2) for _ in range(3)]
    assert changed(guarded, "retry", waiting[0].id)["refused"][0]["why"].startswith("it is queued")
    assert changed(guarded, "cancel", waiting[0].id, waiting[1].id, done.id) == {
        "done": 2, "refused": [{"id": done.id, "why": "it is finished: there is no job to stop"}],
    }  # fmt: skip
    assert queue.job_ids == [waiting[2].id]
    assert changed(guarded, "retry", waiting[0].id)["done"] == 1
    assert changed(guarded, "delete", waiting[2].id, waiting[0].id, failed.id)["done"] == 3
    assert (queue.job_ids, real_redis.exists(failed.key, waiting[2].key)) == ([], 0)
    assert "forgotten" in changed(guarded, "delete", failed.id)["refused"][0]["why"]
    gone = changed(guarded, "retry", "gone", "gone")
    assert (gone["done"], len(gone["refused"])) == (0, 1)
    for wrong in ({"do": "eat", "ids": ["a"]}, {"do": "retry", "ids": []}, {"do": "retry"},
                  {"do": "retry", "ids": "a"}, {"do": "retry", "ids": ["a"] * 501}):  # fmt: skip
        assert guarded.post("/api/jobs", json=wrong).status_code == 400


def test_a_retried_job_waits_in_its_share(guarded: httpx.Client, real_redis: ground.Client) -> None:
    queue = open_queue(real_redis)
    jobs = [queue.enqueue(chores.add, 1, "x") for _ in range(3)]
    burst(real_redis)
    for job in jobs:
        real_redis.hset(job.key, "penstock_share", "run-a")
    ids = [job.id for job in jobs]
    assert changed(guarded, "retry", *ids) == {"done": 3, "refused": []}
    share = [id.decode() for id in real_redis.lrange("rq:queue:code~run-a", 0, -1)]
    assert (queue.job_ids, share) == (ids[:1], ids[1:]), "the next one lies ready for any worker"
    shown = guarded.get("/api/jobs", params={"queue": "code"}).json()
    assert [job["id"] for job in shown["jobs"]] == ids


def test_a_running_job_is_stopped_and_not_deleted(
    guarded: httpx.Client, real_redis: ground.Client, shared_server: PrivateRedis
) -> None:
    queue = open_queue(real_redis)
    with at_work(real_redis) as worker:
        job = queue.enqueue(chores.lasts, shared_server.url, "it")
        until(lambda: real_redis.hexists("ran", "it"), "the job runs")
        assert "cancel it first" in changed(guarded, "delete", job.id)["refused"][0]["why"]
        seen = guarded.get(f"/api/workers/{worker.name}").json()
        assert [one["id"] for one in seen["running"]] == [job.id]
        shown = guarded.get(f"/api/jobs/{job.id}").json()
        assert [part["what"] for part in shown["timeline"]] == ["queued", "working"]
        assert changed(guarded, "cancel", job.id)["done"] == 1
        until(lambda: job.get_status() == "stopped", "its end")


def test_every_change_is_noted_with_who_made_it(
    guarded: httpx.Client, real_redis: ground.Client
) -> None:
    TokenBucket(real_redis, "code", limit=2).sync.configure(limit=2)
    queue = open_queue(real_redis)
    queue.enqueue(chores.add, 1, 2)
    who = {"X-Penstock-Who": "J%C3%BCrgen%1b[31m"}
    assert guarded.post("/api/gates/code", json={"limit": 7}, headers=who).status_code == 200
    basic = {"Authorization": "Basic " + b64encode(b"ann:secret").decode()}
    assert guarded.post("/api/queues/code", json={"paused": True}, headers=basic).status_code == 200
    assert guarded.post("/api/queues/none", json={"paused": True}).status_code == 404
    assert guarded.get("/api/fleet").json()["queues"][0]["paused"] is True
    latest, second, first = guarded.get("/api/audit").json()["changes"]
    assert (first["what"], first["target"], first["outcome"]) == (
        "change gate: limit 7", "code", "done",
    )  # fmt: skip
    assert first["who"].startswith("Jürgen")
    assert "\x1b" not in first["who"]
    assert (second["who"], second["what"], second["address"]) == ("ann", "pause queue", "127.0.0.1")
    assert (latest["who"], latest["outcome"]) == ("", "there is no queue 'none'")
    for other in ("https://elsewhere.example", "null"):
        refused = guarded.post("/api/gates/code", json={"limit": 1}, headers={"Origin": other})
        assert refused.status_code == 403, "a page of another site"
    assert len(guarded.get("/api/audit").json()["changes"]) == 3


def test_terms_that_are_refused_leave_the_gate_as_it_was(
    guarded: httpx.Client, real_redis: ground.Client
) -> None:
    gate = TokenBucket(real_redis, "code", limit=2)
    gate.sync.configure(limit=2)
    for wrong in ({"paused": True, "limit": -1}, {"limit": 5, "paused": "yes"}):
        assert guarded.post("/api/gates/code", json=wrong).status_code == 400
    endless = guarded.post("/api/gates/code", content=b'{"limit": 1e999}', headers=JSON)
    assert endless.status_code == 400
    assert (gate.sync.status().paused, gate.sync.status().limit) == (False, 2)


def test_a_change_is_noted_whatever_is_in_its_names(
    guarded: httpx.Client, real_redis: ground.Client
) -> None:
    job = open_queue(real_redis).enqueue(chores.add, 1, 2)
    ids = json.dumps({"do": "cancel", "ids": [job.id, "\ud800"]})
    answer = guarded.post("/api/jobs", content=ids, headers=JSON).json()
    assert (answer["done"], len(answer["refused"])) == (1, 1)
    (noted,) = guarded.get("/api/audit").json()["changes"]
    assert (noted["what"], noted["target"]) == ("cancel 2 jobs", f"{job.id}, ?")


def test_a_result_that_json_lacks_is_shown_by_its_name(
    guarded: httpx.Client, real_redis: ground.Client
) -> None:
    job = open_queue(real_redis).enqueue(chores.gives, [float("nan"), float("-inf"), "\ud800"])
    burst(real_redis)
    shown = guarded.get(f"/api/jobs/{job.id}")
    assert (shown.status_code, shown.json()["result"]) == (200, ["nan", "-inf", "\ud800"])


def test_of_two_who_retry_a_job_at_once_one_is_refused(
    guarded: httpx.Client, real_redis: ground.Client, shared_server: PrivateRedis
) -> None:
    queue = open_queue(real_redis)
    job = queue.enqueue(chores.add, 1, "x")
    burst(real_redis)
    target = target_of(shared_server.url)
    with ThreadPoolExecutor(4) as pool:
        told = list(pool.map(lambda _: change_jobs(target, "retry", [job.id]), range(8)))
    assert (len([one for one in told if not one]), queue.job_ids) == (1, [job.id])


def test_only_so_many_runs_are_kept_in_view(
    guarded: httpx.Client, real_redis: ground.Client
) -> None:
    def connections() -> int:
        return int(real_redis.info("clients")["connected_clients"])

    for n in range(MOST):
        assert guarded.get("/api/groups", params={"run": f"run{n}"}).status_code == 200
    kept = connections()
    for n in range(3 * MOST):
        assert guarded.get("/api/groups", params={"run": f"more{n}"}).status_code == 200
    until(lambda: connections() <= kept + 2, "the connections of the runs before to close")


def test_jobs_are_listed_by_state_and_outcome_a_page_at_a_time(
    guarded: httpx.Client, real_redis: ground.Client
) -> None:
    queue = open_queue(real_redis)
    for n in range(30):
        queue.enqueue(chores.gives, {"error_kind": "user" if n % 10 == 0 else "none"})
    worker = burst(real_redis)

    def listed(**asked: Any) -> Any:
        return guarded.get("/api/jobs", params={"queue": "code", **asked})

    first = listed(state="finished", count=20).json()
    rest = listed(state="finished", start=first["next"]).json()
    assert (len(first["jobs"]), len(rest["jobs"]), rest["next"], first["total"]) == (
        20,
        10,
        None,
        30,
    )
    assert len({job["id"] for job in first["jobs"] + rest["jobs"]}) == 30
    bad = listed(state="finished", outcome="error").json()
    assert [job["outcome"] for job in bad["jobs"]] == ["error"] * 3
    assert (bad["looked"], bad["next"]) == (30, None)
    mine = listed(state="finished", worker=worker.name, count=7).json()
    assert len(mine["jobs"]) == 7
    share, main = Queue("code~run-a", connection=real_redis), queue
    ids = [main.enqueue(chores.add, 1, n).id for n in range(2)]
    real_redis.zadd("penstock:work:{code}:shares", {"run-a": 1, "": 2})
    for n in range(3):
        job = main.enqueue(chores.add, 2, n)
        main.remove(job)
        share.push_job_id(job.id)
        ids.append(job.id)
    pages = [listed(start=n, count=2).json() for n in (0, 2, 4)]
    assert [job["id"] for page in pages for job in page["jobs"]] == ids
    assert [page["next"] for page in pages] == [2, 4, None]
    for wrong in ({"state": "eaten"}, {"outcome": "odd"}, {"start": "-1"}):
        assert listed(**wrong).status_code == 400


def test_anything_is_found_by_its_id_or_a_part_of_its_name(
    guarded: httpx.Client, real_redis: ground.Client
) -> None:
    job = open_queue(real_redis, "rewards").enqueue(chores.add, 1, 2)
    TokenBucket(real_redis, "rewards-gate", limit=2).sync.configure(limit=2)
    buffer = RolloutBuffer(real_redis, "math", TaskConfig(group_size=2)).sync
    buffer.write({"instance_id": "m:7", "uid": "1", "messages": [], "reward": 0.5})
    buffer.close()

    def found(wanted: str) -> list[tuple[str, str, bool]]:
        answer = guarded.get("/api/find", params={"q": wanted}).json()["found"]
        return [(one["kind"], one["name"], one["exact"]) for one in answer]

    until(lambda: ("group", "m:7:0", True) in found("m:7:0"), "a look that knows the task")
    assert found(job.id) == [("job", job.id, True)]
    named = [("queue", "rewards", False), ("gate", "rewards-gate", False)]
    until(lambda: found("REWARDS") == named, "a look that began after both were made")
    assert found("rewards-gate")[0] == ("gate", "rewards-gate", True)
    assert found("rewards")[0] == ("queue", "rewards", True)
    TokenBucket(real_redis, "rewards", limit=2).sync.configure(limit=2)
    assert [one for one in found("rewards") if one[2]] == [
        ("gate", "rewards", True), ("queue", "rewards", True)
    ]  # fmt: skip
    assert found("*") == found("no such thing") == found("") == []


def test_groups_are_listed_by_version_and_mean_reward(
    guarded: httpx.Client, real_redis: ground.Client
) -> None:
    buffer = RolloutBuffer(real_redis, "math", TaskConfig(group_size=2)).sync
    buffer.write_many([
        {"instance_id": f"g{n}", "uid": str(uid), "messages": [], "reward": n / 10 + uid / 100}
        for n in range(10) for uid in (0, 2)
    ])  # fmt: skip
    buffer.write({"instance_id": "open", "uid": "1", "messages": []})
    buffer.close()

    def listed(**asked: Any) -> Any:
        return guarded.get("/api/groups", params=asked).json()

    page = listed(count=4)
    assert [group["instance_id"] for group in page["groups"]] == ["g0", "g1", "g2", "g3"]
    assert (page["total"], page["next"], page["tasks"]) == (10, 4, ["math"])
    assert [round(group["reward"], 3) for group in page["groups"]] == [0.01, 0.11, 0.21, 0.31]
    assert [one["instance_id"] for one in listed(least=0.4, most=0.6)["groups"]] == ["g4", "g5"]
    assert listed(version=7)["groups"] == []
    (waits,) = listed(state="open")["groups"]
    assert (waits["instance_id"], waits["reward"]) == ("open", None)
    assert listed(run="another")["total"] == 0
    for wrong in ({"state": "odd"}, {"least": "x"}, {"run": "a/b"}, {"version": "-1"}):
        assert guarded.get("/api/groups", params=wrong).status_code == 400


def test_a_group_is_shown_with_its_state_and_one_that_is_none_is_not_found(
    guarded: httpx.Client, real_redis: ground.Client
) -> None:
    buffer = RolloutBuffer(real_redis, "math", TaskConfig(group_size=2)).sync

    def shown(**asked: Any) -> httpx.Response:
        return guarded.get("/api/groups/math", params={"instance_id": 7, **asked})

    for uid, state in enumerate(("open", "ready")):
        item = {"instance_id": 7, "uid": str(uid), "messages": [], "reward": uid}
        buffer.write(item)
        found = shown().json()
        assert (found["state"], found["in_all"]) == (state, uid + 1)
    batch = buffer.take()
    assert shown().json()["state"] == "leased"
    buffer.ack(batch)
    assert shown().json()["state"] == "consumed"
    buffer.close()
    for absent in ({"round": 1}, {"instance_id": "nosuch"}):
        refused = shown(**absent)
        assert (refused.status_code, "nothing is kept" in refused.json()["message"]) == (404, True)


def test_groups_that_timed_out_are_listed_with_how_many_items_they_had(
    guarded: httpx.Client, real_redis: ground.Client
) -> None:
    config = TaskConfig(
        group_size=2, group_timeout_seconds=0.001, min_timeout_group_size_ratio=0.9
    )  # fmt: skip
    buffer = RolloutBuffer(real_redis, "math", config).sync
    buffer.write_many([
        {"instance_id": "whole", "uid": uid, "messages": [], "reward": 1} for uid in "01"
    ])  # fmt: skip
    buffer.write({"instance_id": "slow", "uid": "0", "messages": [], "reward": 1})
    until(
        lambda: buffer.sweep() is not None and buffer.catalog.stats().get("expired"), "its timeout"
    )
    buffer.close()
    wanted = {"state": "kept", "why": "timeout"}
    (late,) = guarded.get("/api/groups", params=wanted).json()["groups"]
    assert (late["instance_id"], late["state"], late["items"]) == ("slow", "expired", 1)
    assert guarded.get("/api/groups", params={"why": "odd"}).status_code == 400


def test_session_sandboxes_are_listed_by_run_and_state_and_part_of_a_name(
    cloud: CloudThread, guarded: httpx.Client, real_redis: ground.Client
) -> None:
    life = SandboxLifecycle(real_redis, cloud.provider, run="exp7", settings=quick())
    opened = [from_thread(life.start()) for _ in range(3)]
    boxes = {one.name for one in opened}

    def listed(**asked: Any) -> Any:
        return guarded.get("/api/sandboxes", params=asked).json()

    page = listed(count=2)
    assert (page["total"], page["next"], len(page["sandboxes"])) == (3, 2, 2)
    rest = listed(start=2, run="exp7", state="READY")
    assert {one["name"] for one in (*page["sandboxes"], *rest["sandboxes"])} == boxes
    one = min(boxes)
    assert [box["name"] for box in listed(find=one)["sandboxes"]] == [one]
    assert listed(state="failing")["total"] == listed(run="another")["total"] == 0
    for sandbox in opened:
        assert from_thread(life.stop(sandbox))
    life.registry.close()


def test_a_gate_shows_its_holders_and_its_line(
    guarded: httpx.Client, real_redis: ground.Client
) -> None:
    gate = TokenBucket(real_redis, "code", limit=1)
    held = gate.sync.acquire()
    asking = [
        threading.Thread(target=lambda share=share: gate.sync.acquire(share=share).release())
        for share in ("", "eval")
    ]
    for number, thread in enumerate(asking, 1):
        thread.start()
        until(lambda number=number: gate.sync.status().waiting == number, "one more to wait")
    seen = guarded.get("/api/gates/code").json()
    held.release()
    for thread in asking:
        thread.join(100)
    (holder,), line = seen["holders"], seen["line"]
    assert [(one["lane"], one["share"]) for one in line] == [(0, ""), (0, "eval")]
    assert {one["process"] for one in line} == {holder["process"]}
    assert (seen["gate"]["in_flight"], seen["steps"]) == (1, [])
    assert all(0 <= one["waited"] < 1000 for one in line)
    assert guarded.get("/api/gates/none").status_code == 404


def test_charts_of_an_hour_and_a_day_outlive_the_monitor(
    guarded: httpx.Client, real_redis: ground.Client
) -> None:
    point = {name: {} for name in ("gates", "workers", "groups", "sandboxes")} | {
        "at": 1000, "depth": 0, "running": 0, "done_per_second": 0.5, "wait_median": None,
        "took_median": None, "mean_reward": None, "rewards": [], "programs": {"error": 2.5},
    }  # fmt: skip
    older = {name: value for name, value in point.items() if name != "programs"}
    for text in (json.dumps(point), json.dumps(older), json.dumps(point | {"more": 1}), "[]", "{"):
        real_redis.xadd("penstock:monitor:{default}:history:day", {"point": text})
    assert guarded.get("/api/history", params={"span": "day"}).json()["points"] == [point]
    assert guarded.get("/api/history", params={"span": "year"}).status_code == 400
