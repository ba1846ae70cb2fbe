"""Rows as `Sample` of slime, and of miles, which has the same fields."""

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.items import rows_in
from gateway.packing import spread
from gateway.training_rows import Row

Group = list[list[Any]]
"""One prompt: of each of its trajectories, the rows."""


def samples_of(
    sample: type[Any], item: Mapping[str, Any], *, group: int, rollout: int
) -> list[Any]:
    """A sample per row. All have one `rollout_id`, so the loss counts the trajectory once.

    `group` and `rollout` number the prompt and the trajectory. The response's text is empty: a row
    has ids. A row that is masked has `remove_sample`, and the cause in its `metadata`; one
    without a reward is masked, and has 0.0. Its calls are there too, and `version_spans`: [begin,
    end, version] of sampled tokens in `tokens`.
    """
    made = []
    for row, reward in rows_in(item):
        extra = item.get("extra_info")
        metadata = dict(extra) if isinstance(extra, dict) else {}
        metadata |= {
            "session": item["session"], "calls": [list(call) for call in row.calls],
            "version_spans": _version_spans(row),
        }  # fmt: skip
        if row.masked:
            metadata["cause"] = row.cause
        made.append(
            sample(
                group_index=group, index=rollout, rollout_id=rollout, tokens=row.tokens.tolist(),
                response_length=row.response_length, reward=reward or 0.0,
                loss_mask=spread(row.mask), rollout_log_probs=row.logprobs.tolist(),
                weight_versions=versions_of(row), status=_status(sample, row),
                remove_sample=not any(bit for _, bit in row.mask), metadata=metadata,
            )
        )  # fmt: skip
    return made


def groups_of(
    sample: type[Any], groups: Sequence[tuple[Any, Sequence[Mapping[str, Any]]]], first: int
) -> list[Group]:
    """Each item's samples, for each group of a batch. `first` is the number of the first item."""
    found = []
    for _, items in groups:
        rows = [
            samples_of(sample, item, group=first, rollout=first + number)
            for number, item in enumerate(items)
        ]
        first += len(items)
        found.append([each for each in rows if each])
    return [group for group in found if group]


def versions_of(row: Row) -> list[str]:
    """The versions that made its tokens, in order; `unknown` where the engine could not say."""
    return ["unknown" if version < 0 else str(version) for _, version in row.versions
            if version != -1]  # fmt: skip


def normalized(
    samples: Sequence[Any], *, centred: bool, by_deviation: bool
) -> tuple[list[float], list[float]]:
    """Rewards as they are, and if `centred` less the mean of their prompt. A trajectory counts
    once, however many rows it has; one that is masked counts in no mean, and has 0."""
    groups: dict[int, dict[int, float]] = {}
    for one in samples:
        if not one.remove_sample:
            groups.setdefault(one.group_index, {})[one.rollout_id] = float(one.reward)
    shifts = {}
    for number, rewards in groups.items() if centred else ():
        values = list(rewards.values())
        mean = sum(values) / len(values)
        deviation = (sum((value - mean) ** 2 for value in values) / max(1, len(values) - 1)) ** 0.5
        shifts[number] = (mean, deviation + 1e-6 if by_deviation and deviation else 1.0)
    made = []
    for one in samples:
        mean, scale = shifts.get(one.group_index, (0.0, 1.0))
        made.append(0.0 if one.remove_sample else (float(one.reward) - mean) / scale)
    return [float(one.reward) for one in samples], made


def _version_spans(row: Row) -> list[list[int]]:
    place, found = len(row.tokens) - row.response_length, []
    for tokens, version in row.versions:
        if version != -1:
            found.append([place, place + tokens, version])
        place += tokens
    return found


def _status(sample: type[Any], row: Row) -> Any:
    if row.masked:
        return sample.Status.FAILED
    cut = row.calls[-1][3] == "length"
    return sample.Status.TRUNCATED if cut else sample.Status.COMPLETED
