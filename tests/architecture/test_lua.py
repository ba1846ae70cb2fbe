"""Lua lives in .lua files, and each says truly what it takes and gives."""

import ast
import re

from ground.lua import load_script
from tests.architecture.source import (
    FORMS,
    ROOT,
    docstrings,
    modules,
    name_of,
    scripts,
    tree,
)

HEADER = re.compile(r"^-- (KEYS|ARGV|REPLY) ", re.MULTILINE)
BOUND = re.compile(r"^local ([A-Z][A-Z0-9_]*) = (?:KEYS|ARGV)\[\d+\]$", re.MULTILINE)
BY_NUMBER = re.compile(r"\b(?:KEYS|ARGV)\[\d")
SHARED = {"SESSIONS"}  # a sandbox registry gives all its keys to each of its scripts


def is_called(file) -> bool:
    return "-- REPLY" in file.read_text()


CALLED = [file for file in scripts() if is_called(file)]
INCLUDED = [file for file in scripts() if not is_called(file)]


def forms_of(file):
    """A script in each form that it has."""
    package = ".".join(file.relative_to(ROOT).parts[:-2])
    return {s.sha: s for s in (load_script(package, file.stem, *form) for form in FORMS)}.values()


LOADED = [script for file in CALLED for script in forms_of(file)]
TEXTS = [file.read_text() for file in scripts()]


def test_each_script_names_its_keys_arguments_and_reply() -> None:
    """And its first line says what it does."""
    wrong = [
        name_of(file)
        for file in CALLED
        if not (text := file.read_text()).startswith(f"-- {file.name}: ")
        or HEADER.findall(text) != ["KEYS", "ARGV", "REPLY"]
    ]
    assert wrong == []


def test_each_script_uses_what_its_header_names() -> None:
    unused = [
        f"{script.name}: {name}"
        for script, code in ((script, _code(script.source)) for script in LOADED)
        for name in set(BOUND.findall(code)) - SHARED
        if len(re.findall(rf"\b{name}\b", code)) < 2
    ]
    assert unused == []


def test_each_script_reads_its_keys_and_arguments_by_name() -> None:
    """And it has a fixed number of keys."""
    codes = {name_of(file): _code(file.read_text()) for file in scripts()}
    assert [name for name, code in codes.items() if BY_NUMBER.search(code) or "#KEYS" in code] == []


def test_each_script_stays_below_what_lua_allows() -> None:
    """200 locals in one function: the script itself."""
    named = re.compile(r"^local (?:function \w+|([\w, ]+))", re.MULTILINE)
    counts = {
        script.name: sum(names.count(",") + 1 for names in named.findall(_code(script.source)))
        for script in LOADED
    }
    assert {name: count for name, count in counts.items() if count >= 150} == {}


def test_each_file_that_is_no_script_is_included_by_one() -> None:
    wrong = [
        name_of(file)
        for file in INCLUDED
        if not file.read_text().startswith(f"-- {file.name}: ")
        or not any(
            re.search(rf"^-- include: (?:\S+ or |[\w.]+:)?{file.name}\b", text, re.MULTILINE)
            for text in TEXTS
        )
    ]
    assert wrong == []


def test_each_form_that_a_line_names_is_one_that_is_loaded() -> None:
    """A line of any other form is in no script, and nothing says so."""
    named = re.compile(r"^.* if (\w+)$", re.MULTILINE)
    of_form = re.compile(r"^-- include: .*|.*\S -- if \w+$", re.MULTILINE)
    texts = {name_of(file): "\n".join(of_form.findall(file.read_text())) for file in scripts()}
    found = {(name, form) for name, text in texts.items() for form in named.findall(text)}
    assert len(found) > 10, "the lines of a form are not where they are looked for"
    assert {
        each for each in found if each[1] not in {form for forms in FORMS for form in forms}
    } == set()


def test_each_script_runs_everywhere() -> None:
    """On every server, and on fakeredis."""
    absent = ("cmsgpack", "struct.", "bit.", "os.", "math.random", "redis.setresp")
    codes = {name_of(file): _code(file.read_text()) for file in scripts()}
    assert [(name, word) for name, code in codes.items() for word in absent if word in code] == []


def test_the_clock_is_read_at_most_once_a_script() -> None:
    read = re.compile(r"""call\(['"]TIME['"]\)""")
    assert [each.name for each in LOADED if len(read.findall(_code(each.source))) > 1] == []


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
