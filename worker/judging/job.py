"""A program and its suite in a sandbox: in one go, or where it cannot, one run a case.

A sandbox that judges (`JudgingSandbox`) compiles once. Another one, such as a foreign Sandbox
Fusion, gets a request for each case (`by_runs.py`).
"""

import asyncio
import logging
from functools import partial
from typing import TypeGuard

from jail.errors import SandboxFailure, SandboxUnfit
from jail.judge.models import JudgeRequest, JudgeResult
from jail.judge.suite import InlineSuite, Suite
from jail.protocol import JudgingSandbox, Sandbox
from worker.judging.by_runs import ByRuns, longest_case
from worker.judging.progress import Watched
from worker.judging.reading import reader_here
from worker.run.execution import SPARE, RetryPolicy, Work, attempted, kills_cancelled, outlives
from worker.run.turn import JobAtHand

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
    if judges(sandbox, request):
        result = await _in_one_go(request, suite, at_hand, sandbox, policy)
    else:
        result = await ByRuns(request, suite, at_hand, sandbox, policy).result()
    if "M" in result.verdicts:
        log.warning("no verdict: %s", result.masked_because, extra={"attempts": result.attempts})
    known = {"queued_seconds": at_hand.queued_seconds, "correlation_id": request.correlation_id}
    return result.model_copy(update=known)


async def _in_one_go(
    request: JudgeRequest,
    suite: Suite,
    at_hand: JobAtHand,
    sandbox: JudgingSandbox,
    policy: RetryPolicy,
) -> JudgeResult:
    work = Work(
        partial(_within_the_job, sandbox, request, suite, _end_of(at_hand)), request.longest,
        outlives(sandbox, longest_case(request)), kills_cancelled(sandbox),
        name=f"judge {request.language}",
    )  # fmt: skip
    outcome, spent = await attempted(work, at_hand, policy)
    if isinstance(outcome, SandboxFailure):
        outcome = JudgeResult.of_failure(outcome, len(suite))
    return outcome.model_copy(update=spent)


def _end_of(at_hand: JobAtHand) -> float:
    return asyncio.get_running_loop().time() + at_hand.seconds - SPARE - _TO_REPORT


async def _within_the_job(
    sandbox: JudgingSandbox, request: JudgeRequest, suite: Suite, ends: float
) -> JudgeResult:
    """Judge within the job's time, so that what is known at its end is returned, and not lost."""
    left = ends - asyncio.get_running_loop().time() - request.compiling
    if left < request.total:
        request = request.model_copy(update={"total_seconds": max(left, _TO_REPORT)})
    return await sandbox.judge(request, suite)
