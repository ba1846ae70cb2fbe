"""Judging over a sandbox that only runs programs: one request a case."""

import asyncio
import math

import pytest

from jail import LocalSandbox
from jail.judge.models import JudgeRequest, JudgeResult
from jail.judge.suite import Case, InlineSuite
from jail.models import OUTPUT_LIMIT, CodeRequest, CodeResult
from tests.worker.scripted_answers import Answer, outcome
from worker import RetryPolicy, SandboxFusion
from worker.judging.job import judge, judge_job
from worker.run.execution import SPARE
from worker.run.turn import JobAtHand, Unlimited

QUICK = RetryPolicy(attempts=3, first=0.001)
FINE = Answer.ok("42\n")


def compile_error(status: str = "Finished", return_code: int | None = 1) -> Answer:
    body = outcome("Failed", status, return_code, stderr="no such thing")
    return Answer(body=body | {"compile_result": body["run_result"], "run_result": None})


async def judged(
    fusion,
    count: int = 4,
    policy: RetryPolicy = QUICK,
    suite: InlineSuite | None = None,
    at_hand: JobAtHand | None = None,
    **given,
) -> JudgeResult:
    cases = [{"input": str(n), "expected": "42"} for n in range(count)]
    request = JudgeRequest.read({"code": "…", "language": "cpp", "cases": cases} | given)
    sandbox = SandboxFusion(fusion.url, margin=1.0)
    try:
        suite = suite or InlineSuite.of(request.cases or [])
        return await judge(request, suite, at_hand or JobAtHand(), sandbox, policy)
    finally:
        await sandbox.close()


async def test_each_case_is_a_request_with_its_input(fusion) -> None:
    result = await judged(fusion)

    assert result.verdicts == "PPPP"
    assert [body["stdin"] for body in fusion.bodies] == ["0", "1", "2", "3"]


async def test_every_end_has_its_letter(fusion) -> None:
    fusion.script.extend([FINE, Answer.ok("41"), Answer.exit(3), Answer.late()])

    result = await judged(fusion, keep="failures")

    assert result.verdicts == "PWET"
    assert result.exits == {2: 3}
    assert result.reasons == {2: "exit", 3: "run_timeout"}
    assert result.kept[1].stdout == "41"
    assert sorted(result.kept) == [1, 2, 3]


@pytest.mark.parametrize("end", [("Finished", 1), ("TimeLimitExceeded", None)])
async def test_what_does_not_compile_is_asked_for_once(fusion, end) -> None:
    fusion.default = compile_error(*end)

    result = await judged(fusion)

    assert (result.verdicts, fusion.requests) == ("CCCC", 1)
    assert result.compile_result is not None
    assert result.compile_result.stderr == "no such thing"


@pytest.mark.parametrize("end", [("Finished", 1), ("TimeLimitExceeded", None)])
async def test_what_has_compiled_and_does_not_with_a_later_case_is_tried_again(fusion, end) -> None:
    fusion.script.extend([FINE, compile_error(*end), FINE, FINE])

    result = await judged(fusion)

    assert (result.verdicts, result.attempts, fusion.requests) == ("PPPP", 2, 5)


async def test_a_second_failure_to_compile_is_that_cases_alone(fusion) -> None:
    fusion.script.extend([FINE, compile_error(), compile_error(), FINE])

    result = await judged(fusion)

    assert (result.verdicts, fusion.requests) == ("PCPP", 5)


@pytest.mark.parametrize(("stop", "verdicts"), [("first", "PWSS"), (2, "PWWS"), ("none", "PWWP")])
async def test_a_stop_skips_the_others(fusion, stop, verdicts) -> None:
    fusion.script.extend([FINE, Answer.ok("1"), Answer.ok("2")])

    assert (await judged(fusion, stop=stop)).verdicts == verdicts
    assert fusion.requests == 4 - verdicts.count("S")


async def test_what_is_cut_off_by_the_total_is_skipped(fusion) -> None:
    fusion.default = Answer.ok("42\n", seconds=0.02)
    result = await judged(fusion, total_seconds=0.01)

    assert (result.verdicts, result.reasons[1]) == ("PSSS", "total_seconds")


async def test_what_a_slow_program_leaves_to_the_total_is_late(fusion) -> None:
    """By the sandbox's own clock, which is all that it says."""
    body = outcome("Success", "Finished", 0, stdout="42\n")
    body["run_result"]["execution_time"] = 100.0
    fusion.default = Answer(body=body, seconds=0.02)
    result = await judged(fusion, total_seconds=0.01)

    assert (result.verdicts, result.reasons[1]) == ("PTTT", "total_seconds")
    assert "the program's cases used 100.0 s" in result.evidence[1]


class Late:
    """A sandbox whose programs use all of their time, by its own clock."""

    name, languages = "late", frozenset({"python"})

    async def run(self, request: CodeRequest) -> CodeResult:
        body = outcome("Failed", "TimeLimitExceeded", None)
        body["run_result"]["execution_time"] = request.run_timeout
        return CodeResult.read(body)

    async def close(self) -> None: ...


