"""The monitor's page in a real headless Chromium."""

import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pytest
from rq import Queue

import ground
from buffer import RolloutBuffer, TaskConfig
from buffer.group_functions import GroupFunctions
from ground.keys import tagged
from ground.process import from_thread
from ground.redis.connect import target_of
from limiter import TokenBucket, remove_gate
from penstock.fleet.history import Point
from tests.harness import killing, patient
from tests.harness.browser import Browser, Page
from tests.harness.commands import PENSTOCK
from tests.harness.servers import PrivateRedis, free_port, until
from tests.harness.terminal import Terminal
from tests.penstock.serving import monitor
from tests.worker.concurrent import chores
from tests.worker.concurrent.crew import at_work, burst, open_queue, work_in_process
from tests.worker.lifecycle.cloud import CloudThread
from tests.worker.lifecycle.conftest import quick
from worker.lifecycle import SandboxLifecycle

ROWS = "[...document.querySelectorAll('{} tbody tr')].map((row) => row.innerText).join('|')"
SENTENCE = "document.querySelector('.sentence')?.innerText || ''"
HEADING = "document.querySelector('h1')?.innerText || ''"
ERROR = "document.querySelector('pre.error')"
LIVE = "document.getElementById('live').textContent"
MAIN = "document.getElementById('main').innerText"
SAID = "document.getElementById('said').textContent"


@pytest.fixture(scope="module")
def one_browser() -> Iterator[Browser]:
    with Browser() as browser:
        yield browser


@pytest.fixture
def browser(one_browser: Browser) -> Iterator[Browser]:
    """One for all tests; each closes its tabs."""
    yield one_browser
    one_browser.close_tabs()


@pytest.fixture(scope="module")
def one_monitor(shared_server: PrivateRedis) -> Iterator[str]:
    with monitor(shared_server.url, PENSTOCK_MONITOR_TOKEN="secret") as url:
        yield url


@pytest.fixture
def url(one_monitor: str, real_redis: ground.Client) -> str:
    """Of one monitor for all tests, over a Redis that each finds empty."""
    return one_monitor


def shown(browser: Browser, url: str, address: str = "", **look: Any) -> Page:
    """A page with the token, at an address."""
    page = browser.open(f"{url}/#token=secret", **look)
    page.until(LIVE, lambda said: said.startswith("live"))
    if address:
        page.run(f"location.hash = {json.dumps('#/' + address)}")
    return page


def press(page: Page, label: str) -> None:
    """A button by what it says, and then the one that confirms it."""
    button = _that_says("button", label)
    page.run("document.getElementById('said').textContent = ''")
    page.until(f"{button} && !{button}.disabled")
    page.run(f"{button}.click()")
    page.until("document.getElementById('confirm').open")
    page.run("document.getElementById('who').value = 'Ann <b>'")
    page.run("document.getElementById('confirm-yes').click()")
    page.until(SAID, lambda said: said == "done")


def follow(page: Page, text: str) -> None:
    """A link of the page, by what it says."""
    link = _that_says("a", text)
    page.until(f"Boolean({link})")
    page.run(f"{link}.click()")


def quarantine_one(redis: ground.Client, instance: str) -> None:
    """A group of two items, whose normalization fails."""

    def broken(*_: object) -> None:
        raise ValueError("no such key: score")

    buffer = RolloutBuffer(
        redis, "math", TaskConfig(group_size=2),
        functions=GroupFunctions(normalize_group_data=broken),
    ).sync  # fmt: skip
    buffer.write_many([
        {"instance_id": instance, "uid": str(n), "messages": [], "reward": n} for n in (0, 1)
    ])  # fmt: skip
    buffer.take()
    buffer.close()


def _that_says(tag: str, text: str) -> str:
    found = f"[...document.querySelectorAll('main {tag}')]"
    return f"{found}.find((one) => one.textContent == {json.dumps(text)})"


