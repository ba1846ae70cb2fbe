"""A finding is one line of the doctor's report."""

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """A finding: what was looked at, the verdict, what is so, and what to do if it is not well."""

    about: str
    verdict: Verdict
    fact: str
    remedy: str = ""


def ok(about: str, fact: str) -> Finding:
    return Finding(about, "ok", fact)


def warn(about: str, fact: str, remedy: str) -> Finding:
    return Finding(about, "warn", fact, remedy)


def fail(about: str, fact: str, remedy: str = "") -> Finding:
    return Finding(about, "fail", fact, remedy)
