"""What a local sandbox's keeper and its callers say to each other: one request a connection.

A message is a JSON header and raw bytes, as the jail's own wire has them.
"""

import asyncio
import struct
from typing import Any

from worker.sandbox.local.inside import wire

_HEAD = struct.Struct("!Q")
LARGEST = 64 << 20


async def send(writer: asyncio.StreamWriter, header: dict[str, Any], body: bytes = b"") -> None:
    message = wire.pack(header, [body])
    writer.write(_HEAD.pack(len(message)) + message)
    await writer.drain()


async def receive(reader: asyncio.StreamReader) -> tuple[dict[str, Any], bytes]:
    """Raises `ConnectionError` where the other side went first, or says too much."""
    try:
        (length,) = _HEAD.unpack(await reader.readexactly(_HEAD.size))
        if length > LARGEST:
            raise ConnectionError(f"a message of {length:,} bytes, and at most {LARGEST:,} go")
        header, (body,) = wire.unpack(await reader.readexactly(length))
    except asyncio.IncompleteReadError:
        raise ConnectionError("it hung up") from None
    return header, body
