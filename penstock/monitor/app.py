"""The monitor as one application: the page, its stream of looks, what it shows and changes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from redis.exceptions import RedisError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ground import PenstockError
from ground.http import HttpGuard
from ground.openapi import REFUSALS, add_shared
from ground.redis.connect import UNWELL
from ground.redis.url import RedisTarget
from penstock.fleet import FleetReader
from penstock.fleet.figures import figures
from penstock.monitor.answers import Answer, refused
from penstock.monitor.asked import Looked
from penstock.monitor.change_routes import acts
from penstock.monitor.page import HEADERS, POLICY, PREFIX, page, static_file
from penstock.monitor.showing import shows
from penstock.monitor.views import Views
from penstock.settings import MonitorSettings

_REFUSALS = {
    **REFUSALS,
    "404": "There is nothing of that name.",
    "409": "It cannot be done as it stands.",
}
doorstep = APIRouter(tags=["monitor"])


@doorstep.get("/", response_class=HTMLResponse)
async def the_page() -> Response:
    """The page. It comes without a token too, so that it can ask for it."""
    return HTMLResponse(page(), headers=HEADERS)


@doorstep.get("/static/{name:path}", response_class=Response)
async def a_file(name: str) -> Response:
    """A file of the page: a script or the style. They come without a token."""
    found = static_file(name)
    if found is None:
        return refused(404, "the page has no such file")
    kind, text = found
    return Response(text, media_type=kind, headers=HEADERS | {"Cache-Control": "no-cache"})


@doorstep.get("/api/events", response_class=StreamingResponse)
async def events(request: Request, view: Looked) -> Response:
    """Send a look per second, as server-sent events."""
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    headers["X-May-Act"] = str(int(request.app.state.may_act))
    news = () if request.scope.get("head") else view.watch.news()
    return StreamingResponse(news, 200, headers, "text/event-stream")


def make_app(target: RedisTarget | str, run: str, settings: MonitorSettings) -> HttpGuard:
    """The whole monitor as one ASGI application."""
    views = Views(target, run)

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        async with views:
            yield

    app = FastAPI(
        title="Penstock monitor", lifespan=life, default_response_class=Answer,
        redoc_url=None, docs_url=None,
    )  # fmt: skip
    app.state.views, app.state.may_act = views, settings.monitor_token is not None
    for routes in (acts, doorstep, shows):
        app.include_router(routes)
    app.add_middleware(HeadIsGet)
    for kind, handler in (
        (PenstockError, _failed), (RedisError, _failed), (HTTPException, _no_route),
        (RequestValidationError, _makes_no_sense), (ValueError, _makes_no_sense),
    ):  # fmt: skip
        app.add_exception_handler(kind, handler)
    app.openapi = lambda: _document(app)  # type: ignore[method-assign]

    def reader() -> FleetReader:
        """The reader of the monitor's own run."""
        return views.view(run).reader

    async def health() -> dict[str, Any]:
        await reader().client.ping()
        return {}

    return HttpGuard(
        app, health=health, figures=lambda: figures(reader()),
        token=settings.monitor_token, host=settings.monitor_host, unwell=UNWELL,
        doorstep=page(), doorstep_policy=POLICY, open_to_all=PREFIX,
    )  # fmt: skip


def _document(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(title=app.title, version="1", routes=app.routes)
    for methods in document["paths"].values():
        for operation in methods.values():
            operation["responses"].pop("422", None)  # it is a 400 here
    add_shared(document, _REFUSALS)
    return document


async def _makes_no_sense(_: Request, error: Exception) -> Response:
    """A query or a body that makes no sense is refused in a sentence."""
    if not isinstance(error, RequestValidationError):
        return refused(400, str(error))
    said = []
    for one in error.errors():
        why = one["ctx"]["error"] if one["type"] == "json_invalid" else one["msg"]
        said.append(f"{'.'.join(map(str, one['loc'][1:])) or 'the body'}: {why}")
    return refused(400, "; ".join(said))


async def _failed(_: Request, error: Exception) -> Response:
    return refused(503, str(error))


async def _no_route(request: Request, refusal: Exception) -> Response:
    """A path or a method that no route takes; Starlette's own answer is plain text."""
    if not isinstance(refusal, HTTPException):
        raise refusal
    answer = refused(refusal.status_code, f"{request.url.path}: {refusal.detail}")
    answer.headers.update(refusal.headers or {})
    if refusal.status_code == 405:  # Starlette names the methods of the first route alone
        answer.headers["Allow"] = ", ".join(sorted(_methods(request)))
    return answer


def _methods(request: Request) -> set[str]:
    """The methods that any route takes at this path."""
    path = request.url.path
    every = [one for router in (doorstep, shows, acts) for one in router.routes]
    fitting = [one for one in every if isinstance(one, Route) and one.path_regex.match(path)]
    found = {method for one in fitting for method in one.methods or ()}
    return found | {"HEAD"} if "GET" in found else found


class HeadIsGet:
    """A HEAD is answered as its GET; the server leaves out the body. FastAPI has no such rule. A
    stream sees by `head` that it need not begin."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET", "head": True}
        await self.app(scope, receive, send)
