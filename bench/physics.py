"""How far each path is above its floor: the bare operations without which nobody could do it.

A floor promises nothing: no lease, no order, no record of who has what. Each operation is awaited
before the next begins; the figure is the median of a round. The server, with its file on disk, is
the same for both.

    permit    acquire and release            one script that sets and removes a field
    enqueue   submit                         one script that writes a hash and pushes its id
    job       submit to result               a push to another process, and one back
    item      a write over HTTP              the same request to a server that pushes it to a list
    program   `print(1)` in a sandbox        `print(1)` in a fork of this interpreter
    command   `true` in a session sandbox    `true`, started as a process
"""

import asyncio
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from bench._bare import Line
from bench._buffer_load import item
from bench._buffer_servers import Server
from bench.against_side import work
from bench.peers import ROOT
from bench.suite import Ratio, Suite
from ground import EmbeddedServer
from ground.server.binary import bundled_server
from ground.server.keeper import free_port
from jail import LocalSandbox
from jail.sessions import CommandRequest, LocalSessions, SessionRequest
from limiter import TokenBucket
from worker import CodeQueue, CodeRequest

Operation = Callable[[int], Awaitable[object]]
Path_ = Callable[[str], contextlib.AbstractAsyncContextManager[Operation]]
PAIR = "redis.call('HSET', KEYS[1], 'held', '1') return redis.call('HDEL', KEYS[1], 'held')"
PUSH = "redis.call('HSET', KEYS[2], 'data', ARGV[1]) return redis.call('RPUSH', KEYS[1], KEYS[2])"


def measure(quick: bool) -> Suite:
    home = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    server = EmbeddedServer(home, binary=bundled_server())
    often = 20 if quick else 1000
    ours: Mapping[str, Path_] = {
        "permit": _permit, "enqueue": _enqueue, "job": _job, "item": _item, "program": _program,
        "command": _command,
    }  # fmt: skip
    bare: Mapping[str, Path_] = {
        "permit": partial(_script, PAIR), "enqueue": partial(_script, PUSH), "job": _bare_job,
        "item": _bare_item, "program": partial(_at_once, _fork),
        "command": partial(_at_once, _process),
    }  # fmt: skip
    contenders = {}
    for name in ours:
        times = often // 5 if name in ("program", "command") else often
        contenders[name] = partial(_run, ours[name], server.url, times)
        contenders[f"{name}, bare"] = partial(_run, bare[name], server.url, times)

    def end() -> None:
        server.stop()
        shutil.rmtree(home)

    return Suite(
        contenders=contenders,
        rounds=1 if quick else 5,
        conditions={"operations": often, "one after the other": True},
        ratios=[Ratio("us", name, f"{name}, bare") for name in ours],
        clean_up=end,
    )


def _run(path: Path_, url: str, often: int) -> dict[str, float]:
    return {"us": asyncio.run(_median(path, url, often))}


