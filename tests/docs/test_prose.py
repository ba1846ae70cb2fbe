"""The README and docs/ are written in plain English, as far as `prose.py` can tell."""

import inspect
import re
from pathlib import Path

import pytest

from tests.architecture.source import ROOT
from tests.docs.prose import blocks, faults

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
GUIDES = [page for page in PAGES if page.parent.name == "guide"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_is_in_plain_english(page: Path) -> None:
    assert faults(page.read_text()) == []


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_a_guide_begins_with_what_its_reader_gets_done(page: Path) -> None:
    title, first, *_ = blocks(page.read_text())
    assert title.line == 1
    assert not first.cell
    assert first.line == 3
    assert first.text.endswith((".", ":"))


def test_the_docstrings_of_public_names_are_in_plain_english() -> None:
    page = (ROOT / "docs" / "reference" / "python.md").read_text()
    said = re.findall(r'^ *"""(.*?)"""', page, re.MULTILINE | re.DOTALL)
    assert len(said) > 200
    assert [fault for docstring in said for fault in faults(_as_a_page(docstring))] == []


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
