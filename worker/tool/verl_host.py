"""If verl is the host, its base class and its tracing are here. Else there is nothing.

verl is looked at only where it is loaded already: importing it takes seconds.
"""

import sys
from typing import TYPE_CHECKING, Any, TypeVar

F = TypeVar("F")


def _of_verl(module: str, name: str, otherwise: Any) -> Any:
    if "verl" not in sys.modules:
        return otherwise
    from importlib import import_module

    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError):  # another version of it, or one that cannot run here
        return otherwise


def _untraced(function: Any) -> Any:
    return function


if TYPE_CHECKING:

    class BaseTool:
        """verl's, or nothing."""

    def traced(function: F) -> F: ...

else:
    BaseTool = _of_verl("verl.tools.base_tool", "BaseTool", object)
    traced = _of_verl("verl.utils.rollout_trace", "rollout_trace_op", _untraced)
