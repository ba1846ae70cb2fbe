"""What a case runs."""

import subprocess
import sys

from jail.judge.models import JudgeRequest
from jail.judge.program import text_of
from jail.judge.suite import Case


def ran(text: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", text], input=stdin, capture_output=True, text=True, check=False
    )


def request(code: str, **given) -> JudgeRequest:
    return JudgeRequest.read({"code": code, "cases": [{}]} | given)


def test_cases_without_assertions_run_one_and_the_same_text() -> None:
    called = request("def f(a, b): return a + b", mode="function", function="f")
    texts = {text_of(called, Case(b"%d\n2" % n, (b"%d" % n,))) for n in range(3)}

    assert len(texts) == 1
    assert ran(texts.pop(), "1\n2").stdout == "3\n"


def test_assertions_run_behind_the_program() -> None:
    checked = request("x = 1", mode="check")

    assert ran(text_of(checked, Case(check="assert x == 1"))).returncode == 0
    assert ran(text_of(checked, Case(check="assert x == 2"))).returncode == 1


def test_a_case_of_assertions_alone_does_not_call_the_function() -> None:
    called = request("def f(): print('called')", mode="function", function="f")

    assert ran(text_of(called, Case(check="assert callable(f)"))).stdout == ""