def test_from_the_overview_to_a_failures_traceback_and_back(
    browser: Browser, url: str, real_redis: ground.Client
) -> None:
    """Hostile names and values are text all the way."""
    evil = "<img src=x onerror=alert(1)>"
    queue = open_queue(real_redis)
    failed = queue.enqueue(chores.add, 1, evil, description=evil)
    worker = burst(real_redis, name="w'\"<script>alert(2)</script>")
    page = shown(browser, url)
    page.until(SENTENCE, lambda said: "1 job failed in the last 15 minutes" in said)
    page.until(ROWS.format("#failed"), lambda rows: evil in rows)
    follow(page, failed.id)
    page.until(f"{ERROR}?.innerText || ''", lambda said: "TypeError" in said)
    assert evil in page.run(MAIN)
    assert "in its queue" in page.run("document.querySelector('#timeline').innerText")
    follow(page, worker.name)
    page.until(
        SENTENCE,
        lambda said: "never here" in said,
    )  # it has left
    page.run("history.back()")
    page.until(HEADING, lambda said: failed.id in said)
    press(page, "Retry")
    page.until(SENTENCE, lambda said: "waits in its queue" in said)
    assert queue.job_ids == [failed.id]
    page.run("history.back()")
    page.until("document.querySelector('#queues') && !document.querySelector('#queues').hidden")
    page.until(SENTENCE, lambda said: "No worker listens on queue 'code'" in said)
    page.until("document.title", lambda title: title.startswith("(1)"))
    page.run("location.hash = '#/log'")
    page.until(ROWS.format("main"), lambda rows: "Ann <b>" in rows and "retry job" in rows)
    assert "by other commands" in page.run(MAIN)
    assert page.run("document.querySelectorAll('main img, main script, main b').length") == 0
    known = ("401", "404")  # no token at first; a worker that has left
    told = page.problems()
    assert [one for one in told if not any(status in one for status in known)] == []
    asked = [address.removeprefix(url) for address in page.requests()]
    assert all(
        path[:1] == "/" and "secret" not in path[2:] for path in asked if "#token" not in path
    )


def test_each_task_of_an_operator_takes_at_most_three_clicks(
    browser: Browser, url: str, real_redis: ground.Client
) -> None:
    """From the overview; confirming counts, typing does not."""
    gate = TokenBucket(real_redis, "code", limit=2)
    gate.sync.configure(limit=2)
    queue = open_queue(real_redis)
    failed = queue.enqueue(chores.add, 1, "x")
    worker = burst(real_redis)
    queue.enqueue(chores.add, 1, 2)
    config = TaskConfig(
        group_size=2, group_timeout_seconds=0.001, min_timeout_group_size_ratio=0.9
    )  # fmt: skip
    buffer = RolloutBuffer(real_redis, "math", config).sync
    buffer.write({"instance_id": "slow", "uid": "0", "messages": [], "reward": 1})
    until(
        lambda: buffer.sweep() is not None and buffer.catalog.stats().get("expired"), "its timeout"
    )
    buffer.close()
    page = shown(browser, url)

    # Why does this queue not move?
    page.until(SENTENCE, lambda said: "No worker listens on queue 'code'" in said)
    # The last failure's traceback; which worker ran this job, and what did it wait for?
    follow(page, failed.id)
    page.until(f"{ERROR}?.innerText || ''", lambda said: "TypeError" in said)
    facts = page.run("document.querySelector('.facts').innerText")
    assert worker.name in facts
    assert "in its queue" in page.run("document.querySelector('#timeline').innerText")
    # Why has this item this reward?
    page.run("location.hash = '#/groups/math/slow/0'")
    follow(page, "why")
    page.until(SENTENCE, lambda said: "item 0 of math: its reward is 1" in said)
    # Which groups time out?
    page.run("location.hash = '#/'")
    page.until("Boolean(document.querySelector('#tasks tbody a'))")
    page.run("document.querySelector('#tasks tbody td:nth-child(8) a').click()")
    page.until(ROWS.format("main"), lambda rows: rows.startswith("slow") and "expired" in rows)
    # Raise this limit.
    page.run("location.hash = '#/'")
    page.until(ROWS.format("#gates"), lambda rows: rows.startswith("code"))
    page.run("document.querySelector('#gates tbody a').click()")
    page.until(HEADING, lambda said: said == "Gate code")
    page.until("Boolean(document.getElementById('limit'))")
    page.run("document.getElementById('limit').value = '9'")
    press(page, "Set the limit")
    assert gate.sync.status().limit == 9


