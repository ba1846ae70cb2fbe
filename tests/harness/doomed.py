"""The child of `killing`: runs one scenario, and dies where it was told to."""

import asyncio
import functools
import importlib
import inspect
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from tests.harness.killing import Point

_reporting: int | None = None
_point: Point | None = None
_hits = 0
_counting = threading.Lock()


def reached(name: str, **facts: Any) -> None:
    """A scenario's own point, and what the test should know of it."""
    if _point is not None and (_point.how, _point.where) == ("named", name):
        _hit({"reached": name, **facts})
    else:
        _report({"reached": name, **facts})


def main(spec: dict[str, Any], reporting: int) -> None:
    global _point, _reporting
    _reporting = reporting
    if spec["at"]:
        _point = Point(**spec["at"])
        _arm(_point)
    _report({"returned": _run_scenario(spec["scenario"], spec["arguments"])})


def _run_scenario(address: str, arguments: list[Any]) -> Any:
    result = _find(address)(*arguments)
    if inspect.iscoroutine(result):
        result = asyncio.run(result)
    sys.settrace(None)
    return result


def _arm(point: Point) -> None:
    if point.how in ("before", "after"):
        _wrap(point)
    elif point.how == "line":
        trace = functools.partial(_trace, _codes_of(_find(point.where)), point.line)
        threading.settrace(trace)
        sys.settrace(trace)


def _wrap(point: Point) -> None:
    """Put a wrapper in the function's place, where its owner keeps it."""
    module, _, path = point.where.partition(":")
    owner = functools.reduce(getattr, path.split(".")[:-1], importlib.import_module(module))
    name = path.split(".")[-1]
    kept = inspect.getattr_static(owner, name)
    function = getattr(kept, "__func__", kept)  # of a classmethod or staticmethod
    wrapper = _async_wrapper if inspect.iscoroutinefunction(function) else _wrapper
    wrapped: Any = functools.wraps(function)(wrapper(function, point))
    setattr(owner, name, type(kept)(wrapped) if function is not kept else wrapped)


def _wrapper(function: Callable[..., Any], point: Point) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if point.how == "before":
            _hit({"reached": point.where})
        result = function(*args, **kwargs)
        if point.how == "after":
            _hit({"reached": point.where})
        return result

    return call


def _async_wrapper(function: Callable[..., Any], point: Point) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        if point.how == "before":
            _hit({"reached": point.where})
        result = await function(*args, **kwargs)
        if point.how == "after":
            _hit({"reached": point.where})
        return result

    return call


def _codes_of(found: Any) -> frozenset[CodeType]:
    """Of a function; of a class, those of its methods."""
    if not inspect.isclass(found):
        return _codes(inspect.unwrap(found).__code__)
    methods = [each for each in vars(found).values() if inspect.isfunction(each)]
    return frozenset[CodeType]().union(*(_codes_of(method) for method in methods))


def _codes(code: CodeType) -> frozenset[CodeType]:
    """A function's code and that of the functions and comprehensions inside it."""
    inner = [_codes(const) for const in code.co_consts if isinstance(const, CodeType)]
    return frozenset({code}).union(*inner)


def _trace(
    codes: frozenset[CodeType], line: int, frame: FrameType, event: str, _: Any
) -> Callable[..., Any] | None:
    if frame.f_code not in codes:
        return None
    if event == "line" and line in (0, frame.f_lineno):
        assert _point is not None
        _hit({"reached": _point.where, "line": frame.f_lineno})
    return functools.partial(_trace, codes, line)


def _hit(report: dict[str, Any]) -> None:
    global _hits
    assert _point is not None
    with _counting:
        _hits += 1
        now = _hits == _point.hit
    if _point.action == "report" or now:
        _report(report)
    if now and _point.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if now and _point.action == "freeze":
        # To this very thread: what is sent to the process may stop another first.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def _report(report: dict[str, Any]) -> None:
    if _reporting is not None:
        os.write(_reporting, json.dumps(report).encode() + b"\n")


def _find(address: str) -> Any:
    module, _, path = address.partition(":")
    return functools.reduce(getattr, path.split("."), importlib.import_module(module))
