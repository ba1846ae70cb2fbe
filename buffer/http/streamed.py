"""Answers that may be large: encoded item by item, and sent as they are encoded. What follows the
first chunk is encoded in a thread.

One item holds up other requests for as long as it takes to encode, a batch of many does not.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator
from itertools import chain
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from buffer.batch import Batch
from buffer.http.answers import disconnected

_CHUNK = 256 * 1024


class Streamed(Response):
    """A JSON answer in pieces. `conclude` hears whether all of them were sent."""

    media_type = "application/json"

    def __init__(
        self, pieces: Iterable[str], conclude: Callable[[bool], Awaitable[None]] | None = None
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
        """Some pieces, and whether there may be more. slime's texts may hold half a surrogate
        pair."""
        found, size = [], 0
        for piece in self._pieces:
            found.append(piece.encode(errors="backslashreplace"))
            size += len(found[-1])
            if size >= _CHUNK:
                return b"".join(found), True
        return b"".join(found), False


def items_in_pieces(
    before: str, items: Iterable[Any], after: str, *, ascii_only: bool = True
) -> Iterator[str]:
    """A list of items between two texts."""
    yield f"{before}["
    for number, item in enumerate(items):
        yield f"{',' if number else ''}{encoded(item, ascii_only=ascii_only)}"
    yield f"]{after}"


def batch_in_pieces(batch: Batch) -> Iterator[str]:
    """A batch as /v1 shows it."""
    groups = (
        items_in_pieces(
            f'{"," if number else ""}{{"instance_id":{encoded(name)},"items":', items, "}"
        )
        for number, (name, items) in enumerate(batch.groups)
    )
    finished, meta = encoded(batch.finished_groups), encoded(batch.meta_info)
    yield f'{{"receipt":{encoded(batch.receipt)},"groups":['
    yield from chain.from_iterable(groups)
    yield f'],"finished_groups":{finished},"meta_info":{meta}}}'


def encoded(value: Any, *, ascii_only: bool = True) -> str:
    """Compact JSON."""
    return json.dumps(value, allow_nan=False, ensure_ascii=ascii_only, separators=(",", ":"))