def test_how_programs_ended_is_a_column_a_chart_and_a_filter(
    browser: Browser, url: str, real_redis: ground.Client
) -> None:
    queue = open_queue(real_redis)
    page = shown(browser, url)
    ends = [{"error_kind": "none"}, {"error_kind": "limit", "error_reason": "run_timeout"}] * 2
    jobs = [queue.enqueue(chores.gives, value) for value in ends]
    page.until(ROWS.format("#queues"), lambda rows: "code" in rows)
    burst(real_redis)
    page.until(ROWS.format("#queues"), lambda rows: "2 of 4: 50 % timeout" in rows)
    page.until("document.getElementById('lately').innerText", lambda said: "50 % finished" in said)
    pointed = """(() => {
        const canvas = document.querySelector('#charts canvas');
        canvas.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowLeft'}));
        return [document.querySelector('#charts em').textContent, canvas.ariaLabel];
    })()"""
    page.until(pointed, lambda seen: seen[0] and "timeout" in seen[1])
    page.run("location.hash = '#/queues/code?state=finished'")
    follow(page, "timeout 2 (50 %)")
    page.until("location.hash", lambda at: "outcome=timeout" in at)
    late = {job.id for job in jobs[1::2]}
    page.until(ROWS.format("main"), lambda rows: rows.count("\ttimeout\t") == 2
               and all(id in rows for id in late))  # fmt: skip
    page.run("document.querySelector('thead input').click()")
    press(page, "Retry")
    page.until(ROWS.format("main"), lambda rows: rows == "")
    assert set(queue.job_ids) == late


def test_all_pages_of_a_filter_are_changed_together(
    browser: Browser, url: str, real_redis: ground.Client
) -> None:
    queue = open_queue(real_redis)
    for _ in range(60):
        queue.enqueue(chores.add, 1, "x")
    burst(real_redis)
    page = shown(browser, url, "queues/code?state=failed")
    page.until("document.querySelectorAll('main tbody tr').length", lambda count: count == 50)
    page.run("document.getElementById('everything').click()")
    press(page, "Retry")
    page.until(MAIN, lambda said: "no failed jobs like that" in said)
    assert len(queue.job_ids) == 60
    page.run("document.getElementById('everything').click()")
    page.run(f"{_that_says('button', 'Retry')}.click()")
    page.run("document.getElementById('confirm-yes').click()")
    page.until(SAID, lambda said: said == "no job matched")


def test_all_pages_of_a_queue_are_cancelled_while_workers_take_its_first_jobs(
    browser: Browser, url: str, real_redis: ground.Client
) -> None:
    queue = open_queue(real_redis)
    queue.enqueue_many([Queue.prepare_data(chores.add, (1, 2)) for _ in range(300)])
    page = shown(browser, url, "queues/code?state=waiting")
    page.until("document.querySelectorAll('main tbody tr').length", lambda count: count == 50)
    page.run("""window.fetched = window.fetch, window.fetch = async (path, asked) => {
        const answer = await window.fetched(path, asked);
        const first = path.includes('start=0&count=200') && !window.let;
        if (first) await new Promise((done) => (window.let = done));
        return answer;
    }, 0""")
    page.run("document.getElementById('everything').click()")
    page.run(f"{_that_says('button', 'Cancel')}.click()")
    page.until("document.getElementById('confirm').open")
    page.run("document.getElementById('confirm-yes').click()")
    page.until("Boolean(window.let)")
    real_redis.ltrim(queue.key, 100, -1)  # as if they were taken
    page.run("window.let()")
    page.until(SAID, lambda said: "done" in said)
    assert queue.job_ids == []


def test_a_dialog_about_all_pages_closes_when_its_filter_changes(
    browser: Browser, url: str, real_redis: ground.Client
) -> None:
    queue = open_queue(real_redis)
    failed = queue.enqueue(chores.add, 1, "x")
    done = queue.enqueue(chores.add, 1, 2)
    burst(real_redis)
    page = shown(browser, url, "queues/code?state=finished")
    page.until(ROWS.format("main"), lambda rows: done.id in rows)
    page.run("location.hash = '#/queues/code?state=failed'")
    page.until(ROWS.format("main"), lambda rows: failed.id in rows)
    page.run("document.getElementById('everything').click()")
    page.run(f"{_that_says('button', 'Delete')}.click()")
    page.until("document.getElementById('confirm').open")
    assert "failed jobs of queue code" in page.run(
        "document.getElementById('confirm-text').innerText"
    )
    page.run("history.back()")
    page.until("!document.getElementById('confirm').open")
    page.until(ROWS.format("main"), lambda rows: done.id in rows)
    typed = "document.querySelector('main input[type=search]')"
    page.run(f"""{typed}.value = 'no such'; {typed}.dispatchEvent(new Event('input'));
        document.getElementById('everything').click();
        {_that_says("button", "Delete")}.click()""")
    page.until("location.hash", lambda at: "find=no" in at)
    page.until("!document.getElementById('confirm').open")
    assert real_redis.exists(failed.key, done.key) == 2


