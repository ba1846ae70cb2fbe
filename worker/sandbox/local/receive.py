"""The client's reading of what a jail, or a program in one, says."""

import asyncio
import socket
from collections.abc import Coroutine
from typing import Any, TypeVar

from worker.sandbox.local.inside import wire

_CHUNK = 1 << 18
_Received = TypeVar("_Received", bytes, int)


class TooLong(ValueError):
    """More than whoever speaks may say."""


async def receive(source: socket.socket, most: int) -> bytes | bytearray:
    """One whole message; a large one is put together in its place, without further copies."""
    loop = asyncio.get_running_loop()
    start = b""
    while (expected := wire.length(start)) is None:
        start += await _some(loop.sock_recv(source, _CHUNK))
    if expected > most:
        raise TooLong(f"a report of {expected} bytes, above {most}")
    if expected <= len(start):
        return start
    message = bytearray(expected)
    message[: len(start)] = start
    with memoryview(message) as rest:
        at = len(start)
        while at < expected:
            at += await _some(loop.sock_recv_into(source, rest[at:]))
    return message


async def _some(received: Coroutine[Any, Any, _Received]) -> _Received:
    """What was received; nothing is the other's end."""
    if not (what := await received):
        raise ConnectionError("it ended first")
    return what
