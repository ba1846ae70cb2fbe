"""What is counted is compared with what is noted; over 2% more is said, and ends with 1."""

from itertools import cycle

import pytest
from click.testing import CliRunner, Result

from bench import instructions
from bench.against import Side

NOTED = {"permits client": 200, "permits server": 300}


@pytest.fixture(autouse=True)
def noted(tmp_path, monkeypatch):
    """Two figures of this machine's versions, noted in a folder of the test."""
    monkeypatch.setattr(instructions, "NOTED", tmp_path / "instructions.txt")
    monkeypatch.setattr(instructions, "WORKS", {"permits": "gates"})
    monkeypatch.setattr(instructions.shutil, "which", lambda name: f"/usr/bin/{name}")
    instructions.write(NOTED)


def compared(monkeypatch, *, client: list[float], server: list[float]) -> Result:
    counts = {"client": cycle(client), "server": cycle(server)}
    monkeypatch.setattr(Side, "instructions", lambda _, what, often, who: next(counts[who]))
    return CliRunner().invoke(instructions.main, [])


def test_as_many_as_noted_are_well(monkeypatch) -> None:
    result = compared(monkeypatch, client=[201], server=[290])
    assert result.exit_code == 0, result.output
    assert "0.967 of what is noted" in result.output


def test_what_is_over_is_counted_again_and_the_least_counts(monkeypatch) -> None:
    result = compared(monkeypatch, client=[260, 230, 203], server=[300])
    assert result.exit_code == 0, result.output


def test_a_try_that_missed_most_of_it_passes_nothing(monkeypatch) -> None:
    result = compared(monkeypatch, client=[30, 230, 240], server=[300])
    assert result.exit_code == 1
    assert "says: permits client." in result.output


def test_what_takes_far_less_each_time_is_well(monkeypatch) -> None:
    result = compared(monkeypatch, client=[130, 131, 132], server=[300])
    assert result.exit_code == 0, result.output


def test_over_two_percent_more_is_named_with_what_to_do(monkeypatch) -> None:
    result = compared(monkeypatch, client=[200], server=[320, 310, 330])
    assert result.exit_code == 1
    assert "Over 2% more" in result.output
    assert "says: permits server." in result.output
    assert "--renew" in result.output


def test_figures_of_other_versions_are_not_compared(monkeypatch) -> None:
    words = instructions.NOTED.read_text().splitlines()
    instructions.NOTED.write_text("\n".join(["Valkey 0, Python 2", *words[1:]]))
    result = compared(monkeypatch, client=[], server=[])
    assert result.exit_code == 0
    assert "is of Valkey 0, Python 2" in result.output
    assert "nothing was counted" in result.output
