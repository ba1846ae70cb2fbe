"""A case that has not passed is the program's fault, the data's, or the system's.

This is the one place that decides it, by a verdict's letter and reason. What a program can bring
about by itself is its own fault, and has a verdict. A case without a verdict is the data's fault if
its own parts are broken, whatever the program does. Else it is the system's.
"""

from typing import Literal

Fault = Literal["", "program", "data", "system"]

# The case cannot be judged: its checker fails on the expected output as well, does not compile, or
# more is expected than the sandbox lets any program print; its arguments are no JSON; or nobody
# knows how to judge it.
_DATA = frozenset({
    "checker_error", "checker_timeout", "checker_compile", "output_cut", "suite_unfit",
})  # fmt: skip


def fault_of(letter: str, reason: str = "") -> Fault:
    """The one at fault for a verdict; empty for a case that passed, or was not needed."""
    if letter in "WECTL":
        return "program"
    if letter == "M":
        return "data" if reason in _DATA else "system"
    return "system" if letter == "S" and reason else ""
