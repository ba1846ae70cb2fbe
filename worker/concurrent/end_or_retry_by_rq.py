"""RQ's own code ends a job, or queues it again: callbacks, retries, dependents, repeats, webhooks.

RQ's methods keep one job's state on the worker, so each end is handled by a shadow: a copy
of the worker that has only this job. Runs in a thread. If Redis is away, only the recording
is retried: the user's callbacks are called once.
"""

import contextvars
import copy
import inspect
import logging
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

from redis.client import Pipeline
from redis.exceptions import WatchError
from rq.job import Job, JobStatus, Retry
from rq.timeouts import BaseDeathPenalty, JobTimeoutException, TimerDeathPenalty
from rq.utils import now
from rq.worker import BaseWorker

from ground.lua import Command, as_text
from worker.concurrent.commands import WorkCommands
from worker.concurrent.rq_job import current_job, execution_of
from worker.concurrent.running import GRACE, OUR_CALLBACKS, ExcInfo, Outcome, exc_string
from worker.outcomes import counted_as


class LeaseLost(Exception):
    """Another worker has the job by now: this late end is refused."""


class JobDeleted(Exception):
    """We still hold the lease, but the job was deleted: there is nothing to record."""


class Fence:
    """The fence of an execution: what its end depends on, and whether it has been recorded.

    The script that gives the job to others deletes the execution's record. So we WATCH
    that record from before we read the lease until EXEC. The transaction also leaves a mark,
    by which a retry recognises it if the reply was lost.
    """

    def __init__(self, *, record: str, leases: str, job: str, id: str, execution: str) -> None:
        self.record, self.leases, self.job = record, leases, job
        self.id, self.execution = id, execution
        self.then: Command | None = None  # the last command of the transaction
        self.recorded = False
        self.failure: Exception | None = None  # RQ may have caught and only logged it

    def require_recorded(self) -> None:
        if not self.recorded:
            raise self.failure or RuntimeError(f"job {self.id}: RQ did not record its end")


class FencedPipeline(Pipeline):
    """RQ's transaction, executed once, and only while we hold the execution's lease."""

    fence: Fence | None = None
    execute_command: Any  # which redis-py leaves without types

    # Three races, and the order of commands that decides each: WATCH the execution's record, ZSCORE
    # of its lease, MULTI … EXEC. RQ may have begun to WATCH keys of its own before.
    #
    # 1. The reaper gives the job to another worker. Its script deletes the record, so it shows in
    #    ZSCORE if it ran before that, and in EXEC if it ran after WATCH. With ZSCORE first there
    #    would be a moment in between that neither sees.
    # 2. Our heartbeat writes the record while we end. EXEC fails, though we have the lease. If RQ
    #    watches nothing, the same commands are tried again. If it does, its own keys may be what
    #    changed: then RQ reads them again, and calls us again.
    # 3. The reply to EXEC is lost, and `record` is repeated. The transaction has ended the lease
    #    by its last command, `drop`, which leaves the mark `penstock_ended`. So a job without a
    #    lease was recorded if it has our mark, and is another worker's if it has not.

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        if self.fence is None:
            return super().execute(raise_on_error)
        fence, rq_watches = self.fence, self.watching
        if fence.then is not None:
            self.execute_command(*fence.then)
        while True:
            commands = self.command_stack
            try:
                replies = super().execute(raise_on_error=False) if self._is_due(fence) else []
            except WatchError:
                if rq_watches:
                    raise  # RQ reads its own keys again and retries
                self.command_stack = commands  # the heartbeat touched the record: try again
            except Exception as failure:
                fence.failure = failure
                raise
            else:
                self.fence = None  # the execution is over; RQ may send more
                fence.recorded = True
                refusals = [reply for reply in replies if isinstance(reply, Exception)]
                if raise_on_error and refusals:
                    raise refusals[0]  # the transaction's other commands took effect
                return replies

    def _is_due(self, fence: Fence) -> bool:
        """Whether it must still be recorded; an error if we no longer may."""
        ask: Any = self.immediate_execute_command
        ask("WATCH", fence.record)
        held = ask("ZSCORE", fence.leases, f"{fence.id}:{fence.execution}") is not None
        current, ended = ask("HMGET", fence.job, "penstock_execution", "penstock_ended")
        if held and current == fence.execution.encode():
            return True
        self.reset()
        if held:
            raise JobDeleted(f"job {fence.id}: it was deleted while it ran")
        if ended == fence.execution.encode():
            return False
        raise LeaseLost(f"job {fence.id}: its lease had ended")