def test_what_has_the_focus_keeps_it_while_rows_and_figures_come_and_go(
    browser: Browser, url: str, real_redis: ground.Client
) -> None:
    focused = "document.activeElement.innerText"
    queue = open_queue(real_redis)
    first, second, _ = (queue.enqueue(chores.add, 1, 2) for _ in range(3))
    page = shown(browser, url, "queues/code")
    page.until(ROWS.format("main"), lambda rows: second.id in rows)
    page.run(f"{_that_says('a', second.id)}.focus()")
    first.delete()
    page.until(ROWS.format("main"), lambda rows: first.id not in rows)
    assert page.run(focused) == second.id
    page.run("document.querySelector('.facts a').focus()")  # how many workers there are
    waiting = "document.querySelector('.facts').innerText"
    queue.enqueue(chores.add, 1, 2)
    page.until(waiting, lambda said: "waiting\n3" in said)
    assert page.run(focused) == "0"


def test_a_jobs_page_keeps_the_focus_and_what_is_open_while_its_times_grow(
    browser: Browser, url: str, real_redis: ground.Client
) -> None:
    queue = open_queue(real_redis)
    job = queue.enqueue(chores.add, {"code": "print(1)"}, 2)
    page = shown(browser, url, f"jobs/{job.id}")
    page.until("Boolean(document.querySelector('main summary'))")
    page.run("document.querySelector('main summary').click()")
    page.run(f"{_that_says('button', 'Cancel')}.focus()")
    timeline = "document.querySelector('#timeline').innerText"
    before = page.run(timeline)
    page.until(timeline, lambda now: now != before)
    assert page.run("document.querySelector('main details').open"), "its request can be read"
    assert page.run("document.activeElement.innerText") == "Cancel"
    press(page, "Cancel")
    page.until(SENTENCE, lambda said: "cancelled" in said)
    press(page, "Retry")  # a button of its own, where the other was
    page.until(SENTENCE, lambda said: "waits in its queue" in said)
    assert queue.job_ids == [job.id]
    assert not any("Uncaught" in problem for problem in page.problems())


def test_a_gate_is_paused_and_limited_and_a_queue_too(
    browser: Browser, url: str, real_redis: ground.Client
) -> None:
    name = "x/../code"
    gate = TokenBucket(real_redis, name, limit=2)
    gate.sync.configure(limit=2)
    open_queue(real_redis).enqueue(chores.add, 1, 2)
    page = shown(browser, url, "gates")
    follow(page, name)
    press(page, "Pause")
    page.until(SENTENCE, lambda said: "paused" in said)
    page.run("document.getElementById('limit').value = '7'")
    press(page, "Set the limit")
    page.until("document.querySelector('.facts')?.innerText || ''", lambda said: "limit\n7" in said)
    assert (gate.sync.status().paused, gate.sync.status().limit) == (True, 7)
    page.run("location.hash = '#/queues/code'")
    press(page, "Pause")
    press(page, "Resume")
    assert not real_redis.hexists("penstock:work:{code}", "paused")


def test_nothing_is_shown_of_what_is_not_there_any_more(
    browser: Browser, url: str, real_redis: ground.Client
) -> None:
    open_queue(real_redis).enqueue(chores.add, 1, 2)
    shows = "document.querySelector('.facts')?.checkVisibility() || false"
    with TokenBucket(real_redis, "gone", limit=2):
        page = shown(browser, url, "gates/gone")
        page.until(SENTENCE, lambda said: "It is open" in said)
        assert page.run(shows)
        remove_gate(target_of(real_redis), "gone", force=True)
        page.until(SENTENCE, lambda said: "there is no gate 'gone'" in said)
        assert not page.run(shows)
    page.run("location.hash = '#/queues/code'")
    page.until(shows)
    real_redis.flushall()
    page.until(SENTENCE, lambda said: "Nothing has used this queue yet" in said)
    assert not page.run(shows)
    with at_work(real_redis) as worker:
        page.run(f"location.hash = '#/workers/{worker.name}'")
        page.until(shows)
    page.until(SENTENCE, lambda said: "this worker has left" in said)
    assert not page.run(shows)


