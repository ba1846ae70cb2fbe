"""Each row of verl's table of results, by a real program or by an answer of a scripted server."""

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.harness import leash
from tests.harness.servers import url_of
from tests.worker.concurrent.crew import at_work
from tests.worker.scripted_answers import Answer, outcome
from worker import CodeQueue, RequestRefused
from worker.reward import (
    GateSemaphore,
    RewardUnknown,
    call_sandbox_api,
    check_correctness,
    compute_score,
)

ECHO = "print(input())"
ROOT = Path(__file__).parents[3]


@contextlib.contextmanager
def serving(memory_mb: int) -> Iterator[str]:
    """The embedded sandbox, over HTTP."""
    server = leash.start(
        [sys.executable, "-m", "penstock", "sandbox", "serve", "--port", "0"],
        env=os.environ | {"PENSTOCK_SANDBOX_MEMORY_MB": str(memory_mb)},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert server.stdout is not None
    url = server.stdout.readline().decode().strip()
    assert url.startswith("http"), "it did not start"
    yield f"{url}/run_code"
    server.terminate()
    server.communicate()


@pytest.fixture(scope="module")
def sandbox() -> Iterator[str]:
    with serving(512) as url:
        yield url


def cases(*pairs: tuple[Any, Any], **more: Any) -> dict[str, Any]:
    return {"inputs": [given for given, _ in pairs], "outputs": [out for _, out in pairs], **more}


@pytest.mark.parametrize(
    ("code", "language", "result", "status"),
    [
        (ECHO, "python", True, "success"),
        ("print('other')", "python", False, "wrong_answer"),
        ("raise ValueError", "python", -2, "runtime_error"),
        ("import os; os.kill(os.getpid(), 9)", "python", -2, "runtime_error"),
        ("while True: pass", "python", -3, "timeout"),
        ("not C++", "cpp", -4, "compile_error"),
    ],
)
def test_real_programs(sandbox: str, code: str, language: str, result: Any, status: str) -> None:
    seconds = 1 if result == -3 else 20
    got = check_correctness(sandbox, cases(("in", "in")), code, seconds, 256, language)
    ((found,), (metadata,)) = got
    assert (found, metadata["status"]) == (result, status)
    assert metadata["api_response"]["status"] == metadata["api_status"]


def test_what_the_metadata_of_a_real_program_says(sandbox: str) -> None:
    code = "import sys\nprint('begun', file=sys.stderr)\nraise SystemExit(3)"
    _, (metadata,) = check_correctness(sandbox, cases((None, "x")), code)
    assert list(metadata) == [
        "case_index", "input", "expected_output", "api_request_error", "api_response", "status",
        "stdout", "stderr", "exit_code", "duration", "compile_duration", "compile_stderr",
        "api_status", "compile_status", "run_status",
    ]  # fmt: skip
    assert metadata.pop("duration") > 0
    assert metadata.pop("api_response")["isolation"] == "ns"
    assert metadata == {
        "case_index": 0, "input": None, "expected_output": "x", "api_request_error": None,
        "status": "runtime_error", "stdout": "", "stderr": "begun\n", "exit_code": 3,
        "compile_duration": None, "compile_stderr": None, "api_status": "Failed",
        "compile_status": None, "run_status": "Finished",
    }  # fmt: skip


def test_results_are_in_the_order_of_the_inputs(sandbox: str) -> None:
    code = "import time\nn = int(input())\ntime.sleep((10 - n) / 50)\nprint(n if n % 3 else 'no')"
    results, metadata = check_correctness(sandbox, cases(*((n, f"{n}\n") for n in range(10))), code)
    assert results == [bool(n % 3) for n in range(10)]
    assert [case["case_index"] for case in metadata] == list(range(10))
    assert [case["input"] for case in metadata] == [str(n) for n in range(10)]


def test_code_that_does_not_compile_is_not_tried_on_later_cases(sandbox: str) -> None:
    results, metadata = check_correctness(
        sandbox, cases(*((n, n) for n in range(3))), "not C++", language="cpp"
    )
    assert results == [-4, -4, -4]
    assert metadata[0]["status"] == "compile_error"
    assert "error" in metadata[0]["compile_stderr"]
    assert {case["status"] for case in metadata[1:]} <= {"compile_error", "compile_error_skipped"}


@pytest.mark.parametrize("stdin", [None, ""])
def test_a_program_without_input_sees_the_end_of_it_at_once(sandbox: str, stdin: Any) -> None:
    code = "import sys; print(len(sys.stdin.read()))"
    results, _ = check_correctness(sandbox, cases((stdin, "0")), code)
    assert results == [True]


METHOD = """\
from __future__ import annotations
class Solution:
    def add(self, a: NoSuchName, b): return a + b
"""


@pytest.mark.parametrize(
    ("code", "result"),
    [
        ("def add(a, b): return a + b", True),
        (METHOD, True),
        ("def add(a, b): return Counter([a, b]).total() + a", True),  # from the prelude
        ("def add(a, b): return str(a + b)", True),
        ("def add(a, b): return a - b", False),
        ("def add(a, b): return a / 0", -2),
        ("def subtract(a, b): return a - b", -2),
        ("class Solution: pass", -2),
        ("from operator import add", True),  # the program's own choice, not the prelude's
        ("def plus(a, b): return add(a, b)\nclass Solution: add = staticmethod(plus)", True),
        ('"""A"""\nfrom __future__ import (\n annotations)\ndef add(a: X, b): return a + b', True),
        ("x = 1\nfrom __future__ import annotations\ndef add(a, b): return a + b", -2),
        ("json = print = exec = globals = None\ndef add(a, b): return a + b", True),
    ],
)  # fmt: skip
def test_a_function_is_called_with_a_line_an_argument(sandbox: str, code: str, result: Any) -> None:
    results, _ = check_correctness(sandbox, cases(("1\n2", "3"), fn_name="add"), code)
    assert results == [result]


@pytest.mark.parametrize(
    ("returned", "printed"),
    [("None", "null"), ("True", "true"), ("(1, 'a')", '[1, "a"]'), ("'a'", "a"), ("1.5", "1.5")],
)
def test_how_a_functions_result_is_printed(sandbox: str, returned: str, printed: str) -> None:
    given = cases(("", printed), fn_name="f")
    assert check_correctness(sandbox, given, f"def f(): return {returned}")[0] == [True]


POINT = """\
import __main__, inspect, multiprocessing, os, pickle, typing
class Point:
    def __init__(self, x: "int", y: "Point" = None): self.x = x
def double(n):
    return n * 2
"""


@pytest.mark.parametrize(
    "expression",
    [
        "pickle.loads(pickle.dumps(Point(7))).x == 7",
        "multiprocessing.Pool(1).map(double, [3]) == [6]",
        "multiprocessing.get_context('spawn').Pool(1).map(double, [3]) == [6]",
        "typing.get_type_hints(Point.__init__) == {'x': int, 'y': Point}",
        "inspect.getsource(double) == 'def double(n):\\n    return n * 2\\n'",
        "os.path.exists(__file__)",
        "__main__.double is double",
        "__name__ == '__main__'",
    ],
)
def test_a_program_whose_function_is_called_is_the_main_module(sandbox, expression: str) -> None:
    given = cases(("", "true"), fn_name="f")
    results, (metadata,) = check_correctness(
        sandbox, given, f"{POINT}def f(): return {expression}\n"
    )
    assert results == [True], metadata["stderr"]


MERGE = """\
from typing import List, Tuple
def merge(spans: List[Tuple[int, int]]) -> List[Tuple[int, int]]:
    merged = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged
"""
ASSERTED = [
    "assert merge([(0, 1), (3, 5), (4, 7)]) == [(0, 1), (3, 7)]",
    "assert merge([(1, 2), (2, 3)]) == [(1, 3)]",
    "assert merge([(1, 2)]) == [(1, 1)]",
]


@pytest.mark.parametrize("blank", ["", None])
@pytest.mark.parametrize("named", [{"fn_name": "merge"}, {}])
def test_assertions_alone_decide_a_case(sandbox: str, named: dict[str, Any], blank: Any) -> None:
    given = cases(*(("", blank) for _ in ASSERTED), assert_case=ASSERTED, **named)
    results, metadata = check_correctness(sandbox, given, MERGE)
    assert results == [True, True, -2]
    assert [case["status"] for case in metadata] == ["success", "success", "runtime_error"]


def test_assertions_beside_arguments_do_not_replace_the_call(sandbox: str) -> None:
    asserted = ["assert add(1, 1) == 2", "assert add(1, 1) == 2", "assert add(1, 1) == 3"]
    given = cases(("1\n2", "3"), ("1\n2", "4"), ("1\n2", "3"), assert_case=asserted, fn_name="add")
    results, _ = check_correctness(sandbox, given, "def add(a, b): return a + b")
    assert results == [True, False, -2]


@pytest.mark.parametrize(
    "named",
    [{"fn_name": "merge"}, {}, {"inputs": None, "fn_name": None}, {"inputs": [], "outputs": []}],
)
@pytest.mark.parametrize("as_text", [False, True])
def test_a_data_set_of_assertions_alone_has_scores(sandbox: str, named: Any, as_text: bool) -> None:
    given: Any = {"assert_case": ASSERTED, **named}
    before = dict(given)
    score, metadata = compute_score(
        sandbox, None, 512, f"```python\n{MERGE}```", json.dumps(given) if as_text else given
    )
    assert (round(score, 2), len(metadata)) == (0.67, 3)
    assert given == before


def test_assertions_have_scores_on_a_queue_too(real_redis, sandbox: str, monkeypatch) -> None:
    monkeypatch.setenv("PENSTOCK_SANDBOX_FUSION_URL", sandbox)
    given = {"assert_case": ASSERTED, "fn_name": "merge"}
    with at_work(real_redis):
        queue = CodeQueue(real_redis, "code")
        score, _ = compute_score(queue, None, 512, f"```python\n{MERGE}```", given)
    assert round(score, 2) == 0.67


def test_an_assertion_stands_behind_the_program(sandbox: str) -> None:
    given = cases((None, None), (None, None), assert_case=["assert f(2) == 4", "assert f(2) == 5"])
    assert check_correctness(sandbox, given, "def f(x): return x * 2")[0] == [True, -2]


@pytest.mark.parametrize("named", [{"fn_name": "f"}, {}])
def test_a_program_that_ends_before_its_assertions_fails(sandbox: str, named: Any) -> None:
    given = cases(("", None), ("", None), assert_case=["assert f() == 2", "print(f())"], **named)
    for where in (sandbox, "local"):
        results, metadata = check_correctness(where, given, "def f(): return 2")
        assert (results, metadata[1]["stdout"]) == ([True, True], "2\n")
        results, metadata = check_correctness(where, given, "raise SystemExit")
        assert (results, metadata[0]["status"]) == ([-2, -2], "runtime_error")


def ran(**fields: Any) -> dict[str, Any]:
    return {"status": "Finished", "return_code": 0, "stdout": "", "stderr": "", **fields}


def body(status: Any, compiled: Any = None, run: Any = None) -> Answer:
    return Answer(body={"status": status, "compile_result": compiled, "run_result": run})


SCRIPTED = [
    (Answer.ok("42\n"), True, "success"),
    (Answer.ok("42\n\n"), True, "success"),
    (Answer.ok(" 42\n"), False, "wrong_answer"),
    (Answer.exit(1), -2, "runtime_error"),
    (body("Failed", run=ran(status="Error", return_code=None)), -2, "runtime_error"),
    (Answer.late("4"), -3, "timeout"),
    (body("Failed", ran(return_code=1)), -4, "compile_error"),
    (body("Failed", run=ran(return_code=None)), -1, "unknown_failure"),
    (body("Failed", ran(return_code=None), ran()), -1, "unknown_failure"),
    (body("Failed", ran(status="Error")), -4, "compile_error"),
    (body("Failed", ran(status="TimeLimitExceeded")), -4, "compile_timeout"),
    (Answer.sandbox_error(), -1, "sandbox_error"),
    (Answer.busy(), -1, "api_error"),
    (Answer.refusal(503), -1, "api_error"),
    (Answer.refusal(504), -1, "api_error"),
    (Answer.refusal(422), -1, "api_error"),
    (Answer.cut(), -1, "api_error"),
    (Answer.half(), -1, "api_error"),
    (Answer(text="<html>"), -1, "api_error"),
    (Answer(body=[]), -1, "api_error"),
    (Answer(body={}), -1, "unknown_api_state"),
    (body("Failed", run=ran()), -1, "unknown_failure"),
    (body("Failed"), -1, "unknown_failure_state"),
    (body("Success"), -1, "unexpected_success_state"),
    (body("Success", run=ran(status="TimeLimitExceeded")), -1, "unexpected_success_state"),
    (body("Perhaps"), -1, "unknown_api_status_Perhaps"),
    (body("Success", run="nonsense"), -1, "internal_error"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "result", "status"), SCRIPTED, ids=lambda value: str(value)[:40]
)
def test_scripted_answers(fusion, answer: Answer, result: Any, status: str) -> None:
    fusion.default = answer
    ((found,), (metadata,)) = check_correctness(fusion.url, cases(("1", "42")), ECHO)
    assert (found, metadata["status"]) == (result, status)
    assert type(found) is type(result)
    assert bool(metadata["api_request_error"]) == (status in ("api_error", "internal_error"))


def test_the_request_is_verls(fusion) -> None:
    check_correctness(fusion.url, cases(("1", "42")), ECHO, 7, 256, "python")
    assert fusion.bodies[0] == {
        "compile_timeout": 7, "run_timeout": 7, "code": f"{ECHO}\n\n", "stdin": "1",
        "memory_limit_MB": 256, "language": "python", "files": {}, "fetch_files": [],
    }  # fmt: skip


def test_what_ends_a_sandboxs_pause_is_another_attempt(fusion, attempts, caplog) -> None:
    caplog.set_level("INFO", "penstock.reward")
    attempts(4)
    fusion.script.extend([Answer.busy(), Answer.refusal(503), Answer.sandbox_error()])
    fusion.default = Answer.ok("42\n")
    assert check_correctness(fusion.url, cases(("1", "42")), ECHO)[0] == [True]
    assert fusion.requests == 4
    said = [one.getMessage() for one in caplog.records if one.name == "penstock.reward"]
    assert said == [f"attempt {n} failed" for n in (1, 2, 3)]


def test_the_last_word_of_a_sandbox_that_failed_is_kept(fusion, attempts) -> None:
    attempts(2)
    fusion.default = Answer.sandbox_error("out of order")
    answer, error = call_sandbox_api(fusion.url, ECHO, None, 1, 1, 256)
    assert (error, fusion.requests) == (None, 2)
    assert answer is not None
    assert answer["message"] == "out of order"


def test_a_dead_sandbox_is_an_error_and_no_answer() -> None:
    answer, error = call_sandbox_api("http://127.0.0.1:1/run_code", ECHO, None, 1, 1, 256)
    assert answer is None
    assert error is not None
    assert error.startswith("API Call Failed: no connection to http://127.0.0.1:1")


@pytest.mark.parametrize("url", ["", None])
def test_a_sandbox_that_is_not_named_is_asked_for(url: Any) -> None:
    answer, error = call_sandbox_api(url, ECHO, None, 1, 1, 256)
    assert answer is None
    assert "sandbox_fusion_url: names no place for programs: a sandbox is http://" in str(error)


def test_an_unknown_language_is_refused_without_asking(fusion) -> None:
    answer, error = call_sandbox_api(fusion.url, ECHO, None, 1, 1, 256, "cobol")
    assert answer is None
    assert error is not None
    assert "'cobol' is unknown" in error
    assert fusion.requests == 0


@pytest.mark.parametrize("code", ["x = '\ud800'", "#" * (1 << 20 | 1)])
def test_code_that_no_sandbox_takes_is_the_models_fault(fusion, code: str) -> None:
    ((found,), (metadata,)) = check_correctness(fusion.url, cases(("1", "42")), code)
    assert (found, metadata["status"], fusion.requests) == (-4, "compile_error", 0)
    assert compute_score(fusion.url, None, 256, f"```\n{code}\n```", cases(("1", "42")))[0] == 0.0


@pytest.mark.parametrize(
    ("in_outs", "results", "metadata"),
    [
        (None, [-1], [{"error": "Invalid input/output data"}]),
        ({"inputs": ["1"]}, [-1], [{"error": "Invalid input/output data"}]),
        ({"inputs": None, "outputs": None}, [-1], [{"error": "Invalid input/output data"}]),
        ({**cases(("1", "1")), "fn_name": 5}, [-1], [{"error": "Invalid input/output data"}]),
        ({"inputs": [], "outputs": []}, [], []),
        (
            {"inputs": ["1"], "outputs": ["1", "2"]},
            [-1],
            [{"error": "Input/output count mismatch", "case_index": 0}],
        ),
        (
            {"inputs": ["1"], "outputs": ["1"], "assert_case": []},
            [-1],
            [{"error": "Input/output count mismatch", "case_index": 0}],
        ),
    ],
)
def test_cases_that_are_none(fusion, in_outs: Any, results: Any, metadata: Any) -> None:
    assert check_correctness(fusion.url, in_outs, ECHO) == (results, metadata)
    assert fusion.requests == 0


STRUCTURE = "inputs and outputs are lists, assert_case a list of texts, fn_name is text"
FENCED = f"So:\n```python\nprint(0)\n```\nor rather\n```python\n{ECHO}\n```\n"


@pytest.mark.parametrize(
    ("completion", "code"),
    [
        (FENCED, f"\n{ECHO}\n"),
        (f"```\n{ECHO}\n```", f"\n{ECHO}\n"),
        (f"```py\n{ECHO}\n```", f"{ECHO}\n"),
        (f"```{ECHO}```", ECHO),
    ],
)
def test_the_program_in_a_completion(fusion, completion: str, code: str) -> None:
    compute_score(fusion.url, None, 256, completion, cases(("1", "42")))
    assert fusion.bodies[0]["code"].rstrip("\n").lstrip("\n") == code.strip("\n")


@pytest.mark.parametrize(
    ("completion", "given", "error"),
    [
        (ECHO, {}, "Invalid completion (missing code block)"),
        (FENCED, "{", "Invalid test_cases JSON format"),
        (FENCED, "[" * 100_000, "Invalid test_cases JSON format"),
        (FENCED, "[]", "Invalid test_cases structure (missing inputs/outputs)"),
        (FENCED, {"inputs": []}, "Invalid test_cases structure (missing inputs/outputs)"),
        (FENCED, {"inputs": None, "outputs": None},
         "Invalid test_cases structure (missing inputs/outputs)"),
        *((FENCED, cases(("1", "1")) | wrong, f"Invalid test_cases structure ({STRUCTURE})")
          for wrong in ({"inputs": 5}, {"inputs": "1"}, {"outputs": {"1": "1"}},
                        {"assert_case": [None], "fn_name": "f"}, {"assert_case": "assert f()"},
                        {"fn_name": 5})),
    ],
)  # fmt: skip
def test_no_program_or_no_cases_is_a_score_of_nought(completion, given, error) -> None:
    assert compute_score("http://127.0.0.1:1", None, 256, completion, given) == (
        0.0,
        [{"error": error}],
    )


def nested() -> list[Any]:
    """A list that Python itself can write no text of."""
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    return deep


@pytest.mark.parametrize("value", [nested(), 10**5000], ids=["nested", "long"])
@pytest.mark.parametrize("name", ["inputs", "outputs"])
def test_a_value_without_a_text_is_refused_and_named(name, value) -> None:
    given = cases(("1", "1"), ("2", "2")) | {name: ["1", value]}
    with pytest.raises(RequestRefused, match=f"case 1 has in {name} a value of type"):
        compute_score("http://127.0.0.1:1", None, 256, FENCED, given)


class Array:
    """As numpy's."""

    def __init__(self, values: Any) -> None:
        self._values = values

    def __bool__(self) -> bool:
        raise ValueError("the truth value of an array is ambiguous")

    def __str__(self) -> str:
        return "[1 2]"

    def tolist(self) -> Any:
        return self._values


def test_arrays_and_absent_columns_are_taken(fusion) -> None:
    fusion.default = Answer.ok("42\n")
    given = {"inputs": Array(["a", "b"]), "outputs": Array(["42", "42"])}
    absent = {"assert_case": None, "fn_name": None}
    assert compute_score(fusion.url, None, 256, FENCED, given | absent)[0] == 1.0


@pytest.mark.parametrize("on", ["fusion", "local"])
def test_an_array_within_is_read_and_expected_as_a_list_is(fusion, on: str) -> None:
    fusion.default = Answer.ok("[1, 2]\n")
    given = {
        "inputs": Array([Array([1, 2]), [Array(1), 2], {"a": Array([1, 2])}]),
        "outputs": Array([Array([1, 2]), [Array(1), Array(2)], [1, 2]]),
    }
    program = "```python\ninput()\nprint([1, 2])\n```"
    where = fusion.url if on == "fusion" else "local"
    score, metadata = compute_score(where, None, 256, program, given)
    assert score == 1.0
    assert [case["expected_output"] for case in metadata] == ["[1, 2]"] * 3
    assert [case["input"] for case in metadata] == ["[1, 2]", "[1, 2]", "{'a': [1, 2]}"]


def test_a_case_that_cannot_be_run_says_why() -> None:
    given = {"inputs": ["no JSON"], "outputs": ["1"], "fn_name": "f"}
    _, (metadata,) = check_correctness("local", given, "def f(a): return 1")
    assert "suite_unfit: a case of the suite has as an argument" in metadata["api_request_error"]


def test_the_score_is_the_share_of_cases_that_pass(fusion) -> None:
    fusion.script.extend([Answer.ok("42\n"), Answer.exit(1), Answer.late(), Answer.ok("42")])
    given = '{"inputs": ["a", "b", "c", "d"], "outputs": ["42", "42", "42", "42"]}'
    score, metadata = compute_score(fusion.url, None, 256, FENCED, given)
    assert score == 0.5
    assert sorted(case["status"] for case in metadata) == [
        "runtime_error", "success", "success", "timeout",
    ]  # fmt: skip


def test_of_many_cases_the_first_ten_count_when_continuous(sandbox: str) -> None:
    given = cases(*((n, n if n < 9 else "no") for n in range(12)))
    assert compute_score(sandbox, None, 256, FENCED, given, continuous=True)[0] == 0.9
    assert compute_score(sandbox, None, 256, FENCED, given)[0] == 0.75


UNKNOWN = [answer for answer, result, _ in SCRIPTED if result == -1] + [
    Answer(body=outcome("Failed", "Error", None)),
]


@pytest.mark.parametrize("answer", UNKNOWN)
def test_a_failure_of_ours_is_never_a_score(fusion, monkeypatch, answer: Answer) -> None:
    fusion.default = Answer.ok("42")
    fusion.script.append(answer)
    given = cases(("1", "42"), ("2", "42"))
    with pytest.raises(RewardUnknown, match="1 of 2 cases have no outcome") as unknown:
        compute_score(fusion.url, None, 256, FENCED, given)
    assert unknown.value.results.count(True) == 1
    assert len(unknown.value.unknown) == 1
    monkeypatch.setenv("PENSTOCK_REWARD_FAILURES", "zero")
    fusion.script.append(answer)
    assert compute_score(fusion.url, None, 256, FENCED, given)[0] == 0.0


def test_a_program_whose_output_floods_the_answer_fails_and_is_not_run_again(fusion) -> None:
    fusion.default = Answer.ok("x" * (20 << 20))
    score, (metadata,) = compute_score(fusion.url, None, 256, FENCED, cases(("1", "42")))
    assert (score, metadata["status"], fusion.requests) == (0.0, "runtime_error", 1)
    with pytest.raises(RewardUnknown, match="it printed more"):
        compute_score(fusion.url, None, 256, FENCED, cases(("1", "x" * (2 << 20))))


def test_a_stand_in_for_the_call_gets_verls_arguments_and_the_semaphore_holds(monkeypatch) -> None:
    """As verl's own unit tests have it: the call patched, any semaphore, a URL of nowhere."""
    guard, asked = threading.Lock(), []
    now, most = 0, 0

    def call(
        *, sandbox_fusion_url, code, stdin, compile_timeout, run_timeout, memory_limit_mb, language
    ):
        nonlocal now, most
        with guard:
            now += 1
            most = max(most, now)
            asked.append((sandbox_fusion_url, code, compile_timeout, memory_limit_mb, language))
        meeting.wait(100)
        with guard:
            now -= 1
        if stdin == "2":
            return None, "API Call Failed: Gateway Timeout (504) on attempt 3/3"
        return {"status": "Success", "run_result": {"status": "Finished", "stdout": stdin}}, None

    meeting = threading.Barrier(2)  # two are in it together, each time
    monkeypatch.setattr("worker.reward.check.call_sandbox_api", call)
    given = cases(*((n, n) for n in range(6)))
    results, metadata = check_correctness(
        "mock_url", given, "x", 5, concurrent_semaphore=threading.Semaphore(2)
    )
    assert results == [True, True, -1, True, True, True]
    assert [case["status"] for case in metadata][1:4] == ["success", "api_error", "success"]
    assert metadata[2]["api_request_error"].endswith("attempt 3/3")
    assert set(asked) == {("mock_url", "x\n\n", 5, 1024, "python")}
    assert most == 2


class Dead:
    """As a manager's semaphore is when its manager has died."""

    def acquire(self) -> Any:
        raise BrokenPipeError("the manager is gone")

    def release(self) -> Any: ...


@pytest.mark.parametrize("on", ["mock_url", "local"])
def test_a_semaphore_that_fails_is_a_failure_of_ours(on: str) -> None:
    results, metadata = check_correctness(on, cases(("1", "1")), "x", concurrent_semaphore=Dead())
    assert (results, metadata[0]["status"]) == ([-1], "api_error")
    assert "BrokenPipeError: the manager is gone" in metadata[0]["api_request_error"]
    with pytest.raises(RewardUnknown, match="the manager is gone"):
        compute_score(on, Dead(), 256, FENCED, cases(("1", "1")))


def test_an_interrupt_waits_for_no_case_that_has_not_begun(monkeypatch) -> None:
    told, asked = threading.Event(), []

    class Executor(ThreadPoolExecutor):
        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            told.set()
            super().shutdown(wait=wait)

    def call(*, stdin: str, **_: Any) -> Any:
        asked.append(stdin)
        if stdin == "0":
            raise KeyboardInterrupt
        told.wait(100)
        return {"status": "Success", "run_result": {"status": "Finished", "stdout": stdin}}, None

    monkeypatch.setattr("worker.reward.check.ThreadPoolExecutor", Executor)
    monkeypatch.setattr("worker.reward.check.call_sandbox_api", call)
    with pytest.raises(KeyboardInterrupt):
        check_correctness("mock_url", cases(*((n, n) for n in range(1000))), "x")
    assert len(asked) < 1000


def test_on_a_queue_the_worker_holds_the_permit_and_the_caller_none(real_redis, fusion) -> None:
    fusion.default = Answer.ok("42")
    url = url_of(real_redis)
    semaphore = GateSemaphore(url, "code", limit=1)  # taken here too, it would never end
    with at_work(real_redis, gate="code", gate_limit=1):
        given = cases(*(("1", "42"),) * 5)
        results, metadata = check_correctness(url, given, ECHO, concurrent_semaphore=semaphore)
        failing = CodeQueue(real_redis, "code")
        fusion.script.append(Answer.refusal(422))
        with pytest.raises(RewardUnknown, match="1 of 1 cases have no outcome, one because: API"):
            compute_score(failing, None, 256, FENCED, cases(("1", "42")))
    assert results == [True] * 5
    assert fusion.peak == 1
    assert metadata[0]["api_response"]["attempts"] == 1
    assert semaphore.acquire(timeout=100)
    semaphore.release()


THEIRS = os.environ.get("VERL_REWARD_TESTS", "")


@pytest.mark.skipif(not THEIRS, reason="VERL_REWARD_TESTS names no file: make conformance")
@pytest.mark.timeout(1800)
def test_verls_own_tests_pass_on_our_functions(tmp_path: Path) -> None:
    """`test_sandbox_fusion_on_cpu.py`. The 100 programs of one of its tests want 1 GB each, eight
    of them at a time, and 10 s of a processor. With few processors many wait for longer than the
    server lets a request wait, so they ask again more often than by default."""
    ours = Path(THEIRS).read_text().replace(
        "verl.utils.reward_score.sandbox_fusion.utils", "worker.reward.check"
    )  # fmt: skip
    (tmp_path / "test_theirs.py").write_text(ours)
    with serving(1024) as url:
        ran = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "--rootdir", str(tmp_path), "-p",
             "no:cacheprovider", "-W", "default", str(tmp_path / "test_theirs.py")],
            env=os.environ | {"SANDBOX_FUSION_URL": url, "PYTHONPATH": str(ROOT),
                              "PENSTOCK_SANDBOX_ATTEMPTS": "50"},
            cwd=tmp_path, capture_output=True, text=True, timeout=1800, check=False,
        )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "skipped" not in ran.stdout
