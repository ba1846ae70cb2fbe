"""Sandbox Fusion's and ScaleBox's judging routes, asked as their clients ask."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from jail.judge import JudgeRequest, JudgeResult
from jail.serve.online_judge import Submit, submit
from tests.jail.serving import CLIENT, served

CPP = """```c++
#include <iostream>
int main() { long long n; std::cin >> n; std::cout << n * n << std::endl; }
```"""
PYTHON = "Here:\n```python\nprint(int(input()) ** 2)\n```"
PAIRS = [("2\n", "4\n"), ("3\n", "9\n"), ("4\n", "17\n"), ("5\n", "25\n")]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    yield from served()


def ask(url: str, route: str, status: int = 200, **body: Any) -> Any:
    response = CLIENT.post(f"{url}/{route}", json=body)
    assert response.status_code == status, response.text
    return response.json()


def fusion_config(pairs=PAIRS, **given: Any) -> dict[str, Any]:
    test = [{"input": {"stdin": into}, "output": {"stdout": out}} for into, out in pairs]
    return {
        "dataset_type": "CommonOJDataset", "language": "python",
        "provided_data": {"id": 7, "content": "Square it.", "test": test}, **given,
    }  # fmt: skip


@pytest.mark.parametrize(("completion", "language"), [(PYTHON, "python"), (CPP, "cpp")])
def test_sandbox_fusions_submit_stops_at_the_first_failure(url, completion, language) -> None:
    answer = ask(
        url, "submit", dataset="mine", id=7, completion=completion,
        config=fusion_config(language=language),
    )  # fmt: skip

    assert (answer["id"], answer["accepted"]) == (7, False)
    assert [test["passed"] for test in answer["tests"]] == [True, True, False]
    ran = answer["tests"][0]["exec_info"]
    assert (ran["status"], ran["run_result"]["stdout"]) == ("Success", "4\n")
    assert answer["extracted_code"].strip() in completion
    assert answer["extracted_type"] == "fenced"


def test_all_cases_run_if_that_is_wanted(url) -> None:
    config = fusion_config(extra={"run_all_cases": True})

    answer = ask(url, "submit", id=1, completion=PYTHON, config=config)

    assert [test["passed"] for test in answer["tests"]] == [True, True, False, True]


def test_what_passes_everything_is_accepted(url) -> None:
    answer = ask(url, "submit", completion=PYTHON, config=fusion_config(PAIRS[:2]))

    assert answer["accepted"] is True


def test_a_test_of_code_is_put_behind_the_program(url) -> None:
    def with_test(code: str) -> dict[str, Any]:
        return {"language": "python", "provided_data": {"test": {"code": code}}}

    completion = "```python\ndef f(x): return x + 1\n```"
    right = ask(url, "submit", completion=completion, config=with_test("assert f(1) == 2"))
    wrong = ask(url, "submit", completion=completion, config=with_test("assert f(1) == 3"))

    assert (right["accepted"], wrong["accepted"]) == (True, False)
    assert right["test_code"] == "assert f(1) == 2"


def test_a_test_of_code_has_the_languages_and_the_files_of_its_row(url) -> None:
    def accepted(
        code: str, test: str, written_in: str = "python", runs_in: str | None = None,
        asset: Any = None, **given: Any
    ) -> Any:  # fmt: skip
        labels = {"programming_language": written_in, "execution_language": runs_in}
        row = {"labels": labels, "test": {"code": test, "asset": asset}}
        config = {"language": None, "provided_data": row, **given}
        completion = f"```{written_in}\n{code}\n```"
        return ask(url, "submit", completion=completion, config=config)["accepted"]

    f, own = "def f(x): return x + 1", {"a.txt": "Mg=="}
    reads = "def f(x): return int(open('a.txt').read())"
    demo = f"{f}\nif __name__ == '__main__':\n    print(f(int(input())))"
    behind, around = (
        "def check(f): assert f(1) == 2\ncheck(f)",
        "x = 2\n#<INSERT>\nassert f(1) == x",
    )
    assert accepted(reads, behind, asset=own)
    assert accepted(reads, behind, asset=json.dumps(own))
    assert accepted(demo, behind)
    assert accepted(f, around)
    assert not accepted("def f(x): return x", around)
    assert accepted("SELECT 1", "q = #<INSERT>\nassert q == 'SELECT 1'", "sql", "python",
                    extra={"repr_code": True})  # fmt: skip
    main = "#include <cassert>\n%s\nint main() { assert(f(1) == 2); }"
    f = "int f(int x) { return x + 1; }"
    for test in (main % "", main % "#<INSERT>"):
        assert accepted(f"{f}\nint main() {{ return 1; }}", test, "cpp")
    as_text = {"language": "python", "provided_data": {"test": json.dumps({"code": behind})}}
    assert ask(url, "submit", completion=f"```python\n{demo}\n```", config=as_text)["accepted"]


def test_a_test_of_java_by_junit_is_refused(url) -> None:
    row = {"labels": {"programming_language": "java"}, "test": {"code": "class ATest {}"}}
    said = ask(url, "submit", 422, completion=CPP, config={"provided_data": row})
    assert "junit" in said["detail"]


@pytest.mark.asyncio
@pytest.mark.parametrize(("language", "seconds"), [("python", 20.0), ("cpp", 10.0)])
async def test_a_program_has_as_much_time_as_upstream_gives_it(language, seconds) -> None:
    asked_for = []

    class Passes:
        async def judge(self, request: JudgeRequest, _: Any) -> JudgeResult:
            asked_for.append(request.run_timeout)
            return JudgeResult(verdicts="P")

    for given in (None, 3.0):
        config = fusion_config(PAIRS[:1], language=language, run_timeout=given)
        asked = Submit.model_validate({"completion": PYTHON, "config": config})
        await submit(Passes(), asked)

    assert asked_for == [seconds, 3.0]


def scalebox(kind: str, pairs=PAIRS, **given: Any) -> dict[str, Any]:
    inputs, outputs = zip(*pairs, strict=True)
    cases = {"type": kind, "input": list(inputs), "output": list(outputs), "fn_name": None}
    return {"language": "python", "run_timeout": 5, "provided_data": {"test_cases": cases}} | given


def test_scaleboxs_batch_route(url) -> None:
    config = scalebox("stdin_stdout", extra={"run_all_cases": True, "total_timeout": 100})

    answer = ask(url, "common_evaluate_batch", completion=PYTHON, config=config)

    assert [test["passed"] for test in answer["tests"]] == [True, True, False, True]
    assert answer["accepted"] is False
    assert ask(
        url, "common_evaluate_batch", completion=PYTHON,
        config=scalebox("stdin_stdout", PAIRS[:2]),
    )["accepted"]  # fmt: skip


def test_scaleboxs_other_route_has_a_list_of_objects(url) -> None:
    data = {"test_cases": [{"input": into, "output": out} for into, out in PAIRS[:2]]}

    answer = ask(
        url, "common_evaluate", completion=CPP, config={"language": "cpp", "provided_data": data}
    )

    assert (answer["accepted"], len(answer["tests"])) == (True, 2)


def test_a_function_is_called_with_lists_of_arguments(url) -> None:
    config = scalebox("function_call", [([1, 2], [3]), ([2, 3], [5])])
    config["provided_data"]["test_cases"]["fn_name"] = "add"

    answer = ask(
        url, "common_evaluate_batch", config=config,
        completion="```python\ndef add(a, b): return a + b\n```",
    )  # fmt: skip

    assert (answer["accepted"], len(answer["tests"])) == (True, 2)


def test_a_special_judge_decides(url) -> None:
    judge = (
        "import sys\nprinted = open('answer.txt').read().split()\n"
        "wanted = open('stdout.txt').read().split()\n"
        "sys.exit(0 if sorted(printed) == sorted(wanted) else 1)\n"
    )
    config = scalebox(
        "stdin_stdout", [("1 2", "2 1"), ("3 4", "4 5")],
        extra={"special_judge_program": judge, "run_all_cases": True},
    )  # fmt: skip

    answer = ask(
        url, "common_evaluate_batch", completion="```python\nprint(input())\n```", config=config
    )

    assert [test["passed"] for test in answer["tests"]] == [True, False]


def test_a_special_judge_that_fails_accepts_nothing_and_refuses_nothing(url) -> None:
    extra = {"special_judge_program": "raise ValueError('broken')", "run_all_cases": True}

    def asked(completion: str, status: int) -> Any:
        config = scalebox("stdin_stdout", PAIRS[:2], extra=extra)
        return ask(url, "common_evaluate_batch", status, completion=completion, config=config)

    assert "special judge failed" in asked(PYTHON, 422)["detail"]
    assert asked("```python\nraise SystemExit(1)\n```", 200)["accepted"] is False


@pytest.mark.asyncio
async def test_a_program_that_was_cut_off_is_neither_accepted_nor_refused() -> None:
    class CutOff:
        async def judge(self, *_: Any) -> JudgeResult:
            reasons = {1: "total_seconds", 2: "total_seconds", 3: "total_seconds"}
            return JudgeResult(verdicts="PSSS", reasons=reasons)

    asked = Submit.model_validate({"completion": PYTHON, "config": fusion_config()})
    status, said = await submit(CutOff(), asked)  # type: ignore[arg-type]

    assert status == 504
    assert "total_seconds" in str(said)


def test_a_program_that_ends_before_its_test_is_not_accepted(url) -> None:
    config = {"language": "python", "provided_data": {"test": {"code": "assert f(1) == 2"}}}

    for code in ("raise SystemExit", "import os; os._exit(0)", "__penstock_done__()"):
        answer = ask(url, "submit", completion=f"```python\n{code}\n```", config=config)
        assert answer["accepted"] is False


def test_a_test_in_another_language_is_compiled_with_the_program(url) -> None:
    def asked(wanted: int) -> Any:
        test = {"code": f"int main() {{ return f(1) != {wanted}; }}"}
        config = {"language": "cpp", "provided_data": {"test": test}}
        completion = "```cpp\nint f(int x) { return x + 1; }\n```"
        return ask(url, "submit", completion=completion, config=config)["accepted"]

    assert (asked(2), asked(3)) == (True, False)


@pytest.mark.parametrize("code", ["import os\nos._exit(0)", "print(4)"])
def test_what_ends_early_or_prints_one_answer_is_not_accepted(url, code) -> None:
    """Upstream's servers accept the first with no test at all."""
    answer = ask(
        url, "common_evaluate_batch", completion=f"```python\n{code}\n```",
        config=scalebox("stdin_stdout", PAIRS[:2]),
    )  # fmt: skip

    assert answer["accepted"] is False
    assert answer["tests"]


