"""What a local sandbox's keeper and its callers say to each other: one request a connection.

A message is a JSON header and raw bytes, as the jail's own wire has them.
"""

import asyncio
import struct
from typing import Any

from worker.lifecycle.local.inside import MOST, PIECE
from worker.sandbox.local.inside import wire

_HEAD = struct.Struct("!Q")
_START = 12  # bytes of the jail's message that say how long it is
_LARGEST_PIECE = PIECE + (1 << 16)
LARGEST = 2 * MOST + (16 << 20)  # two outputs, or one file, and what is said of them


async def send(writer: asyncio.StreamWriter, header: dict[str, Any], *blobs: bytes) -> None:
    message = wire.pack(header, blobs)
    writer.write(_HEAD.pack(len(message)))
    writer.write(message)
    await writer.drain()


async def receive(reader: asyncio.StreamReader) -> tuple[dict[str, Any], list[bytes]]:
    """Raises `ConnectionError` where the other side went first, or says too much."""
    try:
        (length,) = _HEAD.unpack(await reader.readexactly(_HEAD.size))
        if length > LARGEST:
            raise ConnectionError(
                f"a message has {length:,} bytes; at most {LARGEST:,} are allowed"
            )
        return wire.unpack(await reader.readexactly(length))
    except asyncio.IncompleteReadError:
        raise ConnectionError("the connection was closed") from None


async def receive_piece(reader: asyncio.StreamReader) -> tuple[dict[str, Any], bytes]:
    """One message of the jail's, which may be no larger than its pieces are."""
    start = await reader.readexactly(_START)
    length = wire.length(start) or 0
    if length > _LARGEST_PIECE:
        raise ConnectionError(f"a message of {length:,} bytes from the jail")
    header, (piece,) = wire.unpack(start + await reader.readexactly(length - _START))
    return header, piece
