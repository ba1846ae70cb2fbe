"""Who waits at a gate, and how its limit moved."""

from dataclasses import dataclass
from typing import Any

from ground.keys import tagged

SHOWN = 100


@dataclass(frozen=True)
class Waiter:
    """One in a gate's line: the process that asks, its share, and for how long it has waited."""

    id: str
    process: str
    lane: int
    share: str
    waited: float


@dataclass(frozen=True)
class Step:
    """One change of a limit that adapts."""

    at: float
    before: float
    after: float
    why: str


async def waiters(client: Any, gate: str, now: float) -> list[Waiter]:
    """The first in each lane, in the order in which they came; shares take turns there."""
    plain = await client.zrange(tagged("gate", gate, "queue"), 0, SHOWN - 1, withscores=True)
    shared = await client.zrange(tagged("gate", gate, "order"), 0, SHOWN - 1)
    places = [(*divmod(int(score), _LANE), "", id.decode()) for id, score in plain]
    places += [_place(member.decode()) for member in shared]
    places = sorted(places, key=lambda place: place[:2])[:SHOWN]
    if not places:
        return []
    records = await client.hmget(tagged("gate", gate, "waiters"), [id for *_, id in places])
    return [
        _waiter(id, lane, share, (record or b"").decode(errors="replace"), now)
        for (lane, _, share, id), record in zip(places, records, strict=True)
    ]


async def steps(client: Any, gate: str) -> list[Step]:
    """The limit's latest changes, the newest first; none of a gate that does not adapt."""
    entries = await client.xrevrange(tagged("gate", gate, "changes"), count=20)
    rows = [{name.decode(): value.decode() for name, value in row.items()} for _, row in entries]
    return [
        Step(int(row["at"]) / 1e6, float(row["from"]), float(row["to"]), row["why"]) for row in rows
    ]


def _place(member: str) -> tuple[int, int, str, str]:
    """The place of one with a share: its lane, ticket, share and id."""
    lane, rest = member.split("|", 1)
    share, ticket, id = rest.split("|", 2)
    return int(lane) - 512, int(ticket), share, id


def _waiter(id: str, lane: int, share: str, record: str, now: float) -> Waiter:
    record = record.partition("@")[2] if share else record
    process, _, rest = record.partition("|")
    since = rest.rpartition("|")[2]
    waited = max(0.0, now - int(since) / 1e6) if since.isdecimal() else 0.0
    return Waiter(id, process, lane, share, waited)


_LANE = 2**43  # of limiter/lua/acquire.lua
