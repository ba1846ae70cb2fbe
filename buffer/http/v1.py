"""Penstock's own endpoints, under /v1: batches in both directions, and a look at everything."""

import asyncio
from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from buffer.batch import Batch
from buffer.errors import ItemRefused
from buffer.http.answers import (
    WHOLE,
    Answer,
    Refused,
    body_of,
    refusal_of_full,
    refusal_of_some,
    unless_gone,
)
from buffer.http.bodies import MOST_ITEMS, TASK, Items, takes
from buffer.http.desk import Serving
from buffer.http.streamed import Streamed, batch_in_pieces, items_in_pieces
from buffer.item import LONGEST_ID, Entry, entry_of, parse_json
from buffer.reading.reader import MOST_GROUPS
from buffer.rollout_buffer import RolloutBuffer
from buffer.settings import TaskConfig
from buffer.writer import Outcome
from ground.keys import check_name

_BATCH_BYTES = 256 * 1024 * 1024

Task = Annotated[str, Path(pattern=TASK)]
Receipt = Annotated[str, Path(pattern=r"^[0-9a-f]{32}$")]
Round = Annotated[int, Query(alias="round", ge=0, lt=2**53)]
Instance = Annotated[str, Query(min_length=1, max_length=LONGEST_ID)]


async def _existing(desk: Serving, task: Task) -> RolloutBuffer:
    return await desk.existing(task)


Existing = Annotated[RolloutBuffer, Depends(_existing)]


class Take(BaseModel):
    """A reader's wishes for a batch."""

    model_config = ConfigDict(extra="forbid", strict=True)

    groups: Annotated[int, Field(ge=1, le=MOST_GROUPS), WHOLE] | None = Field(
        None, description="Most groups; null is all."
    )
    wait: float = Field(0.0, ge=0, description="Seconds to wait for a group.")
    lease: float | None = Field(None, gt=0, le=86_400, description="Seconds until it comes back.")
    max_bytes: Annotated[int, Field(ge=1, le=2**53), WHOLE] | None = Field(
        None,
        description="Most bytes of items as they are stored; the first group comes in any case.",
    )


class Extend(BaseModel):
    """How much longer a batch is needed."""

    model_config = ConfigDict(extra="forbid", strict=True)

    seconds: float = Field(gt=0, le=86_400)


v1_routes = APIRouter(prefix="/v1", tags=["v1"])


@v1_routes.get("/tasks")
async def tasks(desk: Serving) -> dict[str, list[str]]:
    """Every task of this run, the one last started at the end."""
    return {"tasks": await desk.tasks()}


@v1_routes.get("/generators")
async def generators(desk: Serving) -> dict[str, str]:
    """The task types this server can generate for, each with its file."""
    return {name: str(found.path) for name, found in desk.generators.items()}


@v1_routes.put("/tasks/{task}")
async def configure(desk: Serving, task: Task, config: TaskConfig) -> dict[str, Any]:
    """Create a task or change its settings; its groups stay.

    What is named here holds for later rollouts too: `/start_rollout` changes what it names itself.
    """
    _check(task)
    asked = config.model_dump(exclude_unset=True)
    buffer = await desk.configure(task, desk.config_of(asked), asked)
    return (await buffer.config()).model_dump()


@v1_routes.get("/tasks/{task}")
async def config_of(buffer: Existing) -> dict[str, Any]:
    """A task's settings."""
    return (await buffer.config()).model_dump()


@v1_routes.post("/tasks/{task}/items", openapi_extra=takes(Items))
async def write(desk: Serving, buffer: Existing, request: Request) -> Response:
    """Write many items at once: all are checked, then all are written.

    When some found no room the answer is 429: send the same again, what was stored
    is not stored twice if it has a `uid`. When the slot of some is over it is 410. It is 400 when
    some report a version that was never published, or are under the slot of another instance. The
    others are stored.
    """
    body, limit = await body_of(request, _BATCH_BYTES), desk.settings.max_item_bytes
    entries = await asyncio.to_thread(_entries, body, limit)  # others are served meanwhile
    outcomes, wait = await buffer.write_entries(entries)
    if Outcome.FULL in outcomes:
        return refusal_of_full(buffer.task, wait, outcomes)
    if not {Outcome.LOST, Outcome.UNPUBLISHED, Outcome.FOREIGN}.isdisjoint(outcomes):
        return refusal_of_some(buffer, outcomes)
    return Answer({"outcomes": outcomes})


