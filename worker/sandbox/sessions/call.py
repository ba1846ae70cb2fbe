"""A call to a hub, as its callers make it: a connection, what is asked, and the answer or error."""

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

from worker.images import errors as image_errors
from worker.sandbox.local import errors as sandbox_errors
from worker.sandbox.local.errors import SandboxUnavailable
from worker.sandbox.sessions import errors, wire
from worker.sandbox.sessions.errors import SessionError, SessionGone
from worker.sandbox.sessions.launch import short_path

MISSING = (FileNotFoundError, ConnectionRefusedError)  # what a hub's socket says without a hub
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect(folder: Path, hub: str) -> Streams:
    with short_path(folder, hub) as path:
        return await asyncio.open_unix_connection(path, limit=1 << 20)


async def ask(folder: Path, hub: str, wanted: str, body: bytes = b"", **call: Any) -> Any:
    """One answer to one call. Raises `SessionGone` where the hub is not there any more."""
    try:
        reader, writer = await connect(folder, hub)
    except MISSING:
        raise SessionGone("the hub of this session no longer exists") from None
    try:
        await wire.send(writer, call, body)
        return value(await wire.receive(reader), wanted)
    except ConnectionError:
        raise SessionGone("the hub of this session ended during the call") from None
    finally:
        writer.close()


def value(frame: wire.Frame, wanted: str) -> Any:
    """Raises what the hub says went wrong."""
    header, _ = frame
    if "errno" in header:
        raise OSError(header["errno"] or errno.EIO, header["why"] or os.strerror(errno.EIO))
    if "error" not in header:
        return header[wanted] if wanted else None
    if header["error"] == "SandboxUnavailable":
        raise SandboxUnavailable(header["message"], header["remedy"])
    rooms = errors, sandbox_errors, image_errors
    kind = next(filter(None, (getattr(room, header["error"], None) for room in rooms)), None)
    raise (kind or SessionError)(header["message"])
