"""What `bench.against` has two releases do: public names only, that both have.

    python work.py URL WHAT COUNT PROCESSES

Does WHAT so often, and prints seconds and processor seconds of one, and the processor seconds of
PROCESSES: `{"worker": 17}`. The sandbox of its worker is `Echo`, so that the queue alone is
measured.
"""

import asyncio
import http.client
import json
import os
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

TEXT = "x" * 1000
GROUPS, SIZE = 100, 8


class Echo:
    """Every program prints `ok`, at once."""

    name, languages = "echo", frozenset({"python"})

    def __init__(self, _: object) -> None: ...

    async def run(self, request: Any) -> Any:
        from worker import CodeResult, CommandResult

        ended = CommandResult(status="Finished", return_code=0, stdout="ok\n")
        return CodeResult(status="Success", run_result=ended)

    async def close(self) -> None: ...


class Stopwatch:
    """Started when all is ready: what came before is not counted."""

    def __init__(self, processes: dict[str, int]) -> None:
        self._processes = processes

    def start(self) -> None:
        self._began = self._now()

    def stop(self, count: int) -> dict[str, float]:
        now = self._now()
        return {name: (now[name] - began) / count for name, began in self._began.items()}

    def _now(self) -> dict[str, float]:
        own = {"µs": time.perf_counter(), "client's processor µs": time.process_time()}
        others = {f"{name}'s processor µs": _used(pid) for name, pid in self._processes.items()}
        return own | others


def _used(process: int) -> float:
    """Its processor seconds until now, to a hundredth."""
    stat = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")


async def one_job(url: str, count: int, watch: Stopwatch) -> None:
    queue, program = await _served(url)
    watch.start()
    for _ in range(count):
        await queue.run(program)


async def many_jobs(url: str, count: int, watch: Stopwatch) -> None:
    """All at once: what the worker claims and ends together is the more."""
    queue, program = await _served(url)
    watch.start()
    await asyncio.gather(*(queue.run(program) for _ in range(count)))


async def submits(url: str, count: int, watch: Stopwatch) -> None:
    """To a queue without a worker."""
    queue, program = await _waiting(url)
    watch.start()
    for _ in range(count):
        await queue.submit(program)


async def many_submits(url: str, count: int, watch: Stopwatch) -> None:
    queue, program = await _waiting(url)
    watch.start()
    await asyncio.gather(*(queue.submit(program) for _ in range(count)))


async def _waiting(url: str) -> tuple[Any, Any]:
    from worker import CodeQueue, CodeRequest

    queue = CodeQueue(url, "waiting", no_workers_after=600, abandon="keep")  # none is withdrawn
    program = CodeRequest(code="print(1)")
    await queue.submit(program)
    return queue, program


async def tool_1(url: str, count: int, watch: Stopwatch) -> None:
    await _tool(url, count, watch, callers=1)


async def tool_16(url: str, count: int, watch: Stopwatch) -> None:
    await _tool(url, count, watch, callers=16)


async def tool_64(url: str, count: int, watch: Stopwatch) -> None:
    await _tool(url, count, watch, callers=64)


async def _tool(url: str, count: int, watch: Stopwatch, callers: int) -> None:
    """verl's tool as its host calls it: create, execute, release; no gate."""
    from worker.tool import SandboxFusionTool

    places = {"enable_global_rate_limit": False, "ungated_queue": "bench", "redis_url": url}
    tool = SandboxFusionTool({"num_workers": callers, **places})

    async def call() -> None:
        instance, _ = await tool.create()
        response, _, _ = await tool.execute(instance, {"code": "print(1)"})
        await tool.release(instance)
        assert response.text == "ok\n", response

    await call()
    watch.start()
    await _shared(count, callers, call)


async def _shared(count: int, among: int, call: Callable[[], Awaitable[None]]) -> None:
    """So many calls by so many tasks, each with its next one when the last is back."""
    left = iter(range(count))

    async def play() -> None:
        for _ in left:
            await call()

    await asyncio.gather(*(play() for _ in range(among)))


async def _served(url: str) -> tuple[Any, Any]:
    from worker import CodeQueue, CodeRequest

    queue, program = CodeQueue(url, "bench", no_workers_after=600), CodeRequest(code="print(1)")
    await queue.run(program)
    return queue, program


async def permits(url: str, count: int, watch: Stopwatch) -> None:
    await _permits(url, count, watch, limit=8)


async def tokens(url: str, count: int, watch: Stopwatch) -> None:
    await _permits(url, count, watch, rate=1e6, burst=1_000_000)


async def _permits(url: str, count: int, watch: Stopwatch, **terms: Any) -> None:
    from limiter import TokenBucket

    gate = TokenBucket(url, f"against-{uuid.uuid4().hex}", **terms)
    (await gate.acquire()).release()
    watch.start()
    for _ in range(count):
        (await gate.acquire()).release()


async def permits_32(url: str, count: int, watch: Stopwatch) -> None:
    await _many_permits(url, count, watch, tasks=32)


async def permits_256(url: str, count: int, watch: Stopwatch) -> None:
    await _many_permits(url, count, watch, tasks=256)


async def _many_permits(url: str, count: int, watch: Stopwatch, tasks: int) -> None:
    """Nobody waits."""
    from limiter import TokenBucket

    gate = TokenBucket(url, f"against-{uuid.uuid4().hex}", limit=1024)

    async def pair() -> None:
        (await gate.acquire()).release()

    await pair()
    watch.start()
    await _shared(count, tasks, pair)