@v1_routes.post("/tasks/{task}/take")
async def take(desk: Serving, buffer: Existing, asked: Take, request: Request) -> Response:
    """A batch under a lease, or 204. Acknowledge it, or it comes back."""
    wait = min(asked.wait, desk.settings.longest_wait)

    async def give_back(batch: Batch | None) -> None:
        if batch is not None:
            await buffer.release(batch)

    taking = buffer.take(asked.groups, wait=wait, lease=asked.lease, max_bytes=asked.max_bytes)
    batch = await unless_gone(request, taking, give_back)
    if batch is None:
        return Response(status_code=204)

    async def conclude(arrived: bool) -> None:
        if not arrived:  # the next reader need not wait for it
            await buffer.release(batch)

    return Streamed(batch_in_pieces(batch), conclude)


@v1_routes.post("/tasks/{task}/batches/{receipt}/ack")
async def ack(buffer: Existing, receipt: Receipt) -> dict[str, bool]:
    """The batch was used. Repeating it is harmless."""
    await buffer.ack(receipt)
    return {"acknowledged": True}


@v1_routes.post("/tasks/{task}/batches/{receipt}/release")
async def release(buffer: Existing, receipt: Receipt) -> dict[str, bool]:
    """Give a batch back."""
    return {"released": await buffer.release(receipt)}


@v1_routes.post("/tasks/{task}/batches/{receipt}/extend")
async def extend(buffer: Existing, receipt: Receipt, asked: Extend) -> dict[str, bool]:
    """Extend the lease of a batch, from now."""
    await buffer.extend(receipt, asked.seconds)
    return {"extended": True}


@v1_routes.get("/tasks/{task}/batches/{receipt}")
async def fetch(buffer: Existing, receipt: Receipt) -> Response:
    """Fetch a batch again while it is leased or retained."""
    return Streamed(batch_in_pieces(await buffer.fetch(receipt)))


@v1_routes.get("/tasks/{task}/stats")
async def stats(buffer: Existing) -> dict[str, int]:
    """Groups by state, and totals since the run began."""
    return await buffer.catalog.stats()


@v1_routes.get("/tasks/{task}/groups")
async def groups(
    buffer: Existing,
    state: Literal["open", "ready", "leased", "kept"] = "ready",
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    """Groups of one state, oldest first."""
    found = await buffer.catalog.groups(state, limit)
    return Answer({"groups": [asdict(group) for group in found]})


@v1_routes.get("/tasks/{task}/group")
async def group(buffer: Existing, instance_id: Instance, number: Round = 0) -> Response:
    """Send one group's raw items, by arrival."""
    items = await buffer.catalog.items(_name(instance_id), number)
    return Streamed(items_in_pieces(b'{"items":', items, b"}"))


@v1_routes.get("/tasks/{task}/quarantine")
async def quarantine(buffer: Existing) -> Response:
    """Groups that a function failed on, each with the reason."""
    found = await buffer.catalog.quarantined()
    return Answer({"groups": [asdict(group) for group in found]})


@v1_routes.get("/tasks/{task}/aside")
async def aside(buffer: Existing, limit: Annotated[int, Query(ge=1, le=256)] = 100) -> Response:
    """The newest items that came late or were surplus."""
    found = await buffer.catalog.aside(limit)
    return Answer({"items": found})


@v1_routes.post("/tasks/{task}/requeue")
async def requeue(buffer: Existing, instance_id: Instance, number: Round = 0) -> dict[str, bool]:
    """Make a quarantined or discarded group ready again."""
    return {"requeued": await buffer.catalog.requeue(_name(instance_id), number)}


def check_many(items: list[Any]) -> None:
    """Refuse more items than one request may have."""
    if len(items) > MOST_ITEMS:
        raise Refused(413, f"{len(items)} items in one request; send at most {MOST_ITEMS}")


def _entries(body: bytes, limit: int) -> list[Entry]:
    given, _ = parse_json(body)
    items = given.get("items") if isinstance(given, dict) else given
    if not isinstance(items, list):
        raise Refused(400, 'the body must be {"items": […]}')
    check_many(items)
    entries = []
    for number, item in enumerate(items):
        try:
            entries.append(entry_of(item, limit))
        except ItemRefused as refused:
            raise ItemRefused(f"item {number}: {refused}", too_large=refused.too_large) from None
    return entries


def _check(task: str) -> None:
    try:
        check_name(task, "a task")
    except ValueError as wrong:
        raise Refused(400, str(wrong)) from None


def _name(instance_id: str) -> str:
    try:
        instance_id.encode()
    except UnicodeEncodeError:
        raise Refused(400, "instance_id is not Unicode") from None
    return instance_id
