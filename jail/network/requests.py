"""A client's request to the proxy is read here. What two readers could read in two ways is refused.

A request with a body is written again for its target, and no byte after its end is passed on: so
nobody can put a second request behind a first one.
"""

import re
from asyncio import IncompleteReadError, LimitOverrunError, StreamReader
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from .rules import Address, address_of, name_of, port_of

LONGEST_HEAD = 16 << 10
_PIECE = 1 << 15
_MOST_HEADERS = 100
_METHOD = re.compile(r"[A-Z]{1,32}")
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t\x20-\x7e\x80-\xff]*)")
_PATH = re.compile(r"[\x21-\x7e]*")
_LENGTH = re.compile(r"\d{1,15}")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,8})(?:[ \t]*;[\t\x20-\x7e]*)?\r\n")
# Between two neighbours, and no further.
_HOP_BY_HOP = {
    "connection", "keep-alive", "proxy-connection", "proxy-authorization", "proxy-authenticate",
    "te", "trailer", "upgrade", "http2-settings", "host", "content-length", "transfer-encoding",
}  # fmt: skip


class Refused(Exception):
    """The answer to a request that goes nowhere."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


@dataclass(frozen=True)
class Target:
    """Whom the client wants to reach: by a name, or by an address."""

    name: str
    address: Address | None
    port: int

    def __str__(self) -> str:
        host = self.name or str(self.address)
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"


@dataclass(frozen=True)
class ProxyRequest:
    """A client's request. `head` is what its target is sent; empty for a tunnel, which passes on
    all that comes."""

    target: Target
    head: bytes = b""
    length: int = 0  # of its body; -1: in chunks


async def read_head(reader: StreamReader) -> ProxyRequest:
    """Read a request up to its body. Raises `Refused`, and `ConnectionError` for a client that has
    gone."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except LimitOverrunError:
        raise Refused(431, f"more than {LONGEST_HEAD:,} bytes before the body") from None
    except IncompleteReadError as cut:
        if cut.partial:
            raise Refused(400, "the request ends before its empty line") from None
        raise ConnectionError("the request is empty") from None
    if len(head) > LONGEST_HEAD:
        raise Refused(431, f"more than {LONGEST_HEAD:,} bytes before the body")
    first, *lines = head[:-4].decode("latin-1").split("\r\n")
    method, _, rest = first.partition(" ")
    target, _, version = rest.partition(" ")
    if first.count(" ") != 2 or not _METHOD.fullmatch(method):
        raise Refused(400, "the first line is no request")
    if version not in ("HTTP/1.1", "HTTP/1.0"):
        raise Refused(505, "the proxy speaks HTTP/1.1")
    headers = _headers(lines)
    if method == "CONNECT":
        return ProxyRequest(_target(target, port=0))
    return _plain(method, target, version, headers)


def _headers(lines: list[str]) -> list[tuple[str, str]]:
    if len(lines) > _MOST_HEADERS:
        raise Refused(431, f"more than {_MOST_HEADERS} headers")
    found = []
    for line in lines:
        if not (header := _HEADER.fullmatch(line)):
            raise Refused(400, "a line is no header")
        found.append((header[1], header[2].rstrip(" \t")))
    return found


