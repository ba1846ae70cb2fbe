"""What a local sandbox's keeper and its callers say to each other: one request a connection.

A message is a JSON header and raw bytes, as the jail's own wire has them.
"""

import asyncio
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
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


@contextmanager
def short_path(folder: Path, name: str) -> Iterator[str]:
    """A path for a socket in a folder, however long the folder's: the kernel takes 108 bytes."""
    at = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{at}/{name}"
    finally:
        os.close(at)
