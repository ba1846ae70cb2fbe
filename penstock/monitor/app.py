"""What the monitor serves: the page, its stream of looks, details, and actions."""

import functools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from ground import HttpGuard, PenstockError, RedisTarget, SettingError
from penstock.fleet import FleetReader
from penstock.fleet.figures import figures
from penstock.monitor.jobs import job_in_full, requeue_job
from penstock.monitor.openapi import described
from penstock.monitor.page import page, policy
from penstock.monitor.watch import Watch
from penstock.settings import MonitorSettings
from worker.lifecycle.reaper.reaper import Reaper
from worker.lifecycle.reaper.reaping import Reaped

Handler = Callable[[Request], Awaitable[Response]]
_LARGEST = 4096


class Monitor:
    """The handlers, over one reader that lives as long as the application does."""

    def __init__(self, target: RedisTarget | str, run: str, *, may_act: bool) -> None:
        self._target = target
        self._run = run
        self._may_act = may_act
        self.reader: FleetReader
        self.watch: Watch

    @asynccontextmanager
    async def life(self, _: Starlette) -> AsyncIterator[None]:
        async with FleetReader(self._target, self._run) as reader:
            self.reader, self.watch = reader, Watch(reader)
            async with self.watch.open():
                yield

    def routes(self) -> list[Route]:
        acts: dict[str, Handler] = {
            "/api/gates/{name:path}": self._change_gate,
            "/api/jobs/{id}/requeue": self._requeue_job,
            "/api/groups/{task}/requeue": self._requeue_group,
            "/api/sandboxes/{run}/reap": self._reap,
            "/api/sandboxes/{run}/{name}/end": self._end_sandbox,
        }
        shows: dict[str, Handler] = {
            "/": self._page,
            "/api/fleet": self._fleet,
            "/api/events": self._events,
            "/api/jobs/{id}": self._job,
            "/api/groups/{task}": self._group,
            "/openapi.json": self._document,
        }
        return [
            *(Route(path, self._guarded(act), methods=["POST"]) for path, act in acts.items()),
            *(Route(path, show, methods=["GET"]) for path, show in shows.items()),
        ]

    # What is shown

    async def _page(self, _: Request) -> Response:
        """The page. It comes without a token too, so that it can ask for it."""
        headers = {"Content-Security-Policy": policy(), "Referrer-Policy": "no-referrer"}
        return HTMLResponse(page(), headers=headers)

    async def _events(self, _: Request) -> Response:
        """One look per second, as server-sent events."""
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        headers["X-May-Act"] = str(int(self._may_act))
        return StreamingResponse(self.watch.news(), 200, headers, "text/event-stream")

    async def _fleet(self, request: Request) -> Response:
        """One look at the fleet; `?workers=1000` lists up to 1,000 workers."""
        wanted = _number(request.query_params.get("workers", "50"))
        fleet = await self.reader.read(workers=50 if wanted is None else min(wanted, 10_000))
        return JSONResponse({**fleet.as_dict(), "may_act": self._may_act})

    async def _job(self, request: Request) -> Response:
        """A job with its program, its output and how it failed."""
        found = await job_in_full(self.reader.client, request.path_params["id"])
        return JSONResponse(found) if found else _refused(404, "Redis has forgotten this job")

    async def _group(self, request: Request) -> Response:
        """A group's items: `?instance_id=…&round=0`."""
        asked = request.query_params
        number = _number(asked.get("round", "0"))
        if number is None:
            return _refused(400, "`round` must be a whole number")
        for buffer in await self.reader.open_buffers():
            if buffer.task == request.path_params["task"]:
                items = await buffer.items(asked.get("instance_id", ""), number)
                return JSONResponse({"items": items[:64], "in_all": len(items)})
        return _refused(404, "there is no such task in this run")

    async def _document(self, _: Request) -> Response:
        """The OpenAPI description of this service."""
        return JSONResponse(described(self.routes()))

    # What is changed

    def _guarded(self, act: Handler) -> Handler:
        @functools.wraps(act)
        async def guarded(request: Request) -> Response:
            if not self._may_act:
                return _refused(
                    403, "this monitor only shows: it was started without PENSTOCK_MONITOR_TOKEN"
                )
            try:
                return await act(request)
            except (SettingError, ValueError, TypeError) as wrong:
                return _refused(400, str(wrong))

        return guarded

    async def _change_gate(self, request: Request) -> Response:
        """Change a gate: `{"paused": true}`, or any of `limit`, `rate` and `burst`."""
        wanted = await _object(request, {"paused", "limit", "rate", "burst"})
        gate = await self.reader.gate(request.path_params["name"])
        if gate is None:
            return _refused(404, f"there is no gate {request.path_params['name']!r}")
        if (paused := wanted.pop("paused", None)) is not None:
            await (gate.pause() if paused else gate.resume())
        if wanted:
            await gate.configure(**wanted)
        return JSONResponse(asdict(await gate.status()))

    async def _requeue_group(self, request: Request) -> Response:
        """A group goes back to ready: `{"instance_id": "math_17", "round": 0}`."""
        wanted = await _object(request, {"instance_id", "round"})
        if not isinstance(wanted.get("instance_id"), str | int):
            raise TypeError("`instance_id` must be a string or a number: which group?")
        for buffer in await self.reader.open_buffers():
            if buffer.task == request.path_params["task"]:
                done = await buffer.requeue(wanted["instance_id"], int(wanted.get("round", 0)))
                return _done(done, "it is neither in quarantine nor kept")
        return _refused(404, "there is no such task in this run")

    async def _requeue_job(self, request: Request) -> Response:
        """A failed job goes back to its queue."""
        done = await requeue_job(self.reader.target, request.path_params["id"])
        return _done(done, "there is no failed job of that id")

    async def _reap(self, request: Request) -> Response:
        """End all sandboxes of the run whose owner is dead, now."""
        run = request.path_params["run"]
        async with self._reaper() as reaper:
            found = await reaper.look_at(run)
        return _reaped(found)

    async def _end_sandbox(self, request: Request) -> Response:
        """End one sandbox, even if it is in use. If that fails, a reaper tries again."""
        asked = request.path_params
        async with self._reaper() as reaper:
            found = await reaper.end(asked["run"], [asked["name"]], "ended from the monitor")
        if not found:
            return _refused(404, f"run {asked['run']!r} has no sandbox {asked['name']!r}")
        return _reaped(found)

    @asynccontextmanager
    async def _reaper(self) -> AsyncIterator[Reaper]:
        reaper = Reaper(self.reader.target)
        try:
            yield reaper
        finally:
            await reaper.close()


