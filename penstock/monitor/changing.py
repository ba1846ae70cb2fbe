"""What the monitor changes, by POST: bodies are checked here, `penstock/changes` does the rest."""

import base64
import binascii
import functools
import json
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response

from ground import SettingError
from penstock.changes import Author, Changed, Changes
from penstock.fleet import FleetReader
from penstock.monitor.answers import Answer, Handler, refused

_LARGEST = 64 << 10
Act = Callable[[Request], Awaitable[Changed]]


class Changing:
    """The handlers of POST. Without a token all of them refuse."""

    def __init__(self, reader: Callable[[Request], FleetReader], *, may_act: bool) -> None:
        self._reader = reader
        self._may_act = may_act

    def handlers(self) -> dict[str, Handler]:
        """Each path with what answers it."""
        acts: dict[str, Act] = {
            "/api/gates/{name:path}": self._change_gate,
            "/api/queues/{name:path}": self._change_queue,
            "/api/jobs": self._change_jobs,
            "/api/jobs/{id}/requeue": self._requeue_job,
            "/api/groups/{task}/requeue": self._requeue_group,
            "/api/sandboxes/{run}/reap": self._reap,
            "/api/sandboxes/{run}/{name}/end": self._end_sandbox,
        }
        return {path: self._guarded(act) for path, act in acts.items()}

    def _guarded(self, act: Act) -> Handler:
        @functools.wraps(act)
        async def guarded(request: Request) -> Response:
            if not self._may_act:
                return refused(
                    403, "this monitor only shows: it was started without PENSTOCK_MONITOR_TOKEN"
                )
            try:
                changed = await act(request)
            except (SettingError, ValueError, TypeError, OverflowError) as wrong:
                return refused(400, str(wrong))
            if changed.refusal:
                return refused(404 if changed.absent else 409, changed.refusal)
            return Answer(changed.found)

        return guarded

    def _changes(self, request: Request) -> Changes:
        address = request.client.host if request.client else ""
        return Changes(self._reader(request), Author(_who_asks(request), address))

    async def _change_gate(self, request: Request) -> Changed:
        """Change a gate: `{"paused": true}`, or any of `limit`, `rate` and `burst`."""
        wanted = await _object(request, {"paused", "limit", "rate", "burst"})
        paused = _flag(wanted.pop("paused")) if "paused" in wanted else None
        return await self._changes(request).gate(
            request.path_params["name"], paused=paused, **wanted
        )

    async def _change_queue(self, request: Request) -> Changed:
        """Pause or resume a queue: `{"paused": true}`. Running jobs go on."""
        wanted = await _object(request, {"paused"})
        name, paused = request.path_params["name"], _flag(wanted["paused"])
        return await self._changes(request).queue(name, paused=paused)

    async def _change_jobs(self, request: Request) -> Changed:
        """Retry, cancel or delete jobs: `{"do": "retry", "ids": [...]}`, at most 500 of them."""
        wanted = await _object(request, {"do", "ids"})
        ids = wanted.get("ids")
        if not isinstance(ids, list) or not all(isinstance(id, str) and id for id in ids):
            raise TypeError("`ids` must be a list of jobs")
        return await self._changes(request).jobs(str(wanted.get("do")), ids)

    async def _requeue_job(self, request: Request) -> Changed:
        """A failed job goes back to its queue."""
        return await self._changes(request).requeue_job(request.path_params["id"])

    async def _requeue_group(self, request: Request) -> Changed:
        """A group goes back to ready: `{"instance_id": "math_17", "round": 0}`."""
        wanted = await _object(request, {"instance_id", "round"})
        instance, number = wanted.get("instance_id"), int(wanted.get("round", 0))
        if not isinstance(instance, str | int):
            raise TypeError("`instance_id` must be a string or a number: which group?")
        task = request.path_params["task"]
        return await self._changes(request).requeue_group(task, instance, number)

    async def _reap(self, request: Request) -> Changed:
        """End all sandboxes of the run whose owner is dead, now."""
        return await self._changes(request).reap(request.path_params["run"])

    async def _end_sandbox(self, request: Request) -> Changed:
        """End one sandbox, even if it is in use. If that fails, a reaper tries again."""
        run, name = request.path_params["run"], request.path_params["name"]
        return await self._changes(request).end_sandboxes(run, [name], "ended from the monitor")


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


def _flag(given: Any) -> bool:
    if not isinstance(given, bool):
        raise TypeError("`paused` must be true or false")
    return given


def _who_asks(request: Request) -> str:
    """The name in the header `X-Penstock-Who`, else the user of Basic authentication."""
    return unquote(request.headers.get("X-Penstock-Who", "")) or _basic_user(request)


def _basic_user(request: Request) -> str:
    scheme, _, rest = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return ""
    try:
        user, _, password = base64.b64decode(rest, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return ""
    return user if password else ""  # a lone user is the token
