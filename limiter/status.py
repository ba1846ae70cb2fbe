"""A gate's status, and changes of what it allows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ground import SettingError
from ground.breaker import read_state
from ground.lua import as_text, chunks, text_fields
from ground.numbers import check_number, check_whole
from ground.shares import ShareStatus, read_rows, too_many_weights, weight_text
from limiter.errors import GateError, UnknownPermit, spoiled
from limiter.terms import (
    Adaptive,
    Terms,
    amount_fields,
    as_whole,
    changes,
    check_terms,
    read_amounts,
)

N = TypeVar("N", int, float)


@dataclass(frozen=True)
class LeaseStatus:
    """A permit in flight; times are in seconds.

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
class LimitChange:
    """A step of a gate that adapts, so many seconds `ago`.

    why     throttled, overloaded, held, served, set or pinned
    """

    ago: float
    before: float
    after: float
    why: str


@dataclass(frozen=True)
class AdaptiveStatus:
    """How a gate finds its limit, or its rate.

    adapts           "limit" or "rate"; None while an operator has pinned it
    start, min, max  where it began, and its bounds
    exact            the value of which the limit is the whole part
    ceiling          where it was refused last; None before that
    held             seconds for which nothing is granted yet, as the service asked for
    served, refused  reports since the latest step
    latest           the latest change

    The others count since the gate was made; `held_seconds` are seconds.
    """

    adapts: str | None
    start: float
    min: float
    max: float
    exact: float
    ceiling: float | None
    held: float
    served: int
    refused: int
    latest: LimitChange | None
    throttled: int
    overloaded: int
    cuts: int
    raises: int
    held_seconds: float


@dataclass(frozen=True)
class AmountStatus:
    """An amount of a gate with several: what it earns per second, at most at once, and has now."""

    rate: float
    burst: int
    tokens: float


class GateShare(ShareStatus):
    """A share of a gate's line.

    waiting  its waiters, in all lanes
    weight   how many permits it is granted for one of a share with weight 1
    own      whether the weight is its own, or the one for all others
    """


@dataclass(frozen=True)
class GateShares:
    """The shares of a gate's line at one moment.

    others   the weight of shares that have none of their own
    waiting  how many shares wait; those of several lanes count in each
    shares   the first hundred of them by their turns, then others with a weight
    """

    others: float
    waiting: int
    shares: tuple[GateShare, ...]


