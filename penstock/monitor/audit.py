"""Who changed what from the page: a stream in Redis that keeps the latest thousand."""

import base64
import binascii
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from starlette.requests import Request

from ground import visible

KEY = "penstock:audit"
KEPT = 1000
_LONGEST = 64
_MOST = 1000  # characters of any other field


@dataclass(frozen=True)
class Noted:
    """One change. `who` is the name that the person gave, `address` where the request came from."""

    at: float
    who: str
    address: str
    what: str
    target: str
    outcome: str


class Audit:
    """The list of one Redis."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def note(self, request: Request, what: str, target: str, outcome: str) -> None:
        fields = {
            "who": who_asks(request),
            "address": request.client.host if request.client else "",
            "what": what,
            "target": target,
            "outcome": outcome,
        }
        noted = {name: text[:_MOST].encode(errors="replace") for name, text in fields.items()}
        await self._client.xadd(KEY, noted, maxlen=KEPT, approximate=True)

    async def latest(self, count: int = 200) -> list[Noted]:
        rows = await self._client.xrevrange(KEY, count=count)
        return [_noted(id, row) for id, row in rows]


def who_asks(request: Request) -> str:
    """The name in the header `X-Penstock-Who`, else the user of Basic authentication."""
    given = unquote(request.headers.get("X-Penstock-Who", ""))
    return visible(given or _basic_user(request))[:_LONGEST]


def _basic_user(request: Request) -> str:
    scheme, _, rest = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return ""
    try:
        user, _, password = base64.b64decode(rest, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return ""
    return user if password else ""  # a lone user is the token


def _noted(id: bytes, row: dict[bytes, bytes]) -> Noted:
    text = {name.decode(): value.decode(errors="replace") for name, value in row.items()}
    return Noted(
        at=int(id.partition(b"-")[0]) / 1000,
        **{name: text.get(name, "") for name in ("who", "address", "what", "target", "outcome")},
    )
