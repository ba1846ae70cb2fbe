"""A call: what an agent asked once, and the tokens that answered it.

A session is a log of calls. A done call never changes. Its prompt is the beginning of what an
earlier call held, and some ids behind that, so each token is stored once:

    prompt(c) = full(parent)[:keep] + delta        full(c) = prompt(c) + out
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any

from gateway.packing import Floats, Ids, Spans, floats_of, ids_of

UNKNOWN_VERSION = -2


class State(StrEnum):
    """How far a call has got."""

    OPEN = "open"
    DONE = "done"
    BROKEN = "broken"


class Sent(IntEnum):
    """The part of the answer that the client has."""

    NOTHING = 0
    UNKNOWN = 1
    """Some bytes left, or its process did not live to say so."""
    WHOLE = 2
    """The terminal event left."""
    HUNG_UP = 3
    """The client was gone before it had all."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a session, and what its answer was.

    id            its number in the session, from 1, without gaps
    parent, keep  whose ids the prompt begins with, and how many of them; None: nobody's
    delta         the prompt's ids behind these
    out           the sampled ids, all that the engine gave, the end of the turn too
    lps           the log-probability of each of them; NaN if the engine gave none
    spans         run lengths [(tokens, version)] over `out`; -2 is an unknown version
    bracket       the versions between which tokens of an unknown one were sampled
    finish, stop  why it ended: `stop`, `length`, `tool_calls`; the stop string or id, as text
    sent          what the client has of the answer
    req_digest    of the request's body; a retry has the same
    retry         the call that it is a retry of; 0: it is none
    lacks         why nothing of it is trained on: the engine gave no `ids`, `prompt_ids` or
                  `logprobs`, or two answers are in `conflict`
    train         False for side calls, such as those of a small model
    constrained   the engine sampled under a grammar: log-probabilities are of a cut distribution
    asked         parameters of sampling that its request asked for, and did not get
    foreign       turns of an assistant in its request that this session did not sample
    t0, t1        when it began and ended, in milliseconds by Redis' clock
    """

    id: int
    parent: int | None = None
    keep: int = 0
    delta: Ids = field(default_factory=ids_of)
    out: Ids = field(default_factory=ids_of)
    lps: Floats = field(default_factory=floats_of)
    spans: Spans = ()
    bracket: tuple[int, int] | None = None
    finish: str = "stop"
    stop: str = ""
    state: State = State.DONE
    sent: Sent = Sent.UNKNOWN
    req_digest: bytes = b""
    retry: int = 0
    lacks: str = ""
    train: bool = True
    constrained: bool = False
    asked: Mapping[str, Any] = field(default_factory=dict)
    foreign: int = 0
    dialect: str = "chat"
    engine: str = ""
    t0: int = 0
    t1: int = 0

    @property
    def has_ids(self) -> bool:
        """Whether its ids are known: others may continue it."""
        return self.state is State.DONE and self.lacks not in ("ids", "prompt_ids")

    @property
    def begin(self) -> int:
        """The length of its prompt: where its own tokens begin."""
        return self.keep + len(self.delta)

    @property
    def end(self) -> int:
        """The length of all its ids."""
        return self.begin + len(self.out)


def full(calls: Mapping[int, Call], call: int) -> Ids:
    """All ids of a call: its prompt and what was sampled."""
    path: list[Call] = []
    at: int | None = call
    while at is not None:
        path.append(calls[at])
        at = calls[at].parent
    ids = ids_of()
    for each in reversed(path):
        del ids[each.keep :]
        ids += each.delta + each.out
    return ids


def common(one: Ids, other: Ids) -> int:
    """How many ids two beginnings share."""
    low, high = 0, min(len(one), len(other))
    while low < high:  # slices compare at the speed of memory
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