def _plain(method: str, url: str, version: str, headers: list[tuple[str, str]]) -> ProxyRequest:
    """A request by its whole URL. Its own host counts, whatever the header says."""
    scheme, mark, rest = url.partition("://")
    if not mark or scheme.lower() != "http":
        raise Refused(400, "write the whole URL, http://…; https:// goes through CONNECT")
    split = min((at for at in (rest.find(c) for c in "/?#") if at >= 0), default=len(rest))
    authority, path = rest[:split], rest[split:]
    if not _PATH.fullmatch(path) or "#" in path:
        raise Refused(400, "the URL has characters that no URL may have")
    target = _target(authority, port=80)
    length = _length(headers)
    if length < 0 and version == "HTTP/1.0":
        raise Refused(400, "HTTP/1.0 knows no chunks")
    named = {
        name.strip().lower()
        for key, value in headers if key.lower() == "connection" for name in value.split(",")
    }  # fmt: skip
    kept = [f"{key}: {value}" for key, value in headers if key.lower() not in _HOP_BY_HOP | named]
    host = str(target).removesuffix(":80")
    path = path if path.startswith("/") else f"/{path}"
    if length:
        kept.append("Transfer-Encoding: chunked" if length < 0 else f"Content-Length: {length}")
    elif method in ("POST", "PUT", "PATCH"):
        kept.append("Content-Length: 0")
    lines = [f"{method} {path} {version}", f"Host: {host}", *kept, "Connection: close", "", ""]
    return ProxyRequest(target, "\r\n".join(lines).encode("latin-1"), length)


def _length(headers: list[tuple[str, str]]) -> int:
    lengths = [value for key, value in headers if key.lower() == "content-length"]
    codings = [value for key, value in headers if key.lower() == "transfer-encoding"]
    if lengths and codings:
        raise Refused(400, "Content-Length and Transfer-Encoding in one request")
    if codings:
        if [coding.lower() for coding in codings] != ["chunked"]:
            raise Refused(501, "Transfer-Encoding may only be chunked, once")
        return -1
    if len(lengths) > 1 or not all(map(_LENGTH.fullmatch, lengths)):
        raise Refused(400, "Content-Length must be one number")
    return int(lengths[0]) if lengths else 0


def _target(authority: str, port: int) -> Target:
    """Read the host and the port that a request names. `port` is the default; with 0 the request
    must name one."""
    host, number = authority, ""
    if authority.startswith("["):
        host, bracket, rest = authority[1:].partition("]")
        if not bracket or not (rest == "" or rest.startswith(":")) or ":" not in host:
            raise Refused(400, "the host is not written as one")
        number = rest[1:]
        if rest == ":":
            raise Refused(400, "the port is missing")
    elif ":" in authority:
        host, _, number = authority.partition(":")
        if not number:
            raise Refused(400, "the port is missing")
    chosen = port_of(number) if number else port
    if not chosen:
        raise Refused(400, "the port must be a number from 1 to 65535")
    if address := address_of(host):
        return Target("", address, chosen)
    if name := name_of(host):
        return Target(name, None, chosen)
    raise Refused(400, "the host is neither a name nor an address in its usual form")


async def body(reader: StreamReader, length: int) -> AsyncGenerator[bytes, None]:
    """The body and nothing behind it, as its target is sent it. Raises `Refused` where it is not
    what its head says."""
    try:
        while length > 0:
            if not (piece := await reader.read(min(length, _PIECE))):
                raise Refused(400, "the body is cut")
            length -= len(piece)
            yield piece
        if length < 0:
            async for piece in _chunks(reader):
                yield piece
    except (IncompleteReadError, LimitOverrunError):
        raise Refused(400, "the body is not in chunks, or cut") from None


async def _chunks(reader: StreamReader) -> AsyncGenerator[bytes, None]:
    """The chunks, each written again in one form; what trails the last one is not passed on."""
    while True:
        if not (start := _CHUNK.fullmatch(await reader.readuntil(b"\r\n"))):
            raise Refused(400, "a chunk does not begin with its size")
        if not (left := int(start[1], 16)):
            break
        yield b"%x\r\n" % left
        while left:
            if not (piece := await reader.read(min(left, _PIECE))):
                raise Refused(400, "a chunk is cut")
            left -= len(piece)
            yield piece
        if await reader.readexactly(2) != b"\r\n":
            raise Refused(400, "a chunk is longer than its size")
        yield b"\r\n"
    for _ in range(_MOST_HEADERS):
        if await reader.readuntil(b"\r\n") == b"\r\n":
            yield b"0\r\n\r\n"
            return
    raise Refused(431, "too much behind the last chunk")
