"""Connect's JSON form: a call is one JSON object, a stream is frames of them.

A frame is a byte of flags, four bytes of length, and JSON; the last one has the flag 2 and says
how the stream ended.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from worker.sandbox.e2b.problems import EXPECTED, Problem, problem_of

Json = dict[str, Any]
_LAST, _COMPRESSED = 2, 1
_HEAD = 5
_LARGEST = 64 << 20
_STREAM = "application/connect+json"


def frame(message: Json, flags: int = 0) -> bytes:
    text = json.dumps(message).encode()
    return bytes([flags]) + len(text).to_bytes(4, "big") + text


def last_frame(problem: Problem | None = None) -> bytes:
    found = {"error": {"code": problem.code, "message": problem.message}} if problem else {}
    return frame(found, _LAST)


async def frames(request: Request) -> AsyncIterator[Json]:
    """What a client streams, up to its last frame."""
    held = bytearray()
    async for chunk in request.stream():
        held += chunk
        while len(held) >= _HEAD:
            flags, length = held[0], int.from_bytes(held[1:_HEAD], "big")
            if length > _LARGEST or flags & _COMPRESSED:
                raise Problem("invalid_argument", f"frames are at most {_LARGEST} bytes, and plain")
            if len(held) < _HEAD + length:
                break
            text = bytes(held[_HEAD : _HEAD + length])
            del held[: _HEAD + length]
            if flags & _LAST:
                return
            yield parsed(text)


async def one_frame(request: Request) -> Json:
    async with aclosing(frames(request)) as found:  # type: ignore[type-var]
        async for message in found:
            return message
    raise Problem("invalid_argument", "the request is empty")


async def body(request: Request) -> Json:
    held = bytearray()
    async for chunk in request.stream():
        held += chunk
        if len(held) > _LARGEST:
            raise Problem("resource_exhausted", f"a request is at most {_LARGEST} bytes", 413)
    return parsed(bytes(held) or b"{}")


def parsed(text: bytes) -> Json:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise Problem("invalid_argument", f"the request is not JSON: {problem}") from None
    if not isinstance(found, dict):
        raise Problem("invalid_argument", "the request is no JSON object")
    return found


def refusal(problem: Problem) -> Response:
    """As RPC has it; REST reads the same two fields and a number."""
    return JSONResponse(
        {"code": problem.code, "message": problem.message}, status_code=problem.status
    )


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


async def unless_gone(request: Request, work: Callable[[], Awaitable[Response]]) -> Response | None:
    """None if the client went away before its request was whole."""
    try:
        return await work()
    except ClientDisconnect:
        return None
