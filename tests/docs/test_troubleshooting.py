"""troubleshooting.md has every error that we raise, and quotes what is really said."""

import ast
import re
from functools import cache
from pathlib import Path

from tests.architecture.source import PACKAGES, ROOT

PAGE = (ROOT / "docs" / "guide" / "troubleshooting.md").read_text()
ROWS = [
    [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
    for line in PAGE.splitlines()
    if line.startswith("|") and not line.startswith(("|---", "| Message"))
]
# The words of the kernel and of other programs.
NOT_OURS = {
    "unshare: Operation not permitted",
    "No matching distribution found for …",
    "No module named …",
    "Temporary failure in name resolution",
}
LEAST = 7


def test_every_class_of_error_is_explained() -> None:
    named = {name for _, errors, _ in ROWS for name in re.findall(r"`(\w+)`", errors)}
    assert named == error_classes()


def test_what_it_quotes_is_said_somewhere() -> None:
    for said, _, _ in ROWS:
        quoted = [one or other for one, other in re.findall(r"``(.+?)``|`([^`]+)`", said)]
        for words in quoted:
            if words in NOT_OURS or words in error_classes() or words.startswith("penstock "):
                continue
            parts = [part.strip(" :;,`()") for part in re.split("…|: ", words)]
            for part in filter(lambda part: len(part) >= LEAST, parts):
                assert any(part in text for text in texts()), f"nothing says {part!r}"


def test_every_row_says_what_to_do() -> None:
    assert [row for row in ROWS if len(row) != 3 or not row[0] or not row[2].endswith(".")] == []


def sources() -> list[Path]:
    return [file for room in PACKAGES for file in sorted((ROOT / room).rglob("*.py"))]


@cache
def error_classes() -> set[str]:
    """Names of `PenstockError` and all that are made of it."""
    pairs = {
        (node.name, ast.unparse(base).split(".")[-1])
        for file in sources()
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ClassDef)
        for base in node.bases
    }
    found = {"PenstockError"}
    while more := {name for name, base in pairs if base in found} - found:
        found |= more
    return found


@cache
def texts() -> tuple[str, ...]:
    """Every string in the code, with `…` for what is put into it."""
    return tuple(
        text
        for file in sources()
        for node in ast.walk(ast.parse(file.read_text()))
        if (text := as_text(node))
    )


def as_text(node: ast.AST) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(as_text(value) or "…" for value in values)
    return ""
