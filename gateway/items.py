"""A session's rows as one item of the buffer, and the rows of an item.

The item is an ordinary trajectory: it has a `uid`, an `instance_id`, a `reward`, and `messages`,
which are empty if its `extra` has none. Its `rows` are JSON, with ids and log-probabilities in the
packed form; its `versions` are by row.
"""

from collections.abc import Mapping
from typing import Any

from gateway.packing import from_json, runs, spread, to_json
from gateway.training_rows import Row, Rows, reward_of

RESERVED = frozenset({
    "uid", "instance_id", "session", "sampling", "traceparent", "rows", "versions", "counts",
    "weight", "exact", "reward", "cause", "masked",
})  # fmt: skip
"""The keys of an item that mean something to its readers: no `extra` has one."""


def item_of(
    facts: Mapping[str, Any],
    rows: Rows,
    reward: float | None,
    rewards: Mapping[int, float],
    extra: Mapping[str, Any],
) -> dict[str, Any]:
    """The item; `facts` has its `uid`, its `instance_id` and what its session is called."""
    item = {
        "messages": [], **extra, **facts,
        "rows": [_row_as_json(row, reward, rewards) for row in rows.rows],
        "versions": [row.versions for row in rows.rows], "counts": rows.counts,
        "weight": 1 / max(1, len(rows.rows)), "exact": True,
    }  # fmt: skip
    if reward is not None:
        item["reward"] = reward
    if rows.masked:
        item["cause"] = rows.cause
    return item


def rows_in(item: Mapping[str, Any]) -> list[tuple[Row, float | None]]:
    """The rows of an item, each with its reward. What the task's policy masks is masked, all of a
    trajectory that its loop masked, and a row without a reward. An item of text alone has no
    rows."""
    if "rows" not in item:
        return []
    found = []
    info = item.get("extra_info")
    failed = ""
    if isinstance(info, dict) and info.get("traj_masked"):
        failed = str(info.get("traj_exit_reason"))
    stale = item.get("masked") or [[]] * len(item["rows"])
    for said, versions, ranges in zip(item["rows"], item["versions"], stale, strict=True):
        mask = spread(said["mask"])
        for first, end in ranges:
            mask[first:end] = [0] * len(mask[first:end])
        cause, reward = said.get("cause", ""), said.get("reward", item.get("reward"))
        if not cause and (failed or reward is None):
            cause, mask = failed or "no_reward", [0] * len(mask)
        row = Row(
            from_json(said["tokens"]), said["response_length"], runs(mask),
            from_json(said["logprobs"]), tuple((n, version) for n, version in versions),
            tuple((n, begin, end, finish) for n, begin, end, finish in said["calls"]),
            bool(cause), cause,
        )  # fmt: skip
        found.append((row, reward))
    return found


def _row_as_json(row: Row, reward: float | None, rewards: Mapping[int, float]) -> dict[str, Any]:
    said = {
        "tokens": to_json(row.tokens), "response_length": row.response_length, "mask": row.mask,
        "logprobs": to_json(row.logprobs), "calls": row.calls,
    }  # fmt: skip
    if rewards:
        said["reward"] = reward_of(row, reward, rewards)
    if row.masked:
        said["cause"] = row.cause
    return said
