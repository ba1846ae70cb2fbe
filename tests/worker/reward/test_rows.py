"""Rows of a data set, looked at before a model is trained on them."""

import json
from typing import Any

import pytest

from jail.errors import RequestRefused
from tests.harness.servers import free_port
from worker.place import place_of
from worker.reward.rows import RowReport, Wishes, check_row, rows_of

SQUARE = "print(int(input()) ** 2)"
SUMS = (
    "import sys\na, b, _ = (open(name).read().split() for name in sys.argv[1:])\n"
    "sys.exit(sum(map(int, b)) != int(a[0]))"
)
HUMANEVAL = {
    "task_id": "HumanEval/0", "prompt": "def f(x):\n", "canonical_solution": "    return x * x\n",
    "test": "def check(candidate):\n    assert candidate(2) == 4\n", "entry_point": "f",
}  # fmt: skip
BIGCODEBENCH = {
    "task_id": "BigCodeBench/0", "code_prompt": "def task_func(x):\n",
    "canonical_solution": "    return x * x\n", "entry_point": "task_func",
    "test": "import unittest\nclass TestCases(unittest.TestCase):\n"
            "    def test_case_1(self): self.assertEqual(task_func(2), 4)\n",
}  # fmt: skip
CODECONTESTS = {
    "public_tests": {"input": ["1 2"], "output": ["3"]}, "time_limit": {"seconds": 2},
    "solutions": {"language": [1, 3],
                  "solution": ["print 3", "a, b = input().split(); print(int(a) + int(b))"]},
}  # fmt: skip


def row(*pairs: tuple[str, str], **more: Any) -> dict[str, Any]:
    return {"inputs": [given for given, _ in pairs], "outputs": [out for _, out in pairs], **more}


GOOD = row(("3\n", "9\n"), ("4\n", "16\n"), solutions=[SQUARE])
ROWS: dict[str, tuple[Any, set[str], bool]] = {  # a row, what is found, and whether it is broken
    "a good one": (GOOD, set(), False),
    "HumanEval's": (HUMANEVAL, set(), False),
    "BigCodeBench's": (BIGCODEBENCH, {"shared"}, False),
    "open-r1's of Codeforces": (
        {"official_tests": [{"input": "3", "output": "9"}], "solution": SQUARE}, set(), False,
    ),
    "CodeContests'": (CODECONTESTS, set(), False),
    "verl's": (
        {"reward_model": {"ground_truth": json.dumps(row(("3", "9")))}, "solution": SQUARE},
        set(), False,
    ),
    "of no known shape": ({"odd": 1}, {"unreadable"}, True),
    "blanks at its ends": (row(("3", "9 \n"), solution=SQUARE), {"ends_in_blanks"}, False),
    "one input twice": (
        row(("3", "9"), ("3", "8"), solution=SQUARE),
        {"contradiction", "no_reference_passes"}, True,
    ),
    "one input twice, its output in two spellings": (
        row(("3", "9\n"), ("3", "9"), solution=SQUARE), set(), False,
    ),
    "one call twice, its value in two spellings": (
        row(("[3]", "[9]"), ("[3]", "[9.0 ]"), fn_name="f", solution="def f(a): return [9]"),
        set(), False,
    ),
    "one input twice, with an answer in common": (
        {"cases": [{"input": "3", "expected": each} for each in ("9", ["8", "9"])],
         "solution": SQUARE},
        {"several_answers"}, False,
    ),
    "solutions that are none": (
        row(("3", "9"), solutions={"language": 3, "solution": 7}), set(), False,
    ),
    "nothing expected": (row(("3", ""), solution="input()"), {"nothing_expected"}, True),
    "no solution passes": (row(("3", "8"), solution=SQUARE), {"no_reference_passes"}, True),
    "one solution fails": (
        row(("3", "9"), solutions=json.dumps([SQUARE, "print(1)"])), {"reference_fails"}, False,
    ),
    "a missing module": (
        row(("3", "9"), solution="import no_such_module"),
        {"missing_module", "no_reference_passes"}, True,
    ),
    "a missing import": (
        row(("3", "9"), solution="def f(a: List[int]): pass"),
        {"missing_import", "no_reference_passes"}, True,
    ),
    "a deep recursion": (
        row(("3", "9"), solution="def f(n): return f(n + 1)\nf(0)"),
        {"recursion", "no_reference_passes"}, True,
    ),
    "much memory": (
        row(("3", "9"), solution="held = bytearray(1 << 40)"),
        {"memory", "no_reference_passes"}, True,
    ),
    "several answers": (
        {"cases": [{"input": "3", "expected": ["9", "-9"]}], "solution": SQUARE},
        {"several_answers"}, False,
    ),
    "a checker that raises": (
        row(("7", "3 4"), checker=SUMS, solution="print(3, 4)"), {"raises"}, False,
    ),
    "a checker that refuses": (
        row(("7", "3 5"), checker=SUMS, solution="print(3, 4)"),
        {"raises", "refuses_expected"}, True,
    ),
    "a checker that alone knows what is right": (
        {"cases": [{"input": "7"}, {"input": "7", "expected": ""}], "checker": SUMS,
         "solution": "print(3, 4)"},
        {"raises"}, False,
    ),
    "a checker beside more than a program can hold": (
        row(("7", "0 " * 600_000 + "7"), checker=SUMS, solution="print(7)"),
        {"long_output", "raises"}, False,
    ),
    "a checker that is no text": (row(("7", "7"), checker="\ud800"), {"unreadable"}, True),
    "a checker that is too long": (
        row(("7", "7"), generated_checker="#" * (1 << 21)), {"unreadable"}, True,
    ),
    "a checker that takes anything": (
        row(("7", "7"), checker="pass", solution="print(7)"), {"accepts_anything"}, False,
    ),
    "a check that is no Python": (
        {"test_list": ["assert f(1 == 2"], "code": "def f(x): return 2"},
        {"check_broken", "no_reference_passes", "shared"}, True,
    ),
    "a check that shares": (
        {"test_list": ["assert f(1) < 3"], "code": "def f(x): return 2"}, {"shared"}, False,
    ),
}  # fmt: skip


