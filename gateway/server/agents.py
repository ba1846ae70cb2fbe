"""The endpoints of agents. A session's key is all that they need, and all that it opens.

No byte of an answer leaves before its turn is committed. Meanwhile a stream gets comments, and who
waits for a whole body gets blanks before it. A client that hangs up does not end its turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import time
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

from gateway import canonical
from gateway.calls import Sent
from gateway.dialects import chat, messages
from gateway.dialects.dialect import KEEPALIVE, Fault, Question
from gateway.engines.pool import Pool
from gateway.errors import (
    BudgetSpent,
    EngineFailed,
    EngineRefused,
    GatewayError,
    KeyReused,
    RequestRefused,
    SessionOver,
    SessionsFull,
    SessionUnknown,
)
from gateway.log import KEY_LENGTH, Session, SessionLog
from gateway.metrics import Tally
from gateway.settings import GatewaySettings
from gateway.turn import Answered, Turns
from ground.errors import PenstockError, RedisError
from ground.http.guard import Receive, Scope, Send
from ground.http.held import Held
from ground.tasks import ended

log = logging.getLogger(__name__)

_BY_PATH = re.compile(r"/s/([^/]+)(/.*)")
_AT_ONCE = 16  # largest bodies that are here together
_BLANKS_AFTER = 30.0  # seconds; a status can still say what is wrong until then
_TOO_LONG = re.compile(r"context length|maximum model length|longer than the model", re.IGNORECASE)


class Gone(Exception):
    """The client went before it had asked."""


class _Refusal(Exception):
    """The request ends here, with this fault."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


