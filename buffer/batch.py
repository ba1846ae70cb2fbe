"""A batch is what a reader gets: whole groups, and the figures of all that was written since the
last."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from buffer.default_functions import Item, meta_info, v1_figures
from buffer.settings import TaskConfig


@dataclass(frozen=True)
class Batch:
    """Whole groups, leased until `buffer.ack(batch)`.

    receipt    names the batch: `ack`, `release`, `extend` and `fetch` take it too
    groups     (instance id, items) of each group, exactly `group_size` items
    discarded  ids of groups that finished without data: too few came in time
    figures    over all items written since the last batch
    version    under which it was taken; None for a task without a policy
    ages       of each group: that version less the one at the group's start
    """

    receipt: str
    groups: list[tuple[Any, list[Item]]]
    discarded: list[Any]
    figures: dict[str, Any]
    version: int | None = None
    ages: tuple[int, ...] = ()

    @property
    def items(self) -> list[Item]:
        """The items of all groups, group after group."""
        return [item for _, items in self.groups for item in items]

    @property
    def finished_groups(self) -> list[Any]:
        """The ids that resuming skips: delivered in this batch, or discarded."""
        return [*(instance_id for instance_id, _ in self.groups), *self.discarded]

    @property
    def meta_info(self) -> dict[str, Any]:
        """The fields that slime's client reads besides the data."""
        figures = {
            **self.figures, "finished_groups": self.finished_groups, "receipt": self.receipt
        }  # fmt: skip
        if self.version is None:
            return figures
        return {**figures, "version": self.version, "ages": list(self.ages)}


SEEN = ("items", "groups", "n", "sum", "m2", "min", "max")


def figures_of(seen: Sequence[bytes | None], config: TaskConfig) -> dict[str, Any]:
    """Figures as `seal.lua` returns them: the fields `SEEN` of what was written since the last
    read."""
    parts = [part or b"0" for part in seen]
    items, groups, n = map(int, parts[:3])
    total, squares = map(float, parts[3:5])
    low, high = map(json.loads, parts[5:])
    figures = meta_info(
        items=items, groups=groups, n=n, mean=total / n if n else 0, squares=squares,
        low=low, high=high,
    )  # fmt: skip
    return v1_figures(figures) if config.dialect == "v1" else figures
