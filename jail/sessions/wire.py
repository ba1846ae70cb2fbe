"""The hub and its callers speak by this wire: one call per connection, in frames.

A frame is a JSON header and raw bytes, as the jail's own wire has them. The first one of a call
says what is wanted. What follows depends on that, and a frame with `errno` or `error` ends it.
"""

import asyncio
import signal
from typing import Any

from jail import errors
from jail.errors import SandboxFailure
from jail.inside import wire
from jail.sessions.errors import SessionRefused

VERSION = 5  # of what is said; another version has another hub
PIECE = 1 << 18  # bytes of content in one frame
_MOST = (4 << 20) + PIECE  # a command with all its arguments, or a piece
_LISTED = 64 << 20  # what a hub may answer: a long listing
PROGRAM = 256 << 20  # a program with all that it is given, one of its cases, or its result
_START = 12  # bytes of a frame that say how long it is

Frame = tuple[dict[str, Any], bytes]


def check_size(size: Any) -> None:
    """Check the size of a terminal. Raises `SessionRefused`."""
    if not (len(size) == 2 and all(isinstance(n, int) and 0 < n < 1 << 16 for n in size)):
        raise SessionRefused(f"terminal is {size!r:.50}; columns and rows are 1 to 65535")


def check_signal(number: Any) -> None:
    """Check a signal's number. Raises `SessionRefused`."""
    if not (isinstance(number, int) and 0 <= number < signal.NSIG):
        raise SessionRefused(f"signal is {number!r:.50}; it must be 0 to {signal.NSIG - 1}")


def check_mode(mode: Any) -> None:
    """Check the permissions of a file. Raises `SessionRefused`."""
    if mode is not None and not (isinstance(mode, int) and 0 <= mode <= 0o7777):
        raise SessionRefused(f"mode is {mode!r:.50}; it must be 0 to 0o7777, or None")


def packed(header: dict[str, Any], body: bytes = b"") -> bytes:
    return wire.pack(header, [body])


# What a caller says last of a session that it was given: one that it never heard of is ended.
KNOWN = packed({"known": True})


async def send(writer: asyncio.StreamWriter, header: dict[str, Any], body: bytes = b"") -> None:
    writer.write(packed(header, body))
    await writer.drain()


async def send_call(
    writer: asyncio.StreamWriter, header: dict[str, Any], body: bytes = b""
) -> None:
    """Send a call. Raises `SessionRefused` for more than a hub takes: it would hang up."""
    if (length := len(frame := packed(header, body))) > _MOST:
        raise SessionRefused(
            f"this call has {length:,} bytes, and a hub takes {_MOST:,}; send a file"
        )
    writer.write(frame)
    await writer.drain()


async def receive(reader: asyncio.StreamReader, most: int = _LISTED) -> Frame:
    """Receive one frame. Raises `ConnectionError` if the other side has gone, or says too much."""
    try:
        start = await reader.readexactly(_START)
        length = wire.length(start) or 0
        if length > most:
            raise ConnectionError(f"a frame of {length:,} bytes; at most {most:,} are taken")
        header, (body,) = wire.unpack(start + await reader.readexactly(length - _START))
    except asyncio.IncompleteReadError:
        raise ConnectionError("the connection was closed") from None
    return header, body


async def receive_call(reader: asyncio.StreamReader) -> Frame:
    """Receive a call: no more than a command or a piece."""
    return await receive(reader, _MOST)


def fields_of_failure(failure: SandboxFailure) -> dict[str, Any]:
    """A failure as it crosses the socket."""
    kind = type(failure).__name__
    return {"failure": kind, "problem": str(failure), "reason": failure.reason}


def failure_of(header: dict[str, Any]) -> SandboxFailure:
    """The failure that `fields_of_failure` made it of."""
    kind: type[SandboxFailure] = getattr(errors, header["failure"], SandboxFailure)
    return kind(header["problem"], reason=header["reason"])
