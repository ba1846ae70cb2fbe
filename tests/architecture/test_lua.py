"""Lua lives in .lua files, and each says truly what it takes and gives."""

import ast
import re

import pytest

from ground import load_script
from tests.architecture.source import (
    PACKAGES,
    ROOT,
    docstrings,
    modules,
    name_of,
    scripts,
    tree,
)

HEADER = re.compile(r"^-- (KEYS|ARGV|REPLY) ", re.MULTILINE)
USED = re.compile(r"KEYS\[(\d+)\]")


def is_called(file) -> bool:
    return "-- KEYS" in file.read_text()


CALLED = [file for file in scripts() if is_called(file)]
INCLUDED = [file for file in scripts() if not is_called(file)]


@pytest.mark.parametrize("file", CALLED, ids=name_of)
def test_a_script_names_its_keys_arguments_and_reply(file) -> None:
    text = file.read_text()
    assert text.startswith(f"-- {file.name}: "), "the first line says what it does"
    assert HEADER.findall(text) == ["KEYS", "ARGV", "REPLY"]


@pytest.mark.parametrize("file", CALLED, ids=name_of)
def test_a_script_uses_exactly_the_keys_it_names(file) -> None:
    package = ".".join(file.relative_to(ROOT).parts[:-2])
    script = load_script(package, file.stem)
    assert "#KEYS" not in script.source, "a script has a fixed number of keys"
    used = {int(number) for number in USED.findall(_code(script.source))}
    assert used == set(range(1, len(script.keys) + 1))


@pytest.mark.parametrize("file", INCLUDED, ids=name_of)
def test_what_is_not_a_script_is_included_by_one(file) -> None:
    line = f"-- include: {file.name}"
    assert any(line in other.read_text().splitlines() for other in file.parent.glob("*.lua"))
    assert file.read_text().startswith(f"-- {file.name}: ")


@pytest.mark.parametrize("file", scripts(), ids=name_of)
def test_a_script_runs_everywhere(file) -> None:
    code = _code(file.read_text())
    for absent in ("cmsgpack", "struct.", "bit.", "os.", "math.random", "redis.setresp"):
        assert absent not in code, f"{absent} is not on every server, or not on fakeredis"


@pytest.mark.parametrize("package", PACKAGES)
def test_the_clock_is_read_once_a_script(package: str) -> None:
    for file in CALLED:
        if file.is_relative_to(ROOT / package):
            owner = ".".join(file.relative_to(ROOT).parts[:-2])
            code = _code(load_script(owner, file.stem).source)
            assert len(re.findall(r"""redis\.call\(['"]TIME['"]\)""", code)) <= 1, name_of(file)


def test_no_lua_hides_in_python() -> None:
    found = []
    for file in modules():
        parsed = tree(file)
        documented = docstrings(parsed)
        found += [
            f"{name_of(file)}:{node.lineno}"
            for node in ast.walk(parsed)
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in documented
            and "redis.call" in node.value
        ]
    assert found == []


def _code(text: str) -> str:
    """Without comments."""
    return re.sub(r"--.*", "", text)
