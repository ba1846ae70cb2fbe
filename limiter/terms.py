"""The terms are what a gate allows, and how a process behaves at it; impossible ones are refused
here."""

import logging
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ground import SettingError
from ground.numbers import check_number, check_whole, is_whole, shown

_SHORTEST = 0.001  # seconds; a shorter lease would be over before its permit arrives
LATENESS = 0.02  # seconds by which a grant may be late: what is earned meanwhile must fit in


@dataclass(frozen=True)
class Adaptive:
    """A limit, or a rate, that the gate finds itself: from `start`, never below `min` or above
    `max`. Holders report refusals by `permit.throttled()` and `permit.overloaded()`.

        TokenBucket(redis, "api", limit=Adaptive(start=20, min=1, max=400))
    """

    start: float = 20
    min: float = 1
    max: float = 200

    def text(self) -> str:
        return f"{_text(self.start)} {_text(self.min)} {_text(self.max)}"


Cost = int | Mapping[str, int]
REQUESTS = "requests"  # the amount that is the gate's rate, in a cost and in `rates`
LANE = 2**43  # how many places a lane has: a ticket is lane * LANE + count
_TICKET = re.compile(r"-?[0-9]{1,16}")
_AMOUNT = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,31}")


@dataclass(frozen=True)
class Amount:
    """A gate earns this amount per second beside its rate: tokens of a model, for example."""

    name: str
    rate: float
    burst: int

    def text(self) -> str:
        return f" {self.name}={_text(self.rate)}/{self.burst}"


@dataclass(frozen=True)
class Terms:
    """The terms of a gate: permits in flight, grants per second, and how many of those at once."""

    limit: int | Adaptive | None = None
    rate: float | Adaptive | None = None
    burst: int | None = None
    amounts: tuple[Amount, ...] = ()

    @property
    def plain(self) -> bool:
        """Whether limit and rate stand as they are set, and there are no other amounts."""
        return not (
            self.amounts or isinstance(self.limit, Adaptive) or isinstance(self.rate, Adaptive)
        )

    def args(self) -> tuple[str, str, str]:
        """The terms as scripts read them: the amounts stand behind the burst."""
        amounts = "".join(each.text() for each in self.amounts)
        return (_text(self.limit), _text(self.rate), _text(self.burst) + amounts)

    def charge(self, cost: Cost) -> dict[str, int]:
        """A checked cost by its amounts; refused if this gate has no such amount."""
        if not isinstance(cost, Mapping):
            if self.amounts:
                names = ", ".join(each.name for each in self.amounts)
                raise SettingError(
                    "cost", f"name its amounts ({REQUESTS}, {names}), not {shown(cost)}"
                )
            cost = {REQUESTS: cost}
        known = (REQUESTS, *(each.name for each in self.amounts))
        for name, count in cost.items():
            if name not in known:
                raise SettingError("cost", f"the gate has no {name!r}; it has {', '.join(known)}")
            check_whole("cost", count)
        return {name: int(cost[name]) for name in known if name in cost}

    def fields(self) -> dict[str, str]:
        """The fields that `configure` sets, so that a gate has these terms and no others."""
        texts = {"limit": _text(self.limit), "rate": _text(self.rate), "burst": _text(self.burst)}
        texts |= amount_fields(self.amounts) or {"amounts": ""}
        for adapts, value in (("limit", self.limit), ("rate", self.rate)):
            if isinstance(value, Adaptive):
                del texts[adapts]
                bounds = zip(("start", "min", "max"), value.text().split(), strict=True)
                texts |= {"adapts": adapts, **dict(bounds)}
        return texts


def amount_fields(amounts: tuple[Amount, ...]) -> dict[str, str]:
    """The fields of the gate's hash."""
    if not amounts:
        return {}
    fields = {"weighs": "1", "amounts": " ".join(each.name for each in amounts)}
    for each in amounts:
        fields |= {f"rate:{each.name}": _text(each.rate), f"burst:{each.name}": str(each.burst)}
    return fields


def cost_text(charge: Mapping[str, int]) -> str:
    """A cost as the scripts read it: `3 tokens=900`."""
    others = (f" {name}={count}" for name, count in charge.items() if name != REQUESTS)
    return f"{charge.get(REQUESTS, 1)}{''.join(others)}"


