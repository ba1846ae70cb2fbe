"""A line between two of our own processes: messages, each with descriptors.

It is the interpreter's C socket alone. The class that `socket` puts around it does more in
Python, and whatever a clone runs, it copies the memory of.
"""

import _socket
import struct
from collections.abc import Sequence

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
    """One message and up to so many descriptors; an empty one when the other end is closed."""
    room = _socket.CMSG_LEN(most * _RIGHTS.size)
    message, ancillary, _, _ = line.recvmsg(longest, room, flags)
    return message, [at for _, _, rights in ancillary for (at,) in _RIGHTS.iter_unpack(rights)]
