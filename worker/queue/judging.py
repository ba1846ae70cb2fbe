"""Judging by way of a queue: the suite to Redis, one job, and the verdicts back.

A worker that misses something of the suite says so; it is sent again and the job runs once more.
A worker of a release that knows no judging fails the job, and the caller gets masked verdicts.
"""

import logging
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from ground.redis.answers import Answer
from worker.errors import JobFailed
from worker.judge.asking import CaseSource, JudgeOptions, cases_of, queued_request
from worker.judge.models import JudgeRequest, JudgeResult
from worker.judge.store import MISSING
from worker.queue.handle import json_of
from worker.queue.order import JUDGE, Order
from worker.queue.submitting import Submitter

log = logging.getLogger("penstock.queue")

_UNKNOWN = ("is not allowed on this worker", "Invalid attribute name", "has no attribute")


class Asked:
    """One call to judge: its request, and the suite if the cases are not in it."""

    def __init__(self, code: str, cases: CaseSource, options: JudgeOptions) -> None:
        self._cases = cases_of(cases)
        self.request = queued_request(code, self._cases, options)

    def rounds(
        self, submitter: Submitter, token: str | None, timeout: float | None
    ) -> "Iterator[Round]":
        """One job, and another if a worker misses a part of the suite."""
        ends = math.inf if timeout is None else time.monotonic() + timeout
        yield Round(self, submitter, token, timeout, again=False)
        left = None if timeout is None else max(ends - time.monotonic(), 0.001)
        another = None if token is None else f"{token[:120]}-again"
        yield Round(self, submitter, another, left, again=True)

    def send(self, submitter: Submitter, *, again: bool) -> None:
        """The suite, if there is one and it is not known to be there. Blocks."""
        if self.request.suite is not None:
            submitter.suites().send(self._cases.packed, again=again)


@dataclass(frozen=True)
class Round:
    """One job for it."""

    asked: Asked
    submitter: Submitter
    token: str | None
    timeout: float | None
    again: bool

    @property
    def sends(self) -> bool:
        return self.asked.request.suite is not None

    def send(self) -> None:
        self.asked.send(self.submitter, again=self.again)

    def submit(self, answer: Answer) -> Order:
        return self.submitter.submit(self.asked.request, self.timeout, self.token, answer)

    def read(self, outcome: Any) -> JudgeResult:
        """The verdicts."""
        return read_judged(outcome, self.asked.request)

    def is_last(self, result: JudgeResult) -> bool:
        """Unless its worker missed a part of the suite, and it is the first."""
        return self.again or not (self.sends and _misses_suite(result))


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
    return JudgeResult.read(json_of(outcome))


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
