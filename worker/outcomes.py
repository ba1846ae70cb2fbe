"""How a program ended, in one word: what workers count, and what the monitor and metrics show."""

from collections.abc import Mapping
from typing import Any

from ground.logs import encodable
from jail.judge.fault import fault_of

# Worst last. Of the last two nothing is known of the program: its case or its checker is broken
# (`data`), or the sandbox or Penstock failed (`masked`).
PROGRAM_OUTCOMES = ("finished", "wrong", "error", "timeout", "memory", "limit", "data", "masked")
SHARED = "+"  # behind the word of one whose assertions ran in its own process
ONCE = "!"  # behind that of a masked one that must not run again
WHY = "|"  # between the word of a masked one and its reason
_WHY_SHOWN = 200  # characters

# Upper ends, in seconds, of the steps in which a queue's jobs are counted by how long they
# waited and took; what is above the last is `+Inf`. `counts.lua` has the same list.
LATENCY_STEPS = (
    "0.01", "0.03", "0.1", "0.3", "1", "3", "10", "30", "100", "300", "1000", "+Inf",
)  # fmt: skip

_LETTERS = {"W": "wrong", "E": "error", "C": "error", "T": "timeout", "L": "limit"}
_KINDS = {"none": "finished", "user": "error", "limit": "limit", "infrastructure": "masked"}


def program_outcome(value: Any) -> str:
    """The word for a job's value, JSON of a `CodeResult` or a `JudgeResult`; empty for any other.

    A judged program has the word of the first case that it failed.
    """
    if not isinstance(value, Mapping):
        return ""
    verdicts, kind = value.get("verdicts"), value.get("error_kind")
    if isinstance(verdicts, str):
        return _judged(verdicts, value)
    word = _KINDS.get(kind, "") if isinstance(kind, str) else ""
    return _limit(value.get("error_reason")) if word == "limit" else word


def counted_as(value: Any, *, once: bool = False) -> str:
    """The outcome, as the workers' scripts count it; why stands behind a masked one. `once`: it
    must not run again."""
    shares = isinstance(value, Mapping) and value.get("shared")
    word = program_outcome(value) + (SHARED if shares else "")
    if not word.startswith("masked"):
        return word
    return f"{word}{ONCE if once else ''}{WHY}{_why_masked(value)}"


def _why_masked(value: Mapping[str, Any]) -> str:
    said = " ".join(str(value.get("message") or value.get("error_reason") or "").split())
    shown = said if len(said) <= _WHY_SHOWN else f"{said[:_WHY_SHOWN]}…"
    return encodable(shown)


def _judged(verdicts: str, value: Mapping[str, Any]) -> str:
    reasons = value.get("reasons")
    reasons = reasons if isinstance(reasons, Mapping) else {}
    if (at := verdicts.find("M")) >= 0:
        reason = reasons.get(at) or reasons.get(str(at)) or value.get("error_reason")
        return "data" if fault_of("M", str(reason)) == "data" else "masked"
    at, letter = next(((at, one) for at, one in enumerate(verdicts) if one in _LETTERS), (0, ""))
    if letter != "L":
        return _LETTERS.get(letter, "finished")
    return _limit(reasons.get(at) or reasons.get(str(at)))


def _limit(reason: Any) -> str:
    text = str(reason)
    if text.endswith("timeout"):
        return "timeout"
    return "memory" if text.startswith("memory") else "limit"
