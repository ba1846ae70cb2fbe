"""verl's codes and keys, where all cases are one job of a queue."""

from typing import Any

import pytest

from jail import LocalSandbox
from tests.harness.servers import url_of
from tests.worker.concurrent.crew import at_work
from worker import CodeQueue
from worker.reward import RewardUnknown, check_correctness, compute_score
from worker.reward.verl_codes import blank

# On a busy machine a compiler needs more than those in which an endless program is to end.
SECONDS = {"python": 2, "cpp": 20}
ENDS: list[tuple[str, str, Any, str]] = [
    ("print(input())", "python", True, "success"),
    ("print(1)", "python", False, "wrong_answer"),
    ("1 / 0", "python", -2, "runtime_error"),
    ("import os; os.kill(os.getpid(), 9)", "python", -2, "runtime_error"),
    ("while True: pass", "python", -3, "timeout"),
    ("not C++", "cpp", -4, "compile_error"),
    ("#include <iostream>\nint main() { int n; std::cin >> n; std::cout << n; }", "cpp", True,
     "success"),
]  # fmt: skip


@pytest.fixture
def worker(real_redis):
    with at_work(real_redis, sandbox="local"):
        yield url_of(real_redis)


def test_every_end_has_verls_code_and_status(worker, real_redis) -> None:
    given = {"inputs": ["7", "7"], "outputs": ["7", "7\n"]}
    for code, language, result, status in ENDS:
        results, metadata = check_correctness(worker, given, code, SECONDS[language], 512, language)
        assert (results, metadata[0]["status"]) == ([result, result], status), code
        assert set(blank(0, "", "", None)) == set(metadata[0])
        assert metadata[1]["status"] in (status, "compile_error_skipped")
    assert int(real_redis.hget("penstock:work:{code}", "claimed")) == len(ENDS)


def test_the_embedded_sandbox_of_this_process_judges_all_cases_in_one_call(monkeypatch) -> None:
    asked: list[object] = []
    judge = LocalSandbox.judge

    async def counted(sandbox, request, suite):
        asked.append(request)
        return await judge(sandbox, request, suite)

    monkeypatch.setattr(LocalSandbox, "judge", counted)
    monkeypatch.setattr(LocalSandbox, "run", None)
    given = {"inputs": ["7", "7"], "outputs": ["7", "7\n"]}
    for code, language, result, status in ENDS:
        results, metadata = check_correctness(
            "local", given, code, SECONDS[language], 512, language
        )
        assert (results, metadata[0]["status"]) == ([result, result], status), code
    assert len(asked) == len(ENDS)


def test_a_program_that_no_judge_takes_is_tried_here_case_by_case() -> None:
    results, _ = check_correctness("local", {"inputs": ["1"], "outputs": ["1"]}, "\ud800")
    assert results == [-4]


def test_assertions_in_another_language_are_one_job(worker, real_redis) -> None:
    """As verl has it, what does not compile ends it: later cases are not tried."""
    code = "```c\nint f(int x) { return x + 1; }\n```"
    wrong = ("f(1) != 2", "f(1) != 3", "f(0) != 1")
    checks = [f"int main() {{ return {what}; }}" for what in wrong]
    assert compute_score(worker, None, 512, code, {"assert_case": checks})[0] == 2 / 3
    broken = [checks[0], "not C", checks[2]]
    value, metadata = compute_score(worker, None, 512, code, {"assert_case": broken})
    assert value == 1 / 3
    assert [case["status"] for case in metadata][1:] == ["compile_error", "compile_error_skipped"]
    assert int(real_redis.hget("penstock:work:{code}", "claimed")) == 2


def test_the_metadata_says_what_was_printed(worker) -> None:
    code = "import sys; print(input()); print('oh', file=sys.stderr); sys.exit(3)"
    _, (case,) = check_correctness(worker, {"inputs": ["hello"], "outputs": ["x"]}, code, 5)

    assert (case["stdout"], case["stderr"], case["exit_code"]) == ("hello\n", "oh\n", 3)
    assert (case["input"], case["expected_output"], case["case_index"]) == ("hello", "x", 0)
    assert (case["api_status"], case["run_status"]) == ("Failed", "Finished")
    assert case["duration"] > 0


def test_functions_and_assertions_are_judged(worker) -> None:
    completion = "```python\ndef add(a, b): return a + b\n```"
    given = {"fn_name": "add", "inputs": ["1\n2", "2\n3"], "outputs": ["3", "6"]}
    assert compute_score(worker, None, 256, completion, given)[0] == 0.5
    checked = {"assert_case": ["assert add(1, 2) == 3", "assert add(1, 2) == 4"]}
    assert compute_score(worker, None, 256, completion, checked)[0] == 0.5


def test_what_no_request_can_hold_is_the_models_fault(worker) -> None:
    results, metadata = check_correctness(worker, {"inputs": ["1"], "outputs": ["1"]}, "\ud800")

    assert (results, metadata[0]["status"]) == ([-4], "compile_error")


def test_a_queue_without_workers_is_no_score(real_redis) -> None:
    queue = CodeQueue(real_redis, no_workers_after=0.2)
    given = {"inputs": ["1", "2"], "outputs": ["1", "2"]}

    results, metadata = check_correctness(queue, given, "print(input())")

    assert results == [-1, -1]
    assert {case["status"] for case in metadata} == {"api_error"}
    with pytest.raises(RewardUnknown, match="NoWorkers"):
        compute_score(queue, None, 256, "```python\nprint(input())\n```", given)
