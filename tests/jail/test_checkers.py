"""Checkers and interactors that fail themselves say nothing of the program that they judge."""

import contextlib
import errno
import os
from types import SimpleNamespace

import pytest

from jail import LocalSandbox
from jail.errors import SandboxBroken
from jail.judge import checkers
from jail.judge.checkers import verdict_by
from jail.judge.findings import CaseVerdict
from jail.judge.models import Checker
from jail.judge.trial import _of_both
from jail.outcome import Step

from .judged import Cases, judge
from .judged import sandbox as sandbox

pytestmark = pytest.mark.asyncio(loop_scope="module")


CHECKERS = {  # and what it says of an output of 1
    "raise ValueError(1)": ("M", "checker_error"),
    "import nothing_of_this_name": ("M", "checker_error"),
    "this is no Python": ("M", "checker_error"),
    "raise SystemExit(1)": ("W", "checker"),
    "assert False, 'not sorted'": ("W", "checker"),
    "from __future__ import annotations\nimport sys; sys.exit(len(sys.argv) != 4)": ("P", ""),
}


@pytest.mark.parametrize("code", CHECKERS)
async def test_a_python_checker_that_raises_has_no_verdict(
    sandbox: LocalSandbox, code: str
) -> None:
    checker = {"code": code, "language": "python"}
    result = await judge(sandbox, "print(1)", [("", "1")], checker=checker)
    assert (result.verdicts, result.reasons.get(0, "")) == CHECKERS[code], result


@pytest.mark.parametrize(
    ("language", "code", "said"),
    [
        ("java", 1, b'Exception in thread "main" java.lang.ArithmeticException: / by zero\n'),
        ("go", 2, b"panic: runtime error: index out of range\n\ngoroutine 1 [running]:\n"),
        ("rust", 101, b"\nthread 'main' panicked at src/main.rs:1:13:\nexplicit panic\n"),
        ("nodejs", 1, b"/run/program/main.js:1\n\nError: x\n    at y\n\nNode.js v20.19.2\n"),
    ],
)
async def test_what_other_languages_say_of_a_failure_is_known(
    language: str, code: int, said: bytes
) -> None:
    checker = Checker(code="", language=language)

    def verdict(stderr: bytes) -> str:
        return verdict_by(checker, Step("finished", code, b"", stderr, 0.0, 0.0, 0, 0)).letter

    assert (verdict(said), verdict(b"the program printed: " + said[:-1] + b"!")) == ("M", "W")


CHOOSY = "import sys; n = int(open(sys.argv[2]).read()); sys.exit(n != 7)"
OWN_WORD = 'test "$(cat "$2")" = 7 || exit 3'
ENDLESS = "import sys\nwhile open(sys.argv[2]).read() != '7': pass"


@pytest.mark.parametrize(
    ("code", "printed", "expected", "letter", "said"),
    [
        (CHOOSY, "abc", "7", "W", "reads the expected output, and fails on this one"),
        (CHOOSY, "9" * 5000, "7", "W", "reads the expected output"),
        (CHOOSY, "abc", "8", "W", "reads the expected output"),
        (CHOOSY, "abc", "seven", "M", "fails on the expected output too"),
        (OWN_WORD, "abc", "7", "W", "reads the expected output, and fails on this one"),
        (OWN_WORD, "abc", "8", "M", "fails on the expected output too"),
        (ENDLESS, "abc", "7", "W", "checker_timeout"),
        (ENDLESS, "abc", "8", "M", "fails on the expected output too"),
    ],
)
async def test_a_checker_that_fails_is_tried_on_the_expected_output(
    sandbox: LocalSandbox, code: str, printed: str, expected: str, letter: str, said: str
) -> None:
    language = "bash" if code == OWN_WORD else "python"
    checker = {"code": code, "language": language, "timeout": 1.0}
    result = await judge(sandbox, f"print('{printed}')", [("", expected)], checker=checker)
    assert result.verdicts == letter, result
    assert said in result.comments[0]


