"""The monitor's changes come by POST: bodies are checked here, `penstock/changes` does the rest."""

import base64
import binascii
from collections.abc import Awaitable, Callable, Coroutine
from typing import Annotated, Any, Literal
from urllib.parse import unquote

from fastapi import APIRouter, Depends, Request
from fastapi.routing import APIRoute
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Message

from ground import SettingError
from penstock.changes import Author, Changed, Changes
from penstock.monitor.answers import Answer, refused
from penstock.monitor.asked import Looked, Whole

_LARGEST = 64 << 10


class _Change(APIRoute):
    """A change, which is refused without a token. A body that is too large is not read to its
    end."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def bounded(request: Request) -> Response:
            if not request.app.state.may_act:
                return refused(
                    403, "this monitor only shows: it was started without PENSTOCK_MONITOR_TOKEN"
                )
            read = 0

            async def receive() -> Message:
                nonlocal read
                message = await request.receive()
                read += len(message.get("body", b""))
                if read > _LARGEST:
                    raise HTTPException(413, f"the body has more than {_LARGEST} bytes")
                return message

            return await handler(Request(request.scope, receive))

        return bounded


async def _changes(request: Request, view: Looked) -> Changes:
    address = request.client.host if request.client else ""
    return Changes(view.reader, Author(_who_asks(request), address))


Making = Annotated[Changes, Depends(_changes)]
acts = APIRouter(prefix="/api", tags=["monitor"], route_class=_Change)


class _Asked(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class GateTerms(_Asked):
    """The terms of a gate that are to change; what is left out stays."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    paused: bool | None = None
    limit: int | None = Field(None, ge=1)
    rate: float | None = Field(None, gt=0, allow_inf_nan=False)
    burst: int | None = Field(None, ge=1)


class QueueTerms(_Asked):
    """Whether a queue is paused."""

    paused: bool


def _text(found: Any) -> str:
    """A text, also one with half a surrogate pair, which pydantic takes for no text: no job has
    that id, and the others are changed."""
    if not isinstance(found, str) or not found:
        raise ValueError("a job's id is a text")
    return found


JobId = Annotated[Any, AfterValidator(_text), WithJsonSchema({"type": "string", "minLength": 1})]


class JobsToChange(_Asked):
    """The jobs to change, and the change."""

    do: Literal["retry", "requeue", "cancel", "delete"]
    ids: list[JobId] = Field(min_length=1, max_length=500)


class GroupNamed(_Asked):
    """A group of a task."""

    instance_id: str | int
    round: Whole = 0


@acts.post("/gates/{name:path}")
async def change_gate(changes: Making, name: str, asked: GateTerms) -> Response:
    """Change a gate: `{"paused": true}`, or any of `limit`, `rate` and `burst`."""
    terms = asked.model_dump(exclude_none=True)
    if not terms:
        return refused(400, "the body must have some of paused, limit, rate, burst")
    return await _made(changes.gate(name, **terms))


@acts.post("/queues/{name:path}")
async def change_queue(changes: Making, name: str, asked: QueueTerms) -> Response:
    """Pause or resume a queue: `{"paused": true}`. Running jobs go on."""
    return await _made(changes.queue(name, paused=asked.paused))


@acts.post("/jobs")
async def change_jobs(changes: Making, asked: JobsToChange) -> Response:
    """Retry, cancel or delete jobs: `{"do": "retry", "ids": [...]}`, at most 500 of them."""
    return await _made(changes.jobs(asked.do, asked.ids))


@acts.post("/jobs/{id}/requeue")
async def requeue_job(changes: Making, id: str) -> Response:
    """A failed job goes back to its queue."""
    return await _made(changes.requeue_job(id))


@acts.post("/groups/{task}/requeue")
async def requeue_group(changes: Making, task: str, asked: GroupNamed) -> Response:
    """A group goes back to ready: `{"instance_id": "math_17", "round": 0}`."""
    return await _made(changes.requeue_group(task, asked.instance_id, asked.round))


@acts.post("/sandboxes/{run}/reap")
async def reap(changes: Making, run: str) -> Response:
    """End all sandboxes of the run whose owner is dead, now."""
    return await _made(changes.reap(run))


@acts.post("/sandboxes/{run}/{name}/end")
async def end_sandbox(changes: Making, run: str, name: str) -> Response:
    """End one sandbox, even if it is in use. If that fails, a reaper tries again."""
    return await _made(changes.end_sandboxes(run, [name], "ended from the monitor"))


async def _made(change: Awaitable[Changed]) -> Response:
    try:
        changed = await change
    except (SettingError, ValueError, TypeError, OverflowError) as wrong:
        return refused(400, str(wrong))
    if changed.refusal:
        return refused(404 if changed.absent else 409, changed.refusal)
    return Answer(changed.found)


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
