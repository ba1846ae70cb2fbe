"""Relative links lead to files and headings that exist; so do the names of tests."""

import re
from pathlib import Path

from tests.architecture.source import PACKAGES

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def test_links_lead_somewhere() -> None:
    wrong = [
        f"{document.relative_to(ROOT)}: {link}"
        for document in DOCUMENTS
        for link in LINK.findall(_prose(document))
        if not _leads(document, link)
    ]
    assert wrong == []


def test_the_readme_leads_to_the_index_and_the_other_pages_beside_it() -> None:
    readme = ROOT / "README.md"
    assert {ROOT / "docs" / "README.md", *ROOT.glob("*.md")} - {readme} <= _linked(readme)


def test_the_index_of_docs_leads_to_every_document_in_it() -> None:
    index = ROOT / "docs" / "README.md"
    assert set(index.parent.rglob("*.md")) - {index} <= _linked(index)


def test_every_test_that_a_page_names_exists() -> None:
    files = [path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)]
    defined = set(re.findall(r"^(?:async )?def (test_\w+)", _all(files), re.MULTILINE))
    prose = re.sub(r"^```.*?^```$", "", _all(DOCUMENTS), flags=re.MULTILINE | re.DOTALL)
    named = set(re.findall(r"`(test_\w+)`", prose))
    assert len(named) > 30
    assert named - defined == set()
    paths = set(re.findall(r"`(tests/[\w/]+\.py)`", _all(DOCUMENTS)))
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_file_that_the_internals_name_exists() -> None:
    named = re.findall(
        r"`((?:ground|limiter|jail|worker|buffer|penstock)/[\w/.]+)`",
        (ROOT / "docs" / "inside" / "internals.md").read_text(),
    )
    assert len(named) > 60
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_every_page_that_the_code_names_exists() -> None:
    places = [*PACKAGES, "bench", "examples", "tests"]
    files = [path for place in places for path in (ROOT / place).rglob("*.py")]
    files += [ROOT / name for name in ("Makefile", "Dockerfile", "compose.yaml", "pyproject.toml")]
    named = set(re.findall(r"\bdocs/[\w/-]+\.md\b", _all(files)))
    assert len(named) > 10
    assert [page for page in sorted(named) if not (ROOT / page).exists()] == []


def _all(files: list[Path]) -> str:
    return "\n".join(path.read_text() for path in files)


def _linked(document: Path) -> set[Path]:
    links = [link.partition("#")[0] for link in LINK.findall(_prose(document)) if ":" not in link]
    return {(document.parent / link).resolve() for link in links}


def _leads(document: Path, link: str) -> bool:
    if link.startswith(("http://", "https://")):
        return True
    path, _, anchor = link.partition("#")
    target = (document.parent / path).resolve() if path else document
    if not (target.exists() and target.is_relative_to(ROOT)):
        return False
    return not anchor or anchor in _anchors(target)


def _anchors(document: Path) -> set[str]:
    """As GitHub makes them."""
    headings = re.findall(
        r"^#+ +(.*)$", re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.M | re.S), re.M
    )
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings
    }


def _prose(document: Path) -> str:
    return CODE.sub("", document.read_text())
