"""The five steps of a read as slime defines them, to the last digit.

Where upstream would crash or lose data these do what its document promises: a group without a valid
reward stays as it is, and padding works from any size. No group comes out larger than `group_size`.
docs/reference/slime.md lists each difference.
"""

import copy
from collections.abc import Mapping
from typing import Any

Item = dict[str, Any]
Group = tuple[Any, list[Item]]


def default_get_group_data_meta_info(temp_data: Mapping[Any, list[Item]]) -> dict[str, Any]:
    """Figures over all raw items since the last read; the standard deviation is the sample's."""
    rewards = [item["reward"] for items in temp_data.values() for item in items if has_reward(item)]
    total, groups, n = sum(map(len, temp_data.values())), len(temp_data), len(rewards)
    mean = sum(rewards) / n if n else 0
    squares = sum((reward - mean) ** 2 for reward in rewards)
    return meta_info(
        items=total, groups=groups, n=n, mean=mean, squares=squares,
        low=min(rewards, default=0), high=max(rewards, default=0),
    )  # fmt: skip


def meta_info(
    *, items: int, groups: int, n: int, mean: float, squares: float, low: float, high: float
) -> dict[str, Any]:
    """The seven figures from their sums; `squares` is the sum of squared distances to the mean."""
    return {
        "total_samples": items,
        "num_groups": groups,
        "avg_group_size": items / groups if groups else 0,
        "avg_reward": mean,
        "reward_min": low,
        "reward_max": high,
        "reward_std": (squares / (n - 1)) ** 0.5 if n > 1 else 0,
    }


def default_is_valid_group(
    group: Group, min_valid_group_size: int, task_type: str = ""
) -> tuple[bool, bool]:
    """Return (valid, finished): finished by count, valid when the rewards also differ."""
    _, items = group
    finished = len(items) >= min_valid_group_size
    return finished and len({item["reward"] for item in items if has_reward(item)}) > 1, finished


def default_filter_item(item: Item, task_type: str = "") -> bool:
    """Whether an item is trained on: it has what it needs, and a reward from 0 to 1."""
    if not all(key in item for key in ("instance_id", "reward", "messages")):
        return False
    reward = item["reward"]
    if not isinstance(reward, int | float) or reward < 0 or reward > 1:
        return False
    return isinstance(item["messages"], list)


def default_normalize_group_data(group: Group, epsilon: float = 1e-8, algo: str = "grpo") -> Group:
    """Rewards from 0 to 1 become (r - mean) / (std + epsilon), population std; others stay."""
    if algo != "grpo":
        raise ValueError(f"only 'grpo' is supported, not {algo!r}")
    instance_id, items = group
    raw = [item["reward"] for item in items]
    for item, reward in zip(items, _normalized(raw, epsilon), strict=True):
        item["raw_reward"] = item["reward"]
        item["reward"] = reward
    return instance_id, items


def _normalized(raw: list[float], epsilon: float) -> list[float]:
    valid = [reward for reward in raw if 0 <= reward <= 1]
    if not any(valid):
        return raw
    mean = sum(valid) / len(valid)
    std = (sum((reward - mean) ** 2 for reward in valid) / len(valid)) ** 0.5
    if std < epsilon:
        return [0.0 if 0 <= reward <= 1 else reward for reward in raw]
    return [(r - mean) / (std + epsilon) if 0 <= r <= 1 else r for r in raw]


def default_pad_group_data(group: Group, group_size: int) -> Group:
    """Exactly `group_size` items: rewards scaled by group_size/len, then shared among copies."""
    instance_id, items = group[0], group[1][:group_size]
    scale, whole = group_size / len(items), len(items)
    for place, item in enumerate(items):
        shares = len(range(place, group_size, whole))
        item["reward"] = item["reward"] * scale
        if shares > 1:
            item["reward"] = item["reward"] / shares
    copies = [copy.deepcopy(items[place % whole]) for place in range(whole, group_size)]
    return instance_id, items + copies


def v1_is_valid_group(group: Group, min_valid_group_size: int, task_type: str = "") -> bool:
    """slime's current rule: by count, and one answer for valid and finished."""
    return len(group[1]) >= min_valid_group_size


def v1_get_group_data_meta_info(temp_data: Mapping[Any, list[Item]]) -> dict[str, Any]:
    """Today's slime reports the first four figures."""
    return v1_figures(default_get_group_data_meta_info(temp_data))


def v1_figures(figures: dict[str, Any]) -> dict[str, Any]:
    """The figures that today's slime reports."""
    names = ("total_samples", "num_groups", "avg_group_size", "avg_reward")
    return {name: figures[name] for name in names}


def has_reward(item: Item) -> bool:
    """Whether its reward is a number."""
    return isinstance(item.get("reward"), int | float)
