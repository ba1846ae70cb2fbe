"""The monitor over HTTP: what it shows, what it changes, and for whom."""

import json
import re
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from rq.registry import FailedJobRegistry
from rq.serializers import JSONSerializer

import ground
from buffer import RolloutBuffer, TaskConfig
from ground.process import from_thread
from limiter import TokenBucket
from penstock.monitor.page import page
from tests.harness import patient
from tests.harness.servers import PrivateRedis
from tests.penstock.serving import monitor
from tests.worker.concurrent import chores
from tests.worker.concurrent.crew import burst, open_queue
from tests.worker.lifecycle.cloud import CloudThread
from tests.worker.lifecycle.conftest import quick
from worker.lifecycle import SandboxLifecycle
from worker.models import CodeRequest
from worker.queue.order import data_of

TOKEN = {"Authorization": "Bearer secret"}
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def guarded(shared_server: PrivateRedis, real_redis: ground.Client) -> Iterator[httpx.Client]:
    with (
        monitor(shared_server.url, PENSTOCK_MONITOR_TOKEN="secret") as url,
        httpx.Client(base_url=url, headers=TOKEN, timeout=150) as client,
    ):
        yield client


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
    assert "script-src 'sha256-" in shown.headers["content-security-policy"]
    assert guarded.get("/").status_code == 200
    assert patient.get(guarded.base_url.join("/healthz")).json()["status"] == "healthy"
    assert "penstock_workers" in guarded.get("/metrics").text


def test_gates_jobs_and_their_programs(guarded: httpx.Client, real_redis: ground.Client) -> None:
    gate = TokenBucket(real_redis, "runs/code", limit=2)
    gate.sync.configure(limit=2)
    at = "/api/gates/runs/code"
    assert guarded.post(at, json={"paused": True}).json()["paused"] is True
    assert guarded.post(at, json={"paused": False, "limit": 7}).json()["limit"] == 7
    assert gate.sync.status().limit == 7
    for wrong in ({"limit": 0}, {"limit": "many"}, {"colour": 1}, {}, [1]):
        assert guarded.post(at, json=wrong).status_code == 400
    assert guarded.post("/api/gates/none", json={"limit": 1}).status_code == 404
    queue = open_queue(real_redis)
    failing = queue.enqueue(chores.add, 1, "x")
    burst(real_redis)
    seen = guarded.get(f"/api/jobs/{failing.id}").json()
    assert (seen["status"], seen["call"]["arguments"]) == ("failed", [[1, "x"], {}])
    assert "TypeError" in seen["error"]
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
    assert guarded.post(at, json={"limit": 7}).json()["name"] == "x/../code"
    assert TokenBucket(real_redis, "code", limit=2).sync.status().limit == 2


def test_the_page_puts_names_into_addresses_whole() -> None:
    """What is split or joined there may be a path of its own."""
    puts = re.findall(r"`api/[^`]*`", page())
    assert len(puts) >= 5
    for put in puts:
        for value in re.findall(r"\$\{([^}]*)\}", put):
            assert value.startswith("encodeURIComponent(") or value == "asked", put


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
    cloud: CloudThread, guarded: httpx.Client, real_redis: ground.Client
) -> None:
    life = SandboxLifecycle(real_redis, cloud.provider, run="exp7", settings=quick())
    one, other = from_thread(life.start()), from_thread(life.start())
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
            events.append((event, json.loads(next(lines).removeprefix("data: "))))
            next(lines)
    assert [event for event, _ in events] == ["history", "fleet", "fleet"]
    assert events[2][1]["fleet"]["at"] > events[1][1]["fleet"]["at"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"round": 0}', "instance_id"),
        (b'{"instance_id": null}', "instance_id"),
        (b'{"instance_id": "a", "round": "x"}', "invalid literal"),
        (b"[" * 4096, "nested"),
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
