"""A program and its suite in a sandbox: in one go, or where it cannot, one run a case.

A sandbox that judges (`JudgingSandbox`) compiles once. Of another one, a foreign Sandbox Fusion for
instance, each case is asked for by itself, under the job's one permit; what is known stays known
if the sandbox fails in between.
"""

import asyncio
import logging
from functools import partial
from typing import TypeGuard

from worker.errors import RequestRefused, SandboxFailure, SandboxUnfit
from worker.execution import SPARE, RetryPolicy, Work, attempted, kills_cancelled, outlives
from worker.judge.compare import accepts
from worker.judge.models import JudgeRequest, JudgeResult, Kept, Letter
from worker.judge.program import text_of
from worker.judge.progress import Watched
from worker.judge.reading import reader_here
from worker.judge.suite import Case, InlineSuite, Suite
from worker.models import CodeRequest, CodeResult
from worker.sandbox.protocol import JudgingSandbox, Sandbox
from worker.turn import JobAtHand

log = logging.getLogger("penstock.worker")

_TO_REPORT = 3.0  # seconds, from the last verdict to the result


async def judge_job(
    request: JudgeRequest, at_hand: JobAtHand, sandbox: Sandbox, policy: RetryPolicy
) -> JudgeResult:
    """A job's request, its cases in it or in the Redis that it came from."""
    try:
        suite = await _suite_of(request, at_hand)
    except SandboxFailure as failure:  # no case is known, and the client can send them again
        return JudgeResult.of_failure(failure, request.count).model_copy(
            update={"correlation_id": request.correlation_id}
        )
    if request.progress and at_hand.target is not None:
        suite = Watched(suite, reader_here(at_hand.target).client, request.correlation_id)
    try:
        return await judge(request, suite, at_hand, sandbox, policy)
    finally:
        await suite.close()


async def _suite_of(request: JudgeRequest, at_hand: JobAtHand) -> Suite:
    if request.suite is None:
        return InlineSuite.of(request.cases or [])
    if at_hand.target is None:
        raise SandboxUnfit("the request names a suite, and no Redis", reason="suite_missing")
    return await reader_here(at_hand.target).open(request.suite)


def judges(sandbox: Sandbox, request: JudgeRequest) -> TypeGuard[JudgingSandbox]:
    """Whether it takes the request in one go."""
    programs = [one for one in (request.checker, request.interactor) if one is not None]
    languages = {request.language, *(program.language for program in programs)}
    return hasattr(sandbox, "judge") and languages <= getattr(sandbox, "judged_languages", set())


async def judge(
    request: JudgeRequest,
    suite: Suite,
    at_hand: JobAtHand,
    sandbox: Sandbox,
    policy: RetryPolicy,
) -> JudgeResult:
    """The verdicts; where the sandbox failed until the end, what is not known is masked."""
    by_runs = None if judges(sandbox, request) else OneRunACase(request, suite, sandbox)
    if by_runs is not None:
        attempt = by_runs.go_on
    else:
        assert judges(sandbox, request)  # noqa: S101 - as was just seen
        attempt = partial(_within_the_job, sandbox, request, suite, _end_of(at_hand))
    work = Work(
        attempt, request.longest, outlives(sandbox, _blank(request)), kills_cancelled(sandbox),
        refusal=by_runs.refusal if by_runs is not None else None,
    )  # fmt: skip
    outcome, spent = await attempted(work, at_hand, policy)
    if not isinstance(outcome, SandboxFailure):
        result = outcome
    elif by_runs is not None:
        result = by_runs.masked(outcome)
    else:
        result = JudgeResult.of_failure(outcome, len(suite))
    if "M" in result.verdicts:
        log.warning("no verdict: %s", result.masked_because, extra={"attempts": spent["attempts"]})
    return result.model_copy(update=spent | {"correlation_id": request.correlation_id})


def _end_of(at_hand: JobAtHand) -> float:
    return asyncio.get_running_loop().time() + at_hand.seconds - SPARE - _TO_REPORT


async def _within_the_job(
    sandbox: JudgingSandbox, request: JudgeRequest, suite: Suite, ends: float
) -> JudgeResult:
    """What is known by the end of the job's time is told, and not lost with the job."""
    left = ends - asyncio.get_running_loop().time() - request.compiling
    if left < request.total:
        request = request.model_copy(update={"total_seconds": max(left, _TO_REPORT)})
    return await sandbox.judge(request, suite)


def _blank(request: JudgeRequest) -> CodeRequest:
    return CodeRequest(
        code="", language=request.language, compile_timeout=request.compile_timeout,
        run_timeout=request.run_timeout,
    )  # fmt: skip


