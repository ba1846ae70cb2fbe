"""The gateway's server: agents before the guard, with keys of their own; all else behind it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from prometheus_client import Metric
from starlette.exceptions import HTTPException
from starlette.responses import Response

from buffer.http.answers import Answer, envelope, invalid, refusal
from buffer.link import Link
from buffer.task import listed_tasks
from gateway.engines.pool import Pool
from gateway.errors import (
    RewardDiffers,
    SessionOver,
    SessionsFull,
    SessionUnknown,
)
from gateway.log import SessionLog
from gateway.metrics import Tally
from gateway.server.agents import Agents
from gateway.server.control import control
from gateway.settings import GatewaySettings
from ground.complaint import Complaint
from ground.errors import PenstockError
from ground.http import HttpGuard, listen, require_token, serve_until_stopped
from ground.http.guard import Receive, Scope, Send
from ground.logs import correlated
from ground.redis.connect import UNWELL
from ground.redis.url import RedisTarget
from ground.tasks import ended, heed_cancellation

log = logging.getLogger(__name__)

_SWEEP = 5.0  # seconds
GRACE = 30  # seconds that turns have when the server ends


class Gateway:
    """The whole server as one ASGI application."""

    def __init__(self, target: RedisTarget | str, run: str, settings: GatewaySettings) -> None:
        self._target, self._run, self._settings = target, run, settings
        self._link = Link(target)
        self._sessions = SessionLog(self._link, run, settings)
        self._tally = Tally()
        self._name = f"{socket.gethostname()}:{settings.gateway_port}"
        self._agents: Agents | None = None
        self._pool: Pool | None = None
        self.control = self._control()
        self._guard = HttpGuard(
            self.control, health=self._health, figures=self._figures,
            token=settings.gateway_token, host=settings.gateway_host, unwell=UNWELL,
        )  # fmt: skip

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(("/v1/", "/s/")):
            await self._guard(scope, receive, send)
            return
        assert self._agents is not None  # noqa: S101 - `start` comes first
        with correlated(dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")[:128]):
            await self._agents(scope, receive, send)

    def _control(self) -> FastAPI:
        app = FastAPI(
            title="Penstock gateway", lifespan=self._life, default_response_class=Answer,
            redoc_url=None, docs_url=None,
        )  # fmt: skip
        app.state.sessions, app.state.run = self._sessions, self._run
        app.include_router(control)
        app.add_exception_handler(PenstockError, _refused)
        app.add_exception_handler(RequestValidationError, invalid)
        app.add_exception_handler(HTTPException, _http)
        return app

    async def start(self) -> None:
        """Probe the engines, before anything is served. `EngineUnfit` says what one cannot do."""
        self._pool = await Pool.started(self._link.target, self._settings)
        self._agents = Agents(self._sessions, self._pool, self._settings, self._tally)

    @asynccontextmanager
    async def _life(self, _: FastAPI) -> AsyncIterator[None]:
        settings, agents, pool = self._settings, self._agents, self._pool
        assert agents is not None and pool is not None  # noqa: S101, PT018 - `start` comes first
        log.info(
            "gateway is up",
            extra={"url": f"http://{settings.gateway_host}:{settings.gateway_port}",
                   "run": self._run, "redis": str(self._link.target),
                   "engines": ", ".join(engine.url for engine in pool.engines)},
        )  # fmt: skip
        sweeping = asyncio.create_task(self._sweep(pool))
        yield
        await ended([sweeping])
        with contextlib.suppress(*UNWELL):
            for task in await listed_tasks(self._link, self._run):
                await self._sessions.leave(task, self._name)
        await agents.aclose()
        await pool.aclose()
        await self._sessions.aclose()
        await self._link.aclose()

    async def _sweep(self, pool: Pool) -> None:
        """Give up the calls of processes that are gone, and idle sessions, until cancelled."""
        complaint = Complaint(log, "a sweep failed, and the next one follows")
        while True:
            heed_cancellation()
            try:
                await pool.try_again()
                for task in await listed_tasks(self._link, self._run):
                    await self._sessions.sweep(task, self._name, pool.failing)
                complaint.over()
            except UNWELL as failure:
                complaint.of(failure)
            await asyncio.sleep(_SWEEP)

    async def _health(self) -> dict[str, Any]:
        await self._link.command("PING")
        return {}

    async def _figures(self) -> list[Metric]:
        return self._tally.families()


async def _refused(_: Request, error: Exception) -> Response:
    status = {SessionUnknown: 404, SessionOver: 409, RewardDiffers: 409, SessionsFull: 503}.get(
        type(error)
    )
    if status is None:
        return refusal(error)
    after = {"x-should-retry": "false"} if status == 409 else {}  # OpenAI's SDK repeats these
    if isinstance(error, SessionsFull):
        after = {"Retry-After": str(max(1, round(error.retry_after)))}
    # Who opens a session again has no other way to learn its id, and to finalize it.
    over = {"session": error.sid, "state": error.state} if isinstance(error, SessionOver) else None
    return Answer(envelope(False, str(error), over), status, after)


async def _http(_: Request, error: Exception) -> Response:
    said = cast(HTTPException, error)
    return Answer(envelope(False, str(said.detail)), said.status_code, said.headers)


def serve(
    target: RedisTarget | str, run: str, settings: GatewaySettings, *, without_token: bool = False
) -> None:
    """Listen on the settings' address; SIGTERM and Ctrl-C end it in order."""
    host = settings.gateway_host
    require_token(host, settings.gateway_token, "PENSTOCK_GATEWAY_TOKEN", without=without_token)
    listener = listen(host, settings.gateway_port, "PENSTOCK_GATEWAY_PORT")
    bound = settings.model_copy(update={"gateway_port": listener.getsockname()[1]})
    gateway = Gateway(target, run, bound)
    serve_until_stopped(listener, gateway, grace=GRACE, first=gateway.start)
