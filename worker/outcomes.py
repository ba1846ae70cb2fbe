"""How a program ended, in one word: what workers count, and what the monitor and metrics show."""

from collections.abc import Mapping
from typing import Any

# Worst last. `masked`: the sandbox or Penstock failed, and nothing is known of the program.
PROGRAM_OUTCOMES = ("finished", "wrong", "error", "timeout", "memory", "limit", "masked")

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


def _judged(verdicts: str, value: Mapping[str, Any]) -> str:
    if "M" in verdicts:
        return "masked"
    at, letter = next(((at, one) for at, one in enumerate(verdicts) if one in _LETTERS), (0, ""))
    if letter != "L":
        return _LETTERS.get(letter, "finished")
    reasons = value.get("reasons")
    return _limit(reasons.get(str(at)) if isinstance(reasons, Mapping) else "")


def _limit(reason: Any) -> str:
    text = str(reason)
    if text.endswith("timeout"):
        return "timeout"
    return "memory" if text.startswith("memory") else "limit"