def test_a_slow_rate_is_not_shown_as_none_and_a_large_limit_is_short(
    browser: Browser, url: str, real_redis: ground.Client
) -> None:
    TokenBucket(real_redis, "slow", limit=10**9, rate=0.004).sync.status()
    page = shown(browser, url, "gates/slow")
    page.until(MAIN, lambda said: "0.004 a second" in said)
    page.until("document.querySelector('figcaption').innerText", lambda said: "limit 1000M" in said)


def test_a_sandbox_that_does_not_end_is_shown_with_the_reason_and_ended_by_hand(
    browser: Browser, cloud: CloudThread, real_redis: ground.Client, shared_server: PrivateRedis
) -> None:
    life = SandboxLifecycle(real_redis, cloud.provider, run="exp7", settings=quick())
    sandbox = from_thread(life.start())
    with monitor(shared_server.url, PENSTOCK_MONITOR_TOKEN="secret") as url:
        page = shown(browser, url, "sandboxes")
        page.until(ROWS.format("#sandboxes"), lambda r: sandbox.name in r and "ready" in r)
        cloud.set(down=True)
        assert not from_thread(life.stop(sandbox))
        page.until(ROWS.format("#sandboxes"), lambda rows: "503: down" in rows)
        page.until("document.querySelector('#sandboxes tbody tr').className == 'bad'")
        cloud.set(down=False)
        press(page, "End")
        page.until(ROWS.format("#sandboxes"), lambda rows: rows == "")
        assert cloud.live == 0
        press(page, "Reap")
    life.registry.close()


def test_a_search_opens_an_id_and_lists_names(
    browser: Browser, url: str, real_redis: ground.Client
) -> None:
    job = open_queue(real_redis, "rewards").enqueue(chores.add, 1, 2)
    page = shown(browser, url)
    page.until(ROWS.format("#queues"), lambda rows: "rewards" in rows)
    search = (
        "w => {const i = document.getElementById('wanted'); i.value = w; i.form.requestSubmit()}"
    )
    page.run(f"({search})('{job.id}')")
    page.until(HEADING, lambda said: said == f"Job {job.id}")
    page.run(f"({search})('reward')")
    page.until(ROWS.format("main"), lambda rows: "rewards" in rows)
    follow(page, "rewards")
    page.until("document.title", lambda title: "queue rewards" in title)
    page.run("""window.fetched = window.fetch, window.fetch = async (path, asked) => {
        const answer = await window.fetched(path, asked);
        if (path.startsWith('api/find')) await new Promise((done) => (window.let = done));
        return answer;
    }, 0""")
    page.run(f"({search})('{job.id}')")
    page.until("Boolean(window.let)")
    page.run("location.hash = '#/workers'")
    page.until(HEADING, lambda said: said == "Workers")
    page.run("window.let(), new Promise((done) => setTimeout(done))")
    assert page.run("location.hash") == "#/workers", "an answer that comes late leads nowhere"


def test_groups_are_filtered_and_opened_and_another_run_is_shown(
    browser: Browser, url: str, real_redis: ground.Client
) -> None:
    for run in ("default", "exp7"):
        buffer = RolloutBuffer(real_redis, "math", TaskConfig(group_size=1), run=run).sync
        buffer.write_many([
            {"instance_id": f"{run}{n}", "uid": "0", "messages": ["<b>"], "reward": n / 10}
            for n in range(10)
        ])  # fmt: skip
        buffer.close()
    page = shown(browser, url, "groups?least=0.75")
    page.until(ROWS.format("main"), lambda rows: rows.count("default") == 2)
    follow(page, "default9")
    page.until(MAIN, lambda said: '"<b>"' in said and "reward 0.9" in said)
    page.run("location.hash = '#/groups?run=exp7&most=0.15'")
    page.until(ROWS.format("main"), lambda rows: rows.count("exp7") == 2)
    page.until("document.getElementById('run').value", lambda run: run == "exp7")
    known = "[...document.getElementById('known-runs').children].map((one) => one.value).join()"
    page.until(known, lambda runs: runs == "exp7")


def test_a_group_whose_id_is_a_large_number_is_the_one_that_is_opened(
    browser: Browser, url: str, real_redis: ground.Client
) -> None:
    large = 2**60 + 1  # no number of JavaScript
    buffer = RolloutBuffer(real_redis, "math", TaskConfig(group_size=1)).sync
    buffer.write({"instance_id": large, "uid": "0", "messages": [], "reward": 0.5})
    buffer.close()
    page = shown(browser, url, "groups")
    follow(page, str(large))
    page.until(MAIN, lambda said: f'"instance_id": "{large}"' in said)


