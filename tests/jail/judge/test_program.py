"""What a case runs."""

import asyncio
import subprocess
import sys
import threading

import pytest

from jail import languages
from jail.errors import SandboxUnfit
from jail.judge import values
from jail.judge.builds import Build
from jail.judge.fault import fault_of
from jail.judge.lane import _to_warm
from jail.judge.models import JudgeRequest
from jail.judge.program import _end_of_futures, answer_in, script_of, text_of
from jail.judge.suite import Case
from jail.judge.values import Calls, calls_of


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


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ("def f(a, b):\n    print('seen')\n    return a + b", b"[3]"),
        ("if __name__ == '__main__': print(1 / 0)\ndef f(a, b): return (a, b)",
         b'[{"$tuple":[1,2]}]'),
        ("def f(a, b): exit()", None),
        ("import os\ndef f(a, b):\n    os.fork()\n    return 3", b"[3]"),
    ],
)  # fmt: skip
def test_a_sandbox_that_only_runs_programs_is_given_one_that_calls_the_function(
    code: str, answer: bytes | None
) -> None:
    called = request(code, mode="function", function="f")
    calls = calls_of(called, Case(b"1\n2", (b"3",)))
    assert calls is not None

    done = ran(script_of(text_of(called, Case()), "the mark"), calls.text.decode())

    assert answer_in(done.stdout, "the mark") == answer, done


def test_a_result_may_be_printed_as_verl_does_it() -> None:
    called = request("def f(a, b): return a + b", mode="function", function="f", values=False)

    assert calls_of(called, Case(b"1\n2", (b"3",))) is None
    assert ran(text_of(called, Case(b"1\n2", (b"3",))), "1\n2\n").stdout == "3\n"


def test_a_long_check_is_read_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    read_in = []

    def read(asked: JudgeRequest, case: Case) -> Calls | None:
        read_in.append(threading.current_thread())
        return calls_of(asked, case)

    monkeypatch.setattr(values, "calls_of", read)
    asked, line = request("def f(a): return a", mode="check"), "assert f(1) == 1\n"

    for check in (line, line * 10_000):
        assert asyncio.run(values.calls_asked(asked, Case(check=check)))

    assert [each is threading.main_thread() for each in read_in] == [True, False]


@pytest.mark.parametrize(
    "given",
    [b"x", b"['a']", b"1\n\n2", b"1],{}],['f',[2", b"9" * 5000, b"[" * 10**5, b"\xff",
     b"\xef\xbb\xbf1", b'{"$set": [{}]}'],
    ids=range(9),
)  # fmt: skip
@pytest.mark.parametrize("values", [True, False])
def test_arguments_that_no_function_can_be_given_are_the_fault_of_the_data(
    given: bytes, values: bool
) -> None:
    called = request("def f(a): return a", mode="function", function="f", values=values)

    with pytest.raises(SandboxUnfit, match="has as an argument") as refusal:
        calls_of(called, Case(given, (b"3",)))
    assert fault_of("M", refusal.value.reason) == "data"


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("\\\n\n# __future__\ndef f(x): return x", 0),
        ("'a'\n\\\n\nfrom __future__ import annotations\n", 4),
        ("x = 1\nfrom __future__ import annotations\n", 0),
    ],
)
def test_what_a_called_program_is_given_comes_behind_a_future_that_may_stand_there(
    code: str, line: int
) -> None:
    assert _end_of_futures(code) == line


def test_assertions_run_behind_the_program() -> None:
    checked = request("x = 1", mode="check")

    assert ran(text_of(checked, Case(check="assert x == 1"))).returncode == 0
    assert ran(text_of(checked, Case(check="assert x == 2"))).returncode == 1


def test_a_case_of_assertions_alone_does_not_call_the_function() -> None:
    called = request("def f(): print('called')", mode="function", function="f")

    assert ran(text_of(called, Case(check="assert callable(f)"))).stdout == ""


@pytest.mark.parametrize("blank", [b"\n", b" ", b"\nimport", b"import\t", b"from\n"])
def test_a_program_of_a_million_blanks_is_searched_once_for_its_imports(blank: bytes) -> None:
    text = b"import heapq, math as m\n  from  re import *\n" + blank * 10**6 + b"\nx"
    build = Build(languages.find("python", {}), "main.py", {"main.py": text})

    assert _to_warm(build) == ["heapq", "math", "re"]