class OneRunACase:
    """A judge over a sandbox that only runs programs. Cases that are over stay so."""

    def __init__(self, request: JudgeRequest, suite: Suite, sandbox: Sandbox) -> None:
        self._request, self._suite, self._sandbox = request, suite, sandbox
        self._done: list[Letter] = []
        count = len(suite)
        self._known = JudgeResult(
            verdicts="", cpu_ms=[0] * count, wall_ms=[0] * count, memory_kb=[0] * count
        )
        self._ends_at: float | None = None

    @property
    def refusal(self) -> SandboxFailure | None:
        """A checker or an interactor is a second program, and plain runs have only one."""
        if self._request.checker is None and self._request.interactor is None:
            return None
        what = "checker" if self._request.checker else "interactor"
        return SandboxUnfit(
            f"the sandbox {self._sandbox.name!r} runs programs without a {what}: judge "
            "in the embedded one (PENSTOCK_SANDBOX=local)",
            reason="no_checker",
        )

    async def go_on(self) -> JudgeResult:
        """Judge the cases that are left. Raises the sandbox's failure."""
        loop = asyncio.get_running_loop()
        self._ends_at = self._ends_at or loop.time() + self._request.total
        while (index := len(self._done)) < len(self._suite):
            if self._enough():
                self._done.append("S")
            elif loop.time() >= self._ends_at:
                self._say(index, "S", "total_seconds")
            elif self._does_not_compile():
                self._say(index, "C", self._known.reasons[index - 1])
            else:
                await self._try(index)
        return self._result()

    def masked(self, failure: SandboxFailure) -> JudgeResult:
        """What is known, and the rest masked."""
        left = len(self._suite) - len(self._done)
        self._done += ["M"] * left
        return self._result().model_copy(
            update={"error_reason": failure.reason, "message": str(failure)}
        )

    def _enough(self) -> bool:
        most = self._request.failures_until_stop
        return most is not None and sum(each not in "PMS" for each in self._done) >= most

    def _does_not_compile(self) -> bool:
        """Nor with any other case."""
        compiled = self._known.compile_result
        return bool(compiled and compiled.return_code) and not self._request.compiles_each_case

    async def _try(self, index: int) -> None:
        try:
            case = await self._suite.case(index)
        except SandboxFailure as failure:
            self._say(index, "M", failure.reason)
            return
        try:
            request = self._program(index, case)
        except RequestRefused as refusal:  # the program's own fault: too long, or no text
            self._known.message = str(refusal)
            self._say(index, "C", "refused")
            return
        self._judge(index, case, await self._sandbox.run(request))

    def _program(self, index: int, case: Case) -> CodeRequest:
        asked, limits = self._request, self._request.limits(index)
        return CodeRequest(
            code=text_of(asked, case),
            language=asked.language,
            stdin=case.input.decode(),
            files=asked.files,
            compile_timeout=asked.compile_timeout,
            run_timeout=limits.run_timeout or asked.run_timeout,
            memory_limit_mb=limits.memory_limit_mb,
            labels=asked.labels,
            correlation_id=asked.correlation_id,
        )

    def _judge(self, index: int, case: Case, result: CodeResult) -> None:
        self._say(index, self._letter(case, result), result.error_reason)
        ran = result.run_result
        if result.compile_result is not None and self._known.compile_result is None:
            self._known.compile_result = result.compile_result.bounded(64 << 10)
        if ran is None:
            return
        self._known.wall_ms[index] = round((ran.execution_time or 0.0) * 1000)
        self._known.cpu_ms[index] = round((getattr(ran, "cpu_time", None) or 0.0) * 1000)
        self._known.memory_kb[index] = (getattr(ran, "memory_peak", None) or 0) // 1024
        if ran.return_code:
            self._known.exits[index] = ran.return_code
        self._keep(index, result)

    def _letter(self, case: Case, result: CodeResult) -> Letter:
        match result.error_kind:
            case "none":
                printed = result.stdout.encode(errors="replace")
                right = case.expected is None or accepts(
                    self._request.compare, printed, case.expected
                )
                return "P" if right else "W"
            case "infrastructure":
                return "M"
            case "limit":
                if result.error_reason == "compile_timeout":
                    return "C"
                return "T" if result.error_reason == "run_timeout" else "L"
        return "C" if result.error_reason == "compile_error" else "E"

    def _say(self, index: int, letter: Letter, reason: str) -> None:
        self._done.append(letter)
        if reason:
            self._known.reasons[index] = reason

    def _keep(self, index: int, result: CodeResult) -> None:
        failed = self._done[index] != "P"
        wanted = {
            "none": False,
            "first_failure": failed and not self._known.kept,
            "failures": failed,
            "all": True,
        }[self._request.keep]
        if not wanted:
            return
        stdout, stderr = (text.encode(errors="replace") for text in (result.stdout, result.stderr))
        kept = Kept.of(stdout, stderr, self._request.keep_bytes)
        if kept.size + sum(each.size for each in self._known.kept.values()) <= (
            self._request.keep_total
        ):
            self._known.kept[index] = kept

    def _result(self) -> JudgeResult:
        return self._known.model_copy(update={"verdicts": "".join(self._done)})