async def test_no_case_runs_longer_than_the_time_for_all() -> None:
    """A caller gives a grade up soon after that, and what is given up is masked."""
    request = JudgeRequest.read({"code": "…", "cases": [{"input": ""}] * 3, "total_seconds": 5})
    suite = InlineSuite.of(request.cases or [])

    result = await judge(request, suite, JobAtHand(), Late(), QUICK)

    assert (result.verdicts, result.reasons) == ("TTT", dict.fromkeys(range(3), "total_seconds"))
    assert "used 5.0 s" in result.evidence[0]


async def test_a_case_that_the_total_ends_is_skipped_if_its_program_hardly_ran(fusion) -> None:
    fusion.default = Answer.late(seconds=0.1)
    result = await judged(fusion, total_seconds=0.05)

    assert (result.verdicts, result.reasons[0]) == ("SSSS", "total_seconds")


class InLine(Unlimited):
    """A turn that does not come."""

    async def begin(self, outlives: float) -> None:
        await asyncio.Event().wait()


@pytest.mark.parametrize("turn", [Unlimited(), InLine()])
async def test_a_program_that_waits_for_us_at_the_jobs_end_is_masked(fusion, turn) -> None:
    """For the sandbox's answer, or for a permit, which is longer than its own time limit."""
    fusion.default = Answer.ok(seconds=math.inf)
    at_hand = JobAtHand(turn, seconds=SPARE + 0.1)

    result = await judged(fusion, at_hand=at_hand, run_timeout=0.01)

    assert (result.verdicts, result.masked_because) == ("MMMM", "job_time")


async def test_assertions_of_plain_calls_are_held_here(fusion) -> None:
    """The sandbox gets the calls, and prints what they return."""
    mark = "\x1e--values--\x1e"
    said = [Answer.ok(f"hello{mark}[{value}]{mark}") for value in (4242, 4, '"4242"')]
    fusion.script.extend([*said, Answer.ok("nothing")])
    check = "#include <cassert>\nint main() { assert(f(1) == 4242); }"
    cases = [{"check": check}] * 4
    result = await judged(fusion, cases=cases, mode="check")

    assert (result.verdicts, result.shared) == ("PWWE", 0)
    assert all("f(1)" in body["code"] and "4242" not in body["code"] for body in fusion.bodies)


async def test_a_case_that_the_mode_cannot_run_is_masked_alone(fusion) -> None:
    good, unfit = Case(b"1", (b"42",)), Case(b"", None, "assert x")
    request = JudgeRequest.read({"code": "…", "suite": {"sha256": "0" * 64, "count": 3}})
    sandbox, suite = SandboxFusion(fusion.url, margin=1.0), InlineSuite([good, unfit, good])

    result = await judge(request, suite, JobAtHand(), sandbox, QUICK)
    await sandbox.close()

    assert (result.verdicts, result.reasons) == ("PMP", {1: "suite_unfit"})


async def test_a_failure_in_between_repeats_no_case(fusion) -> None:
    fusion.script.extend([FINE, FINE, Answer.refusal(503)])

    result = await judged(fusion)

    assert (result.verdicts, result.attempts) == ("PPPP", 2)
    assert [body["stdin"] for body in fusion.bodies] == ["0", "1", "2", "2", "3"]


async def test_what_is_known_stays_known_if_the_sandbox_does_not_come_back(fusion) -> None:
    fusion.script.extend([FINE, Answer.ok("41")])
    fusion.default = Answer.refusal(503)

    result = await judged(fusion, 50)

    assert (result.verdicts, result.error_kind) == ("PW" + 48 * "M", "infrastructure")
    assert result.masked_because
    assert fusion.requests == 2 + 3 * QUICK.attempts, "three cases say that it does not come back"


async def test_a_case_that_the_sandbox_cannot_run_masks_no_other(fusion) -> None:
    fusion.script.extend([FINE, *[Answer.sandbox_error()] * QUICK.attempts])

    assert (await judged(fusion)).verdicts == "PMPP"


async def test_a_case_whose_argument_is_no_json_is_asked_of_no_sandbox(fusion) -> None:
    cases = [{"input": "hello"}, {"input": "1", "expected": "42"}]
    called = {"language": "python", "mode": "function", "function": "f", "values": False}
    result = await judged(fusion, cases=cases, **called)

    assert (result.verdicts, result.fault_of_mask, fusion.requests) == ("MP", "data", 1)


async def test_a_checker_needs_a_sandbox_that_judges(fusion) -> None:
    result = await judged(fusion, checker={"code": "int main() {}"})

    assert (result.verdicts, result.error_reason) == ("MMMM", "no_checker")
    assert fusion.requests == 0


async def test_a_suite_without_a_redis_is_masked(fusion) -> None:
    request = JudgeRequest.read({"code": "", "suite": {"sha256": "0" * 64, "count": 3}})

    result = await judge_job(request, JobAtHand(), SandboxFusion(fusion.url), QUICK)

    assert (result.verdicts, result.error_reason) == ("MMM", "suite_missing")


LONG = "12345678 " * 200_000  # more than a sandbox keeps of an output that nobody compares


