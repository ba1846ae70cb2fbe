"""Whose fault it is that a case has not passed."""

import pytest

from jail.judge.fault import fault_of
from jail.judge.models import VERDICTS, JudgeResult


@pytest.mark.parametrize(
    ("letter", "reason", "fault"),
    [
        ("P", "", ""), ("S", "", ""), ("S", "total_seconds", "system"),
        ("M", "jail_lost", "system"), ("M", "suite_missing", "system"), ("M", "", "system"),
        ("M", "checker_error", "data"), ("M", "checker_timeout", "data"),
        ("M", "checker_compile", "data"), ("M", "output_cut", "data"),
    ],
)  # fmt: skip
def test_what_has_no_verdict_is_the_datas_or_the_systems(
    letter: str, reason: str, fault: str
) -> None:
    assert fault_of(letter, reason) == fault


def test_a_verdict_is_the_programs() -> None:
    assert {fault_of(letter, "any") for letter in set(VERDICTS) - set("PMS")} == {"program"}


def test_a_result_says_it_of_each_case_and_of_its_mask() -> None:
    result = JudgeResult(verdicts="PWMM", reasons={2: "checker_error"}, error_reason="jail_lost")
    assert [result.fault(at) for at in range(4)] == ["", "program", "data", "system"]
    assert result.fault_of_mask == "data"
    assert JudgeResult(verdicts="PW").fault_of_mask == ""
