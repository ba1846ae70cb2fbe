"""The monitor's page in a real headless Chromium."""

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

import ground
from buffer import GroupFunctions, RolloutBuffer, TaskConfig
from ground.process import from_thread
from limiter import TokenBucket
from tests.harness import killing, patient
from tests.harness.browser import Browser
from tests.harness.commands import PENSTOCK
from tests.harness.servers import PrivateRedis
from tests.harness.terminal import Terminal
from tests.penstock.serving import monitor
from tests.worker.concurrent import chores
from tests.worker.concurrent.crew import burst, open_queue, work_in_process
from tests.worker.lifecycle.cloud import CloudThread
from tests.worker.lifecycle.conftest import quick
from worker.lifecycle import SandboxLifecycle

ROWS = "[...document.querySelectorAll('#{} tbody tr')].map((row) => row.innerText).join('|')"
NOTES = "document.getElementById('notes').innerText"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as browser:
        yield browser


@pytest.fixture
def url(shared_server: PrivateRedis, real_redis: ground.Client) -> Iterator[str]:
    with monitor(shared_server.url, PENSTOCK_MONITOR_TOKEN="secret") as url:
        yield url


def test_it_shows_what_is_wrong_and_acts_with_the_token(
    browser: Browser, url: str, real_redis: ground.Client
) -> None:
    TokenBucket(real_redis, "code", limit=2).sync.configure(limit=2)
    queue = open_queue(real_redis)
    failed = queue.enqueue(chores.add, 1, "<img src=x onerror=alert(1)>")
    burst(real_redis)
    queue.enqueue(chores.add, 1, 2)
    page = browser.open(f"{url}/#token=secret")
    page.until(NOTES, lambda said: "no worker listens on queue 'code'" in said)
    assert page.run("location.hash") == ""
    page.until(ROWS.format("queues"), lambda rows: "no worker listens" in rows)
    assert "granted" in page.run("document.getElementById('gates').innerText")
    page.run("document.querySelector('#gates tbody button').click()")
    page.until(ROWS.format("gates"), lambda rows: "paused" in rows)
    assert TokenBucket(real_redis, "code", limit=2).sync.status().paused
    page.until(ROWS.format("failed"), lambda rows: failed.id in rows)
    page.run("document.querySelector('#failed tbody button').focus()")
    page.press("Enter", 13, "\r")
    page.until("document.getElementById('detail').open")
    assert "onerror=alert" in page.run("document.getElementById('detail-body').innerText")
    assert page.run("document.querySelectorAll('#detail-body img').length") == 0
    page.press("Escape", 27)
    page.until("!document.getElementById('detail').open")
    assert page.run("document.activeElement.textContent") == failed.id
    errors = [problem for problem in browser_problems(page) if "401" not in problem]
    assert errors == []
    assert {address.split("/api")[0].rstrip("/") for address in page.requests()} == {url}


def test_a_sandbox_that_does_not_end_is_shown_with_the_reason_and_ended_by_hand(
    browser: Browser, cloud: CloudThread, url: str, real_redis: ground.Client
) -> None:
    life = SandboxLifecycle(real_redis, cloud.provider, run="exp7", settings=quick())
    sandbox = from_thread(life.start())
    page = browser.open(f"{url}/#token=secret")
    page.until(ROWS.format("sandboxes"), lambda rows: sandbox.name in rows and "ready" in rows)
    cloud.set(down=True)
    assert not from_thread(life.stop(sandbox))
    page.until(ROWS.format("sandboxes"), lambda rows: "503: down" in rows)
    page.until(NOTES, lambda said: "could not be ended" in said)
    page.until("document.querySelector('#sandboxes tbody tr').className", lambda c: c == "bad")
    cloud.set(down=False)
    page.run("document.querySelector('#sandboxes tbody button').click()")
    page.until(ROWS.format("sandboxes"), lambda rows: rows == "none")
    assert cloud.live == 0
    page.run("document.querySelector('#registries tbody button').click()")
    page.until("document.getElementById('said').textContent", lambda said: said == "done")
    life.registry.close()


def test_an_id_does_not_repeat_the_name_of_its_sandbox(browser: Browser, url: str) -> None:
    page = browser.open(f"{url}/#token=secret")
    box = '{run: "r", name: "box", id: "box@host", provider: "local", state: "READY"}'
    shown = f"showSandboxes({{at: 0, registries: [], sandboxes: [{box}]}})"
    cell = "document.querySelector('#sandboxes tbody').rows[0].cells[1].textContent"
    page.until(f"({shown}, {cell})", lambda id: id == "@host")


