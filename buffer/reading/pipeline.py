"""A read does this to a finished group, in slime's fixed order: valid, filter, normalize, pad.

The default functions run here in a thread. The user's own run one group at a time, with
a time limit for each group and one for the read. A failure concerns that group alone:
it is quarantined with the reason.
"""

import asyncio
import json
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from buffer.default_functions import (
    Group,
    Item,
    default_filter_item,
    default_get_group_data_meta_info,
    default_is_valid_group,
    default_normalize_group_data,
    default_pad_group_data,
    has_reward,
    v1_get_group_data_meta_info,
    v1_is_valid_group,
)
from buffer.group_functions import (
    FunctionFailed,
    GroupFunctions,
    in_own_thread,
    naming_itself,
    reason_of,
)
from buffer.settings import TaskConfig
from buffer.spans import mask

log = logging.getLogger(__name__)

# "unasked": the read's time was over before its turn came; it stays where it was.
Fate = Literal["delivered", "invalid", "quarantined", "open", "unasked"]


@dataclass(frozen=True)
class Handling:
    """The verdict on a group: its fate, the items delivered, or the reason."""

    fate: Fate
    items: list[Item]
    reason: str = ""
    masked: int = 0  # tokens that are too old to train on


UNASKED = Handling("unasked", [])
_MAKERS = (
    "is_valid_group", "filter_item", "normalize_group_data", "pad_group_data", "transform_group"
)  # fmt: skip