class Fenced:
    """RQ's connection, with pipelines that can be fenced."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.latest: FencedPipeline | None = None

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> FencedPipeline:
        rqs = self._connection
        self.latest = FencedPipeline(
            rqs.connection_pool, rqs.response_callbacks, transaction, shard_hint
        )
        return self.latest

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


log = logging.getLogger("penstock.worker")


class Ending:
    """How one execution ends. `prepare` runs the user's code; `record` may be repeated.

    RQ calls `clean_up` through the shadow, in the middle of its transaction.
    """

    def __init__(self, worker: BaseWorker, outcome: Outcome, commands: WorkCommands) -> None:
        self.claimed = claimed = outcome.claimed
        self.execution = execution_of(claimed, worker.connection, worker.name)
        self.fence = Fence(
            record=self.execution.key, leases=commands.leases,
            job=as_text(Job.key_for(claimed.id)), id=claimed.id, execution=claimed.execution,
        )  # fmt: skip
        self.status = ""  # for the notice to its client; empty if the job runs again
        self._worker = worker
        self._commands = commands
        self._outcome = outcome
        self._error = outcome.error

    def prepare(self) -> None:
        """Callbacks and exception handlers: once, however often the end is recorded."""
        job = self.claimed.job
        job.started_at = job.started_at or now()
        job.ended_at = job.started_at + timedelta(seconds=time.monotonic() - self.claimed.began)
        _leave_our_callbacks_out(job)
        with current_job(job):
            if self._outcome.stopped:
                self._call_back_stopped(job)
                return
            if self._error is None and not isinstance(self._outcome.value, Retry):
                self._call_back_finished(job)
            if self._error is not None:
                self._call_back_failed(job, self._error)

    def record(self) -> None:
        """RQ's transaction, on a copy of the job: a failed one leaves no changes in the job."""
        worker, job = self._worker, copy.copy(self.claimed.job)
        connection = Fenced(worker.connection)
        job.set_status = partial(_set_status, job, connection)
        queue = worker.queue_class(
            self.claimed.queue, connection=worker.connection, job_class=worker.job_class,
            serializer=worker.serializer,
        )  # fmt: skip
        try:
            with current_job(job):
                self._record(self._shadow(connection), job, queue)
        except Exception:
            if not self.fence.recorded:
                raise
            log.exception("job %s: it has ended; what follows on it failed", job.id)
        self.fence.require_recorded()

    def clean_up(self, job: Any, pipeline: Any) -> None:
        """End the execution in RQ's records and in Penstock's, in RQ's transaction."""
        claimed = self.claimed
        self.execution.delete(job=job, pipeline=pipeline)
        pipeline.fence = self.fence
        if not self.status and claimed.text(b"penstock_share"):
            self.fence.then = self._commands.rejoin(claimed.id)
        pipeline.execute_command(
            *self._commands.drop((
                claimed.id, claimed.execution, claimed.text(b"penstock_reply_to"), self.status,
                counted_as(self._outcome.value) if self.status == "finished" else "",
                claimed.started, claimed.waited, claimed.hold_row(failed=self.status != "finished"),
            ))
        )  # fmt: skip

    # The user's code

    def _call_back_finished(self, job: Any) -> None:
        job._result = self._outcome.value
        job._status = JobStatus.FINISHED
        try:
            _run_callback("success", job, self._worker.death_penalty_class, self._outcome.value)
        except BaseException as failure:  # noqa: BLE001 - as in RQ: a failing callback fails the job
            self._error = (type(failure), failure, failure.__traceback__)

    def _call_back_failed(self, job: Any, error: ExcInfo) -> None:
        job._status = JobStatus.FAILED
        try:
            _run_callback("failure", job, self._worker.death_penalty_class, *error)
        except BaseException as failure:  # noqa: BLE001 - as in RQ: it replaces the job's error
            self._error = error = (type(failure), failure, failure.__traceback__)
        try:
            self._worker.handle_exception(job, *error)
        except BaseException as failure:  # noqa: BLE001 - a handler's; it would kill RQ's horse
            failure.__context__ = failure.__context__ or error[1]
            self._error = (type(failure), failure, failure.__traceback__)

    def _call_back_stopped(self, job: Any) -> None:
        try:
            _run_callback("stopped", job, self._worker.death_penalty_class)
        except BaseException:
            log.exception("job %s: its stopped callback failed", job.id)

    # RQ's records

    def _shadow(self, connection: Fenced) -> Any:
        shadow: Any = copy.copy(self._worker)
        shadow.ending = self
        shadow.connection = connection
        shadow._stopped_job_id = self.claimed.id if self._outcome.stopped else None
        if isinstance(getattr(type(shadow), "execution", None), property):  # RQ 3
            shadow.executions = {self.execution.id: self.execution}
        else:
            shadow.execution = self.execution
        return shadow

    def _record(self, shadow: Any, job: Any, queue: Any) -> None:
        started, value = queue.started_job_registry, self._outcome.value
        if self._outcome.stopped:
            self.status = "stopped"
            said = "Job stopped by user, work-horse terminated."
            _call(shadow.handle_job_failure, shadow, job=job, queue=queue, exc_string=said)
        elif self._error is not None:
            self.status = "" if job.should_retry else "failed"
            _call(shadow.handle_job_failure, shadow, job=job, queue=queue,
                  started_job_registry=started, exc_string=exc_string(self._error))  # fmt: skip
        elif isinstance(value, Retry):
            exhausted = bool(job.number_of_retries and job.number_of_retries >= value.max)
            self.status = "failed" if exhausted else ""
            job._result = value
            _call(shadow.handle_job_retry, shadow, job=job, queue=queue, retry=value,
                  started_job_registry=started)  # fmt: skip
        else:
            self.status = "finished"
            _call(shadow.handle_job_success, shadow, job=job, queue=queue,
                  started_job_registry=started)  # fmt: skip
            job.send_webhooks(JobStatus.FINISHED)


