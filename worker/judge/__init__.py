"""One program against many cases in one job: compiled once, each case judged by itself.

What reads datasets is imported when it is first named: a forked worker's every job imports this.
"""

from typing import TYPE_CHECKING, Any

from worker.judge.models import (
    CaseLimits,
    Checker,
    Compare,
    JudgeCase,
    JudgeRequest,
    JudgeResult,
    Kept,
    SuiteRef,
)

if TYPE_CHECKING:
    from worker.judge.formats import Cases, read_cases

__all__ = [
    "CaseLimits",
    "Cases",
    "Checker",
    "Compare",
    "JudgeCase",
    "JudgeRequest",
    "JudgeResult",
    "Kept",
    "SuiteRef",
    "read_cases",
]


def __getattr__(name: str) -> Any:
    if name not in ("Cases", "read_cases"):
        raise AttributeError(f"module 'worker.judge' has no attribute {name!r}")
    from worker.judge import formats

    return getattr(formats, name)
