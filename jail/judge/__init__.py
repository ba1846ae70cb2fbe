"""A judge takes one program and many cases in one job: compiled once, each case judged by itself.

What reads datasets is imported when it is first named: a forked worker's every job imports this.
"""

from typing import TYPE_CHECKING

from ground.lazy import lazily as _lazily
from jail.judge.models import (
    CaseLimits,
    Checker,
    Compare,
    JudgeCase,
    JudgeRequest,
    JudgeResult,
    Kept,
)

if TYPE_CHECKING:
    from jail.judge.formats import Cases, read_cases

__all__ = [
    "CaseLimits",
    "Cases",
    "Checker",
    "Compare",
    "JudgeCase",
    "JudgeRequest",
    "JudgeResult",
    "Kept",
    "read_cases",
]

__getattr__ = _lazily(__name__, dict.fromkeys(("Cases", "read_cases"), "jail.judge.formats"))
