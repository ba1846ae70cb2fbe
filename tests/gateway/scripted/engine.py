"""What both faces of the scripted engine share: sampling, faults by script, and the oracle's log.

`log` holds each generation: the ids that were evaluated, and each token that was sampled with its
version. What the gateway records is compared with it. `faults` are taken one per generation.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, Self
from urllib.parse import parse_qsl

import uvicorn

from tests.gateway.scripted.model import (
    BOS,
    END,
    Context,
    Model,
    Parsed,
    Template,
    decode,
    encode,
    parse,
)
from tests.harness.servers import free_port

Kind = Literal[
    "abort", "bump", "death", "wait", "error", "error chunk", "duplicate", "lost finish", "nothing",
    "null logprob", "nan logprob", "floor logprob", "short logprobs", "no ids", "chunk after end",
]  # fmt: skip


@dataclass
class Fault:
    """One thing that goes wrong in one generation, after so many of its tokens."""

    kind: Kind
    after: int = 0
    value: Any = None
    """Of `bump` the new version, of `error` its status, of `wait` an `Event`; of `death`
    whether it stays dead."""


@dataclass
class Generation:
    """What the engine did for one request."""

    rid: str
    prompt: list[int]
    sampled: list[int] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    finish: str | None = None
    stop: int | str | None = None
    fault: Fault | None = None
    body: dict[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The answer's text, the matched stop string cut off."""
        text = decode(self.sampled)
        return text.partition(self.stop)[0] if isinstance(self.stop, str) else text

    def spans(self) -> list[dict[str, Any]]:
        """The versions as SGLang writes them."""
        spans: list[dict[str, Any]] = []
        for place, version in enumerate(self.versions):
            if not spans or spans[-1]["version"] != str(version):
                spans.append({"version": str(version), "start": place, "end": place})
            spans[-1]["end"] = place + 1
        return spans or [{"version": "0", "start": 0, "end": 0}]


_NO_LOGPROB = {"null logprob": None, "nan logprob": math.nan, "floor logprob": -9999.0}


class Dead(Exception):
    """The engine's process ends here: the connection breaks."""


class ScriptedEngine:
    """A model behind a wire. The faces are `ScriptedVllm` and `ScriptedSglang`."""

    def __init__(
        self,
        model: Model | None = None,
        template: Template = Template(),  # noqa: B008 - frozen
        *,
        version: int = 0,
        max_model_len: int = 1 << 20,
        chunk: int = 4,
        double_bos: bool = False,
        pace: float = 0.0,
    ) -> None:
        self.model = model or Model()
        self.template = template
        self.version = version
        self.max_model_len = max_model_len
        self.chunk = chunk
        self.double_bos = double_bos
        self.pace = pace
        """Seconds that each generation takes, beside its work."""
        self.log: list[Generation] = []
        self.faults: deque[Fault] = deque()
        self.calls: list[str] = []
        """The path of each request."""
        self.told: list[int] = []
        """The version that each reading of it was told."""
        self.down = False
        self.inflight = self.most_inflight = self.disconnects = 0
        self.waits = threading.Event()
        """A generation has come to its fault `wait`."""
        self.left = threading.Event()
        """A client has gone before it had its answer."""
        self._paused = False
        self._epoch = 0

    # What the model does

    def render(self, body: dict[str, Any]) -> list[int]:
        """The ids of a chat request, as both engines render it."""
        final = bool(body.get("continue_final_message"))
        kwargs = body.get("chat_template_kwargs") or {}
        generation = body.get("add_generation_prompt")
        text = self.template.render(
            body["messages"],
            body.get("tools") if body.get("tool_choice") != "none" else None,
            add_generation_prompt=(True if generation is None else generation) and not final,
            continue_final_message=final,
            enable_thinking=kwargs.get("enable_thinking", True),
        )
        return [BOS, *encode(text)] if self.double_bos else encode(text)

    def parse(self, text: str, prompt: list[int]) -> Parsed:
        """What the engine's parsers make of an answer."""
        return parse(text, thinking=decode(prompt[-16:]).endswith("<think>\n"))

    async def generate(
        self, rid: str, prompt: list[int], body: dict[str, Any], *, most: int, stops: list[str]
    ) -> AsyncIterator[Generation]:
        """The generation after each chunk; the same object, with more in it."""
        fault = self.faults.popleft() if self.faults else None
        if fault and fault.kind == "error":
            raise Refused(fault.value or 500, "the engine failed")
        done = Generation(rid, prompt, fault=fault, body=body)
        self.log.append(done)
        self.inflight += 1
        self.most_inflight = max(self.most_inflight, self.inflight)
        try:
            if self.pace:
                await asyncio.sleep(self.pace)
            async for _ in self._steps(done, most, stops):
                yield done
        finally:
            self.inflight -= 1

    async def _steps(self, done: Generation, most: int, stops: list[str]) -> AsyncIterator[None]:
        context = Context(done.prompt)
        epoch, fault = self._epoch, done.fault
        tokens = self.model.generate(done.prompt)
        while done.finish is None:
            if epoch != self._epoch:
                done.finish = "abort"
                break
            while self._paused:  # noqa: ASYNC110 - another thread resumes it
                await asyncio.sleep(0.005)
            if fault and len(done.sampled) >= fault.after:
                match fault.kind:
                    case "abort" | "duplicate":
                        done.finish = "abort"
                        break
                    case "death":
                        yield
                        self.down = bool(fault.value)
                        raise Dead
                    case "bump":
                        self.version, fault = fault.value, None
                    case "wait":
                        yield
                        waiting, fault = fault.value, None
                        self.waits.set()
                        await asyncio.to_thread(waiting.wait, 100)
            token = next(tokens)
            done.logprobs.append(context.logprob(token, self.version))
            if fault and fault.kind.endswith("logprob") and len(done.sampled) == fault.after:
                done.logprobs[-1] = _NO_LOGPROB[fault.kind]
            done.versions.append(self.version)
            done.sampled.append(token)
            context.extend((token,))
            found = next((s for s in stops if s in decode(done.sampled)), None)
            if token == END:
                done.finish, done.stop = "stop", END
            elif found is not None:
                done.finish, done.stop = "stop", found
            elif len(done.sampled) >= most:
                done.finish = "length"
            elif len(done.sampled) % self.chunk == 0:
                yield
                await asyncio.sleep(0)
        if fault and fault.kind == "short logprobs":
            done.logprobs.pop()
        yield

    def pause(self, mode: str) -> None:
        """Stop, as for an update of the weights; `abort` ends what runs."""
        self._paused = True
        if mode == "abort":
            self._epoch += 1

    def resume(self) -> None:
        """Go on."""
        self._paused = False

    # HTTP

    routes: dict[tuple[str, str], Callable[..., Awaitable[Any]]]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        self.calls.append(scope["path"])
        handle = self.routes.get((scope["method"], scope["path"]))
        if self.down:
            raise Dead
        reply = Reply(send)
        query = dict(parse_qsl(scope["query_string"].decode()))
        working = asyncio.ensure_future(self._handle(handle, reply, body, query))
        gone = asyncio.ensure_future(_disconnected(receive))
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            self.disconnects += 1
            self.left.set()
        for task in (working, gone):
            if not task.done():
                task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await working

    async def _handle(self, handle: Any, reply: Reply, body: bytes, query: dict[str, str]) -> None:
        try:
            if handle is None:
                raise Refused(404, "Not Found")
            found = await handle(self, json.loads(body or b"{}"), reply, query)
            if not reply.started:
                await reply.json(found)
        except Refused as refused:
            await reply.json(refused.body(), refused.status)
        except ValueError as error:  # as both engines do: arguments that are no JSON, for example
            await reply.json(Refused(400, str(error)).body(), 400)


