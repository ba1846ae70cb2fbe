"""A stand-in for redis-cli where there is none: one command, printed as redis-cli would.

Run as `python redis_cli.py COMMAND ARGUMENT…`, with the server in PENSTOCK_REDIS_URL.
"""

import os
import sys
from typing import Any

import redis
from redis.connection import Connection

from ground import parse_redis_url


def main(arguments: list[str]) -> str:
    target = parse_redis_url(os.environ["PENSTOCK_REDIS_URL"])
    host, port = target.nodes[0]
    connection = Connection(host=host, port=port, protocol=2, **target.options)
    try:
        connection.connect()
        connection.send_packed_command(connection.pack_command(*arguments))
        reader = connection._sock.makefile("rb")  # the parser would lose which strings are statuses
        return shown(_read(reader))
    finally:
        connection.disconnect()


class Status(str):
    """A reply that is printed without quotes."""

    __slots__ = ()


def _read(reader: Any) -> Any:
    kind, rest = (line := reader.readline())[:1], line[1:-2]
    match kind:
        case b"+":
            return Status(rest.decode())
        case b"-":
            return redis.ResponseError(rest.decode())
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
        case redis.ResponseError():
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
