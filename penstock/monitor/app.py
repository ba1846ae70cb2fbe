"""The monitor as one application: the page, its stream of looks, what it shows and changes."""

import functools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from redis.exceptions import RedisError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from ground import PenstockError, RedisTarget
from ground.http import HttpGuard
from ground.redis.connect import UNWELL
from penstock.fleet import FleetReader
from penstock.fleet.figures import figures
from penstock.monitor.answers import Handler, refused
from penstock.monitor.changing import Changing
from penstock.monitor.openapi import described
from penstock.monitor.page import HEADERS, POLICY, PREFIX, page, static_file
from penstock.monitor.showing import Shown
from penstock.monitor.views import Views
from penstock.settings import MonitorSettings


class Monitor:
    """The handlers, over views that live as long as the application does."""

    def __init__(self, target: RedisTarget | str, run: str, *, may_act: bool) -> None:
        self._may_act = may_act
        self._run = run
        self.views = Views(target, run)

    @asynccontextmanager
    async def life(self, _: Starlette) -> AsyncIterator[None]:
        async with self.views:
            yield

    @property
    def reader(self) -> FleetReader:
        """Of the monitor's own run."""
        return self.views.view(self._run).reader

    def routes(self) -> list[Route]:
        acts = Changing(lambda request: self.views.of(request).reader, may_act=self._may_act)
        lists = Shown(self.views.of, may_act=self._may_act)
        shows: dict[str, Handler] = {
            "/": self._page,
            "/static/{name:path}": self._static,
            "/api/events": self._events,
            **lists.handlers(),
            "/openapi.json": self._document,
        }
        return [
            *(Route(path, act, methods=["POST"]) for path, act in acts.handlers().items()),
            *(Route(path, _asked(show), methods=["GET"]) for path, show in shows.items()),
        ]

    async def _page(self, _: Request) -> Response:
        """The page. It comes without a token too, so that it can ask for it."""
        return HTMLResponse(page(), headers=HEADERS)

    async def _static(self, request: Request) -> Response:
        """A file of the page: a script or the style. They come without a token."""
        found = static_file(request.path_params["name"])
        if found is None:
            return refused(404, "the page has no such file")
        kind, text = found
        return Response(text, media_type=kind, headers=HEADERS | {"Cache-Control": "no-cache"})

    async def _events(self, request: Request) -> Response:
        """One look per second, as server-sent events."""
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        headers["X-May-Act"] = str(int(self._may_act))
        news = self.views.of(request).watch.news()
        return StreamingResponse(news, 200, headers, "text/event-stream")

    async def _document(self, _: Request) -> Response:
        """The OpenAPI description of this service."""
        return JSONResponse(described(self.routes()))


def make_app(target: RedisTarget | str, run: str, settings: MonitorSettings) -> HttpGuard:
    """The whole monitor as one ASGI application."""
    monitor = Monitor(target, run, may_act=settings.monitor_token is not None)
    app = Starlette(
        routes=monitor.routes(),
        lifespan=monitor.life,
        exception_handlers={
            PenstockError: _failed,
            RedisError: _failed,
            HTTPException: _no_route,
        },
    )

    async def health() -> dict[str, Any]:
        await monitor.reader.client.ping()
        return {}

    return HttpGuard(
        app, health=health, figures=lambda: figures(monitor.reader),
        token=settings.monitor_token, host=settings.monitor_host, unwell=UNWELL,
        doorstep=page(), doorstep_policy=POLICY, open_to_all=PREFIX,
    )  # fmt: skip


def _asked(show: Handler) -> Handler:
    """A query that makes no sense is refused in a sentence."""

    @functools.wraps(show)
    async def asked(request: Request) -> Response:
        try:
            return await show(request)
        except ValueError as wrong:
            return refused(400, str(wrong))

    return asked


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
    """What any route takes at this path."""
    path = request.url.path
    fitting = [one for one in request.app.routes if one.path_regex.match(path)]
    return {method for one in fitting for method in one.methods or ()}
