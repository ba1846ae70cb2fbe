"""A request goes to its result: permit, sandbox, and the next attempt if that failed.

    queued → waits for a permit → runs → [gives it back, backs off, waits, runs] … → result

What fails on our side is masked as an `infrastructure` result. The job itself
fails only where it cannot be run as it stands.
"""

import asyncio
import itertools
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from ground import tracing
from ground.backoff import backoff
from ground.errors import SettingError
from jail.errors import SandboxBusy, SandboxFailure, SandboxTimeout, SandboxUnfit
from jail.models import CodeRequest, CodeResult
from jail.protocol import Sandbox
from limiter import GateError, Report
from worker.run.turn import JobAtHand


@dataclass(frozen=True)
class RetryPolicy:
    """How often to try, and how long to wait between. The worker asks `wait_after`."""

    attempts: int = 6
    first: float = 0.5
    longest: float = 30.0

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise SettingError("attempts", f"at least 1 attempt is made, not {self.attempts}")
        if not 0 < self.first <= self.longest:
            raise SettingError(
                "first", f"the first window, {self.first} s, must be above 0 and at most "
                f"the longest wait, {self.longest} s"
            )  # fmt: skip

    def wait_after(
        self,
        failure: SandboxFailure,
        attempt: int,
        *,
        remaining: float | None = None,
        draw: random.Random | None = None,
    ) -> float | None:
        """Seconds until the next attempt, or None: report the failure.

        `attempt` counts from 1; `remaining` are the seconds the job has left.
        """
        if not failure.retryable or attempt >= self.attempts:
            return None
        wait = (draw or _RANDOM).uniform(0, backoff(attempt, self.first, self.longest))
        if failure.retry_after is not None:
            wait += min(max(failure.retry_after, 0.0), self.longest)
        return None if remaining is not None and wait >= remaining else wait


_RANDOM = random.Random()


log = logging.getLogger("penstock.worker")

KILLED_WITHIN = 1.0  # seconds, from a cancelled run to the end of a program that is killed
SPARE = 2.0  # seconds between our own end of a job and the moment its worker breaks it off


R = TypeVar("R", covariant=True)


@dataclass(frozen=True)
class Work(Generic[R]):
    """The work that a sandbox is asked to do, and what is known of it before."""

    attempt: Callable[[], Awaitable[R]]
    longest: float  # seconds for which the sandbox may be busy with one attempt
    outlives: float  # for so long it may continue after our death
    kills_cancelled: bool
    refusal: SandboxFailure | None = None
    name: str = "run"  # in traces
    once: bool = False  # it must not be tried again if it may have begun


async def execute(
    request: CodeRequest, at_hand: JobAtHand, sandbox: Sandbox, policy: RetryPolicy
) -> CodeResult:
    """Run the program, again where the sandbox fails, for as long as the worker allows."""
    work = Work(
        partial(sandbox.run, request), longest_run(request), outlives(sandbox, request),
        kills_cancelled(sandbox), _refusal(request, sandbox, at_hand.deaths),
        f"run {request.language}", once=request.instance_id is not None,
    )  # fmt: skip
    outcome, spent = await attempted(work, at_hand, policy)
    if work.once and spent["attempts"]:
        at_hand.runs_once()
    result = CodeResult.of_failure(outcome) if isinstance(outcome, SandboxFailure) else outcome
    if result.error_kind == "infrastructure":
        log.warning("no outcome: %s", result.error_reason, extra={"attempts": spent["attempts"]})
    return result.model_copy(update=spent | {"correlation_id": request.correlation_id})


async def attempted(
    work: Work[R], at_hand: JobAtHand, policy: RetryPolicy
) -> tuple[R | SandboxFailure, dict[str, float]]:
    """Attempt the work; return its outcome or the last failure, and the result's fields that say
    what it took."""
    attempts = _Attempts(work, at_hand, policy)
    outcome: R | SandboxFailure
    try:
        async with asyncio.timeout_at(attempts.deadline):
            outcome = await attempts.run()
    except TimeoutError:
        outcome = attempts.failure or too_late()
    except GateError as failure:
        outcome = SandboxFailure(str(failure), reason="gate")
    finally:
        if (rest := at_hand.turn.end(attempts.still_running())) is not None:
            # Shielded: a permit that is not given back is missing to everybody else.
            await asyncio.shield(rest)
    spent = attempts.spent | {"attempts": attempts.count, "queued_seconds": at_hand.queued_seconds}
    return outcome, spent


