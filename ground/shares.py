"""Shares, of queues and of gates: how they are named, and what they may weigh."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ground.errors import SettingError
from ground.lua import as_text
from ground.numbers import is_number, shown

OTHERS = "*"  # those without a weight of their own
MOST_WEIGHTS = 10_000  # shares with a weight of their own, of one queue or gate
_SHARE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LEAST, _MOST = 0.001, 1000


@dataclass(frozen=True)
class ShareStatus:
    """A share of a gate or a queue, as the scripts show it."""

    name: str
    waiting: int
    weight: float
    own: bool


Status = TypeVar("Status", bound=ShareStatus)


def read_rows(
    kind: type[Status], others: float, rows: Iterable[Sequence[Any]]
) -> tuple[Status, ...]:
    """Each row is a share's name, how many wait, and its own weight or ''."""
    return tuple(
        kind(as_text(name), int(waiting), float(own or others), bool(own))
        for name, waiting, own in rows
    )


def read_share(share: str) -> str:
    """The name, or `ValueError`. '' is none."""
    if not isinstance(share, str) or (share and not _SHARE.fullmatch(share)):
        raise ValueError(
            "is 1 to 64 letters, digits and . _ -, beginning with a letter or digit, "
            f"not {share!r:.80}"
        )
    return share


def check_share(share: str) -> str:
    """A share's name is part of a key. '' is none."""
    try:
        return read_share(share)
    except ValueError as refusal:
        raise SettingError("share", str(refusal)) from None


def weight_text(share: str, weight: float | None) -> str:
    """A checked weight as the scripts read it; '' takes a share's own weight away."""
    if share != OTHERS:
        check_share(share)
    if weight is None:
        return ""
    if not (is_number(weight) and (weight == 0 or _LEAST <= weight <= _MOST)):
        raise SettingError(
            "weights",
            f"{share!r} has {shown(weight)}; a weight is 0 (served when no other share waits), or "
            f"{_LEAST} to {_MOST}",
        )
    return repr(float(weight))


def too_many_weights() -> SettingError:
    return SettingError(
        "weights",
        f"more than {MOST_WEIGHTS} shares would have a weight of their own; take some "
        "away (None), or let '*' stand for them",
    )