def _set_status(job: Any, connection: Fenced, status: Any, pipeline: Any = None) -> None:
    """Set the status in the transaction; for a scheduled retry RQ would write it earlier,
    unfenced."""
    type(job).set_status(job, status, connection.latest if pipeline is None else pipeline)


def _call(method: Any, shadow: Any, **given: Any) -> None:
    """RQ 3 passes the execution along; RQ 2 has it on the worker."""
    if "execution" in inspect.signature(method).parameters:
        given.setdefault("execution", shadow.ending.execution)
    method(**given)


def _run_callback(kind: str, job: Any, penalty: Any, *details: Any) -> None:
    if getattr(job, f"_{kind}_callback") is None or not getattr(job, f"_{kind}_callback_name"):
        return
    try:
        from rq import callbacks
    except ImportError:
        callbacks = None  # type: ignore[assignment]
    run = getattr(callbacks, f"execute_{kind}_callback", None)
    if run is not None:
        call = partial(run, job, penalty, *details)
    else:
        call = partial(getattr(job, f"execute_{kind}_callback"), penalty, *details)
    _within(getattr(job, f"{kind}_callback_timeout"), call)


def _within(timeout: float, callback: Callable[[], Any]) -> None:
    """Call it in a thread of its own. One that does not return even when it is interrupted, such as
    a read from a socket, is abandoned: else its job would never end."""
    failed: list[BaseException] = []

    def call() -> None:
        try:
            context.run(callback)
        except BaseException as failure:  # noqa: BLE001 - raised below
            failed.append(failure)

    context = contextvars.copy_context()
    thread = threading.Thread(target=call, name="penstock-callback", daemon=True)
    thread.start()
    thread.join(timeout + GRACE if timeout > 0 else None)
    if thread.is_alive():
        raise JobTimeoutException(f"Task exceeded maximum timeout value ({timeout} seconds)")
    if failed:
        raise failed[0]


def _leave_our_callbacks_out(job: Any) -> None:
    """Leave out our callbacks that notify the trainer, which our own script does inside the
    transaction."""
    for kind in ("success", "failure", "stopped"):
        if (getattr(job, f"_{kind}_callback_name") or "").startswith(OUR_CALLBACKS):
            setattr(job, f"_{kind}_callback", None)  # the name stays: a stock worker may retry


class CallbackLimit(TimerDeathPenalty):
    """RQ's time limit for threads, without changing RQ's exception class."""

    def __init__(
        self, timeout: int, exception: type[BaseException] = JobTimeoutException, **kwargs: Any
    ) -> None:
        BaseDeathPenalty.__init__(self, timeout, exception, **kwargs)
        said = f"Task exceeded maximum timeout value ({timeout} seconds)"
        # Only a class can be raised in another thread, so the class holds the message.
        as_its_own = {"__str__": lambda _: said, "__module__": exception.__module__}
        self._exception = type(exception.__name__, (exception,), as_its_own)
        self._target_thread_id = threading.get_ident()
        self._timer = None