@pytest.mark.parametrize("points", ["nan", "inf", "-inf", "1e999"])
async def test_points_are_numbers(sandbox: LocalSandbox, points: str) -> None:
    checker = {"code": f"print('{points}')", "language": "python", "protocol": "open_r1"}
    result = await judge(sandbox, "print(1)", [("", "1")], checker=checker)
    assert (result.verdicts, result.reasons, result.points) == ("M", {0: "checker_error"}, {})
    long = Step("finished", 7, b"", b"points " + b"9" * 400, 0.0, 0.0, 0, 0)
    assert verdict_by(Checker(code=""), long).letter == "M"


async def test_who_failed_first_is_to_blame() -> None:
    late, failed, broken = CaseVerdict("T"), CaseVerdict("E"), CaseVerdict("M", "checker_error")
    assert _of_both(late, broken, hung_up=True) is broken, "it left the program to wait"
    assert _of_both(late, broken, hung_up=False) is late, "it met the end of one that was killed"
    assert _of_both(failed, broken, hung_up=False) is failed
    assert _of_both(late, CaseVerdict("M", "checker_timeout"), hung_up=False).letter == "M"
    assert _of_both(failed, CaseVerdict("W"), hung_up=True).letter == "W", (
        "it hung up on a wrong one"
    )
    assert _of_both(failed, CaseVerdict("P"), hung_up=True) is failed


ECHO = "while True: print(input(), flush=True)"
INTERACTORS = {  # the interactor, the program, and what becomes of the case
    "hangs awake": ("while True: pass", ECHO, "M", "checker_timeout"),
    "hangs asleep": ("import time; time.sleep(1000)", ECHO, "M", "checker_timeout"),
    "fails": ("raise ValueError(1)", "import sys; sys.stdin.read()", "M", "checker_error"),
    "waits for a program that waits": ("input()", "input()", "T", "run_timeout"),
    "waits for a program that has ended": ("input()", "", "W", "checker"),
    "waits for a program that fails": ("input()", "raise SystemExit(3)", "W", "checker"),
    "meets one that computes without end": ("input()", "while True: pass", "T", "run_timeout"),
}


@pytest.mark.parametrize("how", INTERACTORS)
async def test_an_interactor_that_hangs_or_fails_is_not_its_programs_fault(
    sandbox: LocalSandbox, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    if how == "hangs asleep":
        monkeypatch.setattr(checkers, "_PATIENCE", 0.1)
    code, program, letter, reason = INTERACTORS[how]
    interactor = {"code": code, "language": "python", "timeout": 0.5}
    cases: Cases = [("", None)]
    result = await judge(
        sandbox, program, cases, mode="interactive", interactor=interactor,
        run_timeout=0.5, wall_timeout=None,
    )  # fmt: skip
    assert (result.verdicts, result.reasons[0]) == (letter, reason), result


async def test_a_lack_of_descriptors_for_an_interactor_is_the_systems_and_leaves_none_open(
    sandbox: LocalSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    interactor = {"code": "pass", "language": "python"}
    cases: Cases = [("", None)]
    made: list[str] = []

    def pipe() -> tuple[int, int]:
        made.append("")
        if len(made) % 2 == 0:
            raise OSError(errno.EMFILE, "Too many open files")
        ends = os.pipe()
        made[-1] = os.readlink(f"/proc/self/fd/{ends[0]}")
        return ends

    monkeypatch.setattr(checkers, "os", SimpleNamespace(pipe=pipe))
    with pytest.raises(SandboxBroken, match="Too many open files"):
        await judge(sandbox, "pass", cases, mode="interactive", interactor=interactor)
    assert [bool(each) for each in made] == [True, False] * 2
    left = set()
    for at in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the folder's own
            left.add(os.readlink(f"/proc/self/fd/{at}"))
    assert not left & set(made)
