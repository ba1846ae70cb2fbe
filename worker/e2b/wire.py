"""Connect's JSON form: a call is one JSON object, a stream is frames of them.

A frame is a byte of flags, four bytes of length, and JSON. The last one has the flag 2 and says
how the stream ended.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from ground.http.held import Held
from worker.e2b.problems import EXPECTED, Problem, problem_of

Json = dict[str, Any]
T = TypeVar("T")
_LAST, _COMPRESSED = 2, 1
_HEAD = 5
_LARGEST = 64 << 20
_STREAM = "application/connect+json"
_RETRY = {"Retry-After": "1", "Should-Retry": "true"}


def no_room(why: str) -> Problem:
    return Problem("unavailable", why)


HELD = Held(4 * _LARGEST, no_room)
TAKE = "penstock.take"  # in the scope of a request, of `HELD`, until it is answered


def frame(message: Json, flags: int = 0) -> bytes:
    text = json.dumps(message).encode()
    return bytes([flags]) + len(text).to_bytes(4, "big") + text


def last_frame(problem: Problem | None = None) -> bytes:
    found = {"error": {"code": problem.code, "message": problem.message}} if problem else {}
    return frame(found, _LAST)


async def frames(request: Request) -> AsyncIterator[Json]:
    """The frames that a client streams, up to its last one."""
    held = bytearray()
    with HELD.some() as take:
        async for chunk in request.stream():
            held += chunk
            take(len(chunk))
            while len(held) >= _HEAD:
                flags, length = held[0], int.from_bytes(held[1:_HEAD], "big")
                if length > _LARGEST or flags & _COMPRESSED:
                    most = f"frames are at most {_LARGEST} bytes, and plain"
                    raise Problem("invalid_argument", most)
                if len(held) < _HEAD + length:
                    break
                text = bytes(held[_HEAD : _HEAD + length])
                del held[: _HEAD + length]
                if flags & _LAST:
                    return
                yield parsed(text)
                take(-_HEAD - length)


async def one_frame(request: Request) -> Json:
    async with aclosing(frames(request)) as found:  # type: ignore[type-var]
        async for message in found:
            return message
    raise Problem("invalid_argument", "the request is empty")


def is_number(text: str) -> bool:
    """Whether it consists of digits that `int` reads, and of so few that it takes no time."""
    return text.isascii() and text.isdigit() and len(text) < 16


async def body(request: Request) -> Json:
    return parsed(await content(request) or b"{}")


async def content(request: Request) -> bytes:
    held = bytearray()
    async for chunk in request.stream():
        held += chunk
        request.scope[TAKE](len(chunk))
        if len(held) > _LARGEST:
            raise Problem("resource_exhausted", f"a request is at most {_LARGEST} bytes", 413)
    return bytes(held)


def parsed(text: bytes) -> Json:
    """A request's object. Half a surrogate pair is refused: no answer could say it again."""
    try:
        found = json.loads(text.decode())
        if b"\\ud" in text or b"\\uD" in text:
            json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as problem:
        raise Problem("invalid_argument", f"the request is not JSON: {problem}") from None
    if not isinstance(found, dict):
        raise Problem("invalid_argument", "the request is no JSON object")
    return found


def number(found: Any, name: str) -> int:
    """A whole number of a request. Raises `Problem`."""
    if isinstance(found, str) and is_number(found):
        return int(found)
    if not isinstance(found, int) or isinstance(found, bool):
        raise Problem("invalid_argument", f"{name} is {found!r:.100}; it is a whole number")
    return found


def refusal(problem: Problem) -> Response:
    """A refusal as RPC has it; REST reads the same two fields and a number."""
    said = {"code": problem.code, "message": problem.message}
    return JSONResponse(said, status_code=problem.status, headers=retry(problem))


def retry(problem: Problem) -> dict[str, str]:
    """The headers that tell the SDK to try again, if that may help."""
    return _RETRY if problem.status == 503 else {}


def streamed(messages: AsyncGenerator[Json, None], ping: float) -> Response:
    """The messages as frames, with a keepalive after each `ping` seconds of silence."""

    async def content() -> AsyncIterator[bytes]:
        try:
            async with aclosing(_with_pings(messages, ping)) as found:
                async for message in found:
                    yield frame(message)
        except Problem as problem:
            yield last_frame(problem)
        except EXPECTED as problem:
            yield last_frame(problem_of(problem))
        else:
            yield last_frame()

    return StreamingResponse(content(), media_type=_STREAM)


async def _with_pings(
    messages: AsyncGenerator[Json, None], ping: float
) -> AsyncGenerator[Json, None]:
    async with aclosing(messages):
        coming = asyncio.ensure_future(anext(messages))
        try:
            while True:
                done, _ = await asyncio.wait([coming], timeout=ping)
                if not done:
                    yield {"event": {"keepalive": {}}}
                    continue
                try:
                    message = coming.result()
                except StopAsyncIteration:
                    return
                coming = asyncio.ensure_future(anext(messages))
                yield message
        finally:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)


async def while_heard(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Do some work, which is cancelled when the client hangs up: nobody would know of what it has
    made."""
    at_work = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_hung_up(request))
    try:
        await asyncio.wait([at_work, gone], return_when=asyncio.FIRST_COMPLETED)
        if not at_work.done():
            raise ClientDisconnect
        return at_work.result()
    finally:
        for task in (at_work, gone):
            task.cancel()
        await asyncio.wait([at_work, gone])


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


FORWARDED = "penstock.forwarded"  # in the scope of a request that another server has passed on


def was_forwarded(request: Request) -> bool:
    return bool(request.scope.get(FORWARDED))


async def unless_gone(request: Request, work: Callable[[], Awaitable[Response]]) -> Response | None:
    """None if the client went away before its request was whole."""
    try:
        return await work()
    except ClientDisconnect:
        return None
