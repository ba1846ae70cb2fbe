"""Sandbox Fusion's rows of the kind AutoEval: a test's code goes behind the program, or around it.

What the program does when it runs by itself is taken off, as upstream does it: its demo, and in C++
its `main`. The test's own files lie beside it.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from jail.errors import RequestRefused
from jail.judge.completion import language_named

_HERE = "#<INSERT>"  # in a test, where the program goes
_BY_ITSELF = {
    "python": re.compile(r"^if\s+__name__\s*==|^# Example usage", re.MULTILINE),
    "cpp": re.compile(r"^\s*(?:int|signed)\s+main\s*\(", re.MULTILINE),
}


@dataclass(frozen=True)
class AutoEval:
    """A test, the language that programs are written in, and the one that it runs in."""

    written_in: str
    runs_in: str
    test: str
    files: Mapping[str, str] = field(default_factory=dict)  # as base64

    @classmethod
    def of(cls, row: Mapping[str, Any], language: str) -> Self | None:
        """The test of a row, None if it has cases. Its labels come before the request's
        language."""
        test, labels = _object(row.get("test")), _object(row.get("labels")) or {}
        if test is None or "code" not in test:
            return None
        written = labels.get("programming_language") or language
        runs = labels.get("execution_language") or written
        if labels.get("programming_language") == "java":
            raise RequestRefused("a test of Java needs junit, which this sandbox does not run")
        return cls(
            _named(written), _named(runs), str(test["code"]), _object(test.get("asset")) or {}
        )

    def with_program(self, code: str, as_text: bool) -> tuple[str, str]:
        """Return the text that runs, and the check behind it. `as_text`: the test reads the program
        as a literal of its own."""
        by_itself = _BY_ITSELF.get(self.written_in)
        if by_itself and (begins := by_itself.search(code)):
            code = code[: begins.start()]
        if as_text:
            code = repr(code.rstrip())
        before, here, after = self.test.partition(_HERE)
        if not here:
            return code, self.test
        if before.endswith("\n") or not before:
            return before + code, after
        whole = before + code + after  # inside a statement of the test
        return (whole, "") if self.runs_in == "bash" else ("", whole)


def _named(language: Any) -> str:
    return language_named(str(language)) or str(language)


def _object(given: Any) -> dict[str, Any] | None:
    """An object, or the JSON of one."""
    try:
        found = json.loads(given, strict=False) if isinstance(given, str) else given
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
