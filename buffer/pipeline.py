"""What a read does to a finished group, in slime's fixed order: valid, filter, normalize, pad.

The default functions run here in a thread; the user's own run in a thread with a
time limit, one group at a time. Whatever goes wrong concerns that group alone: it is
quarantined with the reason.
"""

import asyncio
import contextlib
import inspect
import json
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeVar, cast

from buffer.default_functions import (
    Group,
    Item,
    default_filter_item,
    default_get_group_data_meta_info,
    default_is_valid_group,
    default_normalize_group_data,
    default_pad_group_data,
    v1_get_group_data_meta_info,
    v1_is_valid_group,
)
from buffer.settings import TaskConfig

log = logging.getLogger(__name__)
T = TypeVar("T")

Fate = Literal["delivered", "invalid", "quarantined", "open"]


@dataclass(frozen=True)
class GroupFunctions:
    """A task's own functions, by upstream's names; None is the default of the task's dialect."""

    get_group_data_meta_info: Callable[[dict[Any, list[Item]]], dict[str, Any]] | None = None
    is_valid_group: Callable[..., tuple[bool, bool] | bool] | None = None
    filter_item: Callable[[Item, str], bool] | None = None
    normalize_group_data: Callable[[Group], Group] | None = None
    pad_group_data: Callable[[Group, int], Group] | None = None
    transform_group: Callable[[Group, str], Group] | None = None

    @classmethod
    def of_module(cls, module: object) -> "GroupFunctions":
        """The optional functions that a generator module defines."""
        found = {field.name: getattr(module, field.name, None) for field in fields(cls)}
        return cls(**{name: value for name, value in found.items() if callable(value)})

    @property
    def custom(self) -> bool:
        """Whether the time limit is needed, because some function is the user's."""
        return any(getattr(self, field.name) is not None for field in fields(self))


@dataclass(frozen=True)
class Verdict:
    """What became of a group: its fate, the items delivered, or the reason."""

    fate: Fate
    items: list[Item]
    reason: str = ""