def test_a_completion_without_a_program_is_not_accepted(url) -> None:
    answer = ask(url, "submit", completion="I cannot.", config=fusion_config())

    assert (answer["accepted"], answer["tests"], answer["extracted_type"]) == (False, [], "empty")


def test_prompts_are_those_of_the_request(url) -> None:
    rows = [{"id": n, "content": f"Problem {n}", "labels": {"n": n}} for n in range(5)]

    prompts = ask(url, "get_prompts", config={"provided_data": rows}, offset=1, limit=2)

    assert prompts == [
        {"id": n, "prompt": f"Problem {n}", "labels": {"n": n}} for n in (1, 2)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("route", "body", "why"),
    [
        ("submit", {"completion": PYTHON, "dataset": "humaneval"}, "no data set 'humaneval'"),
        ("get_prompts", {"dataset": "mbpp"}, "no data set 'mbpp'"),
        ("submit", {"completion": PYTHON, "config": fusion_config([])}, "no cases"),
        ("submit", {"completion": PYTHON, "config": {"language": "cobol"}}, "cobol"),
        (
            "submit",
            {"completion": PYTHON, "config": fusion_config(custom_extract_logic="x = 1")},
            "runs none",
        ),
        (
            "common_evaluate_batch",
            {"completion": PYTHON, "config": {"provided_data": {"questions": 1}}},
            "format of the cases is unknown",
        ),
        ("common_evaluate", {"config": {}}, "completion"),
    ],
)
def test_what_cannot_be_judged_is_refused_with_the_reason(url, route, body, why) -> None:
    assert why in str(ask(url, route, 422, **body)["detail"])


def test_the_document_has_the_routes(url) -> None:
    document = CLIENT.get(f"{url}/openapi.json").json()

    assert {"/submit", "/get_prompts", "/common_evaluate_batch"} <= set(document["paths"])
    assert "JudgeConfig" in document["components"]["schemas"]
