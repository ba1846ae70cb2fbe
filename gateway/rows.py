"""From a session's log to rows for the trainer. Pure: any process builds the same rows.

A row is a leaf of the tree of calls that continue each other by ids. What holds of each row R:

I1  Before each token with mask 1 at place t the engine had exactly R[:t]. Its log-probability and
    version are what the engine said.
I2  A sampled token has mask 1 in at most one row. It has in exactly one if its call is done,
    delivered, not superseded by a retry, and not masked with a cause.
I3  No id, log-probability or version is guessed. What is missing has mask 0, and is counted.
I4  A session that lost a turn gives all its rows, with mask 0, and says the cause.
I5  The rows are a function of the log alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gateway.calls import Call
from gateway.packing import Floats, Ids, Spans


@dataclass(frozen=True, slots=True)
class Row:
    """One lineage, from its first prompt to its last answer.

    tokens           all ids
    response_length  how many of them stand behind the first prompt
    mask             1 for each token of the response to train on, as run lengths
    logprobs         of each token of the response; 0.0 if it was not sampled
    versions         run lengths over the response; -1: not sampled, -2: by an unknown version
    calls            (id, begin, end, finish) of each call in it, by places in `tokens`
    masked, cause    nothing of it is trained on, and why
    """

    tokens: Ids
    response_length: int
    mask: Spans
    logprobs: Floats
    versions: Spans
    calls: tuple[tuple[int, int, int, str], ...]
    masked: bool = False
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Log:
    """All that is known of a session: its calls by number, and turns that it lost.

    hole  an answer that Redis lost is in a later request
    cut   it ended before its agent said so: `idle`, or `open` calls when it was frozen
    """

    calls: Mapping[int, Call]
    hole: bool = False
    cut: str = ""


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows, what was counted, and whether all is masked."""

    rows: tuple[Row, ...]
    counts: dict[str, int] = field(default_factory=dict)
    masked: bool = False
    cause: str = ""


def rows_of(log: Log, on_hole: Literal["session", "lineage"] = "session") -> Rows:
    """The rows of a session."""
    raise NotImplementedError


def reward_of(row: Row, reward: float | None, named: Mapping[int, float]) -> float | None:
    """A row's reward: the one that is named for its last named call, else the session's."""
    return next((named[call] for call, *_ in reversed(row.calls) if call in named), reward)


def lineages(calls: Mapping[int, Call]) -> Mapping[int | None, Sequence[int]]:
    """Which calls continue which by ids; under None those that continue none."""
    raise NotImplementedError
