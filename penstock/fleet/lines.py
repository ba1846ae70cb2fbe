"""Who waits at a gate, and how its limit moved."""

from dataclasses import dataclass
from typing import Any

from ground import tagged

SHOWN = 100


@dataclass(frozen=True)
class Waiter:
    """One in a gate's line: the process that asks, and for how long it has waited."""

    id: str
    process: str
    lane: int
    waited: float


@dataclass(frozen=True)
class Step:
    """One change of a limit that adapts."""

    at: float
    before: float
    after: float
    why: str


async def waiters(client: Any, gate: str, now: float) -> list[Waiter]:
    """The first in line."""
    rows = await client.zrange(tagged("gate", gate, "queue"), 0, SHOWN - 1, withscores=True)
    if not rows:
        return []
    records = await client.hmget(tagged("gate", gate, "waiters"), [id for id, _ in rows])
    return [
        _waiter(id.decode(), score, (record or b"").decode(errors="replace"), now)
        for (id, score), record in zip(rows, records, strict=True)
    ]


async def steps(client: Any, gate: str) -> list[Step]:
    """Its latest changes, the newest first; none of a gate that does not adapt."""
    entries = await client.xrevrange(tagged("gate", gate, "changes"), count=20)
    rows = [{name.decode(): value.decode() for name, value in row.items()} for _, row in entries]
    return [
        Step(int(row["at"]) / 1e6, float(row["from"]), float(row["to"]), row["why"]) for row in rows
    ]


def _waiter(id: str, score: float, record: str, now: float) -> Waiter:
    process, _, rest = record.partition("|")
    since = rest.rpartition("|")[2]
    waited = max(0.0, now - int(since) / 1e6) if since.isdecimal() else 0.0
    return Waiter(id, process, int(score // _LANE), waited)


_LANE = 2**43  # of limiter/lua/acquire.lua
