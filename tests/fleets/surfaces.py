"""What an operator looks at: `status`, `top`, the page, `doctor` and alerts, each as it is used.

    fleet.names("a typo in a queue", "no_worker", "no worker listens on queue 'cdoe'")
    fleet.is_well("a typo in a queue")

What was found is noted, a file for each fleet; `python -m tests.fleets.table` makes the table of
docs/inside/fleets.md of them.
"""

import json
import re
import subprocess
import time
from pathlib import Path
from typing import Any, Self

import httpx

import ground
from ground.redis.url import parse_redis_url
from tests.harness import commands
from tests.harness.servers import free_port, until
from tests.penstock import promql
from tests.penstock.commands import clean
from worker import CodeQueue

NOTED = Path(".pytest_cache/fleets")
SURFACES = ("status", "top", "page", "doctor", "alert")
QUICK = {
    "PENSTOCK_JOB_LEASE": "2", "PENSTOCK_SANDBOX_ATTEMPTS": "1", "PENSTOCK_SANDBOX_LEVEL": "none",
    "COLUMNS": "400",
}  # fmt: skip


SCRAPED_WITHIN = 10  # seconds; Prometheus' own `scrape_timeout`
NO_MONITOR = "it does not start"


def down() -> str:
    """The alert of a scrape that fails."""
    [rule] = [one for one in promql.alerts() if one["alert"] == "PenstockMonitorDown"]
    return f"{rule['alert']}, {rule['for']}"


def note(fleet: str, **row: Any) -> None:
    NOTED.mkdir(parents=True, exist_ok=True)
    file = NOTED / f"{re.sub('[^a-z0-9]+', '-', fleet.lower())}.json"
    before = json.loads(file.read_text()) if file.exists() else {"fleet": fleet}
    file.write_text(json.dumps(before | row))


def _alarms(shown: dict[str, Any]) -> list[dict[str, Any]]:
    """What a message of the page's stream calls wrong; one of trouble has no fleet."""
    found: list[dict[str, Any]] = shown.get("fleet", {}).get("alarms", [])
    return found


