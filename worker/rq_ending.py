"""RQ's own way to end a job: callbacks, retries, dependents, repeats, webhooks, groups.

RQ's methods keep one job's state on the worker; so each end is handled by a shadow
of the worker that has only this job. Runs in a thread.
"""

import copy
import inspect
import logging
import threading
from typing import Any

from rq.job import JobStatus, Retry
from rq.timeouts import BaseDeathPenalty, JobTimeoutException, TimerDeathPenalty
from rq.utils import now
from rq.worker import BaseWorker

from worker.fenced import Fenced
from worker.finishing import OUR_CALLBACKS, exc_string
from worker.rq_job import current_job, execution_of
from worker.running import Outcome

log = logging.getLogger("penstock.worker")


class Ending:
    """What `cleanup_execution` has to know: it is called in the midst of RQ's transaction."""

    def __init__(self, outcome: Outcome, execution: Any) -> None:
        self.running = outcome.running
        self.execution = execution
        self.status = ""


def end_in_rqs_way(worker: BaseWorker, outcome: Outcome) -> None:
    """Everything that RQ does from the moment a job's function has ended."""
    running = outcome.running
    job = running.job
    job.started_at = job.started_at or now()
    _leave_our_callbacks_out(job)
    execution = execution_of(running, worker.connection, worker.name)
    shadow = _shadow(worker, Ending(outcome, execution))
    queue = worker.queue_class(
        running.queue, connection=worker.connection, job_class=worker.job_class,
        serializer=worker.serializer,
    )  # fmt: skip
    with current_job(job):
        if outcome.stopped:
            _stop(shadow, job, queue)
        elif outcome.error is not None:
            _fail(shadow, job, queue, outcome.error)
        else:
            _succeed(shadow, job, queue, outcome.value)


def _shadow(worker: BaseWorker, ending: Ending) -> Any:
    shadow: Any = copy.copy(worker)
    shadow.ending = ending
    shadow.connection = Fenced(worker.connection)
    shadow._stopped_job_id = None
    if isinstance(getattr(type(worker), "execution", None), property):  # RQ 3
        shadow.executions = {ending.execution.id: ending.execution}
    else:
        shadow.execution = ending.execution
    return shadow


def _succeed(shadow: Any, job: Any, queue: Any, value: Any) -> None:
    job.ended_at = now()
    job._result = value
    if isinstance(value, Retry):
        exhausted = bool(job.number_of_retries and job.number_of_retries >= value.max)
        shadow.ending.status = "failed" if exhausted else ""
        _call(shadow.handle_job_retry, shadow, job=job, queue=queue, retry=value,
              started_job_registry=queue.started_job_registry,
              execution=shadow.ending.execution)  # fmt: skip
        return
    job._status = JobStatus.FINISHED
    try:
        _run_callback("success", job, shadow.death_penalty_class, value)
    except BaseException as failure:  # noqa: BLE001 - as in RQ: a failing callback fails the job
        _fail(shadow, job, queue, (type(failure), failure, failure.__traceback__))
        return
    shadow.ending.status = "finished"
    _call(shadow.handle_job_success, shadow, job=job, queue=queue,
          started_job_registry=queue.started_job_registry)  # fmt: skip
    job.send_webhooks(JobStatus.FINISHED)


def _fail(shadow: Any, job: Any, queue: Any, error: Any) -> None:
    job._status = JobStatus.FAILED
    job.ended_at = now()
    try:
        _run_callback("failure", job, shadow.death_penalty_class, *error)
    except BaseException as failure:  # noqa: BLE001 - as in RQ: it replaces the job's own
        error = (type(failure), failure, failure.__traceback__)
    shadow.handle_exception(job, *error)
    shadow.ending.status = "" if job.should_retry else "failed"
    _call(shadow.handle_job_failure, shadow, job=job, queue=queue,
          started_job_registry=queue.started_job_registry,
          exc_string=exc_string(error))  # fmt: skip


def _stop(shadow: Any, job: Any, queue: Any) -> None:
    job.ended_at = now()
    shadow._stopped_job_id = job.id
    try:
        _run_callback("stopped", job, shadow.death_penalty_class)
    except Exception:
        log.exception("job %s: its stopped callback failed", job.id)
    shadow.ending.status = "stopped"
    _call(shadow.handle_job_failure, shadow, job=job, queue=queue,
          exc_string="Job stopped by user, work-horse terminated.")  # fmt: skip


def _call(method: Any, shadow: Any, **given: Any) -> None:
    """RQ 3 passes the execution along; RQ 2 has it on the worker."""
    if "execution" in inspect.signature(method).parameters:
        given.setdefault("execution", shadow.ending.execution)
    method(**given)


def _run_callback(kind: str, job: Any, penalty: Any, *told: Any) -> None:
    try:
        from rq import callbacks
    except ImportError:
        callbacks = None  # type: ignore[assignment]
    run = getattr(callbacks, f"execute_{kind}_callback", None)
    if run is not None:
        run(job, penalty, *told)
    else:
        getattr(job, f"execute_{kind}_callback")(penalty, *told)


def _leave_our_callbacks_out(job: Any) -> None:
    """They tell a trainer, which our own script does, in the transaction itself."""
    for kind in ("success", "failure", "stopped"):
        if (getattr(job, f"_{kind}_callback_name") or "").startswith(OUR_CALLBACKS):
            setattr(job, f"_{kind}_callback", None)  # the name stays, for a stock worker's retry


class CallbackLimit(TimerDeathPenalty):
    """RQ's time limit for threads, which leaves RQ's exception class as it is."""

    def __init__(
        self, timeout: int, exception: type[BaseException] = JobTimeoutException, **kwargs: Any
    ) -> None:
        BaseDeathPenalty.__init__(self, timeout, exception, **kwargs)
        said = f"Task exceeded maximum timeout value ({timeout} seconds)"
        # Raised by class from another thread: the class brings the words.
        as_its_own = {"__str__": lambda _: said, "__module__": exception.__module__}
        self._exception = type(exception.__name__, (exception,), as_its_own)
        self._target_thread_id = threading.get_ident()
        self._timer = None
