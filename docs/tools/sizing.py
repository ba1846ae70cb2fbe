"""What one item costs Redis, in memory and in its one core's time: measured, and written down.

    python -m docs.tools.sizing            measures, and keeps it in docs/tools/kept/sizing.json
    make docs                              writes the pages from that

Memory and CPU seconds are the server's own (`INFO`), so that a busy machine changes little.
"""

import asyncio
import json
import sys
import tempfile
import threading
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from rq import Queue
from rq.serializers import JSONSerializer

import ground
from buffer import RolloutBuffer, TaskConfig
from docs.tools.quoted import Row
from ground import EmbeddedServer
from limiter import TokenBucket
from worker import CodeQueue, CodeRequest, CodeResult, CommandResult, ConcurrentWorker
from worker.lifecycle import SandboxLifecycle, SandboxRef, SandboxSpec
from worker.settings import WorkerSettings

KEPT = Path(__file__).parent / "kept" / "sizing.json"
PROGRAM = "x" * 1000
ITEM = {"messages": [{"role": "assistant", "content": "x" * 2000}], "extra_info": {}}
MANY = 4000


class Server:
    """Bytes in use, and seconds of CPU, now."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._client: Any = ground.connect(url)

    def now(self) -> tuple[float, float]:
        info = self._client.info()
        return info["used_memory"], info["used_cpu_user"] + info["used_cpu_sys"]

    async def cost(self, work: Callable[[], Awaitable[object]], count: int) -> tuple[float, float]:
        bytes_before, cpu_before = await asyncio.to_thread(self.now)
        await work()
        bytes_after, cpu_after = await asyncio.to_thread(self.now)
        return (bytes_after - bytes_before) / count, (cpu_after - cpu_before) / count * 1e6


async def gates(server: Server) -> list[Row]:
    gate = TokenBucket(server.url, "room", limit=MANY)

    async def pairs() -> None:
        for _ in range(MANY // 32):
            (await gate.acquire()).release()

    await pairs()
    _, pair = await server.cost(lambda: asyncio.gather(*(pairs() for _ in range(32))), MANY)
    held: list[Any] = []

    async def hold() -> None:
        held.extend(await asyncio.gather(*(gate.acquire() for _ in range(MANY))))

    permit, _ = await server.cost(hold, MANY)
    waiting: list[asyncio.Task[Any]] = []

    async def wait() -> None:
        waiting.extend(asyncio.ensure_future(gate.acquire()) for _ in range(MANY))
        while (await gate.status()).waiting < MANY:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.05)

    waiter, _ = await server.cost(wait, MANY)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    for each in held:
        each.release()
    return [
        ("a permit, acquired and released", None, pair),
        ("a permit that is held", permit, None),
        ("a waiter in a gate's line", waiter, None),
    ]


class Instant:
    """A sandbox whose programs end at once."""

    name, languages = "instant", frozenset({"python"})

    def __init__(self, settings: object) -> None: ...

    async def run(self, request: CodeRequest) -> CodeResult:
        ran = CommandResult(status="Finished", return_code=0, stdout="42\n", stderr="")
        return CodeResult(status="Success", run_result=ran, isolation="none")

    async def close(self) -> None: ...


async def jobs(server: Server) -> list[Row]:
    queue = CodeQueue(server.url, "code", abandon="keep")
    handles: list[Any] = []

    async def submit() -> None:
        handles.extend(await asyncio.gather(*(queue.submit(PROGRAM) for _ in range(MANY))))

    waiting, submitted = await server.cost(submit, MANY)
    worker = ConcurrentWorker(
        [Queue("code", connection=ground.connect(server.url), serializer=JSONSerializer)],
        serializer=JSONSerializer, connection=ground.connect(server.url),
        settings=WorkerSettings.load(sandbox="docs.tools.sizing.Instant", concurrency=256),
    )  # fmt: skip
    thread = threading.Thread(
        target=worker.work, kwargs={"logging_level": "ERROR", "max_jobs": MANY}, daemon=True
    )

    async def run() -> None:
        thread.start()
        await asyncio.gather(*(handle.result() for handle in handles))
        await asyncio.to_thread(thread.join)

    grown, ran = await server.cost(run, MANY)
    return [
        ("a job of 1 kB that waits", waiting, None),
        ("a job that ended, until `result_ttl`", waiting + grown, submitted + ran),
    ]


async def items(server: Server) -> list[Row]:
    buffer = RolloutBuffer(server.url, "math", TaskConfig(group_size=8))
    given = [ITEM | {"instance_id": f"i{n // 8}", "reward": n % 2} for n in range(MANY)]

    async def write() -> None:
        for at in range(0, MANY, 100):
            await buffer.write_many(given[at : at + 100])

    stored, written = await server.cost(write, MANY)

    async def take() -> None:
        while (batch := await buffer.take(32)) is not None:
            await buffer.ack(batch)

    _, taken = await server.cost(take, MANY)
    await buffer.aclose()
    return [("an item of 2 kB in the buffer, of groups of 8", stored, written + taken)]


class Nowhere:
    """A provider whose sandboxes are names alone."""

    name = scope = "docs.tools.sizing.Nowhere"

    async def create(
        self, spec: SandboxSpec, *, name: str, tags: Mapping[str, str], ttl: float
    ) -> SandboxRef:
        return SandboxRef(uuid.uuid4().hex, name)

    async def wait_ready(self, ref: SandboxRef, timeout: float) -> None: ...  # noqa: ASYNC109

    async def open_runtime(self, ref: SandboxRef, timeout: float) -> SandboxRef:  # noqa: ASYNC109
        return ref

    async def close_runtime(self, ref: SandboxRef) -> None: ...

    async def is_alive(self, ref: SandboxRef) -> bool:
        return True

    async def terminate(self, id: str) -> None: ...

    async def find(self, name: str) -> None: ...

    async def list(self, tags: Mapping[str, str]) -> AsyncIterator[SandboxRef]:
        for _ in ():
            yield _

    async def close(self) -> None: ...


async def sandboxes(server: Server, count: int = 1000) -> list[Row]:
    provider: Any = Nowhere()
    lifecycle = SandboxLifecycle(server.url, provider)
    open_now: list[Any] = []

    async def start() -> None:
        open_now.extend(await asyncio.gather(*(lifecycle.start() for _ in range(count))))

    kept, started = await server.cost(start, count)

    async def end() -> None:
        await asyncio.gather(*map(lifecycle.stop, open_now))

    _, ended = await server.cost(end, count)
    lifecycle.registry.close()
    return [("a session sandbox, started and ended", kept, started + ended)]


def measure() -> list[Row]:
    found = []
    for each in (gates, jobs, items, sandboxes):
        with tempfile.TemporaryDirectory() as folder, EmbeddedServer(folder) as server:
            found += asyncio.run(each(Server(server.url)))
            print(each.__name__, file=sys.stderr)
    return found


if __name__ == "__main__":
    KEPT.write_text(json.dumps(measure(), indent=1) + "\n")
