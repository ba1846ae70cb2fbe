"""slime's endpoints, with its shapes and status codes, as both its clients speak them.

Each also lives under `/tasks/<task>`, for several trainers on one server: give
`http://host:8889/tasks/<task>` as `rollout_buffer_url`. Without it a request means the
task that was started last.
"""

import logging
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from buffer.http.answers import Answer, Refused, envelope, integer, object_of, seconds
from buffer.http.desk import Desk
from buffer.http.handing import handed_out
from buffer.http.rollouts import Rollouts
from buffer.rollout_buffer import RolloutBuffer

log = logging.getLogger(__name__)
_EMPTY: dict[str, Any] = {"data": [], "meta_info": {}}


def slime_routes(desk: Desk, rollouts: Rollouts) -> APIRouter:
    """The seven, but for /buffer/write, which `hot_write.py` answers."""
    router = APIRouter(tags=["slime"])

    async def buffer_of(request: Request) -> RolloutBuffer:
        task = request.path_params.get("task")
        return await (desk.existing(task) if task else desk.current())

    async def start_rollout(request: Request) -> Response:
        """Start a task's generator; its settings are in force from now on."""
        payload = await object_of(request, limit=desk.settings.max_item_bytes)
        task = request.path_params.get("task")
        if task and payload.setdefault("task_type", task) != task:
            raise Refused(400, f"task_type is {payload['task_type']!r} on the path of {task!r}")
        said = await rollouts.start(payload)
        log.info("start_rollout", extra={"task": payload.get("task_type"), "outcome": said})
        return Answer({"message": "Rollout started"})

    async def get_rollout_data(request: Request) -> Response:
        """Everything that is finished, or the groups that hold `batch_size` items."""
        given = await object_of(request, optional=True)
        size = integer(given, "batch_size", -1)
        buffer = await buffer_of(request)
        groups = await _groups_for(buffer, size)
        if groups is not None and (found := await buffer.available()) < groups:
            items = found * (await buffer.config()).group_size
            return _empty(f"Not enough data. Requested {size} items but only {items} available.")
        return await _read(buffer, groups, "No data available to read")

    async def read(request: Request) -> Response:
        """The same with a wait of up to `timeout` seconds for `batch_size` items."""
        given = await object_of(request)
        size = integer(given, "batch_size")
        wait = seconds(given, "timeout", -1, desk.settings.longest_wait)
        if not isinstance(given.get("wait", True), bool):
            raise Refused(400, "'wait' must be true or false")
        buffer = await buffer_of(request)
        groups = await _groups_for(buffer, size)
        if groups is not None:
            await buffer.wait_for(groups, wait)
        if given.get("wait", True):
            return await _read(buffer, groups, "Timeout waiting, no data available to read")
        return await _read(buffer, groups, None)

    async def peek(request: Request) -> Response:
        """The oldest finished groups as they were written; they stay where they are."""
        given = await object_of(request, optional=True)
        size = integer(given, "batch_size", 1, least=0)
        buffer = await buffer_of(request)
        await buffer.available()
        items: list[Any] = []
        for group in await buffer.groups("ready", limit=max(1, min(size, 1000))):
            if len(items) >= size:
                break
            items += await buffer.items(group.instance_id, group.round)
        data = {"data": items[:size], "meta_info": {}}
        message = f"Successfully previewed {len(items[:size])} items"
        return Answer(envelope(True, message, data))

    async def stats(request: Request) -> Response:
        """Upstream's four figures; `/v1/tasks/<task>/stats` has all."""
        buffer = await buffer_of(request)
        config, totals = await buffer.config(), await buffer.stats()
        figures = {
            "current_size": totals["ready_groups"] * config.group_size,
            "max_size": config.max_buffer_size,
            "total_written": totals.get("stored", 0),
            "total_read": totals.get("delivered", 0) * config.group_size,
        }
        data = {"data": [figures], "meta_info": {}}
        return Answer(envelope(True, "Buffer stats retrieved successfully", data))

    async def root() -> dict[str, str]:
        """Whether the server runs."""
        return {"message": "Rollout Buffer Server is running", "status": "healthy"}

    router.get("/")(root)
    for prefix in ("", "/tasks/{task}"):
        for method, path, endpoint in (
            ("POST", "/start_rollout", start_rollout),
            ("POST", "/get_rollout_data", get_rollout_data),
            ("POST", "/buffer/read", read),
            ("GET", "/buffer/peek", peek),
            ("GET", "/buffer/stats", stats),
        ):
            router.add_api_route(prefix + path, endpoint, methods=[method], response_model=None)

    async def _read(buffer: RolloutBuffer, groups: int | None, nothing: str | None) -> Response:
        batch = await buffer.take(groups, implicit=True)
        if batch is not None:
            return await handed_out(buffer, batch, desk.settings.dump_rollouts)
        # Ids that finished without data are told here too; the next batch repeats them.
        told = await buffer.unreported()
        meta = {"finished_groups": told} if told else {}
        if nothing is None:
            return Answer(
                envelope(True, "Successfully read 0 items", {"data": [], "meta_info": meta})
            )
        return _empty(nothing, meta)

    return router


def _empty(message: str, meta: dict[str, Any] | None = None) -> Response:
    return Answer(envelope(False, message, {**_EMPTY, "meta_info": meta or {}}))


async def _groups_for(buffer: RolloutBuffer, items: int) -> int | None:
    """Whole groups that hold so many items; -1 and 0 are everything."""
    if items <= 0:
        return None
    return -(-items // (await buffer.config()).group_size)
