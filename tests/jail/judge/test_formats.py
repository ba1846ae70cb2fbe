"""Each dataset's cases are read, and wrong ones are refused with what is wrong."""

import json
import math

import pytest

from jail.errors import RequestRefused
from jail.judge import formats
from jail.judge.formats import read_cases
from jail.judge.models import JudgeCase

PAIR = [JudgeCase(input="1\n", expected="2\n"), JudgeCase(input="3\n", expected="4\n")]
LISTS = {"inputs": ["1\n", "3\n"], "outputs": ["2\n", "4\n"]}

SAME_PAIR = {
    "verl": LISTS,
    "as JSON": json.dumps(LISTS),
    "TACO": {"input_output": json.dumps(LISTS)},
    "APPS, lists of lines": {"inputs": [["1", ""], "3\n"], "outputs": [["2", ""], "4\n"]},
    "LiveCodeBench": {
        "public_test_cases": json.dumps(
            [{"input": "1\n", "output": "2\n", "testtype": "stdin"}]
        ),
        "private_test_cases": json.dumps(
            [{"input": "3\n", "output": "4\n", "testtype": "stdin"}]
        ),
        "metadata": "{}",
    },
    "CodeContests": {
        "public_tests": {"input": ["1\n"], "output": ["2\n"]},
        "private_tests": {"input": [], "output": []},
        "generated_tests": {"input": ["3\n"], "output": ["4\n"]},
        "time_limit": {"seconds": 1, "nanos": 500_000_000},
        "memory_limit_bytes": 256 << 20,
        "input_file": "",
    },
    "PrimeIntellect": [
        {"type": "stdin_stdout", "input": "1\n", "output": "2\n"},
        {"type": "stdin_stdout", "input": "3\n", "output": "4\n"},
    ],
    "Sandbox Fusion": {
        "test": [
            {"input": {"stdin": "1\n"}, "output": {"stdout": "2\n"}},
            {"input": {"stdin": "3\n"}, "output": {"stdout": "4\n"}},
        ]
    },
    "ScaleBox": {
        "test_cases": {"type": "stdin_stdout", "input": ["1\n", "3\n"], "output": ["2\n", "4\n"]}
    },
    "ours": {"cases": [{"input": "1\n", "expected": "2\n"}, {"input": "3\n", "expected": "4\n"}]},
}  # fmt: skip


@pytest.mark.parametrize("given", SAME_PAIR.values(), ids=SAME_PAIR)
def test_the_same_cases_are_read_from_every_format(given) -> None:
    read = read_cases(given)

    assert read.cases == PAIR
    assert (read.mode, read.function) == ("stdin", None)


def test_a_dataset_brings_its_rule_and_its_limits() -> None:
    assert read_cases(SAME_PAIR["LiveCodeBench"]).compare.rule == "decimals"
    contest = read_cases(SAME_PAIR["CodeContests"])
    assert (contest.compare.rule, contest.compare.abs) == ("floats", 1e-5)
    assert (contest.run_timeout, contest.memory_limit_mb) == (1.5, 256)
    for name in ("verl", "PrimeIntellect", "Sandbox Fusion", "ScaleBox"):
        assert read_cases(SAME_PAIR[name]).compare.rule == "lines", name
    assert read_cases([{"input": "1", "expected": "1"}]).compare.rule == "ends"
    own = read_cases({"cases": [{"input": ""}], "compare": "tokens", "run_timeout": 2})
    assert (own.compare.rule, own.run_timeout) == ("tokens", 2)