def read_amounts(rates: Mapping[str, float], bursts: Mapping[str, int]) -> tuple[Amount, ...]:
    """Check the amounts of a gate, and complete them. By default a burst is a tenth of a second's
    worth, and at least one."""
    for name in bursts:
        if name not in rates:
            raise SettingError("bursts", f"{name!r} has no rate")
    amounts = []
    for name, rate in rates.items():
        if not (isinstance(name, str) and _AMOUNT.fullmatch(name)):
            raise SettingError(
                "rates", f"an amount's name has up to 32 letters, digits and _, not {name!r:.80}"
            )
        check_number("rates", rate, unit=f"{name} per second", above=True)
        check_terms(None, rate, bursts.get(name))
        burst = bursts.get(name) or max(1, math.ceil(rate / 10))
        amounts.append(Amount(name, float(rate), burst))
    return tuple(sorted(amounts, key=lambda each: each.name))


@dataclass(frozen=True)
class Manner:
    """How this process behaves at a gate, in seconds; what the gate allows is in its `Terms`."""

    lease: float
    heartbeat: float
    patience: float
    enforce: bool
    orphan_hold: float = 0.0

    @property
    def pace(self) -> tuple[float, float, float]:
        """All gate objects of one name share these times in a process."""
        return (self.lease, self.heartbeat, self.patience)


def check_terms(
    limit: int | Adaptive | None, rate: float | Adaptive | None, burst: int | None
) -> None:
    """Refuse what could never grant anything."""
    if isinstance(limit, Adaptive) and isinstance(rate, Adaptive):
        raise SettingError("rate", "one of limit and rate can be adaptive, not both")
    if isinstance(limit, Adaptive):
        _check_bounds("limit", limit, check_whole)
        limit = None
    if isinstance(rate, Adaptive):
        if burst is not None:
            raise SettingError(
                "burst", f"{burst} cannot be set: the burst of an adaptive rate is a tenth of it"
            )
        _check_bounds("rate", rate, _check_rate)
        rate = None
    for name, count in (("limit", limit), ("burst", burst)):
        if count is not None:
            check_whole(name, count)
    if rate is not None:
        _check_rate("rate", rate)
    if rate is not None and burst is not None and burst < rate * LATENESS:
        raise SettingError(
            "burst",
            f"{burst} cannot reach {rate:g} grants per second: a grant comes some milliseconds "
            "after its token, and a full bucket earns none meanwhile. Give "
            f"{math.ceil(rate * LATENESS)} or more, or a lower rate",
        )


def _check_rate(name: str, rate: object) -> None:
    check_number(name, rate, unit="grants per second", above=True)


def _check_bounds(name: str, bounds: Adaptive, check: Callable[[str, object], None]) -> None:
    for bound in (bounds.start, bounds.min, bounds.max):
        check(name, bound)
    if not bounds.min <= bounds.start <= bounds.max:
        raise SettingError(
            name,
            f"min {bounds.min:g}, start {bounds.start:g} and max {bounds.max:g} must be in this "
            "order",
        )


def check_manner(
    lease: float, heartbeat: float | None, patience: float, enforce: bool, orphan_hold: float = 0.0
) -> Manner:
    """Refuse a lease that a single late heartbeat would lose."""
    check_number("lease", lease, _SHORTEST)
    beat = lease / 3 if heartbeat is None else heartbeat
    check_number("heartbeat", beat, _SHORTEST / 10)
    if lease < 2 * beat:
        raise SettingError(
            "lease",
            f"{lease} s is shorter than two heartbeats of {beat} s: one late beat loses all",
        )
    check_number("patience", patience, above=True)
    check_number("orphan_hold", orphan_hold)
    return Manner(lease, beat, patience, enforce, orphan_hold)


def changes(
    *,
    limit: int | Adaptive | None = None,
    rate: float | Adaptive | None = None,
    burst: int | None = None,
    paused: bool | None = None,
) -> dict[str, str]:
    """The fields that `configure` is to set; what is None is left alone."""
    set_to = {field: text for field, text in Terms(limit, rate, burst).fields().items() if text}
    if paused is not None:
        set_to["paused"] = "1" if paused else "0"
    return set_to


