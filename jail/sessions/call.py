"""A call to a hub, as its callers make it: a connection, what is asked, and the answer or error."""

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

from jail import errors as sandbox_errors
from jail.errors import SandboxUnavailable
from jail.images import errors as image_errors
from jail.sessions import errors, wire
from jail.sessions.errors import SessionError, SessionGone, SessionTrouble
from jail.sessions.launch import answers, short_path

MISSING = (FileNotFoundError, ConnectionRefusedError)  # what a hub's socket says without a hub
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect(folder: Path, hub: str) -> Streams:
    with short_path(folder, hub) as path:
        return await asyncio.open_unix_connection(path, limit=wire.PIECE)


async def ask(folder: Path, hub: str, wanted: str, body: bytes = b"", **call: Any) -> Any:
    """Make one call to the hub, and return its answer. Raises `SessionGone` if the hub is not there
    any more."""
    try:
        reader, writer = await connect(folder, hub)
    except MISSING:
        raise SessionGone("the hub of this session no longer exists") from None
    try:
        await wire.send_call(writer, call, body)
        return value(await wire.receive(reader), wanted)
    except ConnectionError as problem:
        raise await cut(folder, hub, f"{call['op']}: {problem}") from None
    finally:
        writer.close()


async def cut(folder: Path, hub: str, what: str) -> SessionError:
    """The error for a connection that was cut. A session is gone only if its hub is."""
    if await asyncio.to_thread(answers, folder, hub):
        return SessionTrouble(f"the hub {hub} lives, but did not answer this call: {what}")
    return SessionGone("the hub of this session ended during the call. Open a new one")


def value(frame: wire.Frame, wanted: str) -> Any:
    """Take a value from the hub's answer, or raise the error that the answer names."""
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