@pytest.mark.parametrize(
    ("address", "field", "event", "value", "asks"),
    [
        ("sandboxes", "select", "change", "failing", "state=failing"),
        ("workers", "select", "change", "dead", "state=dead"),
        ("groups", "input[type=number]", "input", "7", "version=7"),
        ("queues/code", "input[type=search]", "input", "x ", "find=x"),
    ],
)
def test_a_filter_shows_what_the_address_says(
    browser: Browser, url: str, address: str, field: str, event: str, value: str, asks: str
) -> None:
    page = shown(browser, url, address)
    found = f"document.querySelector('main {field}')"
    page.until(f"Boolean({found})")
    page.run(f"{found}.value = '{value}'; {found}.dispatchEvent(new Event('{event}'))")
    page.until("location.hash", lambda at: asks in at)
    assert page.run(f"{found}.value") == value, "what is typed stays, with its blank"
    page.run(f"location.hash = '#/{address}'")  # as the link of the header does
    page.until(f"{found}.value", lambda now: now == "")
    page.run("history.back()")
    page.until(f"{found}.value", lambda now: now == value.strip())


def test_a_group_is_shown_in_its_own_state_whatever_its_address_says(
    browser: Browser, url: str, real_redis: ground.Client
) -> None:
    quarantine_one(real_redis, "sad")
    page = shown(browser, url, "groups/math/nosuch/0?state=ready")
    page.until(SENTENCE, lambda said: "nothing is kept of group 'nosuch', round 0" in said)
    page.run("location.hash = '#/groups/math/sad/0?state=ready'")
    page.until(SENTENCE, lambda said: said == "Task math, round 0, quarantined: 2 items.")
    assert page.run("document.querySelector('.sentence').classList.contains('warn')")
    press(page, "Requeue")
    page.until(SENTENCE, lambda said: said == "Task math, round 0, ready: 2 items.")


def test_a_death_a_pause_and_a_quarantine_are_on_the_page_and_in_top(
    browser: Browser, url: str, shared_server: PrivateRedis, real_redis: ground.Client
) -> None:
    page = shown(browser, url)
    env = os.environ | {"PENSTOCK_REDIS_URL": shared_server.url}
    with (
        killing.Child(work_in_process, shared_server.url, ["code"], {"job_lease": 1.0}) as child,
        Terminal([PENSTOCK, "top", "--every", "0.3"], env) as top,
    ):
        page.until(ROWS.format("#workers"), lambda rows: "idle" in rows)
        top.until("idle")
        child.kill()
        TokenBucket(real_redis, "rewards", limit=2).sync.pause()
        quarantine_one(real_redis, "sad")
        page.until(SENTENCE, lambda said: "1 worker is silent" in said)
        page.until("document.getElementById('alarms').innerText", lambda s: "quarantine" in s)
        page.until(ROWS.format("#workers"), lambda rows: "dead" in rows)
        page.until(ROWS.format("#gates"), lambda rows: "rewards" in rows and "paused" in rows)
        page.run("location.hash = '#/groups?state=quarantined'")
        page.until(ROWS.format("main"), lambda rows: "sad" in rows and "no such key" in rows)
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
    browser: Browser, url: str, real_redis: ground.Client, dark: bool
) -> None:
    page = browser.open(f"{url}/#token=secret", width=390, height=844, dark=dark)
    open_queue(real_redis).enqueue(chores.add, 1, "x" * 300)
    page.until(LIVE, lambda said: said.startswith("live"))
    for address in ("", "queues/code", "workers", "groups", "gates", "log"):
        page.run(f"location.hash = '#/{address}'")
        page.until("Boolean(document.querySelector('main table, main canvas'))")
        assert page.run("document.documentElement.scrollWidth") <= 390, address
    background = page.run("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") is not dark


def test_text_stands_out_from_its_ground_in_both_colour_schemes(browser: Browser, url: str) -> None:
    for dark in (False, True):
        page = browser.open(f"{url}/#token=secret", dark=dark)
        page.until(LIVE, lambda said: said.startswith("live"))
        style = "getComputedStyle(document.documentElement).getPropertyValue('--{}').trim()"
        grounds = [page.run(style.format(name)) for name in ("paper", "panel")]
        for name in ("ink", "soft", "warn", "bad", *(f"c{n}" for n in range(1, 9))):
            ratio = min(contrast(page.run(style.format(name)), ground) for ground in grounds)
            assert ratio >= (3 if name.startswith("c") else 4.5), (name, dark, ratio)


