"""The spans of a claimed job: its wait, each execution, and the record of its end.

The worker that claims a job also shows the execution before it, if that one's worker died: the
dead could not end their own span. Its id follows from the execution's, so that what the dead had
sent before hangs on it.
"""

import re
import time

from ground import tracing
from ground.tracing import message
from ground.tracing.spans import OFF, execution_id
from worker.concurrent.running import ClaimedJob, JobMalformed, Outcome

_DIED = b"penstock_died"  # the execution whose worker died last, and when
_NUMBER = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,9})?")


def begin(claimed: ClaimedJob, worker: str) -> None:
    """Just claimed, by a worker that traces. No field makes it raise."""
    parent = _text(claimed, b"penstock_traceparent")
    now, since = time.time(), _moment(claimed, b"enqueued_at")
    since = max(since, _record_the_dead(claimed, parent))
    if since:
        about = message("wait", claimed.queue, claimed.id)
        tracing.record(f"wait {claimed.queue}", since, now, about, parent=parent)
    claimed.span = tracing.begun(
        f"process {claimed.queue}",
        _about(claimed, worker, _attempts(claimed) + 1),
        kind="consumer", parent=parent, at=now, id=execution_id(claimed.id, claimed.execution),
    )  # fmt: skip


def _about(claimed: ClaimedJob, worker: str, attempt: int) -> dict[str, tracing.Value]:
    return message("process", claimed.queue, claimed.id, worker=worker, attempt=attempt) | {
        "messaging.operation.type": "process"
    }


def _record_the_dead(claimed: ClaimedJob, parent: str) -> float:
    """Record the execution before, if its worker died; return when, or 0 if it ended otherwise."""
    execution, _, second = _text(claimed, _DIED).partition(" ")
    began, at = _moment(claimed, b"started_at"), _number(second)
    if not began or began > at:
        return 0.0
    tracing.record(
        f"process {claimed.queue}", began, at,
        _about(claimed, _text(claimed, b"worker_name"), _attempts(claimed)),
        kind="consumer", parent=parent, failed="WorkerDied", id=execution_id(claimed.id, execution),
    )  # fmt: skip
    return at


def condemn(claimed: ClaimedJob) -> None:
    """Show the last worker of a job whose workers died too often. Nobody runs it again."""
    _record_the_dead(claimed, _text(claimed, b"penstock_traceparent"))


def ending(outcome: Outcome) -> None:
    """The job's end is about to be recorded."""
    claimed = outcome.claimed
    if claimed.span is OFF or claimed.recording is not OFF:
        return
    if outcome.stopped or outcome.error is not None:
        claimed.span.failed("stopped" if outcome.error is None else outcome.error[0].__name__)
    elif isinstance(outcome.value, dict):
        for name in ("error_kind", "error_reason", "attempts"):
            value = outcome.value.get(name)
            if isinstance(value, str | int) and value:  # a function's own may be anything
                claimed.span.set(f"penstock.{name}", value)
    claimed.recording = tracing.begun(f"record {claimed.queue}", parent=claimed.span)


def _text(claimed: ClaimedJob, name: bytes) -> str:
    return claimed.fields.get(name, b"").decode(errors="replace")


def _attempts(claimed: ClaimedJob) -> int:
    return int(_number(_text(claimed, b"penstock_attempts")))


def _number(text: str) -> float:
    return float(text) if _NUMBER.fullmatch(text) else 0.0


def _moment(claimed: ClaimedJob, name: bytes) -> float:
    try:
        return claimed.moment(name) or 0.0
    except JobMalformed:  # the job fails for it, and says so
        return 0.0
