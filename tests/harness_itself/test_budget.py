"""The budget of the tests' processor time: over it, they fail and say what grew."""

import sys
from pathlib import Path

import pytest

from tests.harness import budget


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(budget, "KEPT", tmp_path / ".ci" / "durations.txt")


def judged(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["budget", *words])
    return budget.main()


def took(**seconds: float) -> None:
    """A run on a machine whose loop takes a fiftieth of a second, so that a unit is a second."""
    each = {f"tests/test_a.py::{name}[{n}]": seconds[name] / 2 for name in seconds for n in "ab"}
    budget.note(each, 5.0, [0.02, 0.03, 0.01])


def set_to(units: float) -> None:
    was = budget.KEPT.read_text()
    budget.KEPT.write_text(was.replace(was.splitlines()[0], f"{units} 1 budget"))


def test_a_run_within_the_budget_passes(monkeypatch, capsys) -> None:
    took(first=2, second=4)
    assert judged(monkeypatch, "--renew") == 0
    set_to(12)
    assert judged(monkeypatch) == 0
    assert "took 11 units of processor time, of 12 in" in capsys.readouterr().out


def test_a_run_over_the_budget_fails_and_names_what_grew_most(monkeypatch, capsys) -> None:
    took(first=2, second=4)
    judged(monkeypatch, "--renew")
    set_to(12)
    took(first=2.5, second=4, third=3)
    assert judged(monkeypatch) == 1
    _, grew = capsys.readouterr().out.split("in units:\n")
    assert [line.split() for line in grew.splitlines()[:2]] == [
        ["+3.0", "tests/test_a.py::third"],
        ["+0.5", "tests/test_a.py::first"],
    ]


def test_a_dear_test_without_a_row_is_named_with_what_to_do(monkeypatch, capsys) -> None:
    took(first=2)
    judged(monkeypatch, "--renew")
    set_to(12)
    took(first=2, new=1, cheap=0.2)
    assert judged(monkeypatch) == 0
    _, what, remedy, *named = capsys.readouterr().out.splitlines()
    assert what.endswith("without a row there, which run at each commit: 1.")
    assert remedy.endswith("python -m tests.harness.budget --add")
    assert [line.split() for line in named] == [["0.50", "tests/test_a.py::new"]]
    judged(monkeypatch, "--add")
    assert judged(monkeypatch) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_a_slower_machine_takes_as_many_units(monkeypatch, capsys) -> None:
    took(first=2)
    judged(monkeypatch, "--renew")
    set_to(7.5)
    budget.note({"tests/test_a.py::first": 4.0}, 10.0, [0.04])
    assert judged(monkeypatch) == 0


def test_what_is_renewed_keeps_its_budget(monkeypatch) -> None:
    took(first=2)
    judged(monkeypatch, "--renew")
    set_to(540)
    took(first=3, second=1)
    judged(monkeypatch, "--renew")
    rows = [line.split(maxsplit=2) for line in budget.KEPT.read_text().splitlines()]
    assert rows[0] == ["540.00", "1", "budget"]
    assert ["1.50", "2", "tests/test_a.py::first"] in rows


def test_what_is_added_leaves_what_is_known(monkeypatch) -> None:
    took(first=2)
    judged(monkeypatch, "--renew")
    took(first=3, second=1)
    judged(monkeypatch, "--add")
    rows = [line.split(maxsplit=2)[::2] for line in budget.KEPT.read_text().splitlines()]
    assert ["1.00", "tests/test_a.py::first"] in rows
    assert ["0.50", "tests/test_a.py::second"] in rows
