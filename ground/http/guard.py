"""The guard of every HTTP service answers for its health and figures, and checks who may use the
rest.

    app = HttpGuard(app, health=health, figures=figures, token=settings.buffer_token)

The guard is one ASGI layer. A request must be meant for this server (`Host`) and must not come from
another site's page (`Origin`). It changes things with JSON only. So a browser cannot be made to use
a service of its user's.

`/livez` answers everybody while this process runs, and `/healthz` with 200 only after `health` has,
which may ask Redis. Everything else needs the token if one is set: `Authorization: Bearer TOKEN`,
or Basic with the token as its password or its user, which is what clients make of
`http://any:TOKEN@host`. `/metrics` also takes PENSTOCK_METRICS_TOKEN, which opens nothing else.
"""

import asyncio
import base64
import binascii
import hmac
import ipaddress
import json
import math
import os
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from prometheus_client import Metric
from pydantic import SecretStr

from ground import tracing
from ground.errors import PenstockError
from ground.http.figures import CONTENT_TYPE, exposition
from ground.settings import HttpSettings
from ground.tracing.asked import asked

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

Health = Callable[[], Awaitable[dict[str, Any]]]
Alive = Callable[[], Awaitable[None]]
Figures = Callable[[], Awaitable[Iterable[Metric]]]

_JSON = "application/json"
_READS = ("GET", "HEAD", "OPTIONS")
_HEALTH_HOLDS = 1.0  # seconds
_WHO_IS_IT = (
    "a bearer token is needed: send `Authorization: Bearer TOKEN`, or put it into the URL, "
    "http://any:TOKEN@host"
)


async def _answers() -> None:
    """A process that comes to this line is alive."""


class OwnNames:
    """The names under which a server may be asked: so no page of another site can ask it."""

    def __init__(self, host: str) -> None:
        self._hosts = HttpSettings.load().hosts | _own_names() | {host.lower()} - {""}

    def refusal(self, scope: Scope) -> tuple[int, str] | None:
        """The reason why a request is not meant for this server, or comes from another's page;
        empty if neither."""
        hosts, origins = _values(scope, b"host"), _values(scope, b"origin")
        if not hosts and scope.get("http_version") == "1.1":
            return 400, "a request of HTTP/1.1 names its server: send the header `Host`"
        if len(hosts) > 1 or not all(self._is_here(host) for host in hosts):
            name = ", ".join(hosts)[:200]
            known = "PENSTOCK_HTTP_HOSTS lists them"
            return 421, f"{name!r} is not one of this server's names: {known}"
        here = {f"{scheme}://{host}" for host in hosts for scheme in ("http", "https")}
        if not here.issuperset(origins):
            return 403, f"requests from pages of {', '.join(origins)[:200]!r} are refused"
        return None

    def _is_here(self, host: str) -> bool:
        """Any IP address is: another's page cannot be made to have it as its origin."""
        name = host.partition("]")[0][1:] if host.startswith("[") else host.partition(":")[0]
        name = name.removesuffix(".")
        return name in self._hosts or _is_address(name)