class Pipeline:
    """The five steps for one read of a task. After `patience` seconds no further group is asked
    about; the first of each step always is, so that every read gets on."""

    def __init__(
        self,
        task: str,
        config: TaskConfig,
        functions: GroupFunctions,
        *,
        timeout: float = 30.0,
        patience: float = math.inf,
    ) -> None:
        self.task = task
        self.config = config
        self.functions = functions
        self._timeout = timeout
        self._until = time.monotonic() + patience
        v1 = config.dialect == "v1"
        self._is_valid = self._own("is_valid_group") or (
            v1_is_valid_group if v1 else default_is_valid_group
        )
        self._filter = self._own("filter_item") or default_filter_item
        self._normalize = self._own("normalize_group_data") or default_normalize_group_data
        self._pad = self._own("pad_group_data") or default_pad_group_data
        self._transform = self._own("transform_group")
        own = (name for name in _MAKERS if getattr(functions, name))
        self._blamed = f"{' or '.join(own) or 'a default function'} of {task}"
        self._meta_info = functions.get_group_data_meta_info or (
            v1_get_group_data_meta_info if v1 else default_get_group_data_meta_info
        )

    def _own(self, name: str) -> Callable[..., Any] | None:
        function = getattr(self.functions, name)
        return function and naming_itself(function, name, self.task)

    async def judge(self, groups: list[tuple[Any, list[Item]]]) -> list[Handling]:
        """A custom is_valid_group's word on open groups."""
        return await self._each(self._judged, [(group,) for group in groups])

    async def process(
        self, groups: list[tuple[Any, list[Item], bool, int | None]], oldest: int | None
    ) -> list[Handling]:
        """Finished groups as they are delivered; the flag says that validity is settled, and the
        number under which version the group began. Tokens of versions before `oldest` are masked.
        """
        return await self._each(self._processed, [(*group, oldest) for group in groups])

    async def meta_info(self, raw: dict[Any, list[Item]]) -> dict[str, Any]:
        """A custom function's meta-information; empty with a logged reason where it fails."""
        try:
            said = await in_own_thread(lambda: self._meta_info(raw), self._timeout)
            if not isinstance(said, Mapping):
                raise TypeError(f"it returned {type(said).__name__}, not a dict")
            json.dumps(said, allow_nan=False)
            return dict(said)
        except Exception as failure:  # noqa: BLE001 - a read continues without it
            log.warning(
                "get_group_data_meta_info failed",
                extra={"task": self.task, "reason": reason_of(failure)},
            )
            return {}

    async def _each(self, step: Callable[..., Handling], groups: list[Any]) -> list[Handling]:
        if not self.functions.custom:
            return await asyncio.to_thread(lambda: [_guarded(step, *group) for group in groups])
        verdicts: list[Handling] = []
        for group in groups:
            asked = not verdicts or time.monotonic() < self._until
            verdicts.append(await self._limited(step, *group) if asked else UNASKED)
        return verdicts

    async def _limited(self, step: Callable[..., Handling], *group: Any) -> Handling:
        """A function that never returns leaves its thread behind, and its group in quarantine."""
        try:
            return await in_own_thread(lambda: _guarded(step, *group), self._timeout)
        except TimeoutError:
            return Handling(
                "quarantined", [],
                f"{self._blamed} outlasted PENSTOCK_FUNCTION_TIMEOUT ({self._timeout:g} s)",
            )  # fmt: skip

    def _judged(self, group: Group) -> Handling:
        valid, finished = self._validity(group)
        if not finished:
            return Handling("open", [])
        return Handling("delivered", []) if valid else self._invalid(group[1])

    def _processed(
        self, instance_id: Any, items: list[Item], settled: bool, start: int | None,
        oldest: int | None,
    ) -> Handling:  # fmt: skip
        if not settled:
            valid, finished = self._validity((instance_id, items))
            if not (valid and finished):
                return self._invalid(items)
        try:
            out = self._transformed(instance_id, items)
            if out is None:
                return Handling("invalid", [], self._too_few(len(items)))
            self._check(out)
            masked = 0 if oldest is None else mask(out, oldest, start)
        except FunctionFailed:
            raise
        except Exception as failure:  # a default step cannot use what a custom one made
            raise FunctionFailed(f"{self._blamed}: {reason_of(failure)}") from failure
        return Handling("delivered", out, masked=masked)

    def _check(self, out: list[Item]) -> None:
        if not out or len(out) % self.config.group_size:
            raise ValueError(
                f"{len(out)} items came out, which is no multiple of group_size "
                f"{self.config.group_size}"
            )
        if self.functions.custom:
            json.dumps(out, allow_nan=False)  # what is stored was JSON; this came from elsewhere

    def _too_few(self, n: int) -> str:
        if self._transform:
            return f"{n} items of {self.config.group_size}: transform_group made no whole group"
        if self.config.dialect == "v1":
            return f"{n} items of {self.config.group_size}: the dialect v1 has no padding"
        return "too few items after filter_item"

    def _invalid(self, items: list[Item]) -> Handling:
        if self.functions.is_valid_group is not None:
            return Handling("invalid", [], "is_valid_group says so")
        rewards = {item["reward"] for item in items if has_reward(item)}
        same = f"all rewards are {rewards.pop():g}" if len(rewards) == 1 else ""
        return Handling("invalid", [], same or "too few items with different rewards")

    def _transformed(self, instance_id: Any, items: list[Item]) -> list[Item] | None:
        size = self.config.group_size
        if self._transform:
            is_short = len(items) < size
            out = _items(self._transform((instance_id, items), self.task), "transform_group")
            return None if is_short and len(out) < size else out
        if self.config.dialect == "v1":
            return items[:size] if len(items) >= size else None
        kept = [item for item in items if self._filter(item, self.task)][:size]
        if not kept or len(kept) < self.config.keep_at:
            return None
        group = self._normalize((instance_id, kept))
        normal = _items(group, "normalize_group_data")
        return _items(self._pad((group[0], normal), size), "pad_group_data")

    def _validity(self, group: Group) -> tuple[bool, bool]:
        """Whether a group is valid, and finished. Its function may return v0's (valid, finished) or
        v1's single bool."""
        said = self._is_valid(group, self.config.finish_at or 1, self.task)
        if hasattr(said, "tolist"):
            said = said.tolist()  # numpy's and torch's bools are none of Python's
        if isinstance(said, tuple | list) and len(said) == 2:
            return bool(said[0]), bool(said[1] or said[0])
        if isinstance(said, bool):
            return said, said
        raise TypeError(f"is_valid_group returned {said!r}, neither (valid, finished) nor a bool")


def _guarded(step: Callable[..., Handling], *group: Any) -> Handling:
    try:
        return step(*group)
    except BaseException as failure:  # noqa: BLE001 - concerns only that group
        return Handling("quarantined", [], reason_of(failure))


def _items(group: Any, function: str) -> list[Item]:
    """The items of what a custom function returned."""
    if not isinstance(group, tuple | list) or len(group) != 2:
        raise TypeError(f"{function} returned {type(group).__name__}, not (instance_id, items)")
    items = list(group[1])
    if not all(isinstance(item, dict) for item in items):
        raise TypeError(f"{function} returned items that are not dicts")
    return items
