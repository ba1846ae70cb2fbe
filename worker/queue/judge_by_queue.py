"""Judging by way of a queue: the suite to Redis, one job, and the verdicts back.

A worker that misses something of the suite says so; it is sent again and the job runs once more.
A worker of a release that knows no judging fails the job, and the caller gets masked verdicts.
"""

import asyncio
import hashlib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from typing import Any, TypeVar, cast

from jail.errors import SandboxBroken
from jail.judge.asking import CaseSource, JudgeOptions, cases_of, queued_request
from jail.judge.models import JudgeRequest, JudgeResult
from worker.errors import DeadlineExceeded, JobFailed, ResultUnreadable
from worker.queue.handle import json_of
from worker.queue.order import JUDGE, Order
from worker.queue.submitting import Submitter, check_timeout
from worker.queue.suite_store import MISSING, TooLate

T = TypeVar("T")
OutcomeOf = Callable[
    [Callable[[Any], Order]], Awaitable[Any]
]  # of what is submitted with an answer

log = logging.getLogger("penstock.queue")

_UNKNOWN = ("is not allowed on this worker", "Invalid attribute name", "has no attribute")


@dataclass(frozen=True)
class CallTime:
    """A call may take so long: it counts from the call's first line, by the engines'
    clock."""

    timeout: float | None
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        check_timeout(self.timeout)

    @property
    def ends(self) -> float:
        return math.inf if self.timeout is None else self.began + self.timeout

    async def in_a_thread(self, call: Callable[[], T]) -> T:
        """Make a call that blocks off the event loop, and wait for it until the time is over."""
        limit = asyncio.timeout(None if self.timeout is None else self.ends - time.monotonic())
        try:
            async with limit:
                return await asyncio.to_thread(call)
        except TimeoutError:
            if not limit.expired():  # the call's own
                raise
            raise self.over() from None

    def over(self) -> DeadlineExceeded:
        """The error for a call whose cases are not in Redis by then."""
        return DeadlineExceeded("", self.timeout or 0.0)


Blocking = Callable[[CallTime, Callable[[], None]], Awaitable[None]]


class Asked:
    """A call to judge: its cases read, its request, and where it goes."""

    def __init__(
        self,
        submitter: Submitter,
        within: CallTime,
        code: str,
        cases: CaseSource,
        options: JudgeOptions,
    ) -> None:
        self._submitter = submitter
        self._within = within
        self._cases = cases_of(cases)
        self._request = queued_request(code, self._cases, options)

    async def judged(
        self,
        token: str | None,
        share: str | None,
        blocking: Blocking,
        outcome_of: OutcomeOf,
    ) -> JudgeResult:
        """The cases are judged by one job, and another if a worker misses a part of the suite.

        It waits by what its caller gives: in coroutines, or with a thread that blocks
        (`without_a_loop`).
        """
        result = await self._round(token, share, blocking, outcome_of, again=False)
        if self._request.suite is None or not _misses_suite(result):
            return result
        another = None if token is None else _again(token)
        return await self._round(another, share, blocking, outcome_of, again=True)

    async def _round(
        self,
        token: str | None,
        share: str | None,
        blocking: Blocking,
        outcome_of: OutcomeOf,
        *,
        again: bool,
    ) -> JudgeResult:
        if self._request.suite is not None and (again or not self._is_sent):
            await blocking(self._within, partial(self._send, again=again))
        submit = partial(
            self._submitter.submit, self._request, self._within.timeout, token, share=share,
            began=self._within.began,
        )  # fmt: skip
        try:
            outcome = await outcome_of(submit)
        except JobFailed as failure:
            outcome = failure
        return read_judged(outcome, self._request)

    @property
    def _is_sent(self) -> bool:
        return self._submitter.suites().knows(self._cases.packed)

    def _send(self, *, again: bool) -> None:
        try:
            self._submitter.suites().send(self._cases.packed, again=again, ends=self._within.ends)
        except TooLate:
            raise self._within.over() from None


def _again(token: str) -> str:
    """The second job's token. By a digest: it fits, and no other token has the same one."""
    return f"{hashlib.sha256(token.encode()).hexdigest()[:40]}-again"


def without_a_loop(judged: Coroutine[Any, Any, T]) -> T:
    """The value of a coroutine that waits for nothing but what blocks its thread."""
    try:
        judged.send(None)
    except StopIteration as end:
        return cast(T, end.value)
    raise AssertionError("it has given way, and there is no loop")


def read_judged(outcome: Any, request: JudgeRequest) -> JudgeResult:
    """The verdicts in it. Raises its error, unless that is an old worker's."""
    if isinstance(outcome, JobFailed) and _is_of_old_worker(outcome):
        log.warning("a worker knows no judging: %s", outcome)
        return JudgeResult(
            verdicts="M" * request.count,
            error_reason="worker_too_old",
            message=f"the worker that took the job does not know {JUDGE}: upgrade the queue's "
            f"workers to penstock-rl {_release()} or newer ({outcome})",
            correlation_id=request.correlation_id,
        )
    try:
        result = JudgeResult.read(json_of(outcome))
    except SandboxBroken as wrong:
        raise ResultUnreadable(str(wrong)) from None
    if len(result.verdicts) != request.count:  # such as those of another job with its token
        raise ResultUnreadable(
            f"it has {len(result.verdicts)} verdicts, and {request.count} cases were sent; a token "
            "is one job's, so give other cases another"
        )
    return result


def _misses_suite(result: JudgeResult) -> bool:
    return result.error_reason == MISSING or MISSING in result.reasons.values()


def _is_of_old_worker(failure: JobFailed) -> bool:
    last = failure.trace.strip().rpartition("\n")[2]
    return "judge_code" in last and any(sign in last for sign in _UNKNOWN)


def _release() -> str:
    try:
        return metadata.version("penstock-rl")
    except metadata.PackageNotFoundError:  # on the path, but not installed
        return "this release"