class HttpGuard:
    """The guard stands before an application. `doorstep` is a page that comes with a refusal to a
    GET, and what it loads begins with `open_to_all`: files that are the same for everybody.

    `host` is the name or address that it listens on, under which it may be asked too. `ending`
    is the status of a request that is cut off because the server ends. `unwell` is what `health`
    and `figures` raise, beside our own errors, if what is behind the application does not answer.
    `alive` asks nothing outside of the process; it raises if only a restart helps.
    """

    def __init__(
        self,
        app: AsgiApp,
        *,
        health: Health,
        figures: Figures,
        alive: Alive = _answers,
        token: SecretStr | None = None,
        host: str = "",
        doorstep: str = "",
        doorstep_policy: str = "",
        open_to_all: str = "",
        ending: int = 503,
        unwell: tuple[type[Exception], ...] = (),
    ) -> None:
        self.app = app
        self._watched = {
            "/livez": self._livez, "/healthz": self._healthz, "/metrics": self._metrics
        }  # fmt: skip
        self._alive = alive
        self._health = _Health(health)
        self._figures = figures
        self._token = _bytes(token)
        self._metrics_token = _bytes(HttpSettings.load().metrics_token)
        self._doorstep, self._policy = doorstep, doorstep_policy
        self._open_to_all = open_to_all
        self._ending = ending
        self._unwell: tuple[type[Exception], ...] = (PenstockError, OSError, *unwell)
        self._names = OwnNames(host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        elif scope["type"] != "http":
            await self._beside_pushes(scope, receive, send)
        elif refused := self._names.refusal(scope):
            await _refuse(send, *refused)
        elif not self._is_open(scope) and not self._admits(scope):
            await self._ask_for_token(scope, send)
        elif not is_json(scope):
            await _refuse(send, 415, "send JSON, with the header `Content-Type: application/json`")
        elif scope["path"] not in self._watched:
            await self._enter(scope, receive, send)
        elif scope["method"] not in ("GET", "HEAD"):
            await _refuse(send, 405, "Method Not Allowed", allow="GET, HEAD")
        else:
            await self._watched[scope["path"]](send)

    async def _beside_pushes(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve as long as the server lives, and push its figures to a collector if the environment
        names one."""
        if not asked("METRICS"):
            await self.app(scope, receive, send)
            return
        from ground.tracing.figures import push

        pushing = asyncio.create_task(push(self._figures, tracing.service()))
        try:
            await self.app(scope, receive, send)
        finally:
            pushing.cancel()

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a websocket, or refuse it before it is accepted, which a client sees as 403."""
        if self._names.refusal(scope) or not self._admits(scope):
            await receive()
            await send({"type": "websocket.close", "code": 1008})
        else:
            await self.app(scope, receive, send)

    def _is_open(self, scope: Scope) -> bool:
        if scope["path"] in ("/livez", "/healthz"):
            return True
        prefix = self._open_to_all
        return bool(prefix) and scope["method"] == "GET" and scope["path"].startswith(prefix)

    def _admits(self, scope: Scope) -> bool:
        if not self._token:
            return True
        tokens = [self._token]
        if scope["path"] == "/metrics" and self._metrics_token:
            tokens.append(self._metrics_token)
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        return len(given) == 1 and any(
            hmac.compare_digest(shown, token) for shown in _shown(given[0]) for token in tokens
        )

    async def _ask_for_token(self, scope: Scope, send: Send) -> None:
        headers = {"www-authenticate": "Bearer"}
        if self._doorstep and scope["path"] == "/" and scope["method"] in ("GET", "HEAD"):
            headers["content-security-policy"] = self._policy
            await _answer(send, 401, "text/html", self._doorstep, **headers)
        else:
            await _refuse(send, 401, _WHO_IS_IT, **headers)

    async def _enter(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind: bytes | None = None

        async def noting(message: Message) -> None:
            nonlocal kind
            if message["type"] == "http.response.start":
                kind = dict(message["headers"]).get(b"content-type", b"")
            await send(message)

        try:
            await self.app(scope, receive, noting)
        except asyncio.CancelledError:  # the server ends, and its patience has
            if kind is None:
                more = {"retry-after": "1", "connection": "close"}
                await _refuse(send, self._ending, "the server ends; send it again", **more)
            elif kind.startswith(b"text/event-stream"):  # which ends with its server, no sooner
                await send({"type": "http.response.body", "body": b""})
            else:
                raise

    async def _livez(self, send: Send) -> None:
        try:
            await self._alive()
            status, body = 200, {"status": "alive", "pid": os.getpid()}
        except self._unwell as problem:
            status, body = 503, {"status": "stuck", "reason": str(problem)}
        await _answer(send, status, _JSON, json.dumps(body))

    async def _healthz(self, send: Send) -> None:
        try:
            # The process says which it is: another's server may have the port that one asks at.
            status, body = 200, {"status": "healthy", "pid": os.getpid(), **await self._health()}
        except self._unwell as problem:
            status, body = 503, {"status": "unhealthy", "reason": str(problem)}
        await _answer(send, status, _JSON, json.dumps(body))

    async def _metrics(self, send: Send) -> None:
        try:
            status, kind, body = 200, CONTENT_TYPE, exposition(await self._figures())
        except self._unwell as problem:
            status, kind, body = 503, "text/plain", f"{problem}\n"
        await _answer(send, status, kind, body)


class _Health:
    """A health check that is shared: all who ask while it runs, and in the second after, get one
    answer."""

    def __init__(self, look: Health) -> None:
        self._look = look
        self._latest: asyncio.Task[dict[str, Any]] | None = None
        self._ended = -math.inf

    async def __call__(self) -> dict[str, Any]:
        latest = self._latest
        if latest is None or (latest.done() and time.monotonic() - self._ended > _HEALTH_HOLDS):
            latest = self._latest = asyncio.ensure_future(self._look())
            latest.add_done_callback(self._note)
        await asyncio.wait([latest])
        return latest.result()

    def _note(self, latest: asyncio.Task[dict[str, Any]]) -> None:
        self._ended = time.monotonic()
        if not latest.cancelled():
            latest.exception()  # it is read, even if its caller has gone


def _bytes(token: SecretStr | None) -> bytes:
    return token.get_secret_value().encode() if token else b""


def _own_names() -> set[str]:
    name = socket.gethostname().lower()
    return {"localhost", name, name.partition(".")[0]}


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True


def _values(scope: Scope, header: bytes) -> list[str]:
    return [value.decode("latin-1").lower() for name, value in scope["headers"] if name == header]


def _shown(authorization: bytes) -> list[bytes]:
    """The texts in one `Authorization` header that may be the token."""
    scheme, _, rest = authorization.partition(b" ")
    if scheme.lower() == b"bearer":
        return [rest.strip()]
    if scheme.lower() != b"basic":
        return []
    try:
        user, _, password = base64.b64decode(rest.strip(), validate=True).partition(b":")
    except binascii.Error:
        return []
    return [password or user]


def is_json(scope: Scope) -> bool:
    """Whether a request that may change something says that it is JSON. One without a body
    may say nothing, or what aiohttp's clients say then."""
    if scope["method"] in _READS:
        return True
    kinds = {value.partition(";")[0].strip() for value in _values(scope, b"content-type")}
    if kinds == {_JSON}:
        return True
    lengths = _values(scope, b"content-length")
    empty = not _values(scope, b"transfer-encoding") and set(lengths) <= {"0"}
    return empty and kinds <= {"application/octet-stream"}


async def _refuse(send: Send, status: int, reason: str, **headers: str) -> None:
    body = {"success": False, "message": reason, "data": None}
    await _answer(send, status, _JSON, json.dumps(body), **headers)


async def _answer(send: Send, status: int, kind: str, text: str, **more: str) -> None:
    body = text.encode()
    charset = kind if "charset" in kind or kind == _JSON else f"{kind}; charset=utf-8"
    headers = {
        "content-type": charset, "content-length": str(len(body)), "cache-control": "no-store",
        "x-content-type-options": "nosniff", "referrer-policy": "no-referrer",
    }  # fmt: skip
    listed = [(name.encode(), value.encode()) for name, value in (headers | more).items()]
    await send({"type": "http.response.start", "status": status, "headers": listed})
    await send({"type": "http.response.body", "body": body})
