"""A session as it is shown: its calls, which continues which, and what is trained on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gateway.calls import Call
from gateway.packing import spread
from gateway.training_rows import Log, Row, Rows


def described(log: Log, rows: Rows, *, tokens: bool = False) -> dict[str, Any]:
    """The tree as JSON. With `tokens`, each row has its ids; and the masks, log-probabilities and
    versions of its response."""
    return {
        "calls": [_call(log.calls[id]) for id in sorted(log.calls)],
        "rows": [_row(row, tokens) for row in rows.rows],
        "counts": rows.counts, "masked": rows.masked, "cause": rows.cause, "hole": log.hole,
    }  # fmt: skip


def lines(calls: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Print a line per turn, below the one that it continues."""
    ends = {call["id"]: call["prompt"] + call["sampled"] for call in calls}
    children: dict[int | None, list[Mapping[str, Any]]] = {}
    for call in calls:
        children.setdefault(call["parent"], []).append(call)
    left = [("", "", call) for call in reversed(children.get(None, ()))]
    while left:
        lead, branch, call = left.pop()
        yield f"{lead}{branch}{_line(call, ends)}"
        lead += {"": "", "└ ": "  ", "├ ": "│ "}[branch]
        below = children.get(call["id"], [])
        left += [(lead, "└ " if each is below[-1] else "├ ", each) for each in reversed(below)]


def _line(call: Mapping[str, Any], ends: Mapping[int, int]) -> str:
    parent = call["parent"]
    forks = parent is not None and call["keep"] < ends[parent]
    versions = ", ".join("?" if v < 0 else str(v) for _, v in call["versions"]) or "none"
    parts = [
        f"turn {call['id']}", f"fork at {call['keep']}" if forks else "",
        f"{call['prompt'] - call['keep']} new, {call['sampled']} sampled of version {versions}",
        call["finish"] if call["state"] == "done" else call["state"],
        "" if call["train"] else "not trained on",
    ]  # fmt: skip
    return "; ".join(filter(None, parts))


def _call(call: Call) -> dict[str, Any]:
    return {
        "id": call.id, "parent": call.parent, "state": str(call.state), "sent": int(call.sent),
        "keep": call.keep, "prompt": call.begin, "sampled": len(call.out),
        "versions": [list(span) for span in call.spans], "finish": call.finish,
        "dialect": call.dialect, "engine": call.engine, "train": call.train,
        "began": call.t0, "ended": call.t1, "asked": dict(call.asked),
    }  # fmt: skip


def _row(row: Row, tokens: bool) -> dict[str, Any]:
    mask = spread(row.mask)
    found: dict[str, Any] = {
        "tokens": len(row.tokens), "response": row.response_length, "trained": sum(mask),
        "calls": [list(call) for call in row.calls], "masked": row.masked, "cause": row.cause,
    }  # fmt: skip
    if tokens:
        found |= {
            "ids": row.tokens.tolist(), "mask": mask, "logprobs": row.logprobs.tolist(),
            "versions": [list(span) for span in row.versions],
        }  # fmt: skip
    return found
