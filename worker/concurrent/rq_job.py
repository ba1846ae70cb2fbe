"""RQ's side of a claimed job: its `Job`, the current job, its record of the execution.

The differences between the releases of RQ that we support are here too.
"""

import contextlib
import logging
from collections.abc import Iterator
from contextvars import ContextVar, Token
from datetime import UTC, datetime
from functools import partial
from typing import Any

import rq.defaults
import rq.job
from rq.executions import Execution
from rq.job import Job, JobStatus
from rq.serializers import JSONSerializer
from rq.utils import utcformat
from rq.worker import BaseWorker

from ground import SettingError
from ground.lua import as_text, fields_of
from worker.concurrent.running import ClaimedJob
from worker.settings import require_rqs_own_keys

log = logging.getLogger("penstock.worker")

_NUMBERS = (
    b"timeout", b"result_ttl", b"failure_ttl", b"ttl", b"retries_left", b"number_of_retries",
    b"repeats_left", b"success_callback_timeout", b"failure_callback_timeout",
    b"stopped_callback_timeout",
)  # fmt: skip
_MOMENTS = (b"created_at", b"enqueued_at")


def claimed_job(
    worker: BaseWorker, queue: str, row: list[Any], started: float, sent: float
) -> ClaimedJob:
    """A job from a row of a claim or of the reaper, which was asked for at `sent` by our clock."""
    id, execution, fields, *permit = row
    fence, ticket = (int(permit[0]), as_text(permit[1])) if permit else (0, "")
    return ClaimedJob(
        queue, id.decode(), execution.decode(), fields_of(fields), started,
        partial(_build_job, worker), fence, ticket, leased=sent,
    )  # fmt: skip


def _build_job(worker: BaseWorker, claimed: ClaimedJob) -> Job:
    _require_readable(claimed)
    job = worker.job_class(
        id=claimed.id, connection=worker.connection, serializer=worker.serializer
    )
    job.restore(claimed.fields | _as_claimed(claimed, worker.name))
    return job


def _require_readable(claimed: ClaimedJob) -> None:
    """Name the bad field: RQ's own error does not, or Redis refuses later what RQ writes."""
    for name in _NUMBERS:
        claimed.number(name, 0)
    for name in _MOMENTS:
        claimed.moment(name)


def _as_claimed(claimed: ClaimedJob, worker: str) -> dict[bytes, bytes]:
    """The fields that the claim wrote."""
    moment = utcformat(_moment(claimed.started)).encode()
    return {
        b"status": JobStatus.STARTED.value.encode(),
        b"started_at": moment,
        b"last_heartbeat": moment,
        b"worker_name": worker.encode(),
    }


class _CurrentJobs:
    """This variable replaces RQ's variable for the current job: RQ 3's `ContextVar`, or RQ 2's
    stack, which mixes up interleaved coroutines. A claimed job builds its `Job` at the first
    use."""

    def __init__(self, replaced: Any) -> None:
        self._replaced = replaced
        self._jobs: ContextVar[tuple[Any, ...]] = ContextVar("penstock_current_jobs", default=())

    def get(self) -> Any:
        jobs = self._jobs.get()
        if not jobs:  # or one of RQ's own workers, in another thread, began it before
            return self._replaced.get() if self._replaced is not None else None
        return jobs[-1].job if isinstance(jobs[-1], ClaimedJob) else jobs[-1]

    def set(self, job: Any) -> Token[tuple[Any, ...]]:
        return self._jobs.set((*self._jobs.get(), job))

    def reset(self, token: Token[Any]) -> None:
        token.var.reset(token)  # the token's own variable, which may be RQ's

    top, push = property(get), set

    def pop(self) -> Any:
        job = self.get()
        self._jobs.set(self._jobs.get()[:-1])
        return job


_current_jobs = _CurrentJobs(getattr(rq.job, "_current_job", None))


def replace_current_job() -> None:
    """Make `rq.get_current_job()` right for interleaved coroutines, and lazy."""
    for name in ("_current_job", "_job_stack"):
        if hasattr(rq.job, name):
            setattr(rq.job, name, _current_jobs)


@contextlib.contextmanager
def current_job(job: Job | ClaimedJob) -> Iterator[None]:
    """Let `rq.get_current_job()` return this job, in this task and in the threads that it
    starts."""
    token = _current_jobs.set(job)
    try:
        yield
    finally:
        _current_jobs.reset(token)


def require_rqs_keys_of(worker: BaseWorker) -> None:
    """Refuse a user's class that has its own keys: its jobs would look deleted to us, and be
    dropped."""
    require_rqs_own_keys()
    queues: list[Any] = worker.queues
    jobs = {("--job-class", each): each.key_for("…") for each in _job_classes(worker)}
    found = {
        **{key: (was, "rq:job:…") for key, was in jobs.items()},
        **{("--queue-class", type(each)): (each.key, f"rq:queue:{each.name}") for each in queues},
        ("--worker-class", type(worker)): (worker.key, f"rq:worker:{worker.name}"),
    }
    for (option, its), (has, rqs) in found.items():
        if has != rqs:
            raise SettingError(
                option,
                f"{its.__module__}.{its.__qualname__} has keys of its own, {has!r} for {rqs!r}."
                " Penstock's scripts look only at RQ's; leave RQ's prefix as it is, or run these"
                " jobs with RQ's own workers",
            )


def _job_classes(worker: BaseWorker) -> list[type[Job]]:
    return [worker.job_class, *(queue.job_class for queue in worker.queues)]


def warn_unless_json(serializer: Any) -> None:
    """RQ's default is pickle. Without this, a forgotten `--serializer` shows only job by job."""
    if serializer is not JSONSerializer:
        log.warning(
            "this worker reads jobs with %s, and Penstock's jobs are JSON: pickle would run any"
            " code that is put on a queue; start it with --serializer %s.%s",
            getattr(serializer, "__name__", type(serializer).__name__),
            JSONSerializer.__module__,
            JSONSerializer.__name__,
        )


def execution_of(claimed: ClaimedJob, connection: Any, worker: str) -> Execution:
    """RQ's record of the execution, with its real times."""
    execution = Execution(claimed.execution, claimed.id, connection)
    execution.created_at = _moment(claimed.started)
    if hasattr(execution, "worker_name"):
        execution.worker_name = worker
    return execution


def free_slot(claimed: ClaimedJob, connection: Any) -> None:
    """Free its slot in a rate limit of RQ 3's, unless a job of this id still needs it."""
    try:
        from rq.rate_limit import RateLimitRegistry
    except ImportError:  # RQ 2
        return
    key = claimed.fields[b"rate_limit_key"].decode(errors="replace")
    RateLimitRegistry(key, connection).release_stale_and_enqueue(claimed.id)


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, tz=UTC)