async def last(generation: AsyncIterator[Generation]) -> Generation:
    """A generation at its end."""
    async for done in generation:
        found = done
    return found


async def _disconnected(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Refused(Exception):
    """An HTTP error of the engine."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    def body(self) -> dict[str, Any]:
        kind = "BadRequestError" if self.status == 400 else "InternalServerError"
        return {"error": {"message": str(self), "type": kind, "param": None, "code": self.status}}


class Reply:
    """One answer: JSON, or a stream of events."""

    def __init__(self, send: Any) -> None:
        self._send = send
        self.started = False

    async def json(self, found: Any, status: int = 200) -> None:
        content = json.dumps(found).encode()
        await self._start(status, b"application/json", len(content))
        await self._send({"type": "http.response.body", "body": content})

    async def event(self, found: Any) -> None:
        if not self.started:
            await self._start(200, b"text/event-stream")
        said = found if isinstance(found, str) else json.dumps(found)
        event = f"data: {said}\n\n".encode()
        await self._send({"type": "http.response.body", "body": event, "more_body": True})

    async def end(self) -> None:
        await self._send({"type": "http.response.body", "body": b""})

    async def _start(self, status: int, kind: bytes, length: int | None = None) -> None:
        self.started = True
        headers = [(b"content-type", kind)]
        if length is not None:
            headers.append((b"content-length", b"%d" % length))
        await self._send({"type": "http.response.start", "status": status, "headers": headers})


class Served:
    """A scripted engine on a port of its own, in a thread: `with Served(engine) as url:`."""

    def __init__(self, engine: ScriptedEngine, port: int = 0) -> None:
        self.engine = engine
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        config = uvicorn.Config(
            self._app, host="127.0.0.1", port=self.port, log_config=None, lifespan="off",
            interface="asgi3", access_log=False, timeout_graceful_shutdown=1, http="httptools",
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        """As a process that dies cuts all its connections."""
        try:
            await self.engine(scope, receive, send)
        except Dead:
            for connection in list(self._server.server_state.connections):
                connection.transport.abort()  # type: ignore[union-attr]

    def __enter__(self) -> Self:
        self._thread.start()
        while not self._server.started:
            self._thread.join(0.005)
            assert self._thread.is_alive(), "the scripted engine did not start"
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()


@contextlib.contextmanager
def served(*engines: ScriptedEngine) -> Iterator[list[Served]]:
    """Several at once."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Served(engine)) for engine in engines]
