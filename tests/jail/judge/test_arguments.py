"""Arguments that some sandbox could not read are refused, and each is read once."""

import json
import sys

import pytest

from jail.errors import RequestRefused
from jail.judge import arguments, read_cases
from jail.judge.arguments import DEEPEST, arguments_of


def nested(levels: int, *, opening: str = "[", closing: str = "]") -> str:
    return opening * levels + "1" + closing * levels


@pytest.mark.parametrize(
    "given",
    [
        nested(DEEPEST),
        json.dumps([[1, 2]] * 1000),
        json.dumps(nested(1000)),
        json.dumps('\\"' + nested(1000)),
        "9" * 4300,
        "-" + "9" * 4300,
        json.dumps("9" * 5000),
    ],
    ids=["deep", "wide", "text", "quoted text", "long", "negative", "text of digits"],
)
def test_what_every_python_reads_is_an_argument(given: str) -> None:
    assert arguments_of(f"{given}\n2".encode()) == [given.encode(), b"2"]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (nested(DEEPEST + 1), "more than 200 levels"),
        (nested(DEEPEST + 1, opening='{"a":', closing="}"), "more than 200 levels"),
        (nested(100_000), "more than 200 levels"),
        ("9" * 4301, "more than 4300 digits"),
        (f"[-{'9' * 4301}]", "more than 4300 digits"),
    ],
    ids=["deep list", "deep object", "very deep", "long", "long within"],
)
def test_what_another_python_cannot_read_is_refused(given: str, why: str) -> None:
    """Also if this one is set up to read it."""
    usual = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        with pytest.raises(RequestRefused, match=f"case 0 has as an argument .*{why}"):
            read_cases({"inputs": [given], "outputs": ["1"], "fn_name": "f"})
    finally:
        sys.set_int_max_str_digits(usual)


def test_arguments_are_read_once_for_all_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bytes] = []
    check = arguments._check
    monkeypatch.setattr(arguments, "_found", set())
    monkeypatch.setattr(
        arguments, "_check", lambda line, **how: read.append(line) or check(line, **how)
    )
    for _ in range(3):
        assert arguments_of(b"[1]\n2") == [b"[1]", b"2"]
        with pytest.raises(ValueError, match="not JSON"):
            arguments_of(b"[1")
    assert read == [b"[1]", b"2", *[b"[1"] * 3]


def test_what_was_read_is_forgotten_when_it_is_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "_found", set())
    monkeypatch.setattr(arguments, "_MOST", 3)
    for number in range(10):
        arguments_of(str(number).encode())
        assert len(arguments._found) <= 3
