"""A gateway in front of scripted engines, for a test: in this process, or on a port of its own."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Any

import httpx
import uvicorn

import ground
from buffer import RolloutBuffer, TaskConfig
from gateway.calls import Call
from gateway.engines.engine import Engine
from gateway.log import Session
from gateway.packing import spread
from gateway.server.app import Gateway
from gateway.settings import GatewaySettings
from gateway.training_rows import Rows, rows_of
from ground.redis.connect import target_of
from tests.gateway.scripted.engine import ScriptedEngine, Served
from tests.gateway.scripted.model import misproved
from tests.gateway.scripted.sglang import ScriptedSglang
from tests.gateway.scripted.vllm import ScriptedVllm
from tests.harness.servers import free_port

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "sh",
            "description": "Run a command.",
            "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
        },
    }
]
JSON = {"content-type": "application/json"}


def user(text: str) -> dict[str, Any]:
    """A question."""
    return {"role": "user", "content": text}


def kind_of(engine: ScriptedEngine) -> str:
    """The name of its wire."""
    if isinstance(engine, ScriptedSglang):
        return "sglang"
    assert isinstance(engine, ScriptedVllm)
    return "vllm" if ("POST", "/inference/v1/generate") in engine.routes else "vllm-plain"


class Agent:
    """What an agent has: a key. `history` grows with each turn that it takes."""

    def __init__(self, world: World, key: str, sid: str) -> None:
        self.world, self.key, self.sid = world, key, sid
        self.history: list[dict[str, Any]] = []

    async def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        """One request under this key."""
        said = {**JSON, "authorization": f"Bearer {self.key}"} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        content = body if isinstance(body, bytes | str) else json.dumps(body)
        return await self.world.http.post(path, content=content, headers=said)

    async def chat(self, messages: Sequence[Any] | None = None, **more: Any) -> httpx.Response:
        """One chat completion. Words with an underscore in front are headers."""
        headers = {name[1:]: more.pop(name) for name in list(more) if name.startswith("_")}
        body = {"model": "m", "messages": list(messages or self.history), **more}
        return await self.post("/v1/chat/completions", body, **headers)

    async def messages(self, messages: Sequence[Any], **more: Any) -> httpx.Response:
        """One request in the dialect Messages."""
        headers = {name[1:]: more.pop(name) for name in list(more) if name.startswith("_")}
        body = {"model": "m", "max_tokens": 500, "messages": list(messages), **more}
        return await self.post("/v1/messages", body, **headers)

    async def says(self, text: str, **more: Any) -> dict[str, Any]:
        """Ask behind the history, and put the answer behind it."""
        self.history.append(user(text))
        return await self.goes_on(**more)

    async def goes_on(self, **more: Any) -> dict[str, Any]:
        """Let the model answer the history; its calls of tools are answered with `done`."""
        answer = await self.chat(**more)
        assert answer.status_code == 200, answer.text
        message: dict[str, Any] = answer.json()["choices"][0]["message"]
        self.history.append(message)
        for call in message.get("tool_calls") or ():
            self.history.append({"role": "tool", "tool_call_id": call["id"], "content": "done"})
        return message

    async def calls(self) -> dict[int, Call]:
        """The session's log."""
        found = await self.world.gateway._sessions.read(self._session)
        return dict(found.calls)

    async def rows(self) -> Rows:
        """The rows that the session gives now; each trained token has proved itself."""
        rows = rows_of(await self.world.gateway._sessions.read(self._session))
        for row in rows.rows:
            zeros = [0] * (len(row.tokens) - row.response_length)
            mask, versions = zeros + spread(row.mask), zeros + spread(row.versions)
            # What an engine did not say cannot be proved by what it said.
            mask = [m if v >= 0 else 0 for m, v in zip(mask, versions, strict=True)]
            versions = [max(v, 0) for v in versions]
            logprobs = [0.0] * len(zeros) + list(row.logprobs)
            assert misproved(row.tokens.tolist(), mask, logprobs, versions) == []
        return rows

    @property
    def _session(self) -> Session:
        return Session("default", "math", self.sid)


