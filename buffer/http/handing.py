"""Handing out a batch to a client that cannot acknowledge.

Once the whole answer was written it counts as handed; a client that went away before
makes the batch ready again at once.
"""

import asyncio
import json
import logging
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from buffer.batch import Batch
from buffer.errors import LeaseLost
from buffer.http.answers import envelope
from buffer.rollout_buffer import RolloutBuffer
from ground import RedisError

log = logging.getLogger(__name__)
_CHUNK = 256 * 1024


class BatchResponse(Response):
    """slime's answer with data, and what follows from its arrival."""

    media_type = "application/json"

    def __init__(self, buffer: RolloutBuffer, batch: Batch, body: bytes) -> None:
        super().__init__(body)
        self._buffer = buffer
        self._batch = batch

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrived = False
        try:
            arrived = await self._send(receive, send)
        finally:
            with suppress(LeaseLost):  # the lease ended meanwhile: it went back by itself
                await self._conclude(arrived)

    async def _conclude(self, arrived: bool) -> None:
        try:
            if arrived:
                await self._buffer.handed(self._batch)
            else:
                await self._buffer.release(self._batch)
                log.info("the reader went away", extra={"receipt": self._batch.receipt})
        except RedisError as outage:
            log.warning(
                "Redis did not learn that a batch was handed out; it comes back",
                extra={"receipt": self._batch.receipt, "reason": str(outage)},
            )

    async def _send(self, receive: Receive, send: Send) -> bool:
        gone = asyncio.create_task(_disconnected(receive))
        try:
            await send(
                {"type": "http.response.start", "status": self.status_code,
                 "headers": self.raw_headers}
            )  # fmt: skip
            for start in range(0, len(self.body), _CHUNK):
                await asyncio.sleep(0)  # let a disconnect be noticed
                if gone.done():
                    return False
                part = self.body[start : start + _CHUNK]
                more = start + _CHUNK < len(self.body)
                await send({"type": "http.response.body", "body": part, "more_body": more})
        finally:
            gone.cancel()
        return True


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def handed_out(buffer: RolloutBuffer, batch: Batch, dump: Path | None) -> BatchResponse:
    """The answer to a slime-shaped read that found data."""
    body = await asyncio.to_thread(_encoded, batch)
    if dump is not None:
        await asyncio.to_thread(_dump, batch, dump)
    return BatchResponse(buffer, batch, body)


def _encoded(batch: Batch) -> bytes:
    items = batch.items
    data: dict[str, Any] = {"data": items, "meta_info": batch.meta_info}
    answer = envelope(True, f"Successfully read {len(items)} items", data)
    return json.dumps(answer, ensure_ascii=False, separators=(",", ":")).encode(
        errors="backslashreplace"
    )


def _dump(batch: Batch, folder: Path) -> None:
    """As upstream does, but two batches of one second do not overwrite each other."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        name = f"rollout_data_{datetime.now():%Y%m%d_%H%M%S}_{batch.receipt[:8]}.json"
        (folder / name).write_text(json.dumps(batch.items, ensure_ascii=False, indent=2))
    except (OSError, UnicodeEncodeError) as failure:
        log.warning("a batch could not be dumped", extra={"reason": str(failure)})
