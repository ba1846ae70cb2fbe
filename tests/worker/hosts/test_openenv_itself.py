"""`penstock openenv` with OpenEnv's own server and client."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import ground
from tests.worker.hosts.boxes import Boxes
from tests.worker.hosts.stubbed import host

if not host("openenv"):
    pytest.skip("openenv is not installed: make hosts", allow_module_level=True)

from openenv import GenericEnvClient

CASES = {"inputs": ["3"], "outputs": ["9"]}
RIGHT = {"kind": "submit", "code": "print(int(input()) ** 2)"}
Start = Callable[..., Any]


@pytest.fixture
def start(boxes: Boxes, tmp_path: Path) -> Iterator[Start]:
    """Starts a `penstock` command, and gives its process and its first line."""

    @contextmanager
    def started(*words: str) -> Iterator[tuple[Any, str]]:
        command = [str(Path(sys.executable).with_name("penstock")), *words]
        with (tmp_path / "log").open("a") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            assert process.stdout
            yield process, process.stdout.readline().strip() if words[0] == "openenv" else ""
        finally:
            process.terminate()
            process.wait(60)
            process.stdout.close()

    with ExitStack() as stack:
        yield lambda *words: stack.enter_context(started(*words))


def client(url: str) -> Any:
    return GenericEnvClient(base_url=url, message_timeout_s=200)


async def until(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(100):
        while not await holds():  # noqa: ASYNC110 - nobody says so
            await asyncio.sleep(0.05)


async def test_sixty_four_clients_at_once_and_no_more(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PENSTOCK_REDIS_URL")
    _, url = start("openenv", "--port", "0", "--clients", "64")
    here, all_here = 0, asyncio.Event()

    async def one(n: int) -> Any:
        nonlocal here
        async with client(url) as env:
            await env.reset(ground_truth=CASES)
            here += 1
            if here == 64:
                with pytest.raises(Exception, match="apacity"):
                    async with client(url) as another:
                        await another.reset()
                all_here.set()
            await all_here.wait()
            ran = await env.step({"kind": "run_code", "code": f"print({n})"})
            return ran.observation["output"], (await env.step(RIGHT)).reward

    found = await asyncio.gather(*(one(n) for n in range(64)))
    assert found == [(f"{n}\n", 1.0) for n in range(64)]


async def test_a_killed_worker_is_an_error_at_the_client_and_the_next_step_works(
    start: Start, boxes: Boxes
) -> None:
    _, url = start("openenv", "--port", "0", "--timeout", "20", "--patience", "1")
    worker, _ = start("worker", "code", "--sandbox", "local")
    async with client(url) as env:
        await env.reset(ground_truth=CASES)
        assert (await env.step(RIGHT)).reward == 1.0
        step = asyncio.ensure_future(
            env.step({"kind": "run_code", "code": "import time; time.sleep(15)"})
        )
        await until(lambda: _one_runs(boxes.url))
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(Exception, match="infrastructure: "):
            await step
        start("worker", "code", "--sandbox", "local")
        await until(lambda: _works(env))


async def _one_runs(url: str) -> bool:
    with contextlib.closing(ground.connect(url)) as client:
        return bool(client.zcard("rq:wip:code") == 1)


async def _works(env: Any) -> bool:
    try:
        return bool((await env.step(RIGHT)).reward == 1.0)
    except RuntimeError:
        return False


async def test_the_sandbox_of_a_client_that_disconnects_ends(start: Start, boxes: Boxes) -> None:
    _, url = start("openenv", "--port", "0", "--sessions")
    async with client(url) as env:
        await env.reset(ground_truth=CASES)
        await env.step({"kind": "run_code", "code": "x = 6"})
        ran = await env.step({"kind": "run_code", "code": "print(x * 7)"})
        assert ran.observation["output"] == "42\n"
        assert len(await boxes.names()) == 1

    async def none() -> bool:
        return not await boxes.names()

    await until(none)


async def test_clients_need_the_token(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_OPENENV_TOKEN", "secret")
    _, url = start("openenv", "--port", "0")
    with pytest.raises(Exception, match="403"):
        async with client(url):
            pass
    async with client(url.replace("http://", "http://any:secret@")) as env:
        await env.reset()
