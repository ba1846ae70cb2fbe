"""Answers that may be large: encoded item by item, and sent as they are encoded. What follows the
first chunk is encoded in a thread.

One item holds up other requests for as long as it takes to encode, a batch of many does not.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from buffer.batch import Batch
from buffer.http.answers import disconnected
from ground.quick_json import write_json

_CHUNK = 256 * 1024


class Streamed(Response):
    """A JSON answer in pieces. `conclude` hears whether all of them were sent."""

    media_type = "application/json"

    def __init__(
        self, pieces: Iterable[bytes], conclude: Callable[[bool], Awaitable[None]] | None = None
    ) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._pieces = iter(pieces)
        self._conclude = conclude

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrived = False
        try:
            arrived = await self._send(receive, send)
        finally:
            if self._conclude is not None:
                await self._conclude(arrived)

    async def _send(self, receive: Receive, send: Send) -> bool:
        gone = asyncio.create_task(disconnected(receive))
        try:
            # Most answers are small: a thread costs more than to encode them here. One that fails
            # is a 500 of its own.
            part, more = self._next()
            await send(
                {"type": "http.response.start", "status": self.status_code,
                 "headers": self.raw_headers}
            )  # fmt: skip
            while True:
                await asyncio.sleep(0)  # let a disconnect be noticed
                if gone.done():
                    return False
                await send({"type": "http.response.body", "body": part, "more_body": more})
                if not more:
                    break
                part, more = await asyncio.to_thread(self._next)
        finally:
            gone.cancel()
        return True

    def _next(self) -> tuple[bytes, bool]:
        """Some pieces, and whether there may be more."""
        found, size = [], 0
        for piece in self._pieces:
            found.append(piece)
            size += len(piece)
            if size >= _CHUNK:
                return b"".join(found), True
        return b"".join(found), False


def items_in_pieces(before: bytes, items: Iterable[Any], after: bytes) -> Iterator[bytes]:
    """A list of items between two texts."""
    yield before + b"["
    for number, item in enumerate(items):
        yield (b"," if number else b"") + write_json(item, encoded)
    yield b"]" + after


def batch_in_pieces(batch: Batch) -> Iterator[bytes]:
    """A batch as /v1 shows it."""
    yield b'{"receipt":%b,"groups":[' % encoded(batch.receipt)
    for number, (name, items) in enumerate(batch.groups):
        before = b'%b{"instance_id":%b,"items":' % (b"," if number else b"", encoded(name))
        yield from items_in_pieces(before, items, b"}")
    yield b'],"finished_groups":%b,"meta_info":%b}' % (
        encoded(batch.finished_groups), encoded(batch.meta_info),
    )  # fmt: skip


def encoded(value: Any) -> bytes:
    """Compact JSON in ASCII; it fails at what is none."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
