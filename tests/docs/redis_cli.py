"""A stand-in for redis-cli where there is none: one command, printed as redis-cli would.

Run as `python redis_cli.py COMMAND ARGUMENT…`, with the server in PENSTOCK_REDIS_URL. The
documents call it again and again, so it imports nothing that takes long to load.
"""

import os
import socket
import sys
from typing import Any
from urllib.parse import urlsplit


def main(arguments: list[str]) -> str:
    server = urlsplit(os.environ["PENSTOCK_REDIS_URL"])
    with socket.create_connection((server.hostname, server.port)) as connection:
        connection.sendall(_packed(arguments))
        with connection.makefile("rb") as reader:
            return shown(_read(reader))


def _packed(words: list[str]) -> bytes:
    encoded = map(os.fsencode, words)
    return b"".join([b"*%d\r\n" % len(words), *(b"$%d\r\n%s\r\n" % (len(w), w) for w in encoded)])


class Status(str):
    """A reply that is printed without quotes."""

    __slots__ = ()


class Refusal(str):
    """A reply that is an error."""

    __slots__ = ()


def _read(reader: Any) -> Any:
    kind, rest = (line := reader.readline())[:1], line[1:-2]
    match kind:
        case b"+":
            return Status(rest.decode())
        case b"-":
            return Refusal(rest.decode())
        case b":":
            return int(rest)
        case b"$":
            return None if rest == b"-1" else reader.read(int(rest) + 2)[:-2]
        case b"*":
            return None if rest == b"-1" else [_read(reader) for _ in range(int(rest))]
    raise ValueError(f"not a reply of RESP2: {line!r}")


def shown(reply: Any, indent: str = "") -> str:
    match reply:
        case None:
            return "(nil)"
        case Status():
            return str(reply)
        case Refusal():
            return f"(error) {reply}"
        case int():
            return f"(integer) {reply}"
        case bytes():
            return '"' + "".join(map(_escaped, reply)) + '"'
        case []:
            return "(empty array)"
    width = len(str(len(reply)))
    lines = []
    for number, item in enumerate(reply, 1):
        head = f"{number:>{width}}) "
        lines.append((indent if lines else "") + head + shown(item, indent + " " * len(head)))
    return "\n".join(lines)


_NAMED = {
    0x22: '\\"',
    0x5C: "\\\\",
    0x0A: "\\n",
    0x0D: "\\r",
    0x09: "\\t",
    0x07: "\\a",
    0x08: "\\b",
}


def _escaped(byte: int) -> str:
    return _NAMED.get(byte) or (chr(byte) if 0x20 <= byte < 0x7F else f"\\x{byte:02x}")


if __name__ == "__main__":
    print(main(sys.argv[1:]))