@dataclass(frozen=True)
class GateStatus:
    """A gate at one instant of the server's clock.

    limit, rate, burst  its terms; None where there is no such bound
    paused              nothing is granted until `resume`, or while a breaker says so
    breaker             `closed`; or `open` or `half`, if a queue's breaker has paused it
    paused_why          what that breaker has counted; empty of a pause by hand
    in_flight, waiting  permits now, and waiters in line
    cost                what the permits in flight take of the limit: their number if each costs 1
    oldest_wait         seconds that the head of the line has waited
    tokens              grants that the rate allows now
    leases              of the permits in flight, the first hundred to expire
    adaptive            how it finds its limit; None of a gate that never did
    amounts             what it earns beside its rate, by name
    shares              who waits on whose account; None of a gate that never had shares

    The others count since the gate was made:

    granted, released   permits given out, and given back
    expired             permits whose lease ended without a renewal, or that were revoked
    timeouts, cancelled waiters that gave up
    dropped             waiters whose process died
    readmitted, lost    permits that Redis had lost: re-registered, or without room by then;
                        a revoked one is lost too
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
    adaptive: AdaptiveStatus | None = None
    cost: int = 0
    amounts: Mapping[str, AmountStatus] = field(default_factory=dict)
    shares: GateShares | None = None
    breaker: str = "closed"
    paused_why: str = ""


def read_status(name: str, reply: list[Any]) -> GateStatus:
    """Read the reply of `status.lua`; `GateError` if it has a field that no gate writes."""
    try:
        return _status(name, reply)
    except (ValueError, KeyError) as wrong:
        raise spoiled(name, f"its fields in Redis cannot be read ({wrong})") from None


def _status(name: str, reply: list[Any]) -> GateStatus:
    now, _, _, in_flight, waiting, since, tokens, flat, held, latest, shares = reply
    fields = text_fields(flat)
    rate = _number(name, fields, "rate", float)
    waited = (int(now) - int(since)) / 1e6 if int(since) else 0.0
    return GateStatus(
        name=name,
        limit=_number(name, fields, "limit", int),
        rate=rate,
        burst=_number(name, fields, "burst", int),
        paused=fields.get("paused", "0") != "0",
        in_flight=int(in_flight),
        waiting=int(waiting),
        oldest_wait=waited,
        tokens=float(tokens) if rate else None,
        **{counter: int(fields.get(counter, 0)) for counter in _COUNTERS},
        leases=tuple(_lease(int(now), *row) for row in chunks(held, 3)),
        adaptive=_adaptive(int(now), fields, text_fields(latest)) if "min" in fields else None,
        cost=int(in_flight) + int(fields.get("extra", 0)),
        amounts={each: _amount(name, each, fields) for each in fields.get("amounts", "").split()},
        shares=_shares(*shares) if shares else None,
        breaker=read_state(fields.get("paused")).value,
        paused_why=fields.get("paused_why", ""),
    )


def _number(gate: str, fields: dict[str, str], field: str, kind: Callable[[str], N]) -> N | None:
    if not fields.get(field):
        return None
    try:
        return kind(fields[field])
    except ValueError:
        wrong = f"its {field} in Redis is {fields[field]!r}, which is no number"
        if ":" in field:  # of an amount: to set one, its status is read first
            raise spoiled(gate, wrong) from None
        option = "gate-limit N" if field == "limit" else "rate N --burst N"
        raise GateError(
            f"gate {gate!r}: {wrong}, so it grants nothing; set one: "
            f"penstock limits set {gate} --{option}"
        ) from None


def _shares(others: bytes, waiting: int, *rows: list[Any]) -> GateShares:
    default = float(others)
    return GateShares(default, int(waiting), read_rows(GateShare, default, rows))


def read_revoked(gate: str, permit: str, reply: list[Any]) -> LeaseStatus:
    """Read the reply of `revoke.lua`."""
    now, _, _, expiry, holder = reply
    if not holder:
        raise UnknownPermit(gate, permit)
    return _lease(int(now), permit, expiry, holder)


def check_configured(reply: list[Any]) -> None:
    """Raise if `configure.lua` refused: its gate would have too many weights."""
    _, _, _, made, *_ = reply
    if not int(made):
        raise too_many_weights()


def _amount(gate: str, name: str, fields: dict[str, str]) -> AmountStatus:
    rate = _number(gate, fields, f"rate:{name}", float)
    burst = _number(gate, fields, f"burst:{name}", int)
    if rate is None or burst is None:
        raise spoiled(gate, f"its amount {name!r} has no rate or no burst in Redis")
    return AmountStatus(rate, burst, float(fields.get(f"tokens:{name}", 0)))


def _adaptive(now: int, fields: dict[str, str], latest: dict[str, str]) -> AdaptiveStatus:
    number = {name: float(text) for name, text in fields.items() if name in _NUMBERS}
    last = None
    if latest:
        ago = (now - int(latest["at"])) / 1e6
        last = LimitChange(ago, float(latest["from"]), float(latest["to"]), latest["why"])
    return AdaptiveStatus(
        adapts=fields.get("adapts") or None,
        start=number["start"],
        min=number["min"],
        max=number["max"],
        exact=number["exact"],
        ceiling=number.get("ceiling") or None,
        held=max(0.0, number.get("hold_until", 0.0) - now) / 1e6,
        served=int(number.get("clean", 0)),
        refused=int(number.get("overloads", 0)),
        latest=last,
        throttled=int(number.get("throttled", 0)),
        overloaded=int(number.get("overloaded", 0)),
        cuts=int(number.get("cuts", 0)),
        raises=int(number.get("raises", 0)),
        held_seconds=number.get("held_us", 0.0) / 1e6,
    )


_NUMBERS = frozenset((
    "start", "min", "max", "exact", "ceiling", "hold_until", "clean", "refused", "overloads",
    "throttled", "overloaded", "cuts", "raises", "held_us",
))  # fmt: skip


@dataclass(frozen=True)
class Change:
    """The changes that `configure` is asked for; what is None stays as it is."""

    limit: int | Adaptive | None = None
    rate: float | Adaptive | None = None
    burst: int | None = None
    min: float | None = None
    max: float | None = None
    adapt: bool | None = None
    rates: Mapping[str, float] | None = None
    bursts: Mapping[str, int] | None = None
    passing: int | None = None
    weights: Mapping[str, float | None] | None = None

    @property
    def is_relative(self) -> bool:
        """Whether it can be checked only with the gate as it stands."""
        bounded = self.adapt is not None or self.min is not None or self.max is not None
        lone = (self.rate is None) != (self.burst is None) and not isinstance(self.rate, Adaptive)
        return bounded or lone or bool(self.rates or self.bursts)

    def fields(self, stands: GateStatus | None) -> dict[str, str]:
        """The gate's fields to set; refuses what the gate, as it stands, could not follow."""
        check_terms(self.limit, self.rate, self.burst)
        for name, bound in (("min", self.min), ("max", self.max)):
            if bound is not None:
                check_number(name, bound, unit="permits or grants per second", above=True)
        fields = changes(limit=self.limit, rate=self.rate, burst=self.burst)
        if self.passing is not None:
            check_whole("passing", self.passing, 0)
            fields |= {"passing": str(self.passing), "weighs": "1"}
        for share, weight in (self.weights or {}).items():
            fields[f"weight:{share}"] = weight_text(share, weight)
        if stands is None:
            return fields
        fields |= self._amounts(stands)
        if (self.rate is None) != (self.burst is None):
            rate = stands.rate if self.rate is None else self.rate
            if rate is None:
                raise SettingError("burst", f"gate {stands.name!r} has no rate; give a rate too")
            check_terms(None, rate, self.burst or stands.burst)
        if self.adapt is False:
            fields["adapts"] = ""
        elif self.adapt or self.min is not None or self.max is not None:
            fields |= self._bounds(stands)
        return fields

    def _amounts(self, stands: GateStatus) -> dict[str, str]:
        rates, bursts = dict(self.rates or {}), dict(self.bursts or {})
        for name in (*rates, *bursts):
            if name not in stands.amounts:
                there = ", ".join(stands.amounts) or "none"
                raise SettingError(
                    "rates", f"gate {stands.name!r} has no amount {name!r}; it has {there}"
                )
        changed = {name: stands.amounts[name] for name in (*rates, *bursts)}
        amounts = read_amounts(
            {name: rates.get(name, stood.rate) for name, stood in changed.items()},
            {name: bursts.get(name, stood.burst) for name, stood in changed.items()},
        )
        return {field: text for field, text in amount_fields(amounts).items() if ":" in field}

    def _bounds(self, stands: GateStatus) -> dict[str, str]:
        known = stands.adaptive
        if self.adapt and (self.limit is not None or self.rate is not None):
            raise SettingError("adapt", "a gate adapts, or has a number that pins it: not both")
        if known is None and not self.adapt:
            raise SettingError("min", f"gate {stands.name!r} does not adapt: give adapt too")
        if known is None and self.max is None:
            raise SettingError("max", f"gate {stands.name!r} has no bounds yet: give max too")
        adapts = known.adapts if known else None
        if adapts is None:
            adapts = "limit" if stands.limit is not None else "rate"
        least = self.min if self.min is not None else known.min if known else 1
        most = self.max if self.max is not None else known.max if known else least
        now = (stands.limit if adapts == "limit" else stands.rate) or least
        start = known.start if known else now
        if adapts == "limit":
            least, most, start = map(as_whole, (least, most, start))
        bounds = Adaptive(max(least, min(start, most)), least, most)
        wanted = Terms(**{adapts: bounds})  # type: ignore[arg-type]
        check_terms(wanted.limit, wanted.rate, None)
        fields = wanted.fields()
        if not self.adapt:
            del fields["adapts"]
        return {name: text for name, text in fields.items() if text}


_COUNTERS = (
    "granted", "released", "expired", "timeouts", "cancelled", "dropped", "readmitted", "lost",
)  # fmt: skip


def _lease(now: int, id: bytes | str, expiry: bytes, holder: bytes) -> LeaseStatus:
    fence, process, since = as_text(holder).split("|")[:3]
    return LeaseStatus(
        id=as_text(id),
        process=process,
        fence=int(fence),
        held=(now - int(since)) / 1e6,
        expires_in=(int(expiry) - now) / 1e6,
    )