@pytest.mark.parametrize(
    ("given", "case"),
    [
        (
            {"fn_name": "add", "inputs": ["1\n2"], "outputs": ["3"]},
            JudgeCase(input="1\n2", expected="3"),
        ),
        (
            {"fn_name": "add", "inputs": [[1, 2]], "outputs": [[3]]},
            JudgeCase(input="1\n2", expected=["[3]", "3"]),
        ),
        (
            {"fn_name": "f", "inputs": [["a", [1]]], "outputs": ["b"]},
            JudgeCase(input='"a"\n[1]', expected='"b"'),
        ),
        (
            {
                "metadata": {"func_name": "f"},
                "public_test_cases": [
                    {"input": '"a"', "output": '"b"', "testtype": "functional"}
                ],
            },
            JudgeCase(input='"a"', expected='"b"'),
        ),
        (
            [{"type": "function_call", "fn_name": "f", "input": [1], "output": [True]}],
            JudgeCase(input="1", expected=["[true]", "true"]),
        ),
    ],
)  # fmt: skip
def test_function_cases_have_an_argument_a_line(given, case) -> None:
    read = read_cases(given)

    assert list(read.cases) == [case]
    assert read.mode == "function"


@pytest.mark.parametrize(
    "given",
    [
        ["assert f(1) == 2"],
        {"assert_case": ["assert f(1) == 2"]},
        {"test_list": ["assert f(1) == 2"]},
        {"test_cases": {"type": "assert", "input": ["assert f(1) == 2"]}},
    ],
)
def test_assertions_are_put_behind_the_program(given) -> None:
    read = read_cases(given)

    assert list(read.cases) == [JudgeCase(check="assert f(1) == 2")]
    assert read.mode == "check"


def test_a_list_of_expected_is_a_set_of_accepted_answers() -> None:
    (case,) = read_cases([{"input": "4", "expected": ["1 3", "2 2"]}]).cases

    assert case.expected == ["1 3", "2 2"]


CONTEST = {"public_tests": {"input": ["1"], "output": ["1"]}}
WRONG = [
    ("{", "not JSON"),
    ("[" * 100_000, "not JSON"),
    (3, "an object or a list"),
    ({}, "no key"),
    ({"questions": []}, "unknown: it has questions"),
    ([], "no cases"),
    ({"inputs": [], "outputs": []}, "no cases"),
    ({"inputs": ["1"]}, "outputs are a list"),
    ({"inputs": ["1"], "outputs": ["1", "2"]}, "1 inputs, 2 outputs"),
    ({"inputs": ["1"], "outputs": ["1"], "assert_case": []}, "0 assertions"),
    ({"inputs": ["1", 2], "outputs": ["1", "2"]}, "case 1 has as its input 2"),
    ([{"input": "1"}, 2], "case 1 is an object"),
    ([{"stdin": "1"}], "case 0 has no input"),
    ([{"input": "1", "fn_name": "f"}, {"input": "1"}], "several functions"),
    ({"private_test_cases": "eJxrYJmq"}, "convert it offline"),
    (
        {"metadata": {"func_name": "f"},
         "public_test_cases": [{"input": "1", "output": "x", "testtype": "functional"}]},
        "not JSON",
    ),
    ({"public_tests": {"input": ["1"], "output": []}}, "1 inputs, 0 outputs"),
    ({"public_tests": {}, "input_file": "a.in"}, "input_file 'a.in'"),
    ({**CONTEST, "time_limit": "2 seconds"}, "time_limit is a number, .* not '2 seconds'"),
    ({**CONTEST, "time_limit": {"seconds": [2]}}, "time_limit is a number"),
    ({**CONTEST, "time_limit": math.inf}, "time_limit is a number"),
    ({**CONTEST, "memory_limit_bytes": "256MB"}, "memory_limit_bytes is a number, .* not '256MB'"),
    ({"test_list": ["assert f()"], "test_imports": [1]}, "test_imports are a list of lines"),
    ({"test_list": ["assert f()"], "test_imports": "import re"}, "test_imports are a list"),
    ({"test_list": ["assert f()"], "test_setup_code": 1}, "test_setup_code is text"),
    ({"fn_name": "f", "inputs": [[{1}]], "outputs": ["1"]}, "case 0 has as its input a set"),
    ({"fn_name": "f", "inputs": [[1]], "outputs": [{1: {2}}]}, "case 0 has as its output a dict"),
    ({"fn_name": "f", "inputs": ["1", "['a']"], "outputs": ["1", "1"]},
     r"case 1 has as an argument .*which is not JSON"),
    ({"input_output": {"fn_name": "f", "inputs": ["1\n\n2"], "outputs": ["1"]}}, "an argument ''"),
    ({"function": "f", "cases": [{"input": "x", "expected": "1"}]}, "has as an argument 'x'"),
    ([{"input": "1"}, {"input": "1", "expected": []}], "case 1 expected accepts no answer at all"),
    ({"test_cases": 3}, "test_cases are"),
    ({"test": "assert f(1) == 1", "entry_point": "f"}, "neither `check` nor a TestCase"),
    ({"cases": [{"input": ""}], "compare": "roughly"}, "roughly"),
    ([{"input": ""}] * 10_001, "10,001 cases"),
    ([{"input": "\ud800"}], "case 0 input has a lone surrogate"),
    ([{"input": "x" * (17 << 20)}], "case 0 input is 17,825,792 bytes"),
]  # fmt: skip


