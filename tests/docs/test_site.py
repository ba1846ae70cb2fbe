"""The site: every page is in its margin, it is built without a warning, and loads nothing."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from docs.site import pages
from tests.architecture.source import ROOT
from tests.harness.browser import Browser

pytestmark = pytest.mark.timeout(600)  # a busy machine is no finding

# What a browser fetches by itself. A link that a reader follows is none.
FETCHED = re.compile(
    r"<(?:script|img|iframe|source)[^>]*\bsrc=[\"']?(?:https?:)?//"
    r"|<link[^>]*\brel=[\"']?(?:stylesheet|preload|icon)[^>]*\bhref=[\"']?(?:https?:)?//"
    r"|@import|url\([\"']?(?:https?:)?//"
)


def test_every_page_is_in_the_margin_once() -> None:
    listed = [name for _, names in pages.navigation() for name in names]
    assert [name for name, count in Counter(listed).items() if count > 1] == []
    index = {"README.md", "docs/README.md"}
    made = {pages.COMMAND.as_posix(), pages.API.as_posix()}
    assert set(listed) == {p.relative_to(ROOT).as_posix() for p in pages.pages()} - index | made


def test_the_margin_has_the_captions_of_the_index() -> None:
    captions = [caption for caption, _ in pages.navigation()]
    assert captions[0] == "Begin"
    assert {"Train", "Run and judge programs", "Operate", "Reference", "Inside"} <= set(captions)


def test_a_link_in_a_block_is_left_as_it_is(tmp_path: Path) -> None:
    pages.lay_out(tmp_path / "source")
    index = (tmp_path / "source" / "index.md").read_text()
    assert "(docs/README.md)" in index
    guide = (tmp_path / "source" / "docs" / "guide" / "sessions.md").read_text()
    assert f"(../../{pages.API}#jailsessions)" in guide, "a package's part of the API"
    assert "{toctree}" in index
    for page in (tmp_path / "source").rglob("*.md"):
        assert "{toctree}" not in page.read_text() or page.name == "index.md"


def build(folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "docs.site", folder / "html", *options],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip


FIRST = {
    "why is nothing running": "Find out why nothing runs",
    "redis is full": "Make room in a full Redis",
    "TRL": "Train with TRL",
    "autoscaling": "Run on Kubernetes",
}


def found_first(browser: Browser, site: Path, question: str) -> str:
    page = browser.open(f"file://{site}/search.html?q={question.replace(' ', '+')}")
    said = "document.querySelector('.search-summary')?.innerText || ''"
    page.until(said, lambda text: "found" in text)
    title: str = page.run("document.querySelector('#search-results li > a').innerText")
    return title


def test_the_site_loads_nothing_from_elsewhere_is_searched_and_names_each_public_name(
    tmp_path: Path,
) -> None:
    """One test, because a build takes twenty seconds of a processor."""
    built, site = build(tmp_path), tmp_path / "html"
    assert built.returncode == 0, built.stderr
    assert built.stderr.splitlines() == [f"{site}/index.html"]

    files = [file for kind in ("*.html", "*.css") for file in site.rglob(kind)]
    assert len(files) > 40
    assert [file for file in files if FETCHED.search(file.read_text())] == []

    with Browser() as browser:
        first = {question: found_first(browser, site, question) for question in FIRST}
    assert first == FIRST
    assert '"docs/guide/kubernetes"' in (site / "searchindex.js").read_text()
    assert "theme-toggle" in (site / "index.html").read_text()
    api = (site / "docs" / "reference" / "python.html").read_text()
    assert re.search(r'id="workercodequeue"|id="worker-codequeue"', api)


@pytest.mark.parametrize("link", ["guide/nowhere.md", "guide/gates.md#nowhere"])
def test_a_broken_link_ends_the_build(tmp_path: Path, link: str) -> None:
    source = tmp_path / "source"
    (source / "guide").mkdir(parents=True)
    (source / "index.md").write_text(
        f"# A\n\n[b]({link})\n\n```{{toctree}}\n:hidden:\nguide/gates\n```\n"
    )
    (source / "guide" / "gates.md").write_text("# Gates\n")
    broken = build(tmp_path, "--source", str(source))
    assert broken.returncode == 1
    assert "nowhere" in broken.stderr
