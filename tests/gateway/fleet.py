"""Gateways and scripted engines as processes, and agents that outlive kills of them."""

import asyncio
import contextlib
import itertools
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.gateway.agents import TOOLS
from tests.harness import leash
from tests.harness.servers import free_port, until

PATIENCE = 100.0
Chat = list[dict[str, Any]]


class Process:
    """A server on a port that stays the same over its deaths."""

    def __init__(self, folder: Path, *command: str, healthy: str, **environment: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._command = [word.format(port=self.port) for word in command]
        self._healthy = self.url + healthy
        self._log = folder / f"{self.port}.log"
        self._environment = {**os.environ, **environment}
        self._process: subprocess.Popen[bytes] | None = None

    def launch(self) -> None:
        """Start it; it may answer only later."""
        with self._log.open("ab") as log:
            self._process = leash.start(
                [sys.executable, *self._command], env=self._environment, stdout=log, stderr=log
            )

    def start(self) -> None:
        """Start it, and return when it answers."""
        self.launch()
        until(self._answers, f"{self._command} on {self.url}: {self._log}")

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()[-2000:]
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(self._healthy, timeout=5).status_code == 200
        return False


@contextlib.contextmanager
def fleet(folder: Path, redis_url: str, gateways: int) -> Iterator[list[Process]]:
    """So many gateways on one Redis, before an engine with the wire of vLLM and one of SGLang."""
    engines = [
        Process(
            folder, "-m", f"tests.gateway.scripted.{kind}", "{port}", '{{"version": 3}}',
            healthy="/v1/models",
        )
        for kind in ("vllm", "sglang")
    ]  # fmt: skip
    named = ",".join(
        f"{kind}={engine.url}" for kind, engine in zip(("vllm", "sglang"), engines, strict=True)
    )
    servers = [
        Process(
            folder, "-m", "penstock", "gateway", "serve", "--port", "{port}", "--engines", named,
            healthy="/healthz", PENSTOCK_REDIS_URL=redis_url, PENSTOCK_GATEWAY_CALL_LEASE="1",
        )
        for _ in range(gateways)
    ]  # fmt: skip
    try:
        for each in engines:
            each.launch()
        for each in engines:
            until(each._answers, "a scripted engine")
        for each in servers:
            each.launch()
        for each in servers:
            until(each._answers, "a gateway")
        yield servers
    finally:
        for each in [*engines, *servers]:
            each.kill()


@dataclass
class Heard:
    """What agents had of their sessions."""

    answers: dict[str, list[str]] = field(default_factory=dict)
    """By session: the ids of its answers."""
    ended: dict[str, Any] = field(default_factory=dict)
    retries: int = 0
    turn: asyncio.Event = field(default_factory=asyncio.Event)
    turns: int = 0

    async def until(self, turns: int) -> None:
        """Until so many turns were answered."""
        while self.turns < turns:
            self.turn.clear()
            await self.turn.wait()


class Agents:
    """Sessions of agents, each in a random story; who gets no answer asks another gateway."""

    def __init__(self, gateways: Sequence[Process], heard: Heard, seed: int) -> None:
        self._gateways = gateways
        self._heard = heard
        self._seed = seed
        limits = httpx.Limits(max_connections=200, max_keepalive_connections=0)
        self._client = httpx.AsyncClient(timeout=PATIENCE, limits=limits)

    async def aclose(self) -> None:
        await self._client.aclose()

    async def run(self, sessions: int, *, at_once: int, turns: int) -> None:
        """Play so many sessions."""
        numbers = iter(range(sessions))

        async def one_after_the_other() -> None:
            for number in numbers:
                await self._session(number, turns)

        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(one_after_the_other())

    async def _session(self, number: int, turns: int) -> None:
        chance = random.Random(f"{self._seed}/{number}")
        opened = await self._asked(
            chance, "/tasks/math/sessions", {"uid": f"u{number}", "instance_id": f"i{number}"}
        )
        sid, key = opened["session"], opened["key"]
        threads: list[Chat] = [[{"role": "user", "content": f"task {number % 7}"}]]
        heard = self._heard.answers.setdefault(sid, [])
        for _ in range(turns):
            match chance.choice(["ask", "ask", "ask", "sub-agent", "compact", "fork"]):
                case "sub-agent":
                    threads.append([{"role": "user", "content": f"look {chance.randint(0, 3)}"}])
                case "compact":
                    threads[0] = [{"role": "user", "content": f"so far {len(threads[0])}"}]
                case "fork":
                    threads.append(list(chance.choice(threads)))
            chat = chance.choice(threads)
            body = {"model": "m", "messages": chat, "tools": TOOLS, "stream": False}
            said = await self._asked(chance, "/v1/chat/completions", body, key)
            heard.append(said["id"])
            self._heard.turns += 1
            self._heard.turn.set()
            message = said["choices"][0]["message"]
            calls = message.get("tool_calls") or []
            chat += [
                message,
                *({"role": "tool", "tool_call_id": call["id"], "content": "ok"} for call in calls),
            ]
            if not calls:
                chat.append({"role": "user", "content": "next"})
        path = f"/tasks/math/sessions/{sid}/finalize"
        self._heard.ended[sid] = await self._asked(chance, path, {"reward": number % 2})

    async def _asked(
        self, chance: random.Random, path: str, body: dict[str, Any], key: str = ""
    ) -> dict[str, Any]:
        """As an SDK asks, but with another gateway at each retry."""
        content, name = json.dumps(body).encode(), str(chance.random())
        for retry in itertools.count():
            headers = {"content-type": "application/json", "x-stainless-retry-count": str(retry)}
            headers["idempotency-key"] = name
            if key:
                headers["authorization"] = f"Bearer {key}"
            url = chance.choice(self._gateways).url + path
            with contextlib.suppress(httpx.TransportError):
                answer = await self._client.post(url, content=content, headers=headers)
                if answer.status_code == 200:
                    return dict(answer.json())
                assert answer.status_code in (500, 503), (answer.status_code, answer.text)
            self._heard.retries += 1
            await asyncio.sleep(0.05)
        raise AssertionError