def test_a_death_a_pause_and_a_quarantine_are_on_the_page_and_in_top(
    browser: Browser, url: str, shared_server: PrivateRedis, real_redis: ground.Client
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("no such key: score")

    page = browser.open(f"{url}/#token=secret")
    env = os.environ | {"PENSTOCK_REDIS_URL": shared_server.url}
    with (
        killing.Child(work_in_process, shared_server.url, ["code"], {"job_lease": 1.0}) as child,
        Terminal([PENSTOCK, "top", "--every", "0.3"], env) as top,
    ):
        page.until(ROWS.format("workers"), lambda rows: "idle" in rows)
        top.until("idle")
        child.kill()
        TokenBucket(real_redis, "rewards", limit=2).sync.pause()
        buffer = RolloutBuffer(
            real_redis, "math", TaskConfig(group_size=2),
            functions=GroupFunctions(normalize_group_data=broken),
        ).sync  # fmt: skip
        buffer.write_many([
            {"instance_id": "sad", "uid": str(n), "messages": [], "reward": n} for n in (0, 1)
        ])  # fmt: skip
        buffer.take()
        buffer.close()
        page.until(NOTES, lambda said: "1 worker is silent" in said and "in quarantine" in said)
        page.until(ROWS.format("workers"), lambda rows: "dead" in rows)
        page.until(ROWS.format("gates"), lambda rows: "rewards" in rows and "paused" in rows)
        page.until(ROWS.format("quarantine"), lambda rows: "sad" in rows and "no such key" in rows)
        for words in ("1 worker is silent", "dead", "paused", "1 group in quarantine"):
            top.until(words)
        top.press(Terminal.CTRL_C)
        assert top.ends() == 0


def test_without_the_token_it_asks_for_it(browser: Browser, url: str) -> None:
    page = browser.open(url)
    page.until("!document.getElementById('door').hidden")
    page.run("document.getElementById('token').value = 'wrong'")
    page.run("document.querySelector('#door button').click()")
    page.until("document.getElementById('live').textContent", lambda said: "refused" in said)
    page.run("document.getElementById('token').value = 'secret'")
    page.run("document.querySelector('#door button').click()")
    page.until("document.getElementById('live').textContent", lambda said: said.startswith("live"))
    assert page.run("document.getElementById('door').hidden")


@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_reads_it_without_scrolling_sideways(
    browser: Browser, url: str, dark: bool
) -> None:
    page = browser.open(f"{url}/#token=secret", width=390, height=844, dark=dark)
    page.until("document.querySelectorAll('canvas').length")
    page.until("document.getElementById('live').textContent", lambda said: said.startswith("live"))
    assert page.run("document.documentElement.scrollWidth") <= 390
    background = page.run("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") is not dark


def test_text_stands_out_from_its_ground_in_both_colour_schemes(browser: Browser, url: str) -> None:
    for dark in (False, True):
        page = browser.open(f"{url}/#token=secret", dark=dark)
        page.until("document.querySelectorAll('#queues thead').length")
        style = "getComputedStyle(document.documentElement).getPropertyValue('--{}').trim()"
        grounds = [page.run(style.format(name)) for name in ("paper", "panel")]
        for name in ("ink", "soft", "warn", "bad", "c1", "c2", "c3", "c4"):
            ratio = min(contrast(page.run(style.format(name)), ground) for ground in grounds)
            assert ratio >= (3 if name.startswith("c") else 4.5), (name, dark, ratio)


def test_a_large_fleet_is_one_small_page(
    browser: Browser, url: str, real_redis: ground.Client
) -> None:
    pipe = real_redis.pipeline()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime())
    fields = {"birth": stamp, "state": "busy", "queues": "code", "last_heartbeat": stamp}
    for n in range(1000):
        pipe.sadd("rq:workers", f"rq:worker:w{n:04}")
        pipe.hset(f"rq:worker:w{n:04}", mapping=fields)
    pipe.zadd("penstock:buffer:{default/math}:ready", {f"g{n}:0": n + 1 for n in range(10_000)})
    pipe.hset("penstock:buffer:{default/math}:rewards", mapping={"0.0": 30_000, "1.0": 50_000})
    pipe.hset("penstock:buffer:{default/math}:config", "group_size", 1)
    pipe.zadd("penstock:buffer:{default}:tasks", {"math": 1})
    pipe.execute()
    page = browser.open(f"{url}/#token=secret")
    page.until("document.getElementById('worker-states').textContent", lambda s: "1000 busy" in s)
    page.until(ROWS.format("tasks"), lambda rows: "10000" in rows)
    page.until(
        "[...document.querySelectorAll('canvas')].map((one) => one.ariaLabel).join('|')",
        lambda said: (
            "Rewards: 80000 in all" in said
            and "most of them, 63 %, above 0.9 and at most 1" in said
        ),
    )
    assert page.run("document.querySelectorAll('tr').length") < 300
    page.run("document.getElementById('all-workers').click()")
    page.until("everyone && everyone.length", lambda count: count == 1000)
    page.run("at('find-worker').value = 'w0999'; at('find-worker').oninput()")
    page.until(ROWS.format("workers"), lambda rows: rows.startswith("w0999"))


def test_a_connection_that_hangs_is_said_and_replaced(browser: Browser, url: str) -> None:
    live = "document.getElementById('live').textContent"
    page = browser.open(f"{url}/#token=secret")
    page.until(live, lambda said: said.startswith("live"))
    monitor_process = patient.get(f"{url}/healthz").json()["pid"]
    os.kill(monitor_process, signal.SIGSTOP)  # the connection stays, and brings nothing
    try:
        page.until(live, lambda said: "has said nothing for 6 s" in said)
        assert page.run("document.getElementById('live').className") == "lost"
    finally:
        os.kill(monitor_process, signal.SIGCONT)
    page.until(live, lambda said: said.startswith("live"))


def test_a_restart_of_the_monitor_keeps_the_charts(
    browser: Browser, shared_server: PrivateRedis, real_redis: ground.Client
) -> None:
    with monitor(shared_server.url) as before:
        page = browser.open(before)
        page.until("points.length", lambda count: count >= 3)
        seen = page.run("points.map((point) => point.at)")
    with monitor(shared_server.url) as after:
        page = browser.open(after)
        page.until("points.length", lambda count: count >= 3)
        moments = page.run("points.map((point) => point.at)")
    assert set(seen[:2]) <= set(moments)
    assert len(set(moments)) == len(moments)


def browser_problems(page: Any) -> list[str]:
    found: list[str] = page.problems()
    return found


def contrast(one: str, other: str) -> float:
    """As WCAG 2 has it."""

    def light(colour: str) -> float:
        digits = colour.removeprefix("#")
        digits = "".join(d * 2 for d in digits) if len(digits) == 3 else digits
        parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return sum(weight * p for weight, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)
