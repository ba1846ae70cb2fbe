"""The buffer server: slime's endpoints, ours, and what watches over them."""

import asyncio
import hmac
import logging
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from buffer.http.answers import OURS, Answer, envelope, refusal
from buffer.http.desk import Desk
from buffer.http.hot_write import HotWrite
from buffer.http.openapi import described
from buffer.http.rollouts import Rollouts
from buffer.http.slime import slime_routes
from buffer.http.v1 import v1_routes
from buffer.metrics import metrics
from buffer.settings import BufferSettings
from ground import RedisTarget, correlated

log = logging.getLogger(__name__)
_WRITE = re.compile(r"^(?:/tasks/([^/]+)(?:/rollouts/([0-9a-f]{64}))?)?/buffer/write$")
_OPEN = ("/healthz",)


def make_app(target: RedisTarget | str, run: str, settings: BufferSettings) -> ASGIApp:
    """The whole server as one ASGI application."""
    desk = Desk(target, run, settings)
    own_url = f"http://127.0.0.1:{settings.buffer_port}"
    rollouts = Rollouts(desk, own_url)

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        chores = [
            asyncio.create_task(desk.keep_time()), asyncio.create_task(rollouts.look_after())
        ]  # fmt: skip
        yield
        for chore in chores:
            chore.cancel()
        await asyncio.gather(*chores, return_exceptions=True)
        await rollouts.end()
        await desk.aclose()

    app = FastAPI(
        title="Penstock rollout buffer", lifespan=life, default_response_class=Answer,
        redoc_url=None, docs_url=None,
    )  # fmt: skip
    app.state.desk, app.state.rollouts = desk, rollouts
    app.include_router(slime_routes)
    app.include_router(v1_routes)
    _add_watching(app, desk)
    _add_refusals(app)
    app.openapi = described(app)  # type: ignore[method-assign]
    token = settings.buffer_token.get_secret_value() if settings.buffer_token else ""
    return Front(app, HotWrite(desk), token)


class Front:
    """The door: the token is checked, a correlation id noted, the hot path taken."""

    def __init__(self, app: FastAPI, hot_write: HotWrite, token: str) -> None:
        self.app = app
        self._hot_write = hot_write
        self._token = f"Bearer {token}".encode() if token else b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        if self._token and scope["path"] not in _OPEN:
            given = headers.get(b"authorization", b"")
            if not hmac.compare_digest(given, self._token):
                answer = Answer(envelope(False, "a bearer token is needed"), 401)
                answer.headers["WWW-Authenticate"] = "Bearer"
                await answer(scope, receive, send)
                return
        with correlated(headers.get(b"x-request-id", b"").decode("latin-1")[:128]):
            found = _WRITE.match(scope["path"])
            if found and scope["method"] == "POST":
                await self._hot_write(scope, receive, send, *found.groups(""))  # type: ignore[arg-type]
            elif found:
                answer = Answer(envelope(False, "Method Not Allowed"), 405, {"Allow": "POST"})
                await answer(scope, receive, send)
            else:
                await self.app(scope, receive, send)


def _add_watching(app: FastAPI, desk: Desk) -> None:
    @app.get("/healthz", tags=["watching"])
    async def healthz() -> Response:
        """200 when Redis answers, else 503."""
        await desk.link.command("PING")
        return Answer({"status": "healthy"})

    @app.get("/metrics", tags=["watching"], response_class=PlainTextResponse)
    async def page() -> Response:
        """Prometheus' text format."""
        buffers = [desk.buffer(task) for task in await desk.tasks()]
        text = await metrics(buffers, time.time())
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")


def _methods(app: FastAPI, request: Request) -> set[str]:
    """All methods of a path; the router itself names only those of its first match."""
    documented = app.openapi()["paths"]
    for path, operations in documented.items():
        shape = re.sub(r"\{[^}]*\}", "[^/]+", path)
        if re.fullmatch(shape, request.url.path):
            return {method.upper() for method in operations}
    return set()


def _add_refusals(app: FastAPI) -> None:
    async def ours(_: Request, error: Exception) -> Response:
        return refusal(error)

    async def invalid(_: Request, error: Exception) -> Response:
        said = "; ".join(
            f"{'.'.join(map(str, one['loc'][1:])) or one['loc'][0]}: {one['msg']}"
            for one in cast(RequestValidationError, error).errors()
        )
        return Answer(envelope(False, said), 422)

    async def http(request: Request, error: Exception) -> Response:
        said = cast(HTTPException, error)
        headers = dict(said.headers or {})
        if said.status_code == 405:
            headers["Allow"] = ", ".join(sorted(_methods(app, request)))
        return Answer(envelope(False, str(said.detail)), said.status_code, headers)

    async def unforeseen(_: Request, error: Exception) -> Response:
        log.exception("a request failed", exc_info=error)
        return Answer(envelope(False, "the server failed on this request; see its log"), 500)

    for kind in OURS:
        app.add_exception_handler(kind, ours)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(Exception, unforeseen)