@pytest.mark.parametrize("limit", [None, {}, {"seconds": None, "nanos": None}])
def test_a_limit_that_a_dataset_leaves_open_is_none(limit) -> None:
    read = read_cases({**CONTEST, "time_limit": limit, "memory_limit_bytes": None})

    assert (read.run_timeout, read.memory_limit_mb) == (None, None)


def test_imports_that_a_dataset_leaves_open_are_none() -> None:
    (case,) = read_cases({"test_list": ["assert f()"], "test_imports": None}).cases

    assert case.check == "assert f()"


@pytest.mark.parametrize("given", [one for one in SAME_PAIR.values() if isinstance(one, dict)])
def test_columns_that_only_another_dataset_has_are_absent(given) -> None:
    columns = ["input_output", "inputs", "outputs", "assert_case", "fn_name", "test", "test_cases"]

    assert read_cases(dict.fromkeys(columns) | given).cases == PAIR


def test_a_column_that_only_another_case_has_is_absent() -> None:
    blank = dict.fromkeys(["input", "output", "expected", "check", "fn_name", "metadata", "type"])
    given = [blank | {"input": "1\n", "output": "2\n"}, blank | {"check": "assert f()"}]

    assert read_cases(given).cases == [
        JudgeCase(input="1\n", expected="2\n"), JudgeCase(check="assert f()"),
    ]  # fmt: skip
    joined = {"assert_case": ["assert f()"], "inputs": None, "outputs": None}
    assert read_cases(joined).cases == [JudgeCase(check="assert f()")]


def test_cases_that_are_nested_without_end_are_refused() -> None:
    text: list[object] = []
    whole: dict[str, object] = {}
    for _ in range(100_000):
        text, whole = [text], {"input_output": whole}
    for given in ([{"input": text, "output": "1"}], whole, {"inputs": "[" * 100_000}):
        with pytest.raises(RequestRefused):
            read_cases(given)
    with pytest.raises(RequestRefused, match="nested too deeply"):
        read_cases(whole)


def test_a_number_that_python_cannot_write_is_refused() -> None:
    with pytest.raises(RequestRefused, match="case 0 has as its input a value of type int"):
        read_cases([{"input": 10**5000, "output": "1"}])


@pytest.mark.parametrize(("given", "why"), WRONG, ids=[why for _, why in WRONG])
def test_wrong_cases_are_refused_with_what_is_wrong(given, why) -> None:
    with pytest.raises(RequestRefused, match=why):
        read_cases(given)


def test_a_problem_that_is_too_large_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(formats, "MAX_SUITE", 1000)

    with pytest.raises(RequestRefused, match="1,000 bytes together, from case 10"):
        read_cases([{"input": "x" * 99}] * 20)
