"""A request says what the data set says, and its caller hears of what no program is to print."""

import logging
from unittest.mock import Mock

import pytest

from jail.judge import asking
from jail.judge.asking import INLINE, cases_of, queued_request, request_here
from jail.judge.models import Compare, JudgeCase


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    asking._warn_of_blanks.cache_clear()
    caplog.set_level(logging.WARNING, "penstock.judge")
    return caplog


@pytest.mark.parametrize("expected", ["1 2 \n", "1 2\r\n", "1 2\n ", ["1 2", "1 2\t"]])
def test_outputs_that_end_in_blanks_are_warned_of_once(
    warned: pytest.LogCaptureFixture, expected: str | list[str]
) -> None:
    for _ in range(2):
        request_here("", cases_of([JudgeCase(expected="1"), JudgeCase(expected=expected)]), {})
    [said] = [record.getMessage() for record in warned.records]
    assert "ends in blanks or CR, and the rule ends wants them printed too" in said


def test_a_rule_that_leaves_blanks_out_is_not_warned_of(warned: pytest.LogCaptureFixture) -> None:
    request_here("", cases_of({"inputs": [""], "outputs": ["1 2 \n"]}), {})
    request_here("", cases_of([JudgeCase(expected="1 ")]), {"compare": Compare(rule="tokens")})
    request_here("", cases_of([JudgeCase(expected=" 1\n\n")]), {})
    assert not warned.records


def test_a_suite_is_measured_once_for_all_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = Mock(return_value=INLINE)
    monkeypatch.setattr(JudgeCase, "size", property(measured))
    cases = cases_of([JudgeCase(input="1", expected="1")] * 3)
    assert queued_request("print(1)", cases, {}).suite is not None
    measured.reset_mock()
    assert queued_request("print(2)", cases, {}).suite is not None
    assert not measured.called
