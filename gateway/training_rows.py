"""A session's log becomes rows for the trainer. Pure: any process builds the same rows.

A row is a leaf of the tree of calls that continue each other by ids. What holds of each row R:

I1  Before each token with mask 1 at place t the engine had exactly R[:t]. Its log-probability and
    version are what the engine said.
I2  A sampled token has mask 1 in at most one row. It has in exactly one if its call is done,
    delivered, not superseded by a retry, and not masked with a cause.
I3  No id, log-probability or version is guessed. What is missing has mask 0, and is counted.
I4  A session that lost a turn gives all its rows, with mask 0, and says the cause.
I5  The rows are a function of the log alone.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Literal

from gateway.calls import UNKNOWN_VERSION, Call, Sent, State, full
from gateway.packing import Floats, Ids, Spans, floats_of, joined, runs

_NO_LOGPROB = -9999.0  # what vLLM sends in place of minus infinity


@dataclass(frozen=True, slots=True)
class Row:
    """A row is one lineage, from its first prompt to its last answer.

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
    """A session's log, as it was read from Redis: its calls by number, and what it lacks.

    hole  Redis lost an answer, as a later request shows
    cut   the session ended before its agent said so: it was `idle`, or calls were `open` as it
          was frozen
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
    """The rows of a session, in the order of their last calls."""
    known = {n: call for n, call in log.calls.items() if call.has_ids}
    children = lineages(known)
    kept = _kept_leaves(log, known, children)
    owners = _owners(known, children, kept)
    counts: Counter[str] = Counter(calls=len(log.calls), sampled=0, trained=0)
    for call in log.calls.values():
        _count(counts, call, known, owners)
    lost = _holes(log)
    session = log.cut or ("hole" if log.hole or (lost and on_hole == "session") else "")
    rows = []
    for leaf in kept:
        path = _path(known, leaf)
        hole = "hole" if lost and (None in lost or not lost.isdisjoint(path)) else ""
        own = {n for n in path if owners.get(n) == leaf}
        row = _row(known, path, own, session or hole, counts)
        if row is not None:
            rows.append(row)
    counts["rows"] = len(rows)
    masked = bool(session) or (bool(rows) and all(row.masked for row in rows))
    cause = session or next((row.cause for row in rows if masked), "")
    return Rows(tuple(rows), dict(counts), masked, cause)


def reward_of(row: Row, reward: float | None, named: Mapping[int, float]) -> float | None:
    """A row's reward: the one that is named for its last named call, else the session's."""
    return next((named[call] for call, *_ in reversed(row.calls) if call in named), reward)


def is_clean(call: Call, calls: Mapping[int, Call]) -> bool:
    """Whether a call continues its parent by ids, and does not only share the beginning."""
    parent = calls.get(call.parent) if call.parent is not None else None
    return parent is not None and call.keep == parent.end


def lineages(calls: Mapping[int, Call]) -> dict[int | None, list[int]]:
    """The calls that continue each; under None those that continue none."""
    found: dict[int | None, list[int]] = {}
    for n in sorted(calls):
        parent = calls[n].parent if is_clean(calls[n], calls) else None
        found.setdefault(parent, []).append(n)
    return found


def _kept_leaves(
    log: Log, calls: Mapping[int, Call], children: Mapping[int | None, list[int]]
) -> list[int]:
    """Leaves, less those whose client has the answer of a later retry instead."""
    superseded: set[int] = set()
    for call in calls.values():
        earlier = call.retry
        while earlier in log.calls:
            superseded.add(earlier)
            earlier = log.calls[earlier].retry
    return [n for n in sorted(calls) if n not in children and n not in superseded]


def _owners(
    calls: Mapping[int, Call], children: Mapping[int | None, list[int]], kept: Sequence[int]
) -> dict[int, int]:
    """The leaf in whose row each call is trained: the one by the earliest calls that lead to
    one."""
    owners = {leaf: leaf for leaf in kept}
    for n in sorted(calls, reverse=True):  # children have higher numbers than parents
        found = next((owners[child] for child in children.get(n, ()) if child in owners), None)
        if found is not None:
            owners[n] = found
    return owners


def _path(calls: Mapping[int, Call], leaf: int) -> list[int]:
    """The calls of a row, the first one first."""
    path = [leaf]
    while is_clean(calls[path[-1]], calls):
        path.append(calls[path[-1]].parent or 0)
    return path[::-1]


def _holes(log: Log) -> set[int | None]:
    """Calls behind which the client may have an answer that is not in the log."""
    answered: dict[bytes, int] = {}
    for n, call in sorted(log.calls.items()):
        if call.state is State.DONE:
            answered[call.req_digest] = n
    return {
        call.parent
        for n, call in log.calls.items()
        if call.state is not State.DONE
        and call.sent is not Sent.NOTHING
        and answered.get(call.req_digest, 0) < n
    }


def _fault(call: Call, leaf: bool) -> str:
    """The reason why none of a call's tokens are trained on, if so."""
    if call.lacks:
        return call.lacks
    if not call.train:
        return "side"
    if len(call.lps) != len(call.out):
        return "logprobs"
    if sum(tokens for tokens, _ in call.spans) != len(call.out):
        return "versions"
    return "hung_up" if leaf and call.sent is Sent.HUNG_UP else ""


def _row(
    calls: Mapping[int, Call], path: Sequence[int], own: set[int], masked: str, counts: Counter[str]
) -> Row | None:
    """The row of a path, or None if it has no token of its own to train on."""
    first, leaf = calls[path[0]], path[-1]
    mask: list[tuple[int, int]] = []
    spans: list[tuple[int, int]] = []
    logprobs = floats_of()
    trained = 0
    for n in path:
        call = calls[n]
        if n != path[0]:  # what stands between two answers
            mask.append((len(call.delta), 0))
            spans.append((len(call.delta), -1))
            logprobs.extend([0.0] * len(call.delta))
        fault = _fault(call, n == leaf)
        spans += call.spans if fault != "versions" else ((len(call.out), UNKNOWN_VERSION),)
        lps = call.lps if fault != "logprobs" else floats_of([None] * len(call.out))
        known = [int(isfinite(lp) and lp > _NO_LOGPROB) for lp in lps]
        logprobs.extend(lp if there else 0.0 for lp, there in zip(lps, known, strict=True))
        if n not in own or fault:
            mask.append((len(call.out), 0))
            if n in own:
                counts[f"masked_{fault}"] += len(call.out)
            continue
        counts["masked_logprobs"] += known.count(0)
        mask += runs(known)
        trained += sum(known)
    if not trained:
        return None
    tokens = full(calls, leaf)
    if masked:
        counts[f"masked_{masked}"] += trained
        mask, trained = [(len(logprobs), 0)], 0
    counts["trained"] += trained
    return Row(
        tokens, len(tokens) - first.begin, joined(mask), logprobs, joined(spans),
        tuple((n, calls[n].begin, calls[n].end, calls[n].finish) for n in path),
        bool(masked), masked,
    )  # fmt: skip


def _count(
    counts: Counter[str], call: Call, known: Mapping[int, Call], owners: Mapping[int, int]
) -> None:
    counts["sampled"] += len(call.out)
    counts["foreign"] += call.foreign
    if call.state is not State.DONE:
        counts["broken"] += 1
    elif not call.has_ids:
        counts[f"masked_{call.lacks}"] += len(call.out)
    elif call.id not in owners:
        counts["masked_superseded"] += len(call.out)
    elif call.parent is not None and not is_clean(call, known):
        counts["forks"] += 1