class Fleet:
    """One Redis, its monitor, and the processes that a test starts beside them."""

    def __init__(self, url: str, page: str = "", boxes: Path | None = None) -> None:
        """Without a page it is a Redis that no client reaches. `boxes` has its session sandboxes:
        those of this user may be others' at the same time."""
        self._own = {} if boxes is None else {
            "PENSTOCK_LOCAL_SANDBOXES": str(boxes), "PENSTOCK_SESSION_HUB_IDLE": "1",
        }  # fmt: skip
        self.url, self.page = url, page
        self.processes: list[subprocess.Popen[Any]] = []
        self.client: Any = ground.connect(parse_redis_url(url)) if page else None

    # What breaks, and what is done about it

    def start(self, *words: str, **environment: str) -> "subprocess.Popen[Any]":
        """A subcommand as a process of its own, until the test ends or kills it."""
        nowhere = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = commands.start(words, env=self.environment(**environment), **nowhere)
        self.processes.append(process)
        return process

    def worker(self, *words: str, **environment: str) -> "subprocess.Popen[Any]":
        """A worker, when its first heartbeat is there."""
        before = self.beating()
        process = self.start("worker", *words, **environment)

        def beats() -> bool:
            assert process.poll() is None, "the worker ended"
            return self.beating() > before

        until(beats, "a worker's heartbeat")
        return process

    def submit(self, count: int = 1, share: str = "") -> None:
        """Send programs to the queue `code`, which stay if nobody waits for them."""
        codes = CodeQueue(self.url, "code", abandon="keep", share=share)
        for n in range(count):
            codes.sync.submit(f"print({n})")

    def beating(self) -> int:
        """How many workers have written a heartbeat."""
        keys = self.client.smembers("rq:workers")
        return sum(self.client.hexists(key, "penstock_release") for key in keys)

    def sandbox(self, port: int, **environment: str) -> "subprocess.Popen[Any]":
        """A sandbox server, when it is healthy."""
        given = {"PENSTOCK_SANDBOX_LEVEL": "", **environment}
        process = self.start("sandbox", "serve", "--port", str(port), **given)
        url = f"http://127.0.0.1:{port}"
        until(lambda: self.run("health", url).returncode == 0, "the sandbox")
        return process

    def run(self, *words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        """A command to its end."""
        return commands.run(words, env=self.environment(**environment))

    def do(self, *words: str) -> None:
        """A command that an operator gives, which succeeds."""
        done = self.run(*words)
        assert done.returncode == 0, done

    def environment(self, **more: str) -> dict[str, str]:
        given = clean() | QUICK | self._own | {"PENSTOCK_REDIS_URL": self.url} | more
        return {name: value for name, value in given.items() if value}

    # What the operator sees

    def names(self, fleet: str, verdict: str, words: str, remedy: str) -> None:
        """Every surface names it; with which words, and with the remedy."""
        began = time.monotonic()
        until(lambda: verdict in self.verdicts(), f"the verdict {verdict} of {fleet}")
        found = round(time.monotonic() - began)
        problem = next(each for each in self.problems if each["verdict"] == verdict)
        assert words in problem["text"], problem
        assert remedy in problem["remedy"], problem
        assert self.code == 1
        top = self.run("top", "--once")
        assert (top.returncode, words in top.stdout) == (1, True), top
        assert problem["remedy"][:40] in top.stdout
        self.on_the_page(lambda shown: verdict in {a["verdict"] for a in _alarms(shown)})
        doctor = json.loads(self.run("doctor", "--json").stdout)["findings"]
        if verdict.startswith("redis_"):  # of a Redis that does not serve, that is enough
            assert any(one["verdict"] == "fail" for one in doctor if one["section"] == "redis")
        else:
            named = {one["about"]: one for one in doctor if one["section"] == "fleet"}
            assert words in named[verdict]["fact"], named
        alert = self.alert(verdict)
        note(fleet, verdict=verdict, level=problem["level"], seconds=found, alert=alert,
             remedy=problem["remedy"], status=True, top=True, page=True, doctor=True)  # fmt: skip

    def cannot_be_judged(self, fleet: str, words: str, *, page: bool = True) -> None:
        """No surface calls it healthy: those that look once end with 2, and say why."""
        began = time.monotonic()
        for command in ("status", "top --once"):
            ended = self.run(*command.split())
            assert (ended.returncode, words in ended.stderr) == (2, True), ended
        found = round(time.monotonic() - began)
        doctor = json.loads(self.run("doctor", "--json").stdout)
        assert doctor["ready"] is False
        assert any(words in each["fact"] for each in doctor["findings"]), doctor
        if page:
            self.on_the_page(lambda shown: bool(shown.get("reason") or _alarms(shown)))
            alert = self.alert()
        else:
            alert = self.alert_without_a_monitor(words)
        note(fleet, verdict="exit code 2", level="bad", seconds=found, remedy=words, alert=alert,
             status=True, top=True, page=page or NO_MONITOR, doctor=True)  # fmt: skip

    def is_well(self, fleet: str, *, but: str = "") -> None:
        """All is well again, by exit code and on the page; or all but one verdict."""
        left = {but} - {""}
        try:
            until(lambda: set(self.verdicts()) <= left, f"{fleet} without a problem")
        except AssertionError as failure:
            failure.add_note(str(self.problems))
            raise
        assert self.code == (1 if self.problems else 0)
        self.on_the_page(
            lambda shown: "fleet" in shown and {a["verdict"] for a in _alarms(shown)} <= left
        )
        note(fleet, well=True)

    def verdicts(self) -> list[str]:
        said = self.run("status", "--json")
        found = json.loads(said.stdout)
        self.code, self.problems, self.said = said.returncode, found["problems"], found["sentence"]
        return [one["verdict"] for one in self.problems]

    code, said = 0, ""
    problems: list[dict[str, Any]] = []  # noqa: RUF012 - each fleet has its own after a look

    def on_the_page(self, holds: Any) -> None:
        """Until an update of the page's stream is so."""
        with httpx.stream("GET", f"{self.page}/api/events", timeout=100) as stream:
            for line in stream.iter_lines():
                if line.startswith("data: {") and holds(json.loads(line[6:])):
                    return
        raise AssertionError("the stream ended")

    def alert(self, verdict: str = "") -> str:
        """The alert that fires, and after how long: of the monitor's own figures, or since it
        gives none."""
        try:
            scraped = httpx.get(f"{self.page}/metrics", timeout=SCRAPED_WITHIN)
            scraped.raise_for_status()
        except httpx.HTTPError:
            return down()
        samples = [
            one
            for one in promql.samples([scraped.text])
            if one.name == "penstock_problem" and verdict in ("", one.labels["verdict"])
        ]
        fires = [
            rule
            for rule in promql.alerts()
            if "penstock_problem" in rule["expr"] and promql.gives(rule["expr"][:-5], samples)
        ]
        assert fires, (verdict, scraped.text[:2000])
        return f"{fires[0]['alert']}, {fires[0]['for']}"

    def alert_without_a_monitor(self, words: str, **environment: str) -> str:
        """None starts: it ends and says why, so that a scrape of it fails."""
        ended = self.run("monitor", PENSTOCK_MONITOR_PORT=str(free_port()), **environment)
        assert (ended.returncode, words in ended.stderr) == (2, True), ended
        return down()

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
        for process in self.processes:
            process.wait(100)
        if self.client is not None:
            self.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
