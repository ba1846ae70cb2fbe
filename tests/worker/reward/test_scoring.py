"""`score`: what a program earns, and when that cannot be known."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from ground import SettingError
from jail import LocalSandbox
from jail.judge.models import JudgeResult
from tests.harness import killing
from tests.harness.servers import url_of
from tests.worker.concurrent.crew import at_work, work_in_process
from tests.worker.scripted_answers import Answer, outcome
from worker import CodeQueue, CodeRequest, CodeResult, RequestRefused, SandboxFusion
from worker.reward import Case, score


@pytest.fixture
async def local() -> AsyncIterator[LocalSandbox]:
    sandbox = LocalSandbox()
    yield sandbox
    await sandbox.close()


SQUARE = "print(int(input()) ** 2)"
CASES = [Case("3", "9"), Case("4", "16")]


async def test_a_right_program_scores_one(local) -> None:
    found = await score(SQUARE, CASES, on=local)
    assert (found.value, found.masked, found.passed) == (1.0, False, 2)
    assert [case.verdict for case in found.cases] == ["passed", "passed"]


@pytest.mark.parametrize(
    ("code", "verdict", "reason"),
    [
        ("print(1)", "wrong", ""),
        ("1 / 0", "error", "exit"),
        ("import os; os.kill(os.getpid(), 9)", "error", "signal"),
        ("while True: pass", "timeout", "run_timeout"),
        ("x = bytearray(900 << 20)", "limit", "memory_limit"),
    ],
)
async def test_why_a_program_fails(local, code: str, verdict: str, reason: str) -> None:
    found = await score(code, [Case("3", "9")], on=local, case_timeout=3, memory_limit_mb=256)
    (case,) = found.cases
    assert (found.value, case.verdict, case.reason) == (0.0, verdict, reason)
    assert case.result is not None


async def test_code_that_does_not_compile(local) -> None:
    found = await score("not C++", [Case()], on=local, language="cpp")
    assert (found.value, found.cases[0].verdict) == (0.0, "compile_error")


async def test_code_that_no_sandbox_takes_is_the_models_fault(local) -> None:
    found = await score("x = '\ud800'", [Case()], on=local)
    assert (found.value, found.cases[0].verdict) == (0.0, "compile_error")
    assert "lone surrogate" in found.cases[0].result.stderr


async def test_a_function_and_assertions(local) -> None:
    cases = [Case("2", "4"), Case("3", "9", check="assert square(1) == 2")]
    code = "def square(x): return x * x"
    found = await score(code, cases, on=local, function="square")
    assert [case.verdict for case in found.cases] == ["passed", "error"]
    assert found.value == 0.5


async def test_a_check_alone_does_not_call_the_function(local) -> None:
    cases = [Case(check="assert square(2) == 4"), Case(check="assert square(2) == 5")]
    found = await score("def square(x): return x * x", cases, on=local, function="square")
    assert [case.verdict for case in found.cases] == ["passed", "wrong"]


async def test_a_function_of_another_language_is_refused() -> None:
    with pytest.raises(ValueError, match="called in Python, and the language is 'cpp'"):
        await score("x", [Case("1", "1")], on=Scripted(), language="cpp", function="f")


async def test_outputs_are_compared_as_the_caller_says(local) -> None:
    def close(printed: str, expected: str) -> bool:
        return abs(float(printed) - float(expected)) < 0.1

    cases = [Case("3", "9.05")]
    assert (await score(SQUARE, cases, on=local)).value == 0.0
    assert (await score(SQUARE, cases, on=local, compare=close)).value == 1.0


@pytest.mark.parametrize(
    ("code", "verdict", "reason"),
    [("def f(): return 1", "passed", ""), ("raise SystemExit", "error", "ended_early")],
)
async def test_assertions_pass_only_if_they_were_reached(local, code, verdict, reason) -> None:
    class OnlyRuns:
        run = local.run

    found = await score(code, [Case(check="assert f() == 1")], on=OnlyRuns())
    assert (found.cases[0].verdict, found.cases[0].reason) == (verdict, reason)


def stripped(printed: str, expected: str) -> bool:
    return printed.strip() == expected


MB = 1 << 20


async def test_a_functions_output_may_be_longer_than_what_comes_back_of_others(local) -> None:
    long = 3 * MB // 2
    found = await score(
        f"print('a' * {long})", [Case(None, "a" * long)], on=local, compare=stripped
    )
    assert found.value == 1.0
    assert len(found.cases[0].result.stdout) < long, "which is bounded again"


async def test_a_case_that_expects_more_than_a_program_may_print_is_masked(local) -> None:
    case = Case(None, "a" * (5 * MB))
    found = await score(f"print('a' * {5 * MB})", [case], on=local, compare=stripped)
    assert (found.value, found.reason) == (None, "output_cut")


async def test_a_program_that_prints_more_than_is_expected_of_it_is_not_masked(local) -> None:
    found = await score(f"print('a' * {5 * MB})", [Case(None, "a")], on=local, compare=stripped)
    (case,) = found.cases
    assert (found.value, case.verdict, case.reason) == (0.0, "limit", "output_limit")


async def test_what_fails_by_itself_is_not_masked_however_much_is_expected(local) -> None:
    (case,) = (await score("1 / 0", [Case(None, "a" * (2 * MB))], on=local, compare=stripped)).cases
    assert (case.verdict, case.reason) == ("error", "exit")


@pytest.mark.parametrize(
    ("expected", "compare", "verdict"),
    [("1 2 3", "ends", "masked"), ("1 3 3", "ends", "wrong"), ("1 3 3", stripped, "masked")],
)
async def test_an_output_that_was_cut_is_masked_unless_its_beginning_is_wrong(
    expected, compare, verdict
) -> None:
    class Small:
        async def run(self, request: CodeRequest) -> CodeResult:
            return CodeResult.read(Answer.ok("1 2 3").body).bounded(4)

    found = await score("x", [Case("", expected)], on=Small(), compare=compare)
    assert found.cases[0].verdict == verdict


class Scripted:
    """A sandbox that knows the outcome of each case, and tells who asked."""

    def __init__(self, **answers: Answer) -> None:
        self._answers = answers
        self.asked: list[str] = []

    async def run(self, request: CodeRequest) -> CodeResult:
        self.asked.append(str(request.stdin))
        return CodeResult.read(self._answers[str(request.stdin)].body)


GOOD, BAD, OK = Answer.ok("1\n"), Answer.exit(1), Answer.ok()
LOST = Answer(body=outcome("SandboxError", "Error", None))


def cases(names: str) -> list[Case]:
    return [Case(name, "1") for name in names]


async def test_a_case_of_unknown_outcome_masks_the_score() -> None:
    found = await score("x", cases("abc"), on=Scripted(a=GOOD, b=LOST, c=BAD))
    assert (found.value, found.masked, found.reason) == (None, True, "sandbox_error")
    assert [case.verdict for case in found.cases] == ["passed", "masked", "error"]


async def test_a_failure_stops_the_rest_when_all_must_pass() -> None:
    sandbox = Scripted(a=GOOD, b=BAD, c=GOOD)
    found = await score("x", cases("abc"), on=sandbox, stop_early=True, at_once=1)
    assert (found.value, sandbox.asked) == (0.0, ["a", "b"])
    assert [case.verdict for case in found.cases] == ["passed", "error", "skipped"]


@pytest.mark.parametrize(("names", "value"), [("aba", 0.0), ("bca", 0.0), ("aca", None)])
async def test_a_known_failure_decides_whatever_else_was_lost(names, value) -> None:
    sandbox = Scripted(a=GOOD, b=BAD, c=LOST)
    found = await score("x", cases(names), on=sandbox, stop_early=True, at_once=3)
    assert found.value == value


async def test_what_still_runs_is_cancelled_by_a_failure() -> None:
    at_work, ended = asyncio.Event(), asyncio.Event()

    class Endless:
        async def run(self, request: CodeRequest) -> CodeResult:
            if request.stdin == "good":
                return CodeResult.read(OK.body)
            if request.stdin == "bad":
                await at_work.wait()
                return CodeResult.read(BAD.body)
            at_work.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
            raise AssertionError

    wanted = [Case("good"), Case("bad"), Case("endless")]
    found = await score("x", wanted, on=Endless(), stop_early=True)
    assert [case.verdict for case in found.cases] == ["passed", "error", "skipped"]
    assert ended.is_set()


async def test_a_case_that_cannot_be_asked_is_its_authors_fault() -> None:
    with pytest.raises(RequestRefused, match="case 0 input"):
        await score("x", [Case("\ud800")], on=Scripted())
    with pytest.raises(RequestRefused, match="'cobol' is unknown"):
        await score("x", [Case()], on=Scripted(), language="cobol")
    with pytest.raises(ValueError, match="at least one case"):
        await score("x", [], on=Scripted())


async def test_a_dead_sandbox_masks(fusion) -> None:
    fusion.stop_listening()
    sandbox = SandboxFusion(fusion.url)
    found = await score("x", cases("ab"), on=sandbox)
    await sandbox.close()
    assert (found.value, found.reason) == (None, "connect")


async def test_a_dead_redis_masks(private_redis) -> None:
    server = private_redis()
    queue = CodeQueue(server.target, "code", patience=0.3)
    server.kill()
    found = await score("x", cases("ab"), on=queue)
    assert found.value is None
    assert found.reason.startswith("QueueUnavailable: queue 'code': Redis at")


async def test_on_a_queue(real_redis, fusion) -> None:
    fusion.default = Answer.ok("1\n")
    with at_work(real_redis):
        found = await score("x", cases("abc"), on=CodeQueue(real_redis, "code"))
    assert (found.value, fusion.requests) == (1.0, 3)


async def test_a_worker_that_is_killed_changes_no_score(real_redis, fusion) -> None:
    fusion.default = Answer.ok("1\n", seconds=0.05)
    at = killing.before("worker.concurrent.finish:Finisher._record")
    arguments = (url_of(real_redis), ["code"], {"job_lease": 1.0})
    with killing.Child(work_in_process, *arguments, at=at) as doomed:
        running = asyncio.create_task(score("x", cases("abcdefgh"), on=CodeQueue(real_redis)))
        await asyncio.to_thread(doomed.wait)
        with killing.Child(work_in_process, *arguments):
            assert (await running).value == 1.0


async def test_what_is_no_case_or_no_sandbox_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="a case's expected is text, not 9"):
        Case("3", 9)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a CodeQueue, a sandbox or its address, not <object"):
        await score("print(1)", [Case()], on=object())  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="on: names no place for programs"):
        await score("print(1)", [Case()], on="redsi://127.0.0.1")


class Counting(LocalSandbox):
    """The embedded sandbox, and how often it was asked for what."""

    def __init__(self) -> None:
        super().__init__()
        self.runs = self.judged = 0

    async def run(self, request: CodeRequest) -> CodeResult:
        self.runs += 1
        return await super().run(request)

    async def judge(self, request, suite):
        self.judged += 1
        return await super().judge(request, suite)


@pytest.fixture
async def counting() -> AsyncIterator[Counting]:
    sandbox = Counting()
    yield sandbox
    await sandbox.close()


async def test_all_cases_are_one_call_of_a_sandbox_that_judges(counting) -> None:
    many = [Case(str(n), str(n * n)) for n in range(30)]

    found = await score(SQUARE, many, on=counting)

    assert (found.value, counting.judged, counting.runs) == (1.0, 1, 0)


async def test_a_rule_of_comparison_travels(counting) -> None:
    cases = [Case("3", "9.0000001")]

    assert (await score(SQUARE, cases, on=counting, compare="floats")).value == 1.0
    assert (await score(SQUARE, cases, on=counting, compare="tokens")).value == 0.0
    assert (counting.judged, counting.runs) == (2, 0)


async def test_a_function_compares_whole_outputs_here(counting) -> None:
    """One that is too long to come back beside the others is fetched alone."""
    lengths = [("10", "10"), ("600000", "600000"), ("5", "6")]

    def as_long(printed: str, expected: str) -> bool:
        return len(printed) == int(expected)

    code = "n = int(input()); print('x' * n * (3 if n > 1000 else 1), end='')"
    cases = [Case(given, expected) for given, expected in lengths]
    found = await score(code, cases, on=counting, compare=as_long)

    assert [case.verdict for case in found.cases] == ["passed", "wrong", "wrong"]
    assert (counting.judged, counting.runs) == (2, 0)


async def test_the_first_failure_ends_the_others_inside(counting) -> None:
    cases = [Case("3", "9"), Case("4", "1"), *[Case("5", "25")] * 20]

    found = await score(SQUARE, cases, on=counting, stop_early=True)

    assert found.value == 0.0
    verdicts = [case.verdict for case in found.cases]
    assert verdicts[1] == "wrong"
    assert verdicts[-1] == "skipped"
    assert counting.judged == 1


async def test_what_a_time_for_all_has_cut_off_is_no_failure(counting) -> None:
    async def cut_off(*_: object) -> JudgeResult:
        return JudgeResult(verdicts="PS", reasons={1: "total_seconds"})

    counting.judge = cut_off
    found = await score("", [Case("1", "1")] * 2, on=counting)
    assert (found.value, found.reason) == (None, "total_seconds")


async def test_one_job_of_a_queue_scores_a_program(real_redis) -> None:
    """With the embedded sandbox behind it."""
    many = [Case(str(n), str(n * n)) for n in range(25)]
    queue = CodeQueue(real_redis, "code")
    with at_work(real_redis, sandbox="local"):
        found = await score(SQUARE, many, on=queue)
        bad = await score("print(input())", many, on=queue, language="python")

    assert (found.value, bad.value) == (1.0, 2 / 25)
    assert int(real_redis.hget("penstock:work:{code}", "claimed")) == 2
    assert bad.cases[3].result is not None
    assert bad.cases[3].result.stdout == "3\n"
