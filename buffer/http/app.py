"""The buffer server: slime's endpoints, Penstock's, and what watches over them."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from prometheus_client import Metric
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from buffer.http.answers import OURS, Answer, envelope, invalid, refusal
from buffer.http.desk import Desk
from buffer.http.hot_write import HotWrite
from buffer.http.openapi import described
from buffer.http.rollouts import Rollouts
from buffer.http.slime import slime_routes
from buffer.http.v1 import v1_routes
from buffer.http.versions import version_routes
from buffer.metrics import families
from buffer.settings import BufferSettings
from ground.http import HttpGuard, listen, require_token, serve_until_stopped
from ground.logs import correlated
from ground.redis.connect import UNWELL
from ground.redis.url import RedisTarget
from ground.tasks import ended

log = logging.getLogger(__name__)
_WRITE = re.compile(r"^(?:/tasks/([^/]+)(?:/rollouts/([0-9a-f]{64}))?)?/buffer/write$")


def make_app(target: RedisTarget | str, run: str, settings: BufferSettings) -> HttpGuard:
    """The whole server as one ASGI application."""
    desk = Desk(target, run, settings)
    own_url = f"http://127.0.0.1:{settings.buffer_port}"
    rollouts = Rollouts(desk, own_url)

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        log.info(
            "buffer server is up",
            extra={"url": f"http://{settings.buffer_host}:{settings.buffer_port}", "run": run,
                   "redis": str(desk.link.target), "generators": ", ".join(desk.generators)},
        )  # fmt: skip
        chores = [
            asyncio.create_task(desk.keep_time()), asyncio.create_task(rollouts.look_after())
        ]  # fmt: skip
        yield
        await ended(chores)
        await rollouts.end()
        await desk.aclose()

    app = FastAPI(
        title="Penstock rollout buffer", lifespan=life, default_response_class=Answer,
        redoc_url=None, docs_url=None,
    )  # fmt: skip
    app.state.desk, app.state.rollouts = desk, rollouts
    app.include_router(slime_routes)
    app.include_router(v1_routes)
    app.include_router(version_routes)
    _add_refusals(app)
    app.openapi = described(app)  # type: ignore[method-assign]

    async def health() -> dict[str, Any]:
        await desk.link.command("PING")
        return {}

    async def figures() -> list[Metric]:
        return await families([desk.buffer(task) for task in await desk.tasks()])

    front = Front(app, HotWrite(desk))
    return HttpGuard(
        front, health=health, figures=figures, token=settings.buffer_token,
        host=settings.buffer_host, unwell=UNWELL,
    )  # fmt: skip


class Front:
    """The front stands behind the guard: it notes a correlation id, and takes the hot path."""

    def __init__(self, app: FastAPI, hot_write: HotWrite) -> None:
        self.app = app
        self._hot_write = hot_write

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        with correlated(headers.get(b"x-request-id", b"").decode("latin-1")[:128]):
            found = _WRITE.match(scope["path"])
            if found and scope["method"] == "POST":
                await self._hot_write(scope, receive, send, *found.groups(""))
            elif found:
                answer = Answer(envelope(False, "Method Not Allowed"), 405, {"Allow": "POST"})
                await answer(scope, receive, send)
            else:
                await self.app(scope, receive, send)


def _methods(app: FastAPI, request: Request) -> set[str]:
    """All methods of a path; the router itself names only those of its first match."""
    documented = app.openapi()["paths"]
    for path, operations in documented.items():
        shape = re.sub(r"\{[^}]*\}", "[^/]+", path)
        if re.fullmatch(shape, request.url.path):
            return {method.upper() for method in operations}
    return set()


def _add_refusals(app: FastAPI) -> None:
    async def refused(_: Request, error: Exception) -> Response:
        return refusal(error)

    async def http(request: Request, error: Exception) -> Response:
        said = cast(HTTPException, error)
        headers = dict(said.headers or {})
        if said.status_code == 405:
            headers["Allow"] = ", ".join(sorted(_methods(app, request)))
        return Answer(envelope(False, str(said.detail)), said.status_code, headers)

    async def unforeseen(_: Request, error: Exception) -> Response:
        log.exception("a request failed", exc_info=error)
        return Answer(envelope(False, "the server failed to answer this request; see its log"), 500)

    for kind in OURS:
        app.add_exception_handler(kind, refused)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(Exception, unforeseen)


def serve(
    target: RedisTarget | str, run: str, settings: BufferSettings, *, without_token: bool = False
) -> None:
    """Listen on the settings' address; SIGTERM and Ctrl-C end it in order."""
    host = settings.buffer_host
    require_token(host, settings.buffer_token, "PENSTOCK_BUFFER_TOKEN", without=without_token)
    listener = listen(host, settings.buffer_port, "PENSTOCK_BUFFER_PORT")
    bound = settings.model_copy(update={"buffer_port": listener.getsockname()[1]})
    serve_until_stopped(listener, make_app(target, run, bound))
