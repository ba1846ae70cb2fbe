"""A task's own functions, and how they are run: in a thread of their own, for a limited time."""

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeVar, cast

from buffer.default_functions import Group, Item
from ground.logs import encodable

T = TypeVar("T")


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


class FunctionFailed(Exception):
    """A function of the task raised; the message says which, and what."""


def naming_itself(function: Callable[..., T], name: str, task: str) -> Callable[..., T]:
    """A function that does the same, and whose failure says whose it is."""

    def call(*arguments: Any) -> T:
        try:
            said = function(*arguments)
            if inspect.iscoroutine(said):  # true, as a verdict
                said.close()
                raise TypeError("it is async; group functions are plain functions")
            return said
        except BaseException as failure:  # in its own thread nobody else can have meant it
            raise FunctionFailed(f"{name} of {task}: {reason_of(failure)}") from failure

    return call


async def in_own_thread(call: Callable[[], T], seconds: float) -> T:
    """The function's result, or TimeoutError. It is not run in the pool: functions that never
    return would use it up for everybody. Such a thread is left behind; Python cannot end it."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, failure: BaseException | None) -> None:
        if answer.done():
            return
        if failure is None:
            answer.set_result(cast(T, result))
        else:
            answer.set_exception(RuntimeError(reason_of(failure)))

    def run() -> None:
        result, failure = None, None
        try:
            result = call()
        except BaseException as raised:  # noqa: BLE001 - handed to the caller
            failure = raised
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile: nobody asks
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=run, name="penstock-group-function", daemon=True).start()
    async with asyncio.timeout(seconds):
        return await answer


def reason_of(failure: BaseException) -> str:
    """The reason why a user's code failed, for the quarantine and the log."""
    try:
        said = str(failure)
    except BaseException as broken:  # noqa: BLE001 - a user's exception is a user's code too
        said = f"its text fails with {type(broken).__name__}"
    if not isinstance(failure, FunctionFailed):
        said = f"{type(failure).__name__}: {said}"
    return encodable(said[:1000])