def check_wish(
    timeout: float | None, lane: int, ticket: str = "", orphan_hold: float | None = None
) -> None:
    """Refuse an `acquire` that no gate could make sense of."""
    if ticket != "" and not _is_ticket(ticket):
        raise SettingError("ticket", f"must be that of an earlier permit, not {shown(ticket)}")
    if orphan_hold is not None:
        check_number("orphan_hold", orphan_hold)
    check_whole("lane", lane, -512, 511)
    if timeout is not None:
        check_number("timeout", timeout)


def _is_ticket(ticket: object) -> bool:
    """A lane and a count in it, as `acquire.lua` makes one of both. The gate counts on from there,
    so a count needs room above it."""
    if not (isinstance(ticket, str) and _TICKET.fullmatch(ticket)):
        return False
    lane, count = divmod(int(ticket), LANE)
    return -512 <= lane <= 511 and count < LANE // 2


def as_whole(number: float) -> float:
    """The number as a whole one, such as 7 for 7.0. What is no whole number, or not finite, stays
    what it is, to be refused."""
    return int(number) if float(number).is_integer() else number


def _text(number: float | int | Adaptive | None) -> str:
    if number is None:
        return ""
    if isinstance(number, Adaptive):
        return number.text()
    return str(int(number)) if is_whole(number) else repr(float(number))


def _value(text: str) -> float | str | None:
    """A term as it is compared. Of an adaptive one the bounds are: where it started is history."""
    try:
        if " " in text:
            _, least, most = text.split()
            return f"adaptive from {float(least):g} to {float(most):g}"
        return float(text) if text else None
    except ValueError:  # it has amounts, or somebody edited it
        return text


log = logging.getLogger("penstock.limiter")


class Agreement:
    """The terms in Redis win, or are overwritten once; every difference is logged."""

    def __init__(self, name: str, manner: Manner) -> None:
        self._name = name
        self._pace = manner.pace
        self._paces = {manner.pace}  # all that were met, so that each difference is logged once
        self.made = 0  # when the gate in Redis was made: another time, another gate
        self._met: dict[Terms, bool] = {}  # and whether they are to be enforced
        self.unsettled: dict[Terms, bool] = {}  # to be compared, or enforced

    def meet(self, terms: Terms, manner: Manner) -> None:
        """Note what a gate object was made with; a process may have several for one gate."""
        if manner.enforce:
            self._met = dict.fromkeys(self._met, False)  # the last to enforce prevails
        if manner.enforce or terms not in self._met:
            self._met[terms] = self.unsettled[terms] = manner.enforce
        if manner.pace not in self._paces:
            log.warning(
                "gate %r: this process keeps it with lease, heartbeat, patience = %s; another gate "
                "object's %s is ignored: give them all the same",
                self._name, self._pace, manner.pace,
            )  # fmt: skip
        self._paces.add(manner.pace)

    @property
    def enforcing(self) -> bool:
        return bool(self.unsettled) and any(self.unsettled.values())

    def to_enforce(self) -> list[Terms]:
        return [terms for terms, enforce in self.unsettled.items() if enforce]

    def enforced(self, terms: Terms) -> None:
        self.unsettled.pop(terms, None)

    def see(self, made: int) -> None:
        """A gate that was made again after a loss of data no longer has the enforced terms."""
        if made != self.made:
            self.unsettled = dict(self._met) if self.made else self.unsettled
            self.made = made

    def compare(self, found: list[bytes]) -> None:
        kept = tuple(_value(text.decode(errors="replace")) for text in found)
        for terms in [terms for terms, enforce in self.unsettled.items() if not enforce]:
            del self.unsettled[terms]
            made = tuple(_value(text) for text in terms.args())
            if made != kept:
                log.warning(
                    "gate %r: this process was made with limit, rate, burst = %s. The gate has %s "
                    "and keeps it; change it with `penstock limits set`, or construct it with "
                    "enforce=True",
                    self._name, made, kept,
                )  # fmt: skip
