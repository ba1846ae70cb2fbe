"""What a gate says of itself."""

from dataclasses import dataclass
from typing import Any

from ground import as_text, chunks, text_fields
from limiter.terms import check_terms


@dataclass(frozen=True)
class LeaseStatus:
    """One permit in flight; times are in seconds.

    process     who holds it: host, process id, a random part
    fence       the number of its grant, which only grows
    held        since the grant
    expires_in  until its lease ends, if it is not renewed
    """

    id: str
    process: str
    fence: int
    held: float
    expires_in: float


@dataclass(frozen=True)
class GateStatus:
    """A gate at one instant of the server's clock.

    limit, rate, burst  its terms; None where there is no such bound
    paused              nothing is granted until `resume`
    in_flight, waiting  permits now, and waiters in line
    oldest_wait         seconds that the head of the line has waited
    tokens              grants that the rate allows now
    leases              of the permits in flight, the first hundred to expire

    The others count since the gate was made:

    granted, released   permits given out, and given back
    expired             permits whose lease ended without a renewal
    timeouts, cancelled waiters that gave up
    dropped             waiters whose process died
    readmitted, lost    permits that Redis had lost: counted in again, or without room by then
    """

    name: str
    limit: int | None
    rate: float | None
    burst: int | None
    paused: bool
    in_flight: int
    waiting: int
    oldest_wait: float
    tokens: float | None
    granted: int
    released: int
    expired: int
    timeouts: int
    cancelled: int
    dropped: int
    readmitted: int
    lost: int
    leases: tuple[LeaseStatus, ...]


def read_status(name: str, reply: list[Any]) -> GateStatus:
    """Read the reply of `status.lua`."""
    now, _, _, in_flight, waiting, since, tokens, flat, held = reply
    fields = text_fields(flat)
    rate = float(fields["rate"]) if fields.get("rate") else None
    waited = (int(now) - int(since)) / 1e6 if int(since) else 0.0
    return GateStatus(
        name=name,
        limit=int(fields["limit"]) if fields.get("limit") else None,
        rate=rate,
        burst=int(fields["burst"]) if fields.get("burst") else None,
        paused=fields.get("paused") == "1",
        in_flight=int(in_flight),
        waiting=int(waiting),
        oldest_wait=waited,
        tokens=float(tokens) if rate else None,
        **{counter: int(fields.get(counter, 0)) for counter in _COUNTERS},
        leases=tuple(_lease(int(now), *row) for row in chunks(held, 3)),
    )


def check_with(stands: GateStatus, rate: float | None, burst: int | None) -> None:
    """Refuse a change of one that the other, as it stands, could not follow."""
    check_terms(None, stands.rate if rate is None else rate, burst or stands.burst)


_COUNTERS = (
    "granted", "released", "expired", "timeouts", "cancelled", "dropped", "readmitted", "lost",
)  # fmt: skip


def _lease(now: int, id: bytes, expiry: bytes, holder: bytes) -> LeaseStatus:
    fence, process, since = as_text(holder).split("|")
    return LeaseStatus(
        id=as_text(id),
        process=process,
        fence=int(fence),
        held=(now - int(since)) / 1e6,
        expires_in=(int(expiry) - now) / 1e6,
    )
