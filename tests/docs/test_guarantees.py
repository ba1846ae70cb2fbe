"""Every cell of the page of guarantees is filled, and names a test that exists and is run."""

import re
from collections.abc import Iterator

import pytest

from tests.architecture.source import ROOT

PAGE = (ROOT / "docs" / "reference" / "guarantees.md").read_text()
OBJECTS = ["Permit", "Job", "Result", "Group", "Slot", "Batch", "Session sandbox"]
EVENTS = [
    "Process killed", "Process frozen", "Redis restarted", "Last second lost", "Failover",
    "Network cut",
]  # fmt: skip
FACTS = ["Event", "Delivery", "Duplicates", "Loss", "Time to recover", "Shown by"]
NOT_SHOWN = "not shown"


def rows(text: str) -> list[list[str]]:
    found = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in found]
    return [row for row in cells if not set("".join(row)) <= set(":-")]


def section(name: str) -> list[list[str]]:
    return rows(PAGE.partition(f"\n## {name}\n")[2].partition("\n## ")[0])


def cells() -> Iterator[tuple[str, str, list[str]]]:
    for name in OBJECTS:
        for row in section(name)[1:]:
            yield name, row[0], row[1:]


def defined() -> dict[str, str]:
    """Each test with the lines above it, which mark it."""
    texts = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py")]
    found = (re.findall(r"((?:^@.*\n(?:^[ )].*\n)*)*)^(?:async )?def (test_\w+)", text, re.M)
             for text in texts)  # fmt: skip
    return {name: marks for file in found for marks, name in file}


def test_the_matrix_has_every_object_and_every_event() -> None:
    first, *matrix = rows(PAGE.partition("\n## ")[0])
    assert first[1:] == EVENTS
    assert [re.sub(r"\[(.*?)\].*", r"\1", row[0]) for row in matrix] == OBJECTS
    assert all(all(row) and len(row) == len(EVENTS) + 1 for row in matrix)


@pytest.mark.parametrize("name", OBJECTS)
def test_an_object_has_a_row_for_every_event_and_every_cell_is_filled(name: str) -> None:
    header, *table = section(name)
    assert header == FACTS
    assert [row[0] for row in table] == EVENTS
    assert [cell for row in table for cell in row if not cell] == []


def test_every_row_names_tests_that_exist_or_says_that_it_is_not_shown() -> None:
    known = defined()
    for name, event, (*_, shown) in cells():
        tests = re.findall(r"`(test_\w+)`", shown)
        assert tests or shown == NOT_SHOWN, f"{name}, {event}: {shown}"
        assert [test for test in tests if test not in known] == [], f"{name}, {event}"


def test_what_shows_a_guarantee_is_not_left_to_the_long_run_alone() -> None:
    known = defined()
    for name, event, (*_, shown) in cells():
        marks = [known[test] for test in re.findall(r"`(test_\w+)`", shown)]
        quick = [each for each in marks if "@pytest.mark.soak\n" not in each]
        assert quick or shown == NOT_SHOWN, f"{name}, {event}"
