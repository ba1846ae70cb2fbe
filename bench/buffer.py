"""The rollout buffer beside slime's own server: writes over HTTP, reads, memory, restart.

slime's servers run where their folders are named: PENSTOCK_BENCH_SLIME_V0 and
PENSTOCK_BENCH_SLIME_V1 are `slime_plugins/rollout_buffer` of 3db3545cd and of today.
Without them ours is measured alone. v0 looks at all groups in every write, so it is
measured at no more than 2,000 pending groups.
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from bench import _buffer_load
from bench.peers import environment
from bench.suite import Ratio, Run, Suite, Target
from buffer import RolloutBuffer, TaskConfig
from ground import EmbeddedServer

CONNECTIONS = 32
PEER_PACKAGES = [
    "fastapi==0.115.6", "uvicorn==0.34.0", "httptools==0.6.4", "uvloop==0.21.0",
    "openai==1.60.0", "requests==2.32.3", "tqdm==4.67.1", "matplotlib==3.10.0", "numpy==2.2.1",
    "sympy==1.13.3", "pylatexenc==2.10",
]  # fmt: skip


def measure(quick: bool) -> Suite:
    home = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    redis = EmbeddedServer(home / "redis")
    ours = [_Server(_our_command(), redis.url) for _ in range(2)]
    seconds, pending = (2.0, [0, 2_000]) if quick else (5.0, [0, 2_000, 10_000, 100_000])
    contenders: dict[str, Run] = {
        "one server": lambda: _ours(redis.url, ours[:1], pending, seconds),
        "two servers": lambda: _ours(redis.url, ours, pending[:1], seconds),
        "library": lambda: _library(home, 10_000 if quick else 100_000),
    }
    ratios = [Ratio("writes/s at 0 pending", "two servers", "one server")]
    targets = _targets(quick)
    peers: list[_Server] = []
    for version, most in (("v0", 2_000), ("v1", pending[-1])):
        if folder := os.environ.get(f"PENSTOCK_BENCH_SLIME_{version.upper()}"):
            peers.append(_Server(_their_command(), "", Path(folder)))
            contenders[f"slime {version}"] = _their_run(peers[-1], pending, most, seconds)
            ratios += _beside(version)
            targets += _beside_targets(version)

    def clean_up() -> None:
        for server in (*ours, *peers):
            server.stop()
        redis.stop()
        shutil.rmtree(home, ignore_errors=True)

    return Suite(
        contenders=contenders,
        rounds=1 if quick else 3,
        conditions={"connections": CONNECTIONS, "item bytes": _item_bytes(), "redis": "AOF on"},
        ratios=ratios,
        targets=targets,
        clean_up=clean_up,
    )


class _Server:
    """A buffer server as a process, on a port of its own."""

    def __init__(self, command: Sequence[str], redis_url: str, folder: Path | None = None) -> None:
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        env = {
            **os.environ,
            "PENSTOCK_REDIS_URL": redis_url,
            "PENSTOCK_LOG_LEVEL": "WARNING",
            "PENSTOCK_BUFFER_PORT": str(self.port),
            "PENSTOCK_BUFFER_HOST": "127.0.0.1",
        }
        self._process = subprocess.Popen(
            [*command, *([str(self.port)] if folder else [])],
            env=env, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        deadline = time.monotonic() + 60
        while not self._answers():
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise RuntimeError(f"the server did not start: {command}")
            time.sleep(0.1)

    @property
    def memory_mb(self) -> float:
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def _answers(self) -> bool:
        try:
            httpx.get(self.url, timeout=2)
        except httpx.TransportError:
            return False
        return True


def _ours(
    redis_url: str, servers: Sequence[_Server], pending: Sequence[int], seconds: float
) -> Mapping[str, float]:
    found: dict[str, float] = {}
    for groups in pending:
        task = f"bench-{uuid.uuid4().hex}"
        at = f"/tasks/{task}"
        config = TaskConfig(group_size=_buffer_load.GROUP, max_bytes=1 << 40)
        httpx.put(f"{servers[0].url}/v1{at}", json=config.model_dump()).raise_for_status()
        asyncio.run(_fill(redis_url, task, groups))
        rates = _load([f"{server.url}{at}" for server in servers], seconds)
        found |= _named(rates, groups)
        if groups == pending[0]:
            found["read 128 groups ms"] = _read_ms(f"{servers[0].url}{at}")
        asyncio.run(_drop(redis_url, task))
    reached = [rate for name, rate in found.items() if name.startswith("writes/s")]
    found["slowest/fastest writes/s"] = min(reached) / max(reached)
    found["memory MB"] = max(server.memory_mb for server in servers)
    return found


def _their_run(server: _Server, pending: Sequence[int], most: int, seconds: float) -> Run:
    """One server for all rounds; what it holds from earlier ones is read away first."""

    def run() -> Mapping[str, float]:
        found: dict[str, float] = {}
        for groups in (n for n in pending if n <= most):
            httpx.post(f"{server.url}/start_rollout", json=_RESTART, timeout=60)
            time.sleep(1)
            name = uuid.uuid4().hex[:8]
            for number in range(groups):
                item = _buffer_load.item(f"p{name}", number, group=1)
                _client.post(f"{server.url}/buffer/write", json=item)
            found |= _named(_load([server.url], seconds), groups)
            if groups == pending[0]:
                found["read 128 groups ms"] = _read_ms(server.url)
        found["memory MB"] = server.memory_mb
        return found

    return run


def _library(home: Path, pending: int) -> Mapping[str, float]:
    """On a server of its own, which is then restarted with all that it holds."""
    folder = Path(tempfile.mkdtemp(dir=home))
    with EmbeddedServer(folder) as server:
        found = asyncio.run(_library_figures(server.url, "bench", pending))
    began = time.perf_counter()
    with EmbeddedServer(folder) as server:
        left = asyncio.run(_open_groups(server.url, "bench"))
        found[f"restart ms with {pending} groups"] = (time.perf_counter() - began) * 1000
    if left != pending:
        raise RuntimeError(f"{left} of {pending} groups were there after the restart")
    shutil.rmtree(folder)
    return found


async def _open_groups(url: str, task: str) -> int:
    buffer = RolloutBuffer(url, task)
    found = (await buffer.stats())["open_groups"]
    await buffer.aclose()
    return found


async def _library_figures(url: str, task: str, pending: int) -> dict[str, float]:
    config = TaskConfig(group_size=_buffer_load.GROUP, max_bytes=1 << 40)
    buffer = RolloutBuffer(url, task, config)
    client: Any = buffer._task.link.client()
    items = [_buffer_load.item("full", number) for number in range(20_480)]
    await buffer.config()
    began = time.perf_counter()
    for start in range(0, len(items), 2048):
        await buffer.write_many(items[start : start + 2048])
    wrote = len(items) / (time.perf_counter() - began)
    before = int((await client.info("memory"))["used_memory"])
    await _fill(url, task, pending)
    after = int((await client.info("memory"))["used_memory"])
    takes = []
    for _ in range(10):
        began = time.perf_counter()
        batch = await buffer.take(128)
        takes.append((time.perf_counter() - began) * 1000)
        assert batch is not None
        await buffer.ack(batch)
    await buffer.aclose()
    return {
        "batch writes/s": wrote,
        f"take 128x8 ms at {pending} pending": sorted(takes)[len(takes) // 2],
        "Redis bytes beyond the item": (after - before) / pending - _item_bytes(),
    }


async def _fill(url: str, task: str, groups: int) -> None:
    """Open groups of one item each."""
    buffer = RolloutBuffer(url, task)
    for start in range(0, groups, 2000):
        numbers = range(start, min(start + 2000, groups))
        await buffer.write_many([_buffer_load.item("pending", n, group=1) for n in numbers])
    await buffer.aclose()


async def _drop(url: str, task: str) -> None:
    buffer = RolloutBuffer(url, task)
    await buffer.reset()
    await buffer.aclose()


def _load(urls: Sequence[str], seconds: float) -> list[dict[str, float]]:
    """One load process a server, the connections shared out."""
    share, program = CONNECTIONS // len(urls), _buffer_load.__file__
    running = [
        subprocess.Popen(
            [sys.executable, program, url, str(share), str(seconds), uuid.uuid4().hex[:8]],
            stdout=subprocess.PIPE, text=True,
        )
        for url in urls
    ]  # fmt: skip
    return [json.loads(process.communicate()[0]) for process in running]


def _named(rates: Sequence[Mapping[str, float]], groups: int) -> dict[str, float]:
    return {
        f"writes/s at {groups} pending": sum(rate["rate"] for rate in rates),
        f"write p50 ms at {groups} pending": max(rate["p50"] for rate in rates),
    }


def _read_ms(url: str) -> float:
    began = time.perf_counter()
    asked = {"batch_size": 128 * _buffer_load.GROUP}
    httpx.post(f"{url}/get_rollout_data", json=asked, timeout=60).raise_for_status()
    return (time.perf_counter() - began) * 1000


def _beside(version: str) -> list[Ratio]:
    metrics = ["writes/s at 0 pending", "writes/s at 2000 pending"]
    ratios = [Ratio(metric, "one server", f"slime {version}") for metric in metrics]
    return [*ratios, Ratio(metrics[0], "two servers", f"slime {version}")]


def _beside_targets(version: str) -> list[Target]:
    if version == "v0":
        return [Target("one server writes/s at 2000 pending vs slime v0", at_least=10)]
    return [
        Target("one server writes/s at 0 pending vs slime v1", at_least=1.2),
        Target("two servers writes/s at 0 pending vs slime v1", at_least=2),
    ]


def _targets(quick: bool) -> list[Target]:
    pending = 10_000 if quick else 100_000
    return [
        Target("one server slowest/fastest writes/s", at_least=0.8),
        Target("library batch writes/s", at_least=20_000),
        Target(f"library take 128x8 ms at {pending} pending", at_most=50),
    ]


def _our_command() -> list[str]:
    return [sys.executable, "-m", "penstock", "buffer", "serve"]


def _their_command() -> list[str]:
    python = environment("slime", PEER_PACKAGES)
    program = "import sys, uvicorn, buffer; uvicorn.run(buffer.app, port=int(sys.argv[1]))"
    return [str(python), "-c", program]


def _item_bytes() -> int:
    return len(json.dumps(_buffer_load.item("pending", 1)))


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


_client = httpx.Client(timeout=60)
_RESTART = {
    "task_type": "math", "num_repeat_per_sample": "8", "num_epoch": "0", "num_process": "1",
    "remote_engine_url": "http://127.0.0.1:1", "remote_buffer_url": "http://127.0.0.1:1",
    "input_file": "/dev/null", "max_tokens": "1", "sampling_params": {"max_tokens": 1},
}  # fmt: skip
