"""The line at a gate: who waits and why, what lets the first in, and how its limit moved."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ground.keys import tagged
from limiter import GateStatus, LeaseStatus
from penstock.fleet.model import Worker
from penstock.fleet.why_it_grows import dead_permits, holding

SHOWN = 100


@dataclass(frozen=True)
class Waiter:
    """A waiter in a gate's line: who asks, its share, and for how long it has waited.

    process  a worker by its name; another process as `host:pid:random`
    place    from 1 on; shares take turns, so of those it is only about so
    waits    why, and what lets it in
    """

    id: str
    process: str
    lane: int
    share: str
    waited: float
    place: int = 0
    waits: str = ""


@dataclass(frozen=True)
class LimitStep:
    """A change of a limit that adapts."""

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


async def line_of(
    client: Any, gate: GateStatus, now: float, workers: Sequence[Worker]
) -> list[Waiter]:
    """The first of a gate's line, each with its place and why it waits."""
    found = await waiters(client, gate.name, now) if gate.waiting else []
    names = {f"{one.host}:{one.pid}": one.name for one in workers if one.state != "dead"}
    return [
        replace(
            one, place=place, process=names.get(one.process.rpartition(":")[0], one.process),
            waits=why_they_wait(gate, workers) if place == 1 else f"{place - 1} before it",
        )
        for place, one in enumerate(found, 1)
    ]  # fmt: skip


def why_they_wait(gate: GateStatus, workers: Sequence[Worker]) -> str:
    """The reason why the first in a gate's line waits, and what lets it in; empty if nobody
    waits."""
    if not gate.waiting:
        return ""
    held = holding(gate, dead_permits(gate, workers))
    if held is None:
        room = gate.limit is not None and gate.cost and f"{gate.limit - gate.cost} of {gate.limit}"
        left = f"has {room} left, and the first may need more" if room else "has room"
        return f"gate {gate.name!r} {left}; it is let in as soon as there is enough"
    return "; ".join(filter(None, (held.reason, _let_in_by(gate), held.remedy)))


def line_says(gate: GateStatus, workers: Sequence[Worker]) -> str:
    """How many wait at a gate, and why; empty if nobody does."""
    why = why_they_wait(gate, workers)
    return f"{gate.waiting:,} wait{'s' * (gate.waiting == 1)}: {why}" if why else ""


def _let_in_by(gate: GateStatus) -> str:
    """The event that lets the first in, if nobody does anything."""
    if gate.paused:
        return ""
    if gate.limit is not None and gate.cost >= gate.limit:
        oldest: LeaseStatus | None = max(gate.leases, key=lambda one: one.held, default=None)
        if oldest is None:
            return ""
        whose = f"{oldest.process} has held the oldest for {oldest.held:.0f} s"
        return f"the next permit that comes back lets the first in, and {whose}"
    if gate.rate and gate.tokens is not None and gate.tokens < 1:
        return f"the next is granted in {(1 - gate.tokens) / gate.rate:.2g} s"
    return ""


async def steps(client: Any, gate: str) -> list[LimitStep]:
    """The limit's latest changes, the newest first; none of a gate that does not adapt."""
    entries = await client.xrevrange(tagged("gate", gate, "changes"), count=20)
    rows = [{name.decode(): value.decode() for name, value in row.items()} for _, row in entries]
    return [
        LimitStep(int(row["at"]) / 1e6, float(row["from"]), float(row["to"]), row["why"])
        for row in rows
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
