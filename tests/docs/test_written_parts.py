"""What is written from the code into the docs is what the code says today."""

import ast
import code
import importlib
import inspect
import json
import re
import tomllib
from html import unescape
from pathlib import Path

import pytest

from docs.tools import (
    architecture,
    measured,
    processes,
    python_api,
    quoted,
    reference,
    sharing,
    trace,
    workloads,
)
from penstock.demo.command import summary
from penstock.demo.record import Outcome
from penstock.doctor import packages
from penstock.doctor import redis as doctor_redis
from tests.architecture.source import PACKAGES, ROOT
from tests.fleets import table

# Packages that export names to Penstock's other packages only.
NOT_FOR_USERS = {"worker.sandbox", "jail.serve"}
EARLIER_NAMES = {
    "worker.images", "worker.judge",
    "worker.sandbox.local", "worker.sandbox.serve", "worker.sandbox.sessions",
}  # fmt: skip
README = (ROOT / "README.md").read_text()
WORKS_WITH = (ROOT / "docs" / "reference" / "works-with.md").read_text()


def test_the_references_are_what_the_code_says() -> None:
    for name, text in reference.documents().items():
        assert (ROOT / "docs" / "reference" / name).read_text() == text, (
            f"docs/reference/{name}: run `make docs`"
        )


def test_the_pages_of_benchmarks_are_what_was_measured() -> None:
    pages = {page: page.read_text() for page in measured.PAGES}
    for page, text in pages.items():
        assert measured.updated(text) == text, f"{page.name}: run `make docs`"
    assert workloads.PICTURE.read_text() == workloads.drawn(), "run `make docs`"
    assert sharing.PICTURE.read_text() == sharing.drawn(), "run `make docs`"
    assert trace.PICTURE.read_text() == trace.drawn(), "run `make docs`"
    reports = {report.stem for report in measured.FIGURES.glob("*.json")}
    shown = "".join(pages.values())
    assert {suite for suite in reports if f"<!-- figures: {suite} -->" not in shown} == set()


def test_targets_are_ratios_of_one_run_or_counts() -> None:
    for report in measured.FIGURES.glob("*.json"):
        for target in json.loads(report.read_text())["targets"]:
            counted = re.search(
                r"calls per permit|ok %|peak|false zeros|error of the mean|MB$|goodput|refused %|"
                r"to settle|largest error|forks more %",
                target["what"],
            )
            assert " vs " in target["what"] or counted, target["what"]


def test_the_prose_of_the_benchmarks_quotes_no_figure() -> None:
    page = (ROOT / "docs" / "inside" / "benchmarks.md").read_text()
    written = r"<!-- (\w+): .*?<!-- /\1 -->|<!-- \w+: [^>]+ -->[^<]*<!-- / -->|^```.*?^```"
    prose = re.sub(written, "", page, flags=re.M | re.S)
    assert set(re.findall(r"\d[\d.,]*\d|\d", prose)) == {
        "2",
        "9.1",
        "1",
    }  # cores, Valkey, "below 1"


def test_the_picture_of_the_architecture_is_what_the_imports_are() -> None:
    assert architecture.PICTURE.read_text() == architecture.drawn(), "run `make docs`"
    assert set(architecture.PACKAGES) == set(PACKAGES)


def test_the_picture_of_processes_is_what_the_commands_say() -> None:
    assert processes.PICTURE.read_text() == processes.drawn(), "run `make docs`"
    assert "prefers-color-scheme: dark" in processes.drawn()


@pytest.mark.parametrize("page", quoted.PAGES, ids=lambda page: page.stem)
def test_the_figures_that_a_page_quotes_are_what_was_measured(page: Path) -> None:
    assert quoted.updated(page.read_text()) == page.read_text(), "run `make docs`"


def test_the_pages_quote_every_number_that_is_kept() -> None:
    pages = "".join(page.read_text() for page in quoted.PAGES)
    assert {name for name in quoted.TABLES if f"<!-- costs: {name} -->" not in pages} == set()
    assert "<!-- kept: killed scripted kills -->" in pages


def test_the_readme_is_short_and_has_no_marks_in_a_terminal() -> None:
    prose = re.sub(r"^```.*?^```$", "", README, flags=re.MULTILINE | re.DOTALL)
    assert len(re.sub(r"\]\([^)]*\)", "]", prose).split()) <= 600
    assert len(re.findall(r"(?<!!)\[[^\]]*\]\(", prose)) <= 20
    assert "<!--" not in README


