"""The audit says who changed what: a stream in Redis that keeps the latest thousand."""

import getpass
import os
import socket
from dataclasses import dataclass
from typing import Any

from ground import visible

KEY = "penstock:audit"
KEPT = 1000
_LONGEST = 64
_MOST = 1000  # characters of any other field


@dataclass(frozen=True)
class Author:
    """The person who changes something: the name that the person gave, and the address that it came
    from."""

    who: str
    address: str

    @classmethod
    def at_terminal(cls, command: str) -> "Author":
        """The user of this process, as far as the machine knows."""
        try:
            who = getpass.getuser()
        except (KeyError, OSError):  # a container's user may have no name
            who = str(os.getuid())
        return cls(who, f"{command} on {socket.gethostname()}")


@dataclass(frozen=True)
class Noted:
    """A noted change. `who` and `address` are its author's."""

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

    async def note(self, by: Author, what: str, target: str, outcome: str) -> None:
        fields = {
            "who": visible(by.who)[:_LONGEST],
            "address": by.address,
            "what": what,
            "target": target,
            "outcome": outcome,
        }
        noted = {name: text[:_MOST].encode(errors="replace") for name, text in fields.items()}
        await self._client.xadd(KEY, noted, maxlen=KEPT, approximate=True)

    async def latest(self, count: int = 200) -> list[Noted]:
        rows = await self._client.xrevrange(KEY, count=count)
        return [_noted(id, row) for id, row in rows]


def _noted(id: bytes, row: dict[bytes, bytes]) -> Noted:
    text = {name.decode(): value.decode(errors="replace") for name, value in row.items()}
    return Noted(
        at=int(id.partition(b"-")[0]) / 1000,
        **{name: text.get(name, "") for name in ("who", "address", "what", "target", "outcome")},
    )
