"""A function each of whose calls holds a permit."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from limiter.hold import Hold

F = TypeVar("F", bound=Callable[..., Any])


def limited(gate: str, hold: Callable[[], Hold], function: F) -> F:
    """`function` under a permit of that gate, a coroutine function as well."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"gate {gate!r}: `limited` cannot hold a permit for {function!r}: a call "
            "of a generator function ends before its body begins; use `with` inside it"
        )
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            async with hold():
                return await function(*args, **kwargs)

        return call_async  # type: ignore[return-value]

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with hold():
            return function(*args, **kwargs)

    return call  # type: ignore[return-value]