async def line(url: str, count: int, watch: Stopwatch) -> None:
    """64 coroutines at a gate of 8: most permits are handed over."""
    from limiter import TokenBucket

    gate = TokenBucket(url, f"against-{uuid.uuid4().hex}", limit=8)

    async def hold() -> None:
        async with gate:
            await asyncio.sleep(0)

    await hold()
    watch.start()
    await _shared(count, 64, hold)


async def groups(url: str, count: int, watch: Stopwatch) -> None:
    await _groups(url, count, watch, GROUPS)


async def one_group(url: str, count: int, watch: Stopwatch) -> None:
    await _groups(url, count, watch, 1)


async def _groups(url: str, count: int, watch: Stopwatch, most: int) -> None:
    """Write so many groups of 8, take them, acknowledge them."""
    from buffer import RolloutBuffer, TaskConfig

    buffer = RolloutBuffer(url, f"against-{uuid.uuid4().hex}", TaskConfig(group_size=SIZE))
    await buffer.config()
    watch.start()
    for turn in range(count):
        await buffer.write_many([_item(turn, number) for number in range(most * SIZE)])
        batch = await buffer.take(most)
        assert batch is not None
        assert len(batch.groups) == most
        await buffer.ack(batch)
    await buffer.aclose()


def _item(turn: int, number: int) -> dict[str, object]:
    messages = [{"role": role, "content": TEXT} for role in ("user", "assistant")]
    return {
        "uid": f"{turn}-{number}", "instance_id": f"{turn}-{number // SIZE}", "messages": messages,
        "reward": number % 2, "extra_info": {"timestamp": "1.0"},
    }  # fmt: skip


async def http_writes(_: str, count: int, watch: Stopwatch) -> None:
    """By bare sockets: a client library would cost more than the server."""
    writers = await _writers()
    watch.start()
    await _write(writers, count)
    for writer in writers:
        writer.close()


async def http_reads(_: str, count: int, watch: Stopwatch) -> None:
    """A read of all that is finished, as slime's clients do it."""
    writers = await _writers()
    await _write(writers, count)
    for writer in writers:
        writer.close()
    reader = http.client.HTTPConnection("127.0.0.1", _port())
    watch.start()
    reader.request("POST", "/get_rollout_data", "{}", {"Content-Type": "application/json"})
    answer = json.loads(reader.getresponse().read())
    assert len(answer["data"]["data"]) == count, answer
    reader.close()


async def _writers() -> "list[_Connection]":
    """All have a connection, and the task is there: the first version fails if it is made twice."""
    writers = [await _Connection.made() for _ in range(32)]
    await writers[0].post("/buffer/write", _item(1, 0))
    return writers


async def _write(writers: "list[_Connection]", count: int) -> None:
    left = iter(range(count))

    async def play(writer: "_Connection") -> None:
        for number in left:
            await writer.post("/buffer/write", _item(0, number))

    await asyncio.gather(*(play(writer) for writer in writers))


def _port() -> int:
    return int(os.environ["PENSTOCK_BUFFER_PORT"])


class _Connection:
    """To the buffer server, one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def made(cls) -> "_Connection":
        """As soon as the server is up."""
        while True:
            try:
                return cls(*await asyncio.open_connection("127.0.0.1", _port()))
            except ConnectionRefusedError:
                await asyncio.sleep(0.1)

    async def post(self, path: str, content: dict[str, object]) -> None:
        body = json.dumps(content).encode()
        self._writer.write(
            b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (path.encode(), len(body), body)
        )
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        assert head.startswith(b"http/1.1 200"), head
        length = head.partition(b"content-length:")[2].partition(b"\r")[0]
        await self._reader.readexactly(int(length))

    def close(self) -> None:
        self._writer.close()


async def sandbox_starts(_: str, count: int, watch: Stopwatch) -> None:
    watch.start()
    for _turn in range(count):
        sandbox, hello = _sandbox()
        await hello("")
        await sandbox.close()


async def hellos(_: str, count: int, watch: Stopwatch) -> None:
    sandbox, hello = _sandbox()
    await hello("")
    watch.start()
    for _turn in range(count):
        await hello("")
    await sandbox.close()


async def cases(_: str, count: int, watch: Stopwatch) -> None:
    """Programs with an input each, all at once."""
    sandbox, hello = _sandbox()
    await hello("")
    watch.start()
    await asyncio.gather(*(hello(f"{number}\n") for number in range(count)))
    await sandbox.close()


def _sandbox() -> tuple[Any, Callable[[str], Awaitable[None]]]:
    from worker import CodeRequest
    from worker.sandbox.local import LocalSandbox  # its first name, which every release has

    sandbox = LocalSandbox()

    async def hello(given: str) -> None:
        code = "import sys; print('hello', sys.stdin.read().strip())"
        result = await sandbox.run(CodeRequest(code=code, stdin=given))
        assert result.run_result is not None
        assert (result.run_result.stdout or "").split() == ["hello", *given.split()], result

    return sandbox, hello


if __name__ == "__main__":
    url, what, times, processes = sys.argv[1:]
    watch = Stopwatch(json.loads(processes))
    asyncio.run(globals()[what](url, int(times), watch))
    print(json.dumps(watch.stop(int(times))))