class Pipeline:
    """The five steps for one task."""

    def __init__(
        self, task: str, config: TaskConfig, functions: GroupFunctions, *, timeout: float = 30.0
    ) -> None:
        self.task = task
        self.config = config
        self.functions = functions
        self._timeout = timeout
        v1 = config.dialect == "v1"
        self._is_valid = functions.is_valid_group or (
            v1_is_valid_group if v1 else default_is_valid_group
        )
        self._filter = functions.filter_item or default_filter_item
        self._normalize = functions.normalize_group_data or default_normalize_group_data
        self._pad = functions.pad_group_data or default_pad_group_data
        self._meta_info = functions.get_group_data_meta_info or (
            v1_get_group_data_meta_info if v1 else default_get_group_data_meta_info
        )

    async def judge(self, groups: list[tuple[Any, list[Item]]]) -> list[Verdict]:
        """A custom is_valid_group's word on open groups."""
        return await self._each(self._judged, [(group,) for group in groups])

    async def process(self, groups: list[tuple[Any, list[Item], bool]]) -> list[Verdict]:
        """Finished groups as they are delivered; the flag says that validity is settled."""
        return await self._each(self._processed, groups)

    async def meta_info(self, raw: dict[Any, list[Item]]) -> dict[str, Any]:
        """A custom function's meta-information; empty with a logged reason where it fails."""
        try:
            async with asyncio.timeout(self._timeout):
                said = await _in_own_thread(lambda: self._meta_info(raw))
            if not isinstance(said, Mapping):
                raise TypeError(f"it returned {type(said).__name__}, not a dict")
            json.dumps(said, allow_nan=False)
            return dict(said)
        except Exception as failure:  # noqa: BLE001 - a read goes on without it
            log.warning(
                "get_group_data_meta_info failed",
                extra={"task": self.task, "reason": _reason(failure)},
            )
            return {}

    async def _each(self, step: Callable[..., Verdict], groups: list[Any]) -> list[Verdict]:
        if not self.functions.custom:
            return await asyncio.to_thread(lambda: [_guarded(step, *group) for group in groups])
        return [await self._limited(step, *group) for group in groups]

    async def _limited(self, step: Callable[..., Verdict], *group: Any) -> Verdict:
        """A function that never returns leaves its thread behind, and its group in quarantine."""
        try:
            async with asyncio.timeout(self._timeout):
                return await _in_own_thread(lambda: _guarded(step, *group))
        except TimeoutError:
            return Verdict(
                "quarantined", [],
                f"a custom function outlasted PENSTOCK_FUNCTION_TIMEOUT ({self._timeout:g} s)",
            )  # fmt: skip

    def _judged(self, group: Group) -> Verdict:
        valid, finished = self._validity(group)
        if not finished:
            return Verdict("open", [])
        return Verdict("delivered" if valid else "invalid", [])

    def _processed(self, instance_id: Any, items: list[Item], settled: bool) -> Verdict:
        if not settled:
            valid, finished = self._validity((instance_id, items))
            if not (valid and finished):
                return Verdict("invalid", [], "is_valid_group")
        out = self._transformed(instance_id, items)
        if out is None:
            return Verdict("invalid", [], "too few items after filter_item")
        if not out or len(out) % self.config.group_size:
            raise ValueError(
                f"{len(out)} items came out, which is no multiple of group_size "
                f"{self.config.group_size}"
            )
        if self.functions.custom:
            json.dumps(out, allow_nan=False)  # what is stored was JSON; this came from elsewhere
        return Verdict("delivered", out)

    def _transformed(self, instance_id: Any, items: list[Item]) -> list[Item] | None:
        size = self.config.group_size
        if self.config.dialect == "v1" or self.functions.transform_group:
            if transform := self.functions.transform_group:
                return _items(transform((instance_id, items), self.task))
            return items[:size]
        kept = [item for item in items if self._filter(item, self.task)][:size]
        if not kept or len(kept) < self.config.keep_at:
            return None
        group = self._normalize((instance_id, kept))
        return _items(self._pad((group[0], _items(group)), size))

    def _validity(self, group: Group) -> tuple[bool, bool]:
        """Both return types: v0's (valid, finished), v1's single bool."""
        said = self._is_valid(group, self.config.finish_at or 1, self.task)
        if isinstance(said, tuple | list) and len(said) == 2:
            return bool(said[0]), bool(said[1] or said[0])
        if isinstance(said, bool):
            return said, said
        raise TypeError(f"is_valid_group returned {said!r}, neither (valid, finished) nor a bool")


async def _in_own_thread(call: Callable[[], T]) -> T:
    """Not in the pool: functions that never return would use it up for everybody."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, failure: BaseException | None) -> None:
        if answer.done():
            return
        if failure is None:
            answer.set_result(cast(T, result))
        else:
            answer.set_exception(RuntimeError(_reason(failure)))

    def run() -> None:
        result, failure = None, None
        try:
            result = call()
        except BaseException as raised:  # noqa: BLE001 - handed to the caller
            failure = raised
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile: nobody asks
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=run, name="penstock-group-function", daemon=True).start()
    return await answer


def _guarded(step: Callable[..., Verdict], *group: Any) -> Verdict:
    try:
        return step(*group)
    except (Exception, SystemExit) as failure:  # noqa: BLE001 - concerns that group alone
        return Verdict("quarantined", [], _reason(failure))


def _items(group: Any) -> list[Item]:
    """The items of what a custom function returned; a coroutine or the like is nonsense."""
    if inspect.iscoroutine(group):
        group.close()
        raise TypeError("the function is async; group functions are plain functions")
    if not isinstance(group, tuple | list) or len(group) != 2:
        raise TypeError(f"the function returned {type(group).__name__}, not (instance_id, items)")
    items = list(group[1])
    if not all(isinstance(item, dict) for item in items):
        raise TypeError("the function returned items that are not dicts")
    return items


def _reason(failure: BaseException) -> str:
    return f"{type(failure).__name__}: {failure}"[:1000]
