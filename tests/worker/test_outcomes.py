"""How a program ended, in one word."""

import re
from typing import Any

import pytest

from jail.judge.models import JudgeResult
from jail.models import CodeResult, CommandResult
from tests.architecture.source import ROOT
from worker.outcomes import LATENCY_STEPS, PROGRAM_OUTCOMES, counted_as, program_outcome


@pytest.mark.parametrize(
    ("kind", "reason", "word"),
    [
        ("none", "", "finished"),
        ("user", "exit", "error"),
        ("user", "compile_error", "error"),
        ("limit", "run_timeout", "timeout"),
        ("limit", "compile_timeout", "timeout"),
        ("limit", "memory_limit", "memory"),
        ("limit", "output_limit", "limit"),
        ("infrastructure", "sandbox_error", "masked"),
    ],
)
def test_a_program_has_one_word_for_its_end(kind: Any, reason: str, word: str) -> None:
    ran = CommandResult(status="Finished", return_code=0)
    result = CodeResult(status="Success", run_result=ran, error_kind=kind, error_reason=reason)
    assert program_outcome(result.dump()) == word
    assert word in PROGRAM_OUTCOMES


@pytest.mark.parametrize(
    ("verdicts", "reasons", "word"),
    [
        ("PPP", {}, "finished"), ("PWT", {}, "wrong"), ("PTW", {}, "timeout"), ("CC", {}, "error"),
        ("PL", {1: "memory_limit"}, "memory"), ("L", {0: "output_limit"}, "limit"),
        ("LP", {0: "wall_timeout"}, "timeout"), ("WM", {}, "masked"), ("PSS", {}, "finished"),
        ("PM", {1: "checker_error"}, "data"), ("MM", {0: "jail_lost"}, "masked"),
    ],
)  # fmt: skip
def test_a_judged_program_has_that_of_its_first_failed_case(
    verdicts: str, reasons: dict[int, str], word: str
) -> None:
    assert program_outcome(JudgeResult(verdicts=verdicts, reasons=reasons).dump()) == word


def test_one_whose_assertions_share_its_process_is_counted_apart_as_well() -> None:
    assert counted_as(JudgeResult(verdicts="PP", shared=1).dump()) == "finished+"
    assert counted_as(JudgeResult(verdicts="PP").dump()) == "finished"
    assert counted_as({"shared": 3, "verdicts": "W"}) == "wrong+"


@pytest.mark.parametrize(
    "value", [None, 7, "P", [], {}, {"error_kind": []}, {"error_kind": "odd"}, {"verdicts": 3}]
)
def test_any_other_value_is_no_programs(value: Any) -> None:
    assert program_outcome(value) == ""


def test_a_masked_one_that_must_not_run_again_is_marked() -> None:
    value = {"error_kind": "infrastructure", "message": "lost"}
    assert counted_as(value, once=True) == "masked!|lost"
    assert counted_as({"error_kind": "user"}, once=True) == "error"


def test_the_reason_of_a_masked_one_can_be_sent_whatever_it_holds() -> None:
    value = {"error_kind": "infrastructure", "message": "half of a pair: \ud83d"}
    assert counted_as(value) == "masked|half of a pair: \\ud83d"


def test_reasons_that_are_no_table_say_nothing() -> None:
    assert program_outcome({"verdicts": "L", "reasons": ["memory"]}) == "limit"


def test_the_script_counts_in_the_same_steps() -> None:
    text = (ROOT / "worker/concurrent/lua/counts.lua").read_text()
    (steps,) = re.findall(r"STEPS = \{ (.*) \}", text)
    assert (*re.findall(r"'([^']+)'", steps), "+Inf") == LATENCY_STEPS