def test_each_page_has_a_heading_and_names_its_columns_and_what_is_disabled_can_be_read(
    browser: Browser, url: str, real_redis: ground.Client
) -> None:
    open_queue(real_redis).enqueue(chores.add, 1, 2)
    page = shown(browser, url)
    for address in ("", "queues", "gates", "workers", "groups", "sandboxes", "log"):
        page.run(f"location.hash = '#/{address}'")
        page.until("Boolean(document.querySelector('main table'))")
        assert page.run("document.querySelectorAll('main h1').length") == 1, address
        unnamed = "[...document.querySelectorAll('main th')].filter((th) => !th.textContent && "
        unnamed += "!th.ariaLabel && !th.querySelector('input')).length"
        assert page.run(unnamed) == 0, address
    page.run("document.body.append(Object.assign(document.createElement('button'), "
             "{disabled: true, className: 'danger', id: 'off'}))")  # fmt: skip
    style = "getComputedStyle(document.getElementById('off'))"
    soft = "getComputedStyle(document.documentElement).getPropertyValue('--soft').trim()"
    page.run(f"document.getElementById('skip').style.color = {soft}")
    told = page.run(f"[{style}.opacity, {style}.color, getComputedStyle(skip).color]")
    assert told[0] == "1"
    assert told[1] == told[2], "its colour is one that stands out from each ground"


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
    pipe.zadd("rq:finished:code", {f"j{n}": n for n in range(100_000)})
    for n in range(99_900, 100_000):
        fields = {"status": "finished", "origin": "code", "penstock_outcome": "timeout"}
        pipe.hset(f"rq:job:j{n}", mapping=fields)
    pipe.sadd("rq:queues", "rq:queue:code")
    pipe.execute()
    page = shown(browser, url)
    page.until(ROWS.format("#workers"), lambda rows: "1,000" in rows)
    page.until(ROWS.format("#tasks"), lambda rows: "10,000" in rows)
    page.until(
        "[...document.querySelectorAll('canvas')].map((one) => one.ariaLabel).join('|')",
        lambda said: (
            "Rewards: 80000 in all" in said
            and "most of them, 63 %, above 0.9 and at most 1" in said
        ),
    )
    assert page.run("document.querySelectorAll('tr').length") < 300
    page.run("location.hash = '#/workers?find=w0999'")
    page.until(ROWS.format("main"), lambda rows: rows.startswith("w0999"))
    page.run("location.hash = '#/queues/code?state=finished&outcome=timeout'")
    page.until("document.querySelector('main').innerText", lambda s: "100,000 finished jobs" in s)
    assert page.run("document.querySelectorAll('main tbody tr').length") == 50
    follow(page, "Next page")
    page.until(ROWS.format("main"), lambda rows: "j99949" in rows)
    page.run("location.hash = '#/groups'")
    page.until("document.querySelector('main').innerText", lambda said: "10,000 groups" in said)


def test_a_connection_that_hangs_is_said_and_replaced(browser: Browser, url: str) -> None:
    page = shown(browser, url)
    monitor_process = patient.get(f"{url}/healthz").json()["pid"]
    os.kill(monitor_process, signal.SIGSTOP)  # the connection stays, and brings nothing
    try:
        page.until(LIVE, lambda said: "has said nothing for 6 s" in said)
        page.until("document.getElementById('stale').innerText", lambda said: "s old" in said)
        assert page.run("document.getElementById('main').classList.contains('stale')")
        assert page.run("document.title").startswith("(old)")
    finally:
        os.kill(monitor_process, signal.SIGCONT)
    page.until(LIVE, lambda said: said.startswith("live"))
    assert page.run("document.getElementById('stale').hidden")


def test_a_page_that_cannot_be_drawn_says_so_and_the_stream_goes_on(
    browser: Browser, url: str
) -> None:
    page = shown(browser, url)
    looks = page.run("""import('./static/live.js').then(({live}) => {
        delete live.points[0].programs;
        return live.looks;
    })""")
    page.until(LIVE, lambda said: said.startswith("this page could not be drawn: "))
    page.until("import('./static/live.js').then(({live}) => live.looks)", lambda n: n > looks + 2)
    page.run("location.hash = '#/workers'")
    page.until(LIVE, lambda said: said.startswith("live"))


