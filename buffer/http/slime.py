"""slime's endpoints, with its shapes and status codes, as both its clients speak them.

Each also lives under `/tasks/<task>`, for several trainers on one server: give
`http://host:8889/tasks/<task>` as `rollout_buffer_url`. Without it a request means the
task that was started last. The seventh, /buffer/write, is answered by `hot_write.py`.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from buffer.batch import Batch
from buffer.errors import LeaseLost
from buffer.http import bodies
from buffer.http.answers import (
    Answer,
    Refused,
    envelope,
    integer,
    object_of,
    seconds,
)
from buffer.http.bodies import Item, Read, Start, takes
from buffer.http.desk import Desk, Serving
from buffer.http.rollouts import Running
from buffer.http.streamed import Streamed, encoded, items_in_pieces
from buffer.rollout_buffer import RolloutBuffer
from ground import RedisError

log = logging.getLogger(__name__)


def handed_out(buffer: RolloutBuffer, batch: Batch) -> Streamed:
    """The answer to a slime-shaped read that found data, and what follows from its arrival."""

    async def conclude(arrived: bool) -> None:
        with suppress(LeaseLost):  # the lease ended meanwhile: it went back by itself
            await _conclude(buffer, batch, arrived)

    return Streamed(_pieces(batch), conclude)


async def _conclude(buffer: RolloutBuffer, batch: Batch, arrived: bool) -> None:
    try:
        if arrived:
            await buffer.handed(batch)
        else:
            await buffer.release(batch)
            log.info("the reader went away", extra={"receipt": batch.receipt})
    except RedisError as outage:
        log.warning(
            "Redis has no record that a batch was handed out; it is delivered again",
            extra={"receipt": batch.receipt, "reason": str(outage)},
        )


def _pieces(batch: Batch) -> Iterator[bytes]:
    items = batch.items
    message = f"Successfully read {len(items)} items"
    before = b'{"success":true,"message":%b,"data":{"data":' % encoded(message)
    return items_in_pieces(before, items, b',"meta_info":%b}}' % encoded(batch.meta_info))


Endpoint = Callable[..., Awaitable[Response]]

slime_routes = APIRouter(tags=["slime"])


def _route(
    method: str, path: str, body: dict[str, Any] | None = None
) -> Callable[[Endpoint], Endpoint]:
    """Serve it with a task in the path and without. Upstream's clients send a body with
    GET /buffer/peek too; OpenAPI knows none."""

    def add(endpoint: Endpoint) -> Endpoint:
        for prefix in ("", "/tasks/{task}"):
            slime_routes.add_api_route(
                prefix + path, endpoint, methods=[method], response_model=None, openapi_extra=body
            )
        return endpoint

    return add


@slime_routes.get("/")
async def root() -> dict[str, str]:
    """Whether the server runs."""
    return {"message": "Rollout Buffer Server is running", "status": "healthy"}


@_route("POST", "/start_rollout", takes(Start))
async def start_rollout(request: Request, desk: Serving, rollouts: Running) -> Response:
    """Start a task's generator; its settings are in force from now on."""
    payload = await object_of(request, limit=desk.settings.max_item_bytes)
    task = request.path_params.get("task")
    if task and payload.setdefault("task_type", task) != task:
        raise Refused(400, f"task_type is {payload['task_type']!r} on the path of {task!r}")
    said = await rollouts.start(payload)
    log.info("start_rollout", extra={"task": payload.get("task_type"), "outcome": said})
    return Answer({"message": "Rollout started"})


@_route("POST", "/get_rollout_data", takes(bodies.Batch, required=False))
async def get_rollout_data(request: Request, desk: Serving) -> Response:
    """Everything that is finished, or the groups that hold `batch_size` items."""
    given = await object_of(request, optional=True)
    size = integer(given, "batch_size", -1)
    buffer = await _buffer_of(request, desk)
    groups = await _groups_for(buffer, size)
    await buffer.check_take(groups)
    if groups is not None and (found := await buffer.available()) < groups:
        items = found * (await buffer.config()).group_size
        return _empty(f"Not enough data. Requested {size} items but only {items} available.")
    taken = await _taken(buffer, groups)
    return taken or _empty("No data available to read", await buffer.told())


@_route("POST", "/buffer/read", takes(Read))
async def read(request: Request, desk: Serving) -> Response:
    """Do as `get_rollout_data`, with a wait of up to `timeout` seconds for `batch_size` items."""
    given = await object_of(request)
    size = integer(given, "batch_size")
    wait = seconds(given, "timeout", desk.settings.longest_wait)
    patient = given.get("wait", True)
    if not isinstance(patient, bool):
        raise Refused(400, "'wait' must be true or false")
    buffer = await _buffer_of(request, desk)
    groups = await _groups_for(buffer, size)
    await buffer.check_take(groups)
    if groups is not None:
        await buffer.wait_for(groups, wait)
    if taken := await _taken(buffer, groups):
        return taken
    figures = await buffer.told()
    if patient:
        return _empty("Timeout waiting, no data available to read", figures)
    data = {"data": [], "meta_info": figures}
    return Answer(envelope(True, "Successfully read 0 items", data))


@_route("POST", "/buffer/write", takes(Item))
async def write_item() -> Response:
    """Store one item, or count it: see X-Penstock-Outcome."""
    raise NotImplementedError("hot_write.py answers before any route is looked for")


@_route("GET", "/buffer/peek")
async def peek(request: Request, desk: Serving) -> Response:
    """The oldest finished groups as they were written; they stay where they are."""
    given = await object_of(request, optional=True)
    size = integer(given, "batch_size", 1, least=0)
    buffer = await _buffer_of(request, desk)
    await buffer.available()
    items: list[Any] = []
    for group in await buffer.catalog.groups("ready", limit=max(1, min(size, 1000))):
        if len(items) >= size:
            break
        items += await buffer.catalog.items(group.instance_id, group.round)
    data = {"data": items[:size], "meta_info": {}}
    message = f"Successfully previewed {len(items[:size])} items"
    return Answer(envelope(True, message, data))


@_route("GET", "/buffer/stats")
async def stats(request: Request, desk: Serving) -> Response:
    """Upstream's four figures; `/v1/tasks/<task>/stats` has all."""
    buffer = await _buffer_of(request, desk)
    config, totals = await buffer.config(), await buffer.catalog.stats()
    figures = {
        "current_size": totals["ready_groups"] * config.group_size,
        "max_size": config.max_buffer_size,
        "total_written": totals.get("stored", 0),
        "total_read": totals.get("delivered", 0) * config.group_size,
    }
    data = {"data": [figures], "meta_info": {}}
    return Answer(envelope(True, "Buffer stats retrieved successfully", data))


async def _buffer_of(request: Request, desk: Desk) -> RolloutBuffer:
    task = request.path_params.get("task")
    return await (desk.existing(task) if task else desk.current())


async def _groups_for(buffer: RolloutBuffer, items: int) -> int | None:
    """How many whole groups hold this many items. None is everything, which -1 and 0 ask for."""
    if items <= 0:
        return None
    return -(-items // (await buffer.config()).group_size)


async def _taken(buffer: RolloutBuffer, groups: int | None) -> Response | None:
    batch = await buffer.take(groups, implicit=True)
    if batch is None:
        return None
    return handed_out(buffer, batch)


def _empty(message: str, meta: dict[str, Any] | None = None) -> Response:
    return Answer(envelope(False, message, {"data": [], "meta_info": meta or {}}))