class Agents:
    """An ASGI application for everything under `/v1/`, and under `/s/KEY/v1/`."""

    def __init__(
        self, sessions: SessionLog, pool: Pool, settings: GatewaySettings, tally: Tally
    ) -> None:
        self._log = sessions
        self._pool = pool
        self._settings = settings
        self._tally = tally
        self._turns = Turns(sessions, pool, settings, tally)
        self._held = Held(_AT_ONCE * settings.gateway_max_body, _full)
        self._running: set[asyncio.Task[Any]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = _BY_PATH.fullmatch(scope["path"])
        key, path = found.groups() if found else ("", scope["path"])
        # A trace shows the route, and never the key.
        scope["route"] = SimpleNamespace(path=("/s/{key}" if found else "") + path)
        dialect = messages if path.startswith("/v1/messages") else chat
        way = _Way(scope, receive, send, dialect)
        try:
            handle = self._handle(way, path)
            session = await self._session(scope, key)
            outcome = await handle(session, way)
        except Gone:
            outcome = "gone"
        except Exception as problem:  # noqa: BLE001 - each one is answered, in the dialect's shape
            outcome = await way.refuse(fault_of(problem))
        self._tally.ended(dialect.NAME, outcome)

    def _handle(self, way: _Way, path: str) -> Callable[[Session, _Way], Coroutine[Any, Any, str]]:
        if path not in ROUTES:
            known = ", ".join(ROUTES)
            raise _Refusal(Fault(404, f"there is no {path[:200]} here; there are {known}"))
        method, handle = ROUTES[path]
        if way.scope["method"] != method:
            raise _Refusal(Fault(405, f"{path} takes {method}"))
        return partial(handle, self)

    async def _session(self, scope: Scope, key: str) -> Session:
        """The session whose key it is. A key in the path counts before those in headers. Another
        session's beside it is refused."""
        shown = list(_keys(scope))
        if not key and not shown:
            raise _Refusal(
                Fault(401, "a session's key is needed: as the API key, or in the URL, /s/KEY/v1")
            )
        # A client may have a key of its provider's beside it, which it sends in another header.
        key = key or next((each for each in shown if len(each) == KEY_LENGTH), shown[0])
        session = await self._log.find(key)
        if any(len(other) == len(key) and other != key for other in shown):
            raise SessionUnknown
        return session

    # Turns

    async def _ask(self, session: Session, way: _Way) -> str:
        """Answer one turn, whole or as a stream."""
        with self._held.some() as take:
            raw = await way.body(self._settings.gateway_max_body, take)
            body = _json(raw)
            question = way.dialect.read(body)
            digest = canonical.digest(body)
            del raw, body
            headers = way.headers
            retried = headers.get(b"x-stainless-retry-count", b"0")
            work = asyncio.create_task(
                self._turns.answer(
                    session, question, digest, way.dialect.NAME,
                    retry=retried.isdigit() and retried.strip(b"0") != b"",
                    key=headers.get(b"idempotency-key", b"").decode("latin-1"),
                    trace="" if b"traceparent" in headers else session.trace,
                )
            )  # fmt: skip
            self._running.add(work)
            work.add_done_callback(self._running.discard)
            with self._tally.turn():
                return await self._answered(way, question, work)

    async def _answered(self, way: _Way, question: Question, work: asyncio.Task[Answered]) -> str:
        began = time.monotonic()
        gone = asyncio.ensure_future(way.gone())
        orphaned = False
        try:
            while not work.done():
                await asyncio.wait(
                    {work, gone}, timeout=self._settings.gateway_keepalive,
                    return_when=asyncio.FIRST_COMPLETED,
                )  # fmt: skip
                if gone.done():
                    orphaned = True
                    self._orphan(work)
                    self._tally.count("hung_up")
                    return "hung_up"
                if work.done():
                    break
                if question.stream:
                    await way.stream(KEEPALIVE)
                elif time.monotonic() - began > _BLANKS_AFTER:
                    await way.blank()
            answered, sent = work.result(), Sent.HUNG_UP
            try:
                if question.stream:
                    for event in way.dialect.events(question, answered.reply):
                        await way.stream(event)
                    await asyncio.sleep(0)  # whether it went meanwhile
                    sent = Sent.HUNG_UP if gone.done() else Sent.WHOLE
                    await way.end()
                else:
                    whole = Sent.HUNG_UP if gone.done() else Sent.WHOLE
                    await way.json(way.dialect.whole(question, answered.reply))
                    sent = whole
            finally:
                answered.sent(sent)
            return "done" if sent is Sent.WHOLE else "hung_up"
        finally:
            gone.cancel()
            if not orphaned:  # as when the server ends
                work.cancel()

    def _orphan(self, work: asyncio.Task[Answered]) -> None:
        """The turn runs to its end, which is recorded: its tokens are as true as any."""

        async def outlive() -> None:
            with contextlib.suppress(Exception):  # the turn's own: nobody is there to be answered
                async with asyncio.timeout(self._settings.gateway_orphan):
                    (await work).sent(Sent.HUNG_UP)

        task = asyncio.create_task(outlive())
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    # The rest

    async def _count(self, session: Session, way: _Way) -> str:
        """Count the tokens that a turn with this request would have as its prompt."""
        with self._held.some() as take:
            body = _json(await way.body(self._settings.gateway_max_body, take))
            tokens = await self._turns.count(session, messages.read(body, messages.CountBody))
        await way.json({"input_tokens": tokens})
        return "counted"

    async def _models(self, session: Session, way: _Way) -> str:
        """Name the engines' model, in the shape of both dialects."""
        model = {
            "id": self._pool.first.model, "object": "model", "created": 0, "owned_by": "penstock",
            "type": "model", "display_name": self._pool.first.model,
            "created_at": "1970-01-01T00:00:00Z",
        }  # fmt: skip
        await way.json(
            {"object": "list", "data": [model], "has_more": False, "first_id": model["id"],
             "last_id": model["id"]}
        )  # fmt: skip
        return "listed"

    async def aclose(self) -> None:
        """End the turns that outlived their clients."""
        await ended(self._running)


ROUTES: dict[str, tuple[str, Callable[[Agents, Session, _Way], Coroutine[Any, Any, str]]]] = {
    "/v1/chat/completions": ("POST", Agents._ask),
    "/v1/messages": ("POST", Agents._ask),
    "/v1/messages/count_tokens": ("POST", Agents._count),
    "/v1/models": ("GET", Agents._models),
}
"""The paths of agents; each is below `/s/KEY`, too."""


class _Way:
    """The way back to one client: a status at most once, and what has been sent."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, dialect: ModuleType) -> None:
        self.scope = scope
        self.dialect: Any = dialect
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self._receive = receive
        self._send = send
        self._kind = b""

    async def body(self, most: int, take: Callable[[int], None]) -> bytes:
        """The whole body of the request."""
        body, more = bytearray(), True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise Gone
            body += message.get("body", b"")
            if len(body) > most:
                raise _Refusal(Fault(413, f"a request is at most {most} bytes"))
            take(len(message.get("body", b"")))
            more = message.get("more_body", False)
        return bytes(body)

    async def gone(self) -> None:
        """Wait until the client has hung up."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def stream(self, event: bytes) -> None:
        """Send one event, or a comment."""
        if not self._kind:
            await self._start(200, b"text/event-stream; charset=utf-8")
        await self._send({"type": "http.response.body", "body": event, "more_body": True})

    async def blank(self) -> None:
        """Send a blank before a whole body, so that nobody takes the connection for dead."""
        if not self._kind:
            await self._start(200, b"application/json")
        await self._send({"type": "http.response.body", "body": b" ", "more_body": True})

    async def json(self, body: Any, status: int = 200, **more: str) -> None:
        """Send a whole body."""
        content = json.dumps(body, separators=(",", ":")).encode()
        if not self._kind:
            length = {"content-length": str(len(content))}
            await self._start(status, b"application/json", **length, **more)
        await self._send({"type": "http.response.body", "body": content})

    async def end(self) -> None:
        """End a stream."""
        await self._send({"type": "http.response.body", "body": b""})

    async def refuse(self, fault: Fault) -> str:
        """Refuse in the shape of the dialect: as a body, or as the last event of a stream."""
        if self._kind.startswith(b"text/event-stream"):
            await self.stream(self.dialect.error_event(fault))
            await self.end()
        elif self._kind:
            # A body that began with a good status cannot end well: cut, so that it is asked again.
            raise ConnectionAbortedError(fault.message)
        else:
            more = {"x-should-retry": "true" if fault.again else "false"}
            if fault.retry_after is not None:
                more["retry-after"] = str(max(1, round(fault.retry_after)))
            if fault.status == 405:
                more["allow"] = "GET" if self.scope["method"] == "POST" else "POST"
            await self.json(self.dialect.error(fault), fault.status, **more)
        return str(fault.status)

    async def _start(self, status: int, kind: bytes, **more: str) -> None:
        self._kind = kind
        headers = [
            (b"content-type", kind), (b"cache-control", b"no-store"),
            *((name.encode(), value.encode()) for name, value in more.items()),
        ]  # fmt: skip
        await self._send({"type": "http.response.start", "status": status, "headers": headers})


def fault_of(problem: Exception) -> Fault:
    """The error as the client gets it."""
    match problem:
        case _Refusal():
            return problem.fault
        case SessionUnknown():
            return Fault(401, str(problem), code="invalid_api_key")
        case BudgetSpent():
            return Fault(403, str(problem), code="insufficient_quota")
        case SessionOver():
            return Fault(409, str(problem), code="session_over")
        case KeyReused():
            return Fault(422, str(problem), "Idempotency-Key")
        case RequestRefused():
            code = "context_length_exceeded" if problem.too_long else ""
            return Fault(400, str(problem), problem.param, code)
        case EngineRefused():
            long = _TOO_LONG.search(problem.reason)
            if long:
                return Fault(400, problem.reason, "messages", "context_length_exceeded")
            return Fault(400, str(problem))
        case EngineFailed() | SessionsFull():
            after = problem.after if isinstance(problem, EngineFailed) else problem.retry_after
            return Fault(503, str(problem), retry_after=after or 1.0, again=True)
        case RedisError() | GatewayError() | PenstockError():
            return Fault(503, str(problem), retry_after=1.0, again=True)
    log.error("a request failed", exc_info=problem)
    return Fault(500, "the gateway failed to answer this request; see its log", again=True)


def _full(problem: str) -> Exception:
    return _Refusal(Fault(503, problem, retry_after=1.0, again=True))


def _keys(scope: Scope) -> Iterator[str]:
    for name, value in scope["headers"]:
        if name == b"x-api-key":
            yield value.decode("latin-1").strip()
        elif name == b"authorization" and value[:7].lower() == b"bearer ":
            yield value[7:].decode("latin-1").strip()


def _json(raw: bytes) -> Any:
    def constant(name: str) -> Any:
        raise RequestRefused(f"{name} is no JSON", "body")

    try:
        return json.loads(raw, parse_constant=constant)
    except (ValueError, RecursionError) as problem:
        raise RequestRefused(f"the body is no JSON: {problem}"[:300], "body") from None
