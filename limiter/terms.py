"""What a gate allows, and how a process behaves at it; what cannot work is refused here."""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real

from ground import SettingError

LATENESS = 0.02  # seconds by which a grant may be late: what is earned meanwhile must fit in
MOST = 10**9  # more cannot be held, and far above it Lua's numbers are no longer whole


@dataclass(frozen=True)
class Terms:
    """What a gate allows: permits in flight, grants per second, and how many of those at once."""

    limit: int | None = None
    rate: float | None = None
    burst: int | None = None

    def args(self) -> tuple[str, str, str]:
        return (_text(self.limit), _text(self.rate), _text(self.burst))


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
        """What all gate objects of one name share in a process."""
        return (self.lease, self.heartbeat, self.patience)


def check_terms(limit: int | None, rate: float | None, burst: int | None) -> None:
    """Refuse what could never grant anything."""
    for name, count in (("limit", limit), ("burst", burst)):
        if count is not None and not (_is_whole(count) and 1 <= count <= MOST):
            raise SettingError(name, f"must be a whole number from 1 to {MOST}, not {count!r}")
    if rate is not None and not (_is_number(rate) and 0 < rate < math.inf):
        raise SettingError("rate", f"must be above 0 grants per second, not {rate!r}")
    if rate is not None and burst is not None and burst < rate * LATENESS:
        raise SettingError(
            "burst",
            f"{burst} cannot reach {rate:g} grants per second: a grant comes some milliseconds "
            "after its token, and a full bucket earns none meanwhile. Give "
            f"{math.ceil(rate * LATENESS)} or more, or a lower rate",
        )


def check_manner(
    lease: float, heartbeat: float | None, patience: float, enforce: bool, orphan_hold: float = 0.0
) -> Manner:
    """Refuse a lease that a single late heartbeat would lose."""
    beat = lease / 3 if heartbeat is None else heartbeat
    if not (0 < lease < math.inf and beat > 0):
        raise SettingError(
            "lease", f"lease and heartbeat must be above 0 s, not {lease} and {beat}"
        )
    if lease < 2 * beat:
        raise SettingError(
            "lease",
            f"{lease} s is shorter than two heartbeats of {beat} s: one late beat loses all",
        )
    if not patience > 0:
        raise SettingError("patience", f"must be above 0 s, not {patience}")
    if not 0 <= orphan_hold < math.inf:
        raise SettingError("orphan_hold", f"must be 0 or more seconds, not {orphan_hold}")
    return Manner(lease, beat, patience, enforce, orphan_hold)


def changes(
    *,
    limit: int | None = None,
    rate: float | None = None,
    burst: int | None = None,
    paused: bool | None = None,
) -> dict[str, str]:
    """What `configure` is to set, leaving alone what is None."""
    wanted: Sequence[tuple[str, float | int | None]] = (
        ("limit", limit),
        ("rate", rate),
        ("burst", burst),
    )
    set_to = {field: _text(value) for field, value in wanted if value is not None}
    if paused is not None:
        set_to["paused"] = "1" if paused else "0"
    return set_to


def check_wish(
    timeout: float | None, lane: int, ticket: str = "", orphan_hold: float | None = None
) -> None:
    """Refuse an `acquire` that no gate could make sense of."""
    if ticket and not ticket.removeprefix("-").isdecimal():
        raise SettingError("ticket", f"must be that of an earlier permit, not {ticket!r}")
    if orphan_hold is not None and not (_is_number(orphan_hold) and 0 <= orphan_hold < math.inf):
        raise SettingError("orphan_hold", f"must be 0 or more seconds, not {orphan_hold!r}")
    if not ((type(lane) is int or _is_whole(lane)) and -512 <= lane <= 511):
        raise SettingError("lane", f"must be a whole number from -512 to 511, not {lane!r}")
    if timeout is not None and not (_is_number(timeout) and timeout >= 0):
        raise SettingError("timeout", f"must be 0 or more seconds, not {timeout!r}")


def _is_whole(value: object) -> bool:
    return type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))


def _is_number(value: object) -> bool:
    return type(value) is float or (isinstance(value, Real) and not isinstance(value, bool))


def _text(number: float | int | None) -> str:
    if number is None:
        return ""
    return str(int(number)) if _is_whole(number) else repr(float(number))


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
        kept = tuple(float(text) if text else None for text in found)
        for terms in [terms for terms, enforce in self.unsettled.items() if not enforce]:
            del self.unsettled[terms]
            made = tuple(float(text) if text else None for text in terms.args())
            if made != kept:
                log.warning(
                    "gate %r: this process was made with limit, rate, burst = %s. The gate has %s "
                    "and keeps it; change it with `penstock limits set`, or construct it with "
                    "enforce=True",
                    self._name, made, kept,
                )  # fmt: skip
