"""How a server answers: slime's envelope, and one place where errors become status codes."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar, cast

from fastapi.exceptions import RequestValidationError
from pydantic import BeforeValidator
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive

from buffer.errors import (
    BufferFull,
    ItemRefused,
    LeaseLost,
    NoPolicy,
    RolloutReplaced,
    SlotLost,
    TrainerReplaced,
    UnknownTask,
)
from buffer.item import parse_json
from buffer.rollout_buffer import RolloutBuffer
from buffer.writer import Outcome
from ground import PenstockError, RedisError, SettingError
from ground.tasks import ended

T = TypeVar("T")
_DIGITS = re.compile(r"-?[0-9]{1,15}")
LARGEST_REQUEST = 64 * 1024  # of anything but items


class Refused(Exception):
    """A request that is answered with this status and reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Answer(JSONResponse):
    """JSON in ASCII: any text of a client, half a surrogate pair included, can be sent back."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


def envelope(success: bool, message: str, data: Any = None) -> dict[str, Any]:
    """A body as slime's BufferResponse."""
    return {"success": success, "message": message, "data": data}


def refusal(error: Exception) -> Response:
    """Any error of Penstock as an answer: its status, its reason, when to retry."""
    headers = {}
    if isinstance(error, BufferFull):
        headers["Retry-After"] = str(max(1, round(error.retry_after)))
    elif isinstance(error, RedisError):
        headers["Retry-After"] = "1"
    return Answer(envelope(False, str(error)), _status(error), headers)


async def invalid(_: Request, error: Exception) -> Response:
    """A body or a query that makes no sense, with the places that are wrong."""
    said = "; ".join(
        f"{'.'.join(map(str, one['loc'][1:])) or one['loc'][0]}: {one['msg']}"
        for one in cast(RequestValidationError, error).errors()
    )
    return Answer(envelope(False, said), 422)


def refusal_of_full(task: str, wait: float, outcomes: list[Outcome]) -> Response:
    """A batch write of which some found no room."""
    error = BufferFull(task, wait)
    answer = {**envelope(False, str(error)), "outcomes": outcomes}
    return Answer(answer, 429, {"Retry-After": str(max(1, round(wait)))})


def refusal_of_some(buffer: RolloutBuffer, outcomes: list[Outcome]) -> Response:
    """A batch write of which some came under a slot that is over, or of no known version."""
    try:
        buffer.check(outcomes, 0.0, "of an item")
    except PenstockError as error:
        return Answer({**envelope(False, str(error)), "outcomes": outcomes}, _status(error))
    raise ValueError(f"nothing is wrong with {outcomes}")


def _status(error: Exception) -> int:
    match error:
        case Refused():
            return error.status
        case ItemRefused():
            return 413 if error.too_large else 400
        case BufferFull():
            return 429
        case UnknownTask():
            return 404
        case LeaseLost():
            return 409
        case RolloutReplaced() | SlotLost() | TrainerReplaced():
            return 410
        case NoPolicy():
            return 404
        case SettingError():
            return 400
        case RedisError():
            return 503
    return 500


OURS = (PenstockError, Refused)


async def disconnected(receive: Receive) -> None:
    """Wait until the client went away; for a request whose body was read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(
    request: Request, work: Coroutine[Any, Any, T], undo: Callable[[T], Awaitable[Any]]
) -> T:
    """Do the work that a client waits for: cancel it when the client leaves, undo it if it came too
    late."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(disconnected(request.receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not leaving.done():
            return await working
        if working.done():
            await undo(await working)
        raise Refused(499, "the client went away")
    finally:
        await ended([working, leaving])


async def body_of(request: Request, limit: int = LARGEST_REQUEST) -> bytes:
    """A request's body, refused as soon as it is larger than it may be."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise Refused(413, f"the body has more than {limit} bytes")
        parts.append(part)
    return b"".join(parts)


async def object_of(
    request: Request, *, optional: bool = False, limit: int = LARGEST_REQUEST
) -> dict[str, Any]:
    """A request's JSON object. If it is optional, anything else counts as none."""
    body = await body_of(request, limit)
    try:
        found, _ = parse_json(body)
    except ItemRefused:
        if optional:
            return {}
        raise
    if not isinstance(found, dict):
        if optional:
            return {}
        raise Refused(400, f"the body must be a JSON object, not {type(found).__name__}")
    return found


def integer(
    given: dict[str, Any], name: str, default: int | None = None, *, least: int = -1
) -> int:
    """A whole number of a request; slime's client writes its numbers as strings."""
    value = given.get(name, default)
    if value is None and name not in given:
        raise Refused(400, f"{name!r} is missing: an integer")
    if isinstance(value, str) and _DIGITS.fullmatch(value):
        value = int(value)
    value = _whole(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise Refused(400, f"{name!r} must be an integer, not {_shown(value)}")
    number = value
    if not least <= number <= 2**53:
        raise Refused(400, f"{name!r} must be from {least} to 2^53, not {number}")
    return number


def _whole(value: Any) -> Any:
    """Take 3022.0 as an integer, as JSON and the schema do; strict models know only 3022."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


WHOLE = BeforeValidator(_whole)


def seconds(given: dict[str, Any], name: str, most: float) -> float:
    """A duration of a request, cut to what is sensible."""
    if name not in given:
        raise Refused(400, f"{name!r} is missing: a number of seconds")
    value = given[name]
    try:
        if isinstance(value, bool | str):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise Refused(400, f"{name!r} must be a number of seconds, not {_shown(value)}") from None
    if not number >= 0:
        raise Refused(400, f"{name!r} must be 0 or more, not {_shown(value)}")
    return min(number, most)


def _shown(value: Any) -> str:
    return json.dumps(value)[:100]