async def _median(path: Path_, url: str, often: int) -> float:
    took = []
    async with path(url) as operation:
        for number in range(often + often // 10):
            began = time.perf_counter()
            await operation(number)
            took.append(time.perf_counter() - began)
    return statistics.median(took[often // 10 :]) * 1e6


# Penstock's


@contextlib.asynccontextmanager
async def _permit(url: str) -> AsyncIterator[Operation]:
    gate = TokenBucket(url, "physics", limit=8)

    async def pair(_: int) -> None:
        (await gate.acquire()).release()

    yield pair


@contextlib.asynccontextmanager
async def _enqueue(url: str) -> AsyncIterator[Operation]:
    queue, program = CodeQueue(url, "nobodys"), CodeRequest(code="print(1)")
    yield lambda _: queue.submit(program)


@contextlib.asynccontextmanager
async def _job(url: str) -> AsyncIterator[Operation]:
    queue, program = CodeQueue(url, "physics", no_workers_after=600), CodeRequest(code="print(1)")
    env = {"PENSTOCK_SANDBOX": "work.Echo", "PYTHONPATH": str(Path(work.__file__).parent)}
    worker = ["penstock", "worker", "physics"]
    with _beside(*worker, PENSTOCK_REDIS_URL=url, PENSTOCK_LOG_LEVEL="WARNING", **env):
        await queue.run(program)
        yield lambda _: queue.run(program)


@contextlib.asynccontextmanager
async def _item(url: str) -> AsyncIterator[Operation]:
    server = Server.penstock(url)
    try:
        async with _posts(server.url) as post:
            yield post
    finally:
        server.stop()


@contextlib.asynccontextmanager
async def _program(_: str) -> AsyncIterator[Operation]:
    sandbox, program = LocalSandbox(), CodeRequest(code="print(1)")
    yield lambda _: sandbox.run(program)
    await sandbox.close()


@contextlib.asynccontextmanager
async def _command(_: str) -> AsyncIterator[Operation]:
    session = await LocalSessions().open(SessionRequest())
    yield lambda _: session.run(CommandRequest(["true"]))
    await session.end()


# The floors


@contextlib.asynccontextmanager
async def _script(source: str, url: str) -> AsyncIterator[Operation]:
    line = await Line.opened(url)
    sha = await line.ask("SCRIPT", "LOAD", source)
    yield lambda n: line.ask("EVALSHA", sha, "2", f"bare:{sha}", f"bare:{n}", "x" * 64)
    line.close()


@contextlib.asynccontextmanager
async def _bare_job(url: str) -> AsyncIterator[Operation]:
    line = await Line.opened(url)

    async def ask(_: int) -> None:
        await line.ask("RPUSH", "jobs", "x" * 64)
        await line.ask("BLPOP", "answers", "0")

    with _beside("bench._bare", "worker", url):
        yield ask
    line.close()


@contextlib.asynccontextmanager
async def _bare_item(url: str) -> AsyncIterator[Operation]:
    port = free_port()
    with _beside("bench._bare", "server", url, str(port)):
        async with _posts(f"http://127.0.0.1:{port}") as post:
            yield post


@contextlib.asynccontextmanager
async def _at_once(operate: Callable[[], None], _: str) -> AsyncIterator[Operation]:
    """What waits for nobody but the kernel."""

    async def operation(_: int) -> None:
        operate()

    yield operation


def _fork() -> None:
    reads, writes = os.pipe()
    if (pid := os.fork()) == 0:
        with os.fdopen(writes, "w") as out, contextlib.redirect_stdout(out):
            exec(compile("print(1)", "<program>", "exec"), {})
        os._exit(0)
    os.close(writes)
    assert os.read(reads, 10) == b"1\n"
    os.waitpid(pid, 0)
    os.close(reads)


def _process() -> None:
    os.waitpid(os.posix_spawnp("true", ["true"], os.environ), 0)


# What both need


@contextlib.contextmanager
def _beside(*words: str, **env: str) -> Iterator[None]:
    """A process of this interpreter. The first operation waits until it is ready."""
    process = subprocess.Popen([sys.executable, "-m", *words], cwd=ROOT, env={**os.environ, **env})
    try:
        yield
    finally:
        process.terminate()
        process.wait()


@contextlib.asynccontextmanager
async def _posts(url: str) -> AsyncIterator[Operation]:
    """One item after the other, by one connection."""
    where, name = urlsplit(url), f"{time.time()}"
    while True:
        with contextlib.suppress(ConnectionRefusedError):  # it is about to listen
            reader, writer = await asyncio.open_connection(where.hostname, where.port)
            break
        await asyncio.sleep(0.05)

    async def post(number: int) -> None:
        body = json.dumps(item(name, number)).encode()
        head = f"POST /buffer/write HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
        writer.write(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
        answer = (await reader.readuntil(b"\r\n\r\n")).lower()
        assert answer.startswith(b"http/1.1 200"), answer
        length = answer.partition(b"content-length: ")[2].partition(b"\r")[0]
        await reader.readexactly(int(length))

    yield post
    writer.close()
