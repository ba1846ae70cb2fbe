"""How a request goes in and a result comes out: a JSON header, then the raw bytes it describes.

A message is its two lengths, the header, and the blobs one after the other; the
header's `blobs` gives their sizes. The client trusts a result no further than
its caps: only the jail's init can write one, and the program cannot reach init.
"""

import _socket
import contextlib
import json
import os
import struct
from collections.abc import Sequence
from typing import Any

_LENGTHS = struct.Struct("!IQ")


def pack(header: dict[str, Any], blobs: Sequence[bytes | bytearray] = ()) -> bytes:
    text = json.dumps({**header, "blobs": [len(blob) for blob in blobs]}).encode()
    return b"".join([_LENGTHS.pack(len(text), sum(map(len, blobs))), text, *blobs])


def length(start: bytes | bytearray) -> int | None:
    """The whole message's length once its first bytes are there."""
    if len(start) < _LENGTHS.size:
        return None
    text, rest = _LENGTHS.unpack_from(start)
    return int(_LENGTHS.size + text + rest)


def header(at: int) -> Any:
    """The header of the message in a file, whatever its position."""
    text, _ = _LENGTHS.unpack(os.pread(at, _LENGTHS.size, 0))
    return json.loads(os.pread(at, text, _LENGTHS.size))


def unpack(message: bytes | bytearray) -> tuple[dict[str, Any], list[bytes]]:
    text, _ = _LENGTHS.unpack_from(message)
    at = _LENGTHS.size + text
    header = json.loads(message[_LENGTHS.size : at])
    blobs = []
    for size in header.pop("blobs"):
        if size < 0:  # else a short header could have the same bytes copied again and again
            raise ValueError(f"a blob of {size} bytes")
        blobs.append(bytes(memoryview(message)[at : at + size]))
        at += size
    if at != len(message):
        raise ValueError(f"a message of {len(message)} bytes describes {at}")
    return header, blobs


def write(at: int, message: bytes) -> None:
    view = memoryview(message)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # nobody waits any more
        while view:
            view = view[os.write(at, view) :]


Socket = _socket.socket
_RIGHTS = struct.Struct("i")


def pair() -> tuple[Socket, Socket]:
    return _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)


def at(descriptor: int) -> Socket:
    """The line that this descriptor is an end of."""
    return Socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, descriptor)


def send(line: Socket, message: bytes, descriptors: Sequence[int]) -> None:
    rights = struct.pack(f"{len(descriptors)}i", *descriptors)
    line.sendmsg([message], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])


def receive(line: Socket, longest: int, most: int, flags: int = 0) -> tuple[bytes, list[int]]:
    """Receive a message and up to so many descriptors; an empty one when the other end is
    closed."""
    room = _socket.CMSG_LEN(most * _RIGHTS.size)
    message, ancillary, _, _ = line.recvmsg(longest, room, flags)
    return message, [at for _, _, rights in ancillary for (at,) in _RIGHTS.iter_unpack(rights)]