def test_the_programs_of_the_readme_can_be_pasted_into_python() -> None:
    """Line by line, as a terminal gives them: a block ends with an empty line."""
    programs = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    assert len(programs) == 2
    for program in programs:
        waiting: list[str] = []
        for line in program.splitlines():
            waiting.append(line)
            if code.compile_command("\n".join(waiting)) is not None:  # raises, as Python would
                waiting.clear()
        assert waiting == []


def test_every_route_of_a_service_says_what_it_is_for() -> None:
    assert "/api/events" in reference.documents()["http.md"]
    assert "| POST | `/v1/messages` |" in reference.documents()["http.md"]
    of_all = ("livez", "healthz", "metrics")
    rows = re.findall(
        r"^\| (?:GET|POST) \| `/(.*)` \| (.*) \|$", reference.documents()["http.md"], re.M
    )
    assert [row for row in rows if row[0] not in of_all and row[1][-1:] != "."] == []
    assert "PENSTOCK_REDIS_URL" in reference.documents()["settings.md"]
    assert reference.documents()["http.md"].count("| GET | `/healthz` |") == 4
    assert reference.documents()["http.md"].count("| GET | `/metrics` |") == 4
    figures = {name for name, *_ in reference.metrics()}
    assert figures > {"penstock_gate_in_flight", "penstock_buffer_outstanding_ready"}


def test_the_picture_shows_the_demo_of_today() -> None:
    picture = unescape((ROOT / "docs" / "pictures" / "demo.svg").read_text()).replace("\xa0", " ")
    # A busy machine runs two programs again, and the line says so.
    for one, more in zip(_told_by_the_demo(1), _told_by_the_demo(2), strict=True):
        assert one in picture or more in picture, "run `make docs`"


def _told_by_the_demo(repeated: int) -> list[str]:
    """The longest words of each line, between its numbers."""
    numbers = dict.fromkeys(Outcome.__dataclass_fields__, 1)
    outcome = Outcome(**numbers | {"server": "", "killed": -9, "repeated": repeated})
    return [max(re.split(r"[\d.]+", str(words)), key=len).strip()
            for words in summary(outcome).columns[1].cells]  # fmt: skip


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    names = {re.split(r"[\[>=;]", line)[0] for group in groups for line in group}
    names -= {project["name"]}  # an extra in another extra
    decisions = (ROOT / "docs" / "inside" / "decisions.md").read_text()
    assert [name for name in sorted(names) if f"| `{name}` |" not in decisions] == []


def test_the_ranges_that_were_tested_are_stated() -> None:
    for name, version in packages.TESTED.items():
        assert re.search(rf"\| {name}(-py)? .*\b{re.escape(version)}\b", WORKS_WITH, re.I), name
    for name, release in doctor_redis.TESTED.items():
        assert re.search(rf"\| {name} .*\b{'.'.join(map(str, release))}\b", WORKS_WITH), name


def test_the_lower_bounds_are_stated() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for line in project["dependencies"]:
        if found := re.fullmatch(r"(redis|rq)>=(.*)", line):
            assert re.search(rf"\| {found[1]}(-py)? \| {re.escape(found[2])} ", WORKS_WITH, re.I)


def test_the_python_reference_has_every_public_name_with_its_signature() -> None:
    page = python_api.page()
    shown = re.findall(r"^### ([\w.]+)\n\n```pyi\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    blocks = dict(shown)
    assert len(blocks) == len(shown)
    for package in ("worker", "jail", "limiter", "buffer"):
        module = importlib.import_module(package)
        assert {f"{package}.{name}" for name in module.__all__} <= blocks.keys()
    for name, block in blocks.items():
        ast.parse(block)  # as any checker of types would read it
        package, _, own = name.rpartition(".")
        value = getattr(importlib.import_module(package), own)
        members = vars(value) if inspect.isclass(value) else {own: value}
        for member, found in members.items():
            if inspect.isfunction(found) and not member.startswith("_"):
                assert f"def {member}(" in block, name
                assert all(word in block for word in inspect.signature(found).parameters), name


def test_a_new_package_with_public_names_is_in_the_python_reference() -> None:
    exporting = {
        ".".join(file.parent.relative_to(ROOT).parts)
        for package in ("worker", "jail", "limiter", "buffer")
        for file in (ROOT / package).rglob("__init__.py")
        if "__all__" in file.read_text()
    }
    assert exporting - python_api.PACKAGES.keys() == NOT_FOR_USERS | EARLIER_NAMES


def test_the_page_of_broken_fleets_has_every_fleet_of_the_suite_and_no_other() -> None:
    assert len(table.fleets()) > 50
    assert table.written() == table.fleets()