async def checked(given: Any, **wishes: Any) -> RowReport:
    return await check_row(0, given, place_of("local"), Wishes(**wishes))


@pytest.mark.parametrize("what", ROWS)
async def test_what_is_wrong_with_a_row_is_found(what: str) -> None:
    given, kinds, broken = ROWS[what]
    report = await checked(given)
    assert {each.kind for each in report.findings} == kinds, report
    assert report.is_broken is broken


@pytest.mark.parametrize("more", [{}, {"checker": SUMS}])
async def test_a_failure_of_the_system_says_nothing_of_a_row(more: dict[str, str]) -> None:
    nowhere = place_of(f"redis://127.0.0.1:{free_port()}", patience=0.1)
    given = row(("7", "3 4"), solutions=["print(3, 4)", "print(5)"], **more)
    report = await check_row(0, given, nowhere, Wishes())
    assert {each.kind for each in report.findings} == {"not_judged"}
    assert report.is_broken


@pytest.mark.parametrize("empty", [[], "", "[]", {}, [None]])
async def test_an_empty_column_of_solutions_hides_no_other(empty: Any) -> None:
    report = await checked(row(("3", "9"), solutions=empty, solution=SQUARE))
    assert (report.references, report.passed) == (1, 1)


async def test_a_good_row_says_what_it_takes() -> None:
    report = await checked(GOOD)
    assert (report.cases, report.rule, report.references, report.passed) == (2, "lines", 1, 1)
    assert report.memory_mb > 0
    assert report.longest_seconds == 10 + 2 * 30, "compiling, and two cases that only sleep"


async def test_the_rule_is_the_one_that_rewards_use() -> None:
    blanks = row(("3", "9 \n"), solution=SQUARE)
    report = await checked(blanks, rule="ends")
    assert {each.kind for each in report.findings if each.level == "error"} == {
        "ends_in_blanks", "no_reference_passes",
    }  # fmt: skip


async def test_a_limit_that_is_near_is_told() -> None:
    slow = "import time\nwhile time.process_time() < 0.7: pass\nprint(9)"
    report = await checked(row(("3", "9"), solution=slow), run_timeout=1.0)
    kinds = {each.kind for each in report.findings}
    assert kinds == {"little_time"} or kinds == {"no_reference_passes"}, "on a busy machine"


async def test_cases_and_solutions_may_be_named() -> None:
    given = {"a": {"b": GOOD}, "c": {"d": SQUARE}}
    report = await checked(given, cases_in="a.b", solutions_in="c.d")
    assert (report.findings, report.passed) == ([], 1)
    missing = await checked(given, cases_in="a.x")
    assert missing.findings[0].text == "the row has no a.x"


@pytest.mark.parametrize("before", ["", '{"inputs": ["3"]}\n'])
def test_a_file_that_is_nested_too_deeply_is_refused_by_its_line(before: str) -> None:
    with pytest.raises(RequestRefused, match=f"line {1 + bool(before)} is not JSON"):
        rows_of(before + "[" * 100_000)


def test_a_file_is_rows_a_line_or_a_list_of_rows_or_one_row() -> None:
    assert rows_of(json.dumps(GOOD)) == [GOOD]
    assert rows_of(json.dumps([GOOD, GOOD])) == [GOOD, GOOD]
    assert rows_of(f"{json.dumps(GOOD)}\n\n{json.dumps(HUMANEVAL)}\n") == [GOOD, HUMANEVAL]
    cases = [{"input": "3", "expected": "9"}]
    assert rows_of(json.dumps(cases)) == [cases]
    with pytest.raises(RequestRefused, match="line 2 is not JSON"):
        rows_of(f"{json.dumps(GOOD)}\nthis\n")
