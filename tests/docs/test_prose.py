"""The README and docs/ are written in plain English, as far as `prose.py` can tell."""

import ast
import inspect
import re
from collections.abc import Iterator

import click

from penstock.cli import command
from tests.architecture.source import PACKAGES, ROOT
from tests.docs.prose import blocks, faults

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
LEVELS = {"debug", "info", "warning", "error", "exception"}
GUIDES = [page for page in PAGES if page.parent.name == "guide"]


def test_each_page_is_in_plain_english() -> None:
    found = {page.relative_to(ROOT).as_posix(): faults(page.read_text()) for page in PAGES}
    assert {page: wrong for page, wrong in found.items() if wrong} == {}


def test_the_changes_of_the_next_version_are_in_plain_english() -> None:
    """Those of earlier versions stay as they were."""
    _, marked, changes = (ROOT / "CHANGELOG.md").read_text().partition("\n## Unreleased")
    assert faults(marked + changes.partition("\n## ")[0]) == []


def test_each_guide_begins_with_what_its_reader_gets_done() -> None:
    wrong = []
    for page in GUIDES:
        title, first, *_ = blocks(page.read_text())
        ends = first.text.endswith((".", ":"))
        if (title.line, first.line, bool(first.cell), ends) != (1, 3, False, True):
            wrong.append(page.stem)
    assert wrong == []


DOCUMENTED = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def test_docstrings_are_in_plain_english() -> None:
    found = {place: faults(_as_a_page(docstring)) for place, docstring in _docstrings()}
    assert len(found) > 3000
    assert {place: wrong for place, wrong in found.items() if wrong} == {}


def _docstrings() -> Iterator[tuple[str, str]]:
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, DOCUMENTED) and (docstring := ast.get_docstring(node)):
                    line = getattr(node, "lineno", 1)
                    yield f"{file.relative_to(ROOT)}:{line}", docstring


NO_SUBJECT = re.compile(
    r"(What|Who|One|Where|Why|Whose|Which|Until|Since|To|Into|Around|Of|By|As|Its?|Those|Also|Else|Not|So"
    r"|With|Without|Behind|The same|Returns|Raises|In|On|At|From|For|That|Is|Has|May|Takes|Gives)\b"
)


def test_a_docstring_begins_with_what_it_speaks_of() -> None:
    """A reader comes to it from anywhere, so "Of a session" or "What it has" says too little."""
    assert [place for place, docstring in _docstrings() if NO_SUBJECT.match(docstring)] == []


def test_the_help_of_every_command_is_in_plain_english() -> None:
    said = dict(_helps(command, "penstock"))
    assert len(said) > 25
    assert {path: found for path, text in said.items() if (found := faults(text))} == {}


def _helps(found: click.Command, path: str) -> Iterator[tuple[str, str]]:
    """Sentences and options; examples are lines of their own."""
    epilog = [line for line in (found.epilog or "").splitlines() if not line.startswith("  ")]
    options = [each.help or "" for each in found.params if isinstance(each, click.Option)]
    yield path, "\n\n".join([found.help or "", *options, "\n".join(epilog)]).replace("\b", "")
    if isinstance(found, click.Group):
        context = click.Context(found)
        for name in found.list_commands(context):
            if inner := found.get_command(context, name):
                yield from _helps(inner, f"{path} {name}")


def test_logs_and_errors_are_in_plain_english() -> None:
    said = [*_messages()]
    assert len(said) > 500
    found = {f"{place}: {fault}" for place, text in said for fault in faults(text)}
    assert found == set()


def _messages() -> Iterator[tuple[str, str]]:
    """What is logged, and what an error says. Before a remedy a semicolon is an end too."""
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text())):
                if text := _words_of(_message_in(node)):
                    sentences = re.sub(r"%[-+.\d]*[sdrfg]", "X", text).replace(";", ".")
                    yield f"{file.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}", sentences


def _message_in(node: ast.AST) -> ast.expr | None:
    match node:
        case ast.Call(func=ast.Attribute(attr=level), args=[text, *_]) if level in LEVELS:
            return text
        case ast.Raise(exc=ast.Call(args=[*_, text])):
            return text
    return None


def _words_of(node: ast.expr | None) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(_words_of(value) or "X" for value in values)
    return ""


def _as_a_page(docstring: str) -> str:
    """A table of arguments, `name   what it is`, becomes a list."""
    return re.sub(r"^\S.*?\S {2,}(?=\S)", "- ", inspect.cleandoc(docstring), flags=re.MULTILINE)


def test_what_is_too_long_is_found_with_its_line() -> None:
    long = " ".join(["word"] * 23)
    assert faults(f"# Title\n\nShort. {long.capitalize()}.\n") == [
        f"3: a sentence of 23 words: {long.capitalize()}."
    ]
    assert len(faults(f"| a | {long} |\n|---|---|\n")) == 2
    assert "a paragraph of 4.2 lines" in faults("Five words are in this. " * 21)[0]
    assert faults(f"- {'One thing. ' * 30}\n- {'Another. ' * 30}\n") == []


def test_code_and_comments_are_not_read() -> None:
    assert faults("```text\nwhoever mends it\n```\n<!-- told -->\n`for ever` and so on.\n") == []


def test_words_that_nobody_says_are_found() -> None:
    assert faults("Whoever\nmends it.") == [
        "1: 'Whoever'; say: anyone who, everyone who",
        "1: 'mends'; say: fix, repair",
    ]
    assert faults("It makes 40 jobs a second.") == ["1: '40 jobs a second'; say: per"]