def test_a_monitor_with_another_token_asks_for_it_and_that_stays_said(
    browser: Browser, shared_server: PrivateRedis, real_redis: ground.Client
) -> None:
    port = str(free_port())
    with monitor(
        shared_server.url, PENSTOCK_MONITOR_PORT=port, PENSTOCK_MONITOR_TOKEN="secret"
    ) as url:
        page = shown(browser, url)
    page.until(LIVE, lambda said: said.startswith("no connection"))
    page.until("!document.getElementById('stale').hidden")
    with monitor(shared_server.url, PENSTOCK_MONITOR_PORT=port, PENSTOCK_MONITOR_TOKEN="other"):
        page.until("!document.getElementById('door').hidden")
        page.run("new Promise((done) => setTimeout(done, 2500))")  # the page's own clock has ticked
        assert "refused" in page.run(LIVE)
        assert page.run("document.getElementById('stale').hidden")
        assert not page.run("document.title").startswith("(old)")
        page.run("document.getElementById('token').value = 'other'")
        page.run("document.querySelector('#door button').click()")
        page.until(LIVE, lambda said: said.startswith("live"))


def test_tabs_that_nobody_sees_leave_room_for_one_more(browser: Browser, url: str) -> None:
    """A browser allows six connections to one server, and each tab reads a stream."""
    for _ in range(8):
        page = shown(browser, url, "workers")
        page.until("Boolean(document.querySelector('main table'))")
        page.run("""Object.defineProperty(document, 'hidden', {get: () => window.away});
            window.away = true""")
        page.until(RESTS)
    page.run("window.away = false; document.dispatchEvent(new Event('visibilitychange'))")
    page.until(f"{RESTS}.then((rests) => !rests)")


def test_a_chart_of_a_day_ends_now_and_is_asked_for_again_with_the_next_look(
    browser: Browser, url: str, real_redis: ground.Client
) -> None:
    at = int(time.time()) - 5 * 3600  # no monitor has run since
    point = Point(
        at=at, depth=77, running=0, done_per_second=0.0, wait_median=None, took_median=None,
        gates={}, workers={}, groups={}, sandboxes={}, mean_reward=None, rewards=(), programs={},
    )  # fmt: skip
    key = tagged("monitor", "default", "history:day")
    real_redis.xadd(key, {"point": json.dumps(asdict(point))}, f"{at * 1000}-0")
    page = shown(browser, url)
    page.run("""window.fetched = window.fetch, window.failed = 0, window.fetch = (path, asked) => {
        if (!path.startsWith('api/history') || window.failed++) return window.fetched(path, asked);
        throw new TypeError('no connection');
    }, 0""")
    page.run("location.hash = '#/?span=day'")
    jobs = """[...document.querySelectorAll('canvas')]
        .find((one) => one.getAttribute('aria-label')?.startsWith('Jobs:'))"""
    back = f"""(() => {{ const jobs = {jobs}; for (let n = 0; n < 10; n++) jobs.dispatchEvent(
        new KeyboardEvent('keydown', {{ key: 'ArrowLeft' }}));
        const said = jobs.getAttribute('aria-label');
        jobs.dispatchEvent(new KeyboardEvent('keydown', {{ key: 'Escape' }}));
        return said; }})()"""
    page.until(back, lambda said: "waiting 77" in said)
    assert "waiting 0" in page.run(f"{jobs}.getAttribute('aria-label')")


RESTS = "import('./static/live.js').then(({live}) => live.rests)"
POINTS = "import('./static/live.js').then(({live}) => live.points.map((point) => point.at))"


def test_a_restart_of_the_monitor_keeps_the_charts(
    browser: Browser, shared_server: PrivateRedis, real_redis: ground.Client
) -> None:
    # A run of its own: the monitor of the other tests keeps the charts of theirs.
    with monitor(shared_server.url, PENSTOCK_RUN="again") as before:
        page = browser.open(before)
        page.until(f"{POINTS}.then((points) => points.length)", lambda count: count >= 3)
        seen = page.run(POINTS)
    with monitor(shared_server.url, PENSTOCK_RUN="again") as after:
        page = browser.open(after)
        page.until(f"{POINTS}.then((points) => points.length)", lambda count: count >= 3)
        moments = page.run(POINTS)
    assert set(seen[:2]) <= set(moments)
    assert len(set(moments)) == len(moments)


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
