"""Judging over a sandbox that only runs programs: one request a case."""

import pytest

from tests.worker.scripted_answers import Answer, outcome
from worker import RetryPolicy, SandboxFusion
from worker.judge.judging import judge, judge_job
from worker.judge.models import JudgeRequest, JudgeResult
from worker.judge.suite import InlineSuite
from worker.turn import JobAtHand

QUICK = RetryPolicy(attempts=3, first=0.001)
FINE = Answer.ok("42\n")


def compile_error() -> Answer:
    body = outcome("Failed", "Finished", 1, stderr="no such thing")
    return Answer(body=body | {"compile_result": body["run_result"], "run_result": None})


async def judged(fusion, count: int = 4, policy: RetryPolicy = QUICK, **given) -> JudgeResult:
    cases = [{"input": str(n), "expected": "42"} for n in range(count)]
    request = JudgeRequest.read({"code": "…", "language": "cpp", "cases": cases} | given)
    sandbox = SandboxFusion(fusion.url, margin=1.0)
    try:
        suite = InlineSuite.of(request.cases or [])
        return await judge(request, suite, JobAtHand(), sandbox, policy)
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


async def test_what_does_not_compile_is_asked_for_once(fusion) -> None:
    fusion.script.append(compile_error())

    result = await judged(fusion)

    assert (result.verdicts, fusion.requests) == ("CCCC", 1)
    assert result.compile_result is not None
    assert result.compile_result.stderr == "no such thing"


@pytest.mark.parametrize(("stop", "verdicts"), [("first", "PWSS"), (2, "PWWS"), ("none", "PWWP")])
async def test_a_stop_skips_the_others(fusion, stop, verdicts) -> None:
    fusion.script.extend([FINE, Answer.ok("1"), Answer.ok("2")])

    assert (await judged(fusion, stop=stop)).verdicts == verdicts
    assert fusion.requests == 4 - verdicts.count("S")


async def test_what_is_cut_off_by_the_total_is_skipped(fusion) -> None:
    fusion.default = Answer.ok("42\n", seconds=0.02)
    result = await judged(fusion, total_seconds=0.01)

    assert (result.verdicts, result.reasons[1]) == ("PSSS", "total_seconds")


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


async def test_a_checker_needs_a_sandbox_that_judges(fusion) -> None:
    result = await judged(fusion, checker={"code": "int main() {}"})

    assert (result.verdicts, result.error_reason) == ("MMMM", "no_checker")
    assert fusion.requests == 0


async def test_a_suite_without_a_redis_is_masked(fusion) -> None:
    request = JudgeRequest.read({"code": "", "suite": {"sha256": "0" * 64, "count": 3}})

    result = await judge_job(request, JobAtHand(), SandboxFusion(fusion.url), QUICK)

    assert (result.verdicts, result.error_reason) == ("MMM", "suite_missing")
