"""What a sandbox server takes at once, and what becomes of requests as it ends."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from jail import Limits, Outcome
from jail.serve import App, Line, app
from tests.harness.servers import until

from .serving import CLIENT

SHORT_OF_PATIENCE = (
    "import penstock.commands.sandbox as s; s._GRACE = 1; from penstock.entry import main; main()"
)


@contextmanager
def narrow(*options: str, start: tuple[str, ...] = ("-m", "penstock")) -> Iterator[Any]:
    """A server with one place, and its process."""
    command = [*start, "sandbox", "serve", "--port", "0", "--concurrency", "1", *options]
    with subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        assert url.startswith("http"), "it did not start"
        try:
            yield url, server
        finally:
            server.kill()


def asked(clients: ThreadPoolExecutor, url: str, seconds: float) -> Future[httpx.Response]:
    code = f"import time; time.sleep({seconds}); print('whole')"
    body = {"language": "python", "code": code, "run_timeout": 60}
    return clients.submit(CLIENT.post, f"{url}/run_code", json=body)


def waiting(url: str) -> int:
    number: int = CLIENT.get(f"{url}/healthz").json()["waiting"]
    return number


def busy(url: str) -> bool:
    return "penstock_sandbox_running 1.0" in CLIENT.get(f"{url}/metrics").text


def test_what_runs_finishes_and_what_waits_is_sent_elsewhere_as_the_server_ends() -> None:
    with narrow() as (url, server), ThreadPoolExecutor(2) as clients:
        runs = asked(clients, url, 4)
        until(lambda: busy(url), "a program that runs")
        waits = asked(clients, url, 0)
        until(lambda: waiting(url) == 1, "one that waits")
        server.terminate()
        assert (waits.result().status_code, runs.done()) == (504, False)
        assert runs.result().json()["run_result"]["stdout"] == "whole\n"
        assert "Traceback" not in server.communicate(timeout=100)[1]


def test_what_does_not_finish_in_time_is_sent_elsewhere_too() -> None:
    with (
        narrow(start=("-c", SHORT_OF_PATIENCE)) as (url, server),
        ThreadPoolExecutor(1) as clients,
    ):
        runs = asked(clients, url, 50)
        until(lambda: busy(url), "a program that runs")
        server.terminate()
        assert runs.result().status_code == 504  # one that is waited for has 200
        assert "Traceback" not in server.communicate(timeout=100)[1]


class SlowJails:
    """Jails whose programs end when they are let."""

    level, memory_by, restarts, lacking, concurrency = "none", "nobody", 0, (), 1

    def __init__(self) -> None:
        self.let, self.begun, self.running = asyncio.Event(), asyncio.Event(), 0

    async def run(self, _: Any) -> Outcome:
        self.running += 1
        self.begun.set()
        await self.let.wait()
        return Outcome("finished", "none")


async def test_the_look_at_its_health_has_a_place_like_any_program() -> None:
    jails: Any = SlowJails()
    line = Line(1, 1, 10.0)
    served = App(jails, Limits(), line)
    look = asyncio.create_task(served.health())
    await jails.begun.wait()
    assert line.full
    await served.health()  # all places are taken: programs do run
    assert jails.running == 1
    jails.let.set()
    await look
    assert not line.full


async def test_bodies_that_are_here_at_once_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "_MOST_AT_ONCE", 1000)
    served = App(SlowJails(), Limits(), Line(1, 1, 10.0))  # type: ignore[arg-type]
    transport = httpx.ASGITransport(app=served)
    halves, hold = asyncio.Semaphore(0), asyncio.Event()

    async def half() -> Any:
        yield b"x" * 400
        halves.release()
        await hold.wait()
        yield b""

    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        sending = [asyncio.create_task(client.post("/run_code", content=half())) for _ in range(2)]
        for _ in sending:
            await halves.acquire()
        third = await client.post("/run_code", content=b"x" * 400)
        assert (third.status_code, "no room" in third.text) == (504, True)
        hold.set()
        assert {(await sent).status_code for sent in sending} == {422}
        assert (await client.post("/run_code", content=b"x" * 900)).status_code == 422
