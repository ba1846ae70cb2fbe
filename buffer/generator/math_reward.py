"""A rule for math answers: 1 when the last boxed answer equals the label, else 0.

Compared as text after normalizing LaTeX, then as exact numbers. Where sympy is
installed, expressions that differ only in form are found equal as well.
"""

import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

_DROPPED = re.compile(
    r"\\left|\\right|\\!|\\,|\\;|\\:|\\ |\\\$|\$|\\%|%|\\text\{[^{}]*\}|\s|°"
    r"|\^\\circ|\^\{\\circ\}"
)
_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_FRACTION = re.compile(r"^(-?)\\[dt]?frac\{?(-?[\d.]{1,300})\}?\{?(-?[\d.]{1,300})\}?$")
# As an exact number, 1e9999999999 would take all memory and time there is: a model may write it.
_HUGE = re.compile(r"[eE][-+]?[\d_]{4,}")
# Nor can sympy be given a power of a power: 9^{9^{9}} has 369 million digits.
_TOWER = re.compile(r"\^\{[^{}]*\^|\^\w\^|[)}]\^\{?\w+\}?[)}]+\^|\^\{?\w*\d{5}")
_PATIENCE = 10.0  # seconds for two expressions
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(\D|$))")


def get_rule_based_math_reward(item: dict[str, Any]) -> int:
    """Reward `item["messages"]` by rules, against `item["label"]`."""
    answer = item["messages"][-1]
    if answer["role"] != "assistant":
        raise ValueError(f"the last message must be the assistant's, not {answer['role']!r}")
    found = boxed(answer["content"] or "")
    label = str(item["label"])
    return int(found is not None and _equal(found, boxed(label) or label))


def boxed(text: str) -> str | None:
    """The content of the last \\boxed{…} with its braces balanced, or None."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth, begin = 0, start + len("\\boxed")
    for place in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[begin + 1 : place]
    return None


def _equal(found: str, label: str) -> bool:
    one, other = _normal(found), _normal(label)
    if one == other:
        return True
    first, second = _number(one), _number(other)
    if first is not None and second is not None:
        return first == second
    return _same_expression(one, other)


def _normal(text: str) -> str:
    if not re.search(r"\w", _DROPPED.sub("", text)):  # words alone are an answer, and no unit
        text = _TEXT.sub(r"\1", text)
    text = _DROPPED.sub("", _THOUSANDS.sub("", text)).replace("\\dfrac", "\\frac")
    text = text.replace("\\tfrac", "\\frac").rstrip(".")
    return text.partition("=")[2] if re.match(r"^[a-zA-Z]=", text) else text


def _number(text: str) -> Fraction | None:
    if match := _FRACTION.match(text):
        sign, above, below = match.groups()
        text = f"{sign}{above}/{below}".replace("--", "")
    if _HUGE.search(text):
        return None
    try:
        if "." in text and "/" in text:
            above, _, below = text.partition("/")
            return Fraction(above) / Fraction(below)
        return Fraction(text)
    except (ValueError, ZeroDivisionError):
        return None


def _same_expression(one: str, other: str) -> bool:
    if max(len(one), len(other)) > 200 or re.search(r"[^\w+\-*/^().{}\\]", one + other):
        return False
    if _TOWER.search(one) or _TOWER.search(other):
        return False
    try:
        from sympy.parsing.latex import parse_latex
    except ImportError:
        return False
    try:
        with _ended_after(_PATIENCE):
            return bool((parse_latex(one) - parse_latex(other)).equals(0))
    except Exception:  # noqa: BLE001 - sympy raises all kinds on text that is no expression
        return False


@contextmanager
def _ended_after(seconds: float) -> Iterator[None]:
    """Raise `TimeoutError` in what takes longer. Only a main thread can be interrupted: a
    generator's process has no other that computes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def late(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
