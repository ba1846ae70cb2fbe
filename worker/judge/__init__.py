"""The judge. It is `jail.judge`; this name stays for programs that use it."""

from jail.judge import (
    CaseLimits,
    Cases,
    Checker,
    Compare,
    JudgeCase,
    JudgeRequest,
    JudgeResult,
    Kept,
    read_cases,
)

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