@pytest.mark.parametrize(
    ("printed", "verdict"), [(LONG, "P"), (LONG + "9", "W"), ("0" + LONG, "W"), (2 * LONG, "W")]
)
async def test_an_output_may_be_as_long_as_what_is_expected(fusion, printed, verdict) -> None:
    fusion.default = Answer.ok(printed)
    suite = InlineSuite([Case(expected=(LONG.encode(),))])

    assert (await judged(fusion, 1, suite=suite)).verdicts == verdict


class Keeping:
    """A sandbox that keeps less than it is asked for."""

    name, languages = "small", frozenset({"cpp"})

    def __init__(self, result: CodeResult) -> None:
        self._result = result

    async def run(self, request: CodeRequest) -> CodeResult:
        return self._result

    async def close(self) -> None: ...


def printed(text: str, keeps: int) -> CodeResult:
    return CodeResult.read(Answer.ok(text).body).bounded(keeps)


FLOOD = {"status": "Failed", "error_kind": "limit", "error_reason": "output_limit"}
KILLED = outcome("Failed", "Finished", -9)
KILLED["run_result"] |= {"limit": "output"}  # as the embedded sandbox says it over HTTP


async def test_a_cut_output_without_its_scripts_mark_is_masked() -> None:
    given = {"code": "…", "mode": "check", "cases": [{"check": "assert f()"}] * 2}
    request = JudgeRequest.read(given)
    sandbox = Keeping(printed("1 2 3", 4))
    sandbox.languages = frozenset({"python"})

    suite = InlineSuite.of(request.cases or [])
    assert (await judge(request, suite, JobAtHand(), sandbox, QUICK)).verdicts == "MM"


@pytest.mark.parametrize(
    ("result", "expected", "verdict", "reason"),
    [
        (printed("1 2 3", 4), "1 2 3", "M", "output_cut"),
        (printed("1 2 3", 4), "1 2 4", "M", "output_cut"),
        (printed("1 2 3", 4), "1 3 3", "W", ""),
        (printed("1 2 3", 5), "1 2 3", "P", ""),
        (CodeResult.read(FLOOD), LONG, "M", "output_cut"),
        (CodeResult.read(FLOOD), "1", "L", "output_limit"),
        (CodeResult.read(KILLED), LONG, "M", "output_cut"),
        (CodeResult.read(KILLED), "1", "L", "output_limit"),
    ],
)
async def test_an_output_that_was_cut_is_masked_unless_its_beginning_is_wrong(
    result, expected, verdict, reason
) -> None:
    suite = InlineSuite([Case(expected=(expected.encode(),))])
    request = JudgeRequest.read(
        {"code": "…", "language": "cpp", "suite": {"sha256": "0" * 64, "count": 1}}
    )

    found = await judge(request, suite, JobAtHand(), Keeping(result), QUICK)

    assert (found.verdicts, found.reasons.get(0, "")) == (verdict, reason)
    assert ("PENSTOCK_SANDBOX_OUTPUT_MB" in found.message) == (verdict == "M")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"compare": {"rule": "lines"}}, (b"1",)),
        ({"mode": "function", "function": "f"}, (b"1",)),
        ({"mode": "check"}, None),
    ],
)
async def test_a_program_that_floods_its_output_is_not_masked_by_the_cut(given, expected) -> None:
    """Blanks may come before what is right, but not so many."""
    check = "assert f(g())" if expected is None else ""
    suite = InlineSuite([Case(expected=expected, check=check)])
    request = JudgeRequest.read({"code": "…", "suite": {"sha256": "0" * 64, "count": 1}} | given)
    sandbox = Keeping(printed("\n" * (2 * OUTPUT_LIMIT), OUTPUT_LIMIT))
    sandbox.languages = frozenset({"python"})

    found = await judge(request, suite, JobAtHand(), sandbox, QUICK)

    assert (found.verdicts, found.reasons) == ("L", {0: "output_limit"})


@pytest.mark.parametrize("checked", [{"mode": "check"}, {"mode": "function", "function": "f"}])
@pytest.mark.parametrize(
    ("code", "verdicts", "reasons"),
    [
        ("def f(): return 1", "PE", {1: "exit"}),
        ("raise SystemExit", "EE", {0: "ended_early", 1: "ended_early"}),
        ("import os; os._exit(0)", "EE", {0: "ended_early", 1: "ended_early"}),
    ],
)
async def test_assertions_pass_only_if_they_were_reached(checked, code, verdicts, reasons) -> None:
    cases = [{"check": "assert f() == 1"}, {"check": "print(2, end=''); assert f() == 2"}]
    request = JudgeRequest.read({"code": code, "cases": cases, "keep": "all"} | checked)
    suite = InlineSuite.of(request.cases or [])
    sandbox = OnlyRuns()
    try:
        result = await judge(request, suite, JobAtHand(), sandbox, QUICK)
    finally:
        await sandbox.close()

    assert (result.verdicts, result.reasons) == (verdicts, reasons)
    assert result.kept[1].stdout in ("", "2"), "no mark is in what was printed"


class OnlyRuns(LocalSandbox):
    judged_languages = frozenset()
