"""The gateway beside a plain pass-through proxy, before the same scripted engine.

`added ms` is the time of a turn less that of the calls that it makes to its engine, made by the
client itself in turns with it. At a load that fills no core the engine takes half a second for an
answer. Of the scripts of a turn two are its own: its beginning, its commit. Two are of its permit,
of which the second waits for nothing; notes of what was delivered, for many turns in one, are among
them too.
"""

import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self

import httpx

from bench._buffer_servers import Process
from bench.peers import ROOT
from bench.suite import Ratio, Suite, Target
from buffer import RolloutBuffer, TaskConfig
from ground import EmbeddedServer, connect
from ground.http.wires import Wires
from ground.server.binary import bundled_server
from ground.server.keeper import free_port

GATEWAY, PROXY = "gateway", "proxy"
SESSIONS = 8  # at the load at which neither path fills the cores
PACE = 0.5  # seconds an answer, at that load
OPEN = (10, 10_000)
MESSAGES = [
    {"role": "system", "content": "You are a careful engineer."},
    {"role": "user", "content": "List the files, and say what you find."},
]


class Started:
    """A program that listens on a port of its own."""

    def __init__(self, *command: str, path: str = "/v1/models", **env: str) -> None:
        self.port = free_port()
        words = [word.replace("{port}", str(self.port)) for word in command]
        self._process = subprocess.Popen(
            [sys.executable, "-m", *words], cwd=ROOT, env={**os.environ, **env},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.url = f"http://127.0.0.1:{self.port}"
        self.used = Process(self._process.pid)
        deadline = time.monotonic() + 60
        while not self._answers(path):
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise RuntimeError(f"it did not start: {words}")
            time.sleep(0.05)

    def _answers(self, path: str) -> bool:
        try:
            return httpx.get(self.url + path, timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


def measure(quick: bool) -> Suite:
    home = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    # The one with many sessions has a Redis of its own: turns of both are made in turns.
    servers = [EmbeddedServer(home / name, binary=bundled_server()) for name in ("few", "many")]
    for server in servers:
        asyncio.run(_make_task(server.url))
    started: list[Started] = []

    def start(*command: str, **more: Any) -> Started:
        started.append(Started(*command, **more))
        return started[-1]

    engines = [
        start("tests.gateway.scripted.vllm", "{port}", json.dumps({"pace": pace}))
        for pace in (0.0, PACE)
    ]
    gateways = [
        start("penstock", "gateway", "serve", "--port", "{port}", "--engines",
              f"vllm={engine.url}", path="/healthz", PENSTOCK_REDIS_URL=server.url,
              PENSTOCK_LOG_LEVEL="WARNING")
        for engine, server in [(engines[0], servers[0]), (engines[1], servers[0]),
                               (engines[0], servers[1])]
    ]  # fmt: skip
    proxies = [start("bench._plain_proxy", "{port}", engine.url) for engine in engines]
    turns, seconds = (60, 4) if quick else (300, 12)
    many = OPEN[1] // (10 if quick else 1)
    among = asyncio.run(_among(gateways[2].url, many))

    def gateway() -> Mapping[str, float]:
        return asyncio.run(_gateway(servers[0].url, engines, gateways, turns, seconds, among))

    def proxy() -> Mapping[str, float]:
        return asyncio.run(_proxy(engines, proxies, turns, seconds))

    def clean_up() -> None:
        for one in reversed(started):
            one.stop()
        for server in servers:
            server.stop()
        shutil.rmtree(home)

    loaded = f"turns/s, {SESSIONS} sessions"
    return Suite(
        contenders={GATEWAY: gateway, PROXY: proxy},
        rounds=1 if quick else 3,
        conditions={"server": bundled_server().name, "engine": "scripted, vLLM's wire",
                    "sessions at load": SESSIONS, "seconds an answer at load": PACE,
                    "open sessions": [OPEN[0], many]},
        ratios=[Ratio(loaded, GATEWAY, PROXY), Ratio("cpu ms a turn", GATEWAY, PROXY),
                Ratio("p50 ms, many open", GATEWAY, GATEWAY, "p50 ms, few open")],
        targets=[
            Target(f"{GATEWAY} added ms, 1 session", at_most=2),
            Target(Ratio(loaded, GATEWAY, PROXY).name, at_least=0.97),
            Target(f"{GATEWAY} redis scripts a turn", at_most=5),
            Target(Ratio("p50 ms, many open", GATEWAY, GATEWAY, "p50 ms, few open").name,
                   at_most=1.1),
        ],
        clean_up=clean_up,
    )  # fmt: skip


async def _make_task(url: str) -> None:
    buffer = RolloutBuffer(url, "bench", TaskConfig(group_size=1, dialect="v1"))
    await buffer.config()
    await buffer.aclose()


async def _gateway(
    redis: str, engines: list[Started], gateways: list[Started], turns: int, seconds: float,
    among: str,
) -> Mapping[str, float]:  # fmt: skip
    found: dict[str, float] = {}
    (quick_engine, _), (quick, paced, full) = engines, gateways
    async with Client() as http:
        own = await _opened(http, quick.url, OPEN[0])
        through, beside, crowded = [], [], []
        for _ in range(turns):
            through.append(await _timed(lambda: _turn(http, quick.url, own[0])))
            crowded.append(await _timed(lambda: _turn(http, full.url, among)))
            beside.append(await _timed(lambda: _engine_calls(http, quick_engine.url)))
        found["p50 ms, 1 session"] = statistics.median(through)
        found["added ms, 1 session"] = statistics.median(through) - statistics.median(beside)
        found["p50 ms, few open"] = found["p50 ms, 1 session"]
        keys = await _opened(http, paced.url, SESSIONS)
        used, before = paced.used.cpu_seconds, _calls(redis)
        done = await _load([partial(_turn, http, paced.url, key) for key in keys], seconds)
        found[f"turns/s, {SESSIONS} sessions"] = done / seconds
        found["cpu ms a turn"] = (paced.used.cpu_seconds - used) * 1000 / done
        found["redis scripts a turn"] = (_calls(redis) - before) / done
        found["p50 ms, many open"] = statistics.median(crowded)
    return found


async def _proxy(
    engines: list[Started], proxies: list[Started], turns: int, seconds: float
) -> Mapping[str, float]:
    found: dict[str, float] = {}
    (engine, _), (quick, paced) = engines, proxies
    async with Client() as http:
        through, direct = [], []
        for _ in range(turns):
            through.append(await _timed(lambda: _chat(http, quick.url)))
            direct.append(await _timed(lambda: _chat(http, engine.url)))
        found["p50 ms, 1 session"] = statistics.median(through)
        found["added ms, 1 session"] = statistics.median(through) - statistics.median(direct)
        used = paced.used.cpu_seconds
        done = await _load([lambda: _chat(http, paced.url)] * SESSIONS, seconds)
        found[f"turns/s, {SESSIONS} sessions"] = done / seconds
        found["cpu ms a turn"] = (paced.used.cpu_seconds - used) * 1000 / done
    return found


class Client:
    """Asks over the connections that the gateway has to its engines, so that little is its own."""

    def __init__(self) -> None:
        self._wires = Wires(kept=4)

    async def ask(self, url: str, path: str, body: Any = None, key: str = "") -> bytes:
        """The whole answer, or a stream's events."""
        content = b"" if body is None else json.dumps(body).encode()
        method = "GET" if body is None else "POST"
        head = f"{method} {path} HTTP/1.1\r\nhost: {url[7:]}\r\ncontent-type: application/json\r\n"
        head += f"authorization: Bearer {key}\r\n" if key else ""
        wire = await self._wires.take(url)
        with wire.closed_on_failure():
            wire.writer.write(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
            answer = await wire.read(method, 600)
        self._wires.give_back(url, wire)
        if wire.status != 200:
            raise RuntimeError(f"{path} answered {wire.status}: {answer[:300].decode()}")
        return answer

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._wires.close()


async def _timed(ask: Callable[[], Awaitable[None]]) -> float:
    began = time.perf_counter()
    await ask()
    return (time.perf_counter() - began) * 1000


async def _load(asks: list[Callable[[], Awaitable[None]]], seconds: float) -> int:
    """How many are answered in this time, each asking again at once."""
    done, end = 0, time.perf_counter() + seconds

    async def again(ask: Callable[[], Awaitable[None]]) -> None:
        nonlocal done
        while True:
            await ask()
            if time.perf_counter() > end:
                return
            done += 1

    await asyncio.gather(*map(again, asks))
    return done


async def _opened(http: Client, url: str, count: int) -> list[str]:
    """Keys of new sessions."""
    room = asyncio.Semaphore(16)

    async def one() -> str:
        async with room:
            body = {"uid": os.urandom(8).hex(), "instance_id": "i"}
            key: str = json.loads(await http.ask(url, "/tasks/bench/sessions", body))["key"]
            return key

    return await asyncio.gather(*(one() for _ in range(count)))


async def _among(url: str, many: int) -> str:
    """The key of one of so many open sessions."""
    async with Client() as http:
        return (await _opened(http, url, many))[0]


async def _turn(http: Client, url: str, key: str) -> None:
    # No two are equal: an equal one waits until the first is noted as delivered.
    body = {"model": "m", "messages": [*MESSAGES, {"role": "user", "content": os.urandom(4).hex()}]}
    await http.ask(url, "/v1/chat/completions", body, key)


async def _chat(http: Client, url: str) -> None:
    await http.ask(url, "/v1/chat/completions", {"model": "m", "messages": MESSAGES})


async def _engine_calls(http: Client, url: str) -> None:
    """What a first turn asks of its engine: ids, tokens, and together their meaning and the
    version."""
    chat = {"model": "m", "messages": MESSAGES}
    ids = json.loads(await http.ask(url, "/v1/chat/completions/render", chat))["token_ids"]
    body = {"request_id": "r", "token_ids": ids, "sampling_params": {"logprobs": 0},
            "stream": True}  # fmt: skip
    sampled: list[int] = []
    for line in (await http.ask(url, "/inference/v1/generate", body)).splitlines():
        if line.startswith(b"data: {"):
            for choice in json.loads(line[6:])["choices"]:
                sampled += choice["token_ids"]
    choices = [{"index": 0, "token_ids": sampled, "finish_reason": "stop"}]
    asked = {"generate_response": {"choices": choices}, "chat_request": chat}
    await asyncio.gather(
        http.ask(url, "/weight_info"),
        http.ask(url, "/v1/chat/completions/derender", asked),
    )


def _calls(redis: str) -> int:
    """Scripts that clients sent so far."""
    client: Any = connect(redis)
    stats = client.info("commandstats")
    client.close()
    return int(stats["cmdstat_evalsha"]["calls"])