def make_app(target: RedisTarget | str, run: str, settings: MonitorSettings) -> HttpGuard:
    """The whole monitor as one ASGI application."""
    monitor = Monitor(target, run, may_act=settings.monitor_token is not None)
    app = Starlette(
        routes=monitor.routes(),
        lifespan=monitor.life,
        exception_handlers={PenstockError: _failed, HTTPException: _no_route},
    )

    async def health() -> dict[str, Any]:
        await monitor.reader.client.ping()
        return {}

    return HttpGuard(
        app, health=health, figures=lambda: figures(monitor.reader),
        token=settings.monitor_token, host=settings.monitor_host,
        doorstep=page(), doorstep_policy=policy(),
    )  # fmt: skip


async def _failed(_: Request, error: Exception) -> Response:
    return _refused(503, str(error))


async def _object(request: Request, known: set[str]) -> dict[str, Any]:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _LARGEST:
            raise ValueError(f"the body has more than {_LARGEST} bytes")
    try:
        found = json.loads(body)
    except RecursionError:
        raise ValueError("the body is nested too deeply") from None
    if not isinstance(found, dict) or not found or not found.keys() <= known:
        raise ValueError(f"the body must be a JSON object with some of {', '.join(sorted(known))}")
    return found


def _number(text: str) -> int | None:
    """A whole number in a query; None where it is none."""
    return int(text) if text.isdecimal() and len(text) < 10 else None


def _reaped(found: Reaped) -> Response:
    if found.failed:
        name, why = next(iter(found.failed.items()))
        return _refused(409, f"{len(found.failed)} not gone yet, tried again: {name}: {why}")
    return JSONResponse({"done": True, "ended": found.ended, "strays": found.strays})


def _done(done: bool, otherwise: str) -> Response:
    return JSONResponse({"done": True}) if done else _refused(409, otherwise)


async def _no_route(request: Request, refused: Exception) -> Response:
    """A path or a method that no route takes; Starlette's own answer is plain text."""
    if not isinstance(refused, HTTPException):
        raise refused
    answer = _refused(refused.status_code, f"{request.url.path}: {refused.detail}")
    answer.headers.update(refused.headers or {})
    return answer


def _refused(status: int, reason: str) -> Response:
    return JSONResponse({"success": False, "message": reason}, status)
