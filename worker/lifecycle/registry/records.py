"""A registry's records, as Redis keeps them and as Python reads them.

CREATING(name) → STARTING(id) → READY → TERMINATING → gone
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ground.lua import as_text, chunks, text_fields
from worker.lifecycle.provider import SandboxRef

COUNTERS = ("opened", "ready", "ended", "reaped", "handed_over", "killed", "strays", "settled")
UNWATCHED = 120.0  # seconds after its lease's end in which a reaper would have come
STATES = ("WAITING", "CREATING", "STARTING", "READY", "TERMINATING")


@dataclass(frozen=True)
class StartingPermit:
    """A permit of a gate, as a record keeps it: anybody can give it back."""

    gate: str
    id: str
    fence: int


@dataclass(frozen=True)
class Record:
    """A sandbox's record. Times are seconds of the server's clock."""

    name: str
    state: str
    fence: str
    owner: str = ""
    provider: str = ""
    scope: str = ""
    instance: str = ""
    ref: SandboxRef | None = None
    made: float = 0.0
    lease_end: float = 0.0
    gone_after: float = 0.0
    dies_at: float = 0.0
    was: str = ""
    tries: int = 0
    error: str = ""
    permits: tuple[StartingPermit, ...] = ()

    @property
    def failing(self) -> bool:
        """Whether an attempt to end it has failed."""
        return self.state == "TERMINATING" and self.tries > 0

    def trouble(self, now: float) -> str:
        """The reason why it could not be ended, or that nobody tries to."""
        late = now - self.lease_end
        if self.error or late < UNWATCHED:
            return self.error
        where = f" that reaches {self.scope}" if self.scope else ""
        return f"its lease ended {late:.0f} s ago, and no reaper{where} has come"


@dataclass(frozen=True)
class Registered:
    """A registry at one instant of the server's clock; of its records, the failing ones first."""

    now: float
    facts: Mapping[str, str]
    states: Mapping[str, int]
    failing: int
    records: tuple[Record, ...]

    @property
    def count(self) -> int:
        return sum(self.states.values())

    @property
    def age(self) -> float:
        """Seconds since the sandbox was first written down."""
        return self.now - float(self.facts.get("made", self.now * 1e6)) / 1e6

    @property
    def counters(self) -> dict[str, int]:
        """The counts of what happened to sandboxes since the registry was made."""
        return {name: int(self.facts.get(name, 0)) for name in COUNTERS}

    @property
    def reaper(self) -> str:
        """The reaper that has it; empty if none has."""
        return self.facts.get("reaper", "")


@dataclass(frozen=True)
class Claimed:
    """Records that are the caller's to end, and in how many seconds the next will be."""

    now: float
    due: float | None
    records: tuple[Record, ...]


@dataclass(frozen=True)
class Opening:
    """The answer of `session`: `ready` with its record, `wait` for another opener, or `open`."""

    what: str
    name: str
    fence: str = ""
    seconds: float = 0.0
    record: Record | None = None


def read_records(rows: list[Any]) -> tuple[Record, ...]:
    """Records from rows of four: name, end of lease, fields, permits."""
    return tuple(
        read_record(
            as_text(name), flat, lease_end=float(score) / 1e6, permits=read_permits(permits)
        )
        for name, score, flat, permits in chunks(rows, 4)
    )


def read_record(name: str, flat: Sequence[Any], **more: Any) -> Record:
    fields = text_fields(flat)
    ref = None
    if "id" in fields:
        ref = SandboxRef(fields["id"], name, json.loads(fields.get("meta", "{}")))
    known: dict[str, Any] = {key: fields.get(key, "") for key in _WORDS}
    known |= {key: float(fields.get(key, 0)) / 1e6 for key in _TIMES}
    return Record(name=name, ref=ref, tries=int(fields.get("tries", 0)), **known, **more)


_WORDS = ("state", "fence", "owner", "provider", "scope", "instance", "was", "error")
_TIMES = ("made", "gone_after", "dies_at")


def kept(permits: Sequence[StartingPermit]) -> str:
    """Permits as a record keeps them; `read_permits` is the reverse."""
    return json.dumps([[one.gate, one.id, one.fence] for one in permits]) if permits else ""


def read_permits(kept: bytes | str) -> tuple[StartingPermit, ...]:
    return tuple(StartingPermit(*permit) for permit in json.loads(kept)) if kept else ()