class World:
    """A gateway, its engines and its task."""

    def __init__(self, gateway: Gateway, engines: Sequence[ScriptedEngine], http: Any) -> None:
        self.gateway, self.engines = gateway, list(engines)
        self.http: httpx.AsyncClient = http

    @property
    def engine(self) -> ScriptedEngine:
        """The only one, or the first."""
        return self.engines[0]

    @property
    def pool(self) -> list[Engine]:
        """The gateway's engines."""
        assert self.gateway._pool is not None
        return self.gateway._pool.engines

    async def open(self, uid: str = "u1", **more: Any) -> Agent:
        """A session for an agent."""
        body = {"uid": uid, "instance_id": "i1", **more}
        opened = await self.http.post("/tasks/math/sessions", json=body)
        assert opened.status_code == 200, opened.text
        return Agent(self, opened.json()["key"], opened.json()["session"])

    async def finalize(self, agent: Agent, reward: float | None = 1.0, **more: Any) -> Any:
        """The end of a session."""
        path = f"/tasks/math/sessions/{agent.sid}/finalize"
        return await self.http.post(path, json={"reward": reward, **more})


@asynccontextmanager
async def world(
    redis: ground.Client, *engines: ScriptedEngine, port: bool = False, **settings: Any
) -> AsyncIterator[World]:
    """With a `port`, over real connections."""
    target = target_of(redis)
    buffer = RolloutBuffer(target, "math", TaskConfig(group_size=1, dialect="v1"))
    await buffer.config()
    with ExitStack() as stack:
        served = [stack.enter_context(Served(engine)) for engine in engines]
        named = ",".join(f"{kind_of(each.engine)}={each.url}" for each in served)
        settings.setdefault("gateway_engines", named)
        gateway = Gateway(target, "default", GatewaySettings(**settings))
        await gateway.start()
        for engine in engines:
            engine.log.clear()
            engine.calls.clear()
        try:
            async with _reached(gateway, port) as http:
                yield World(gateway, engines, http)
        finally:
            await buffer.aclose()


@asynccontextmanager
async def _reached(gateway: Gateway, port: bool) -> AsyncIterator[httpx.AsyncClient]:
    if not port:
        transport = httpx.ASGITransport(app=gateway, raise_app_exceptions=False)
        async with (
            gateway.control.router.lifespan_context(gateway.control),
            httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http,
        ):
            yield http
        return
    number = free_port()
    config = uvicorn.Config(gateway, host="127.0.0.1", port=number, log_config=None)
    server = uvicorn.Server(config)
    server.capture_signals = _no_signals  # type: ignore[method-assign]
    serving = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - it notifies nobody
        await asyncio.sleep(0.01)
    url = f"http://127.0.0.1:{number}"
    try:
        async with httpx.AsyncClient(base_url=url, timeout=100, trust_env=False) as http:
            yield http
    finally:
        server.should_exit = True
        await serving


@contextmanager
def _no_signals() -> Iterator[None]:
    yield


def answered_or_refused(dialect: str, answer: httpx.Response) -> None:
    """It is an answer, or a refusal in the dialect's own shape."""
    assert answer.status_code < 500, answer.text
    if answer.status_code == 200:
        return
    said = answer.json()
    if dialect == "messages":
        assert said.keys() == {"type", "error"}
        assert said["type"] == "error"
        assert said["error"].keys() == {"type", "message"}
    else:
        assert said.keys() == {"error"}
        assert said["error"].keys() == {"message", "type", "param", "code"}
    assert said["error"]["message"]


def events_of(text: str) -> list[Any]:
    """The data of each event of a stream, comments left out."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data:")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


async def set_within(event: threading.Event) -> None:
    """Wait for something of another thread."""
    assert await asyncio.to_thread(event.wait, 100)