class _Attempts(Generic[R]):
    """The attempts of one execution, and where their time went."""

    def __init__(self, work: Work[R], at_hand: JobAtHand, policy: RetryPolicy) -> None:
        self._work, self._turn, self._policy = work, at_hand.turn, policy
        self.deadline = asyncio.get_running_loop().time() + at_hand.seconds - SPARE
        self.count = 0
        self.failure: SandboxFailure | None = None
        self.spent = dict.fromkeys(("permit_seconds", "running_seconds", "backoff_seconds"), 0.0)
        self._busy_until = 0.0

    async def run(self) -> R | SandboxFailure:
        if self._work.refusal is not None:
            return self._work.refusal
        for attempt in itertools.count(1):
            with self._spends("permit_seconds"), tracing.span("permit"):
                await self._turn.begin(self._work.outlives)
            self._turn.report(Report.NOTHING)  # if this attempt is broken off
            try:
                outcome = await self._attempt()
            except SandboxFailure as failure:
                self.failure = failure
                self._turn.report(_report_of(failure))
                remaining = self.deadline - asyncio.get_running_loop().time()
                wait = self._policy.wait_after(failure, attempt, remaining=remaining)
                if self._work.once and failure.may_be_running:
                    wait = None  # again, it would find what it had changed itself
            else:
                self._turn.report(Report.SUCCESS)
                return outcome
            if wait is None:
                break
            log.info("attempt %d failed: %s", attempt, self.failure.reason)
            await self._turn.pause(self.still_running())
            self._busy_until = 0.0
            with self._spends("backoff_seconds"), tracing.span("backoff"):
                await asyncio.sleep(wait)
        assert self.failure is not None  # noqa: S101 - the loop ends by a return or a failure
        return self.failure

    async def _attempt(self) -> R:
        self.count += 1
        # The program may run until its own time limits, even if its caller gives up.
        self._busy_until = time.monotonic() + self._work.longest
        finished = True
        try:
            with self._spends("running_seconds"), tracing.span(self._work.name) as span:
                span.set("penstock.attempt", self.count)
                return await self._work.attempt()
        except SandboxFailure as failure:
            finished = not failure.may_be_running
            raise
        except BaseException:
            finished = False  # cancelled: if it only stops waiting, the program still runs
            if self._work.kills_cancelled:
                self._busy_until = min(self._busy_until, time.monotonic() + KILLED_WITHIN)
            raise
        finally:
            if finished:
                self._busy_until = 0.0

    def still_running(self) -> float:
        """How long the sandbox may be at work on an attempt that is given up."""
        return max(0.0, self._busy_until - time.monotonic())

    @contextmanager
    def _spends(self, what: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self.spent[what] += time.monotonic() - began


def _report_of(failure: SandboxFailure) -> Report:
    """The report of a failure to a gate that adapts: no room, overload, or nothing."""
    late = isinstance(failure, SandboxTimeout) or failure.reason in ("http_408", "http_504")
    if isinstance(failure, SandboxBusy) and not late:
        return Report.throttled(failure.retry_after)
    return Report.OVERLOADED if late or failure.reason.startswith("http_5") else Report.NOTHING


def _refusal(request: CodeRequest, sandbox: Sandbox, deaths: int) -> SandboxFailure | None:
    """The reason why a program of a session must not run."""
    if request.instance_id is None:
        return None
    if not keeps_sessions(sandbox):
        return _no_sessions(sandbox)
    return _begun_before() if deaths else None


def kills_cancelled(sandbox: Sandbox) -> bool:
    """Whether what is cancelled ends at once."""
    return bool(getattr(sandbox, "kills_cancelled", False))


def keeps_sessions(sandbox: Sandbox) -> bool:
    """Whether programs of one `instance_id` find what those before them left."""
    return bool(getattr(sandbox, "keeps_sessions", False))


def longest_run(request: CodeRequest) -> float:
    """How long a sandbox may be busy with one attempt."""
    return request.compile_timeout + request.run_timeout


def _no_sessions(sandbox: Sandbox) -> SandboxFailure:
    return SandboxUnfit(
        f"the program belongs to a session, and the sandbox {sandbox.name!r} keeps none: it would "
        "have run without what the session did before",
        reason="no_sessions",
    )


def _begun_before() -> SandboxFailure:
    return SandboxUnfit(
        "the program belongs to a session, and the worker that began it has died: run again, it "
        "would find what it had changed itself",
        reason="session_repeated",
    )


def outlives(sandbox: Sandbox, request: CodeRequest) -> float:
    """How long a sandbox's program may continue after our death: 0 if it dies with us."""
    seconds: Callable[[CodeRequest], float] | None = getattr(sandbox, "outlives", None)
    return 0.0 if seconds is None else seconds(request)


def too_late() -> SandboxFailure:
    """The failure of a job that ends by its own time."""
    return SandboxTimeout("the job's time was over before there was an outcome", reason="job_time")
