"""`POST /buffer/write`: the hot path, straight on ASGI.

The body is checked once, kept as it came, and written with whatever else arrives
meanwhile. A full buffer makes the writer wait a while: upstream's generators give up
after two refusals.
"""

import asyncio
import time

from buffer.errors import BufferFull, ItemRefused
from buffer.http.answers import OURS, refusal
from buffer.http.desk import Desk
from buffer.item import entry_from
from buffer.rollout_buffer import RolloutBuffer
from buffer.writer import Outcome
from ground.http.guard import Receive, Scope, Send

_SAID = {
    Outcome.STORED: b"Data has been successfully written to buffer",
    Outcome.REPEATED: b"Data has been successfully written to buffer",
    Outcome.LATE: b"Counted as late: the group was closed before this item came",
    Outcome.SURPLUS: b"Counted as surplus: the group has more than enough items",
}
_LARGE = 256 * 1024
_TYPE = (b"content-type", b"application/json")


class HotWrite:
    """The ASGI application of one path."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def __call__(
        self, scope: Scope, receive: Receive, send: Send, task: str, rollout: str
    ) -> None:
        try:
            body = await _read(receive, self._desk.settings.max_item_bytes)
            if body is None:
                return  # the writer went away while it was sending
            buffer = await (self._desk.existing(task) if task else self._desk.current())
            outcome = await self._write(buffer, body, rollout)
        except OURS as error:
            await refusal(error)(scope, receive, send)
            return
        await _answer(send, body, outcome)

    async def _write(self, buffer: RolloutBuffer, body: bytes, rollout: str) -> Outcome:
        limit = self._desk.settings.max_item_bytes
        if len(body) < _LARGE:
            entry = entry_from(body, limit)
        else:  # reading and compressing it takes a while, in which others are served
            entry = await asyncio.to_thread(entry_from, body, limit)
        deadline = time.monotonic() + self._desk.settings.write_patience
        while True:
            (outcome,), wait = await buffer.write_entries([entry], rollout)
            if outcome is not Outcome.FULL:
                buffer.check([outcome], wait, entry.slot)
                return outcome
            left = deadline - time.monotonic()
            if left <= 0:
                raise BufferFull(buffer.task, wait)
            await asyncio.sleep(min(wait, left, 1.0))


async def _read(receive: Receive, limit: int) -> bytes | None:
    message = await receive()
    body = bytearray(message.get("body", b""))
    while message.get("more_body") and len(body) <= limit:
        message = await receive()
        body += message.get("body", b"")
    if message["type"] == "http.disconnect":
        return None
    if len(body) > limit:
        raise ItemRefused(
            f"the item has more than {limit} bytes, PENSTOCK_MAX_ITEM_BYTES", too_large=True
        )
    return bytes(body)


async def _answer(send: Send, body: bytes, outcome: Outcome) -> None:
    """Send the answer to a write. slime's buffer echoes the item; here it is the very text that
    came."""
    answer = b"".join(
        (
            b'{"success":true,"message":"', _SAID[outcome], b'","data":{"data":[', body.strip(),
            b'],"meta_info":"write to buffer"}}',
        )
    )  # fmt: skip
    headers = [
        _TYPE,
        (b"content-length", b"%d" % len(answer)),
        (b"x-penstock-outcome", outcome.encode()),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})
