"""One program against many cases in one job: compiled once, each case judged by itself."""

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

__all__ = [
    "CaseLimits",
    "Checker",
    "Compare",
    "JudgeCase",
    "JudgeRequest",
    "JudgeResult",
    "Kept",
    "SuiteRef",
]
