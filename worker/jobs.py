"""RQ calls these functions. The names `worker.jobs.run_code` and `judge_code` are stored in every
queued job.

The module stays light: a forking worker imports it again for each job.
"""

from collections.abc import Callable, Coroutine
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from ground import PenstockError, tracing
from ground.logs import correlated
from ground.lua import load_script
from ground.redis.connect import target_of
from ground.redis.url import RedisTarget
from jail.judge.models import JudgeRequest
from jail.models import CodeRequest
from worker.run.turn import GateTurn, JobAtHand, Turn, Unlimited, job_at_hand

if TYPE_CHECKING:
    from rq.job import Job

    from jail.protocol import Sandbox
    from limiter import Gate
    from worker.run.execution import RetryPolicy


AnyRequest = TypeVar("AnyRequest", CodeRequest, JudgeRequest)


async def run_code(request: dict[str, Any]) -> dict[str, Any]:
    """Run a `CodeRequest` and return its `CodeResult`, JSON both, under any RQ worker."""
    return await _called(CodeRequest, request, _run)


async def judge_code(request: dict[str, Any]) -> dict[str, Any]:
    """Judge a `JudgeRequest` and return its `JudgeResult`, JSON both, under any RQ worker."""
    return await _called(JudgeRequest, request, _judge)


async def _called(
    kind: type[AnyRequest],
    request: dict[str, Any],
    run: Callable[[AnyRequest, JobAtHand], Coroutine[Any, Any, dict[str, Any]]],
) -> dict[str, Any]:
    at_hand = job_at_hand.get()
    try:
        wanted = kind.read(request)
        with correlated(wanted.correlation_id):
            if at_hand is not None:
                return await run(wanted, at_hand)
            from ground.process import on_process_loop

            try:
                with tracing.span(f"process {_queue()}", kind="consumer", parent=_traceparent()):
                    return await on_process_loop(run(wanted, _under_stock_worker()))
            finally:
                tracing.flush()  # its process ends without a word
    except PenstockError:
        _never_again()
        raise


async def _run(request: CodeRequest, at_hand: JobAtHand) -> dict[str, Any]:
    from worker.run.execution import execute

    sandbox, policy = _where(at_hand)
    return (await execute(request, at_hand, sandbox, policy)).dump()


async def _judge(request: JudgeRequest, at_hand: JobAtHand) -> dict[str, Any]:
    from worker.judging.job import judge_job

    sandbox, policy = _where(at_hand)
    return (await judge_job(request, at_hand, sandbox, policy)).dump()


def _where(at_hand: JobAtHand) -> "tuple[Sandbox, RetryPolicy]":
    from worker.run.choice import sandbox_here
    from worker.run.execution import RetryPolicy
    from worker.settings import worker_settings

    settings = at_hand.settings or worker_settings().of_stock_worker
    return sandbox_here(settings), RetryPolicy(attempts=settings.sandbox_attempts)


def _under_stock_worker() -> JobAtHand:
    job = _current_job()
    if job is None:
        return JobAtHand()
    # RQ's own worker takes only from the queue's list, so the next job in turn is put there.
    load_script("worker.queue", "feed").call(job.connection, [f"rq:queue:{job.origin}"])
    queued = 0.0
    if job.started_at and job.enqueued_at:
        # Two machines' clocks may disagree; a wait below zero would be nonsense.
        queued = max(0.0, (job.started_at - job.enqueued_at).total_seconds())
    seconds = float(job.timeout) if job.timeout and job.timeout > 0 else float("inf")
    return JobAtHand(_turn(job), queued, seconds, target=target_of(job.connection))


def _turn(job: "Job") -> Turn:
    from worker.settings import worker_settings

    settings = worker_settings()
    if not settings.gate:
        return Unlimited()
    gate = _gate(target_of(job.connection), settings.gate, settings.gate_limit)
    return GateTurn(gate, cost=int(job.connection.hget(job.key, "penstock_cost") or 1))


@cache
def _gate(target: RedisTarget, name: str, limit: int | None) -> "Gate":
    from limiter import named_gate

    return named_gate(target, name, limit)


def _current_job() -> "Job | None":
    from rq import get_current_job

    return get_current_job()


def _queue() -> str:
    job = _current_job() if tracing.on() else None
    return job.origin if job else ""


def _traceparent() -> str:
    """The caller's span. RQ's `Job` leaves it out: it is asked for, if this worker traces."""
    job = _current_job() if tracing.on() else None
    found = job.connection.hget(job.key, "penstock_traceparent") if job else None
    return found.decode() if isinstance(found, bytes) else ""


def _never_again() -> None:
    """Let RQ not retry the job: a wrong request or setting is wrong the next time too."""
    if job := _current_job():
        job.retries_left = 0
