"""The errors of a job, as one tree.

    PenstockError
    ├── NotAllowed              the job names what its worker may not run; names the setting
    └── QueueError              a job has no result, and the program is not to blame
        ├── QueueUnavailable    Redis does not answer
        ├── NoWorkers           nobody works on the queue
        ├── DeadlineExceeded    no result within the caller's deadline
        ├── JobCancelled        it was cancelled, or stopped
        ├── JobFailed           it raised on the worker; says what
        ├── TrainingPaused      too many programs had no outcome; asked for by when_paused="raise"
        ├── ResultExpired       Redis has forgotten it
        └── ResultUnreadable    what came back in its place is no result

What a sandbox raises is of `jail/errors.py`, and has its earlier name here too. A program that
crashes, exits non-zero or runs out
of time raises nothing: that is a `CodeResult`.
"""

import shlex

from ground.breaker import PAUSE
from ground.errors import PenstockError
from jail.errors import RequestRefused as RequestRefused
from jail.errors import SandboxBroken as SandboxBroken
from jail.errors import SandboxBusy as SandboxBusy
from jail.errors import SandboxFailure as SandboxFailure
from jail.errors import SandboxTimeout as SandboxTimeout
from jail.errors import SandboxUnfit as SandboxUnfit
from jail.errors import SandboxUnreachable as SandboxUnreachable


class NotAllowed(PenstockError):
    """A job names a function, a callback or a webhook that its worker may not run."""

    def __init__(self, what: str, name: str) -> None:
        shown = repr(name if len(name) <= 100 else f"{name[:100]}…")
        super().__init__(
            f"the {what} {shown} is not allowed on this worker: it runs worker.jobs.* and what "
            "PENSTOCK_ALLOW names, and nothing else; to have it run, name it there, or start the "
            "worker with penstock worker --allow NAME"
        )


class QueueError(PenstockError):
    """A job has no result, for no fault of its program."""


class ResultUnreadable(QueueError):
    """The value in a job's place is no result."""


class QueueUnavailable(QueueError):
    """Redis does not answer."""

    def __init__(self, queue: str, where: str, why: object) -> None:
        super().__init__(
            f"queue {queue!r}: Redis at {where} could not be asked ({why}); jobs already queued "
            "stay there. Is it up, and is PENSTOCK_REDIS_URL right?"
        )


def start_a_worker(queue: str, gate: str = "") -> str:
    """The commands, for a shell: without a place for its programs no worker takes code jobs.
    Without the gate of the others it would run them past the limit."""
    words = shlex.quote(queue) if not queue.startswith("-") else f"-- {shlex.quote(queue)}"
    if gate:
        words = f"--gate {shlex.quote(gate)} {words}"
    return (
        f"penstock worker --sandbox local {words}, or with Sandbox Fusion "
        f"PENSTOCK_SANDBOX_FUSION_URL=http://… penstock worker {words}"
    )


def _on_the_same_redis(queue: str) -> str:
    """The advice of a client, which knows no gates."""
    return (
        "start one on the same Redis, with --gate NAME if a gate limits its programs: "
        f"{start_a_worker(queue)}"
    )


class NoWorkers(QueueError):
    """Nobody works on the queue."""

    def __init__(self, queue: str, waiting: int, seconds: float) -> None:
        wait = "1 job waits" if waiting == 1 else f"{waiting} jobs wait"
        super().__init__(
            f"queue {queue!r}: no worker for {seconds:.0f} s, and {wait}; "
            f"{_on_the_same_redis(queue)}"
        )
        self.waiting = waiting


class DeadlineExceeded(QueueError):
    """No result came within the caller's deadline; `unattended` is a queue without workers.

    Without a `job`, its cases were not in Redis yet, or `what` says what was.
    """

    def __init__(self, job: str, seconds: float, unattended: str = "", *, what: str = "") -> None:
        said = "; raise the timeout?"
        if unattended:
            said = (
                f", and no worker listens on queue {unattended!r}; {_on_the_same_redis(unattended)}"
            )
        if not what:
            what = f"job {job}" if job else "no job yet, its cases were still on their way to Redis"
        super().__init__(f"{what}: no result within {seconds:g} s{said}")


class JobCancelled(QueueError):
    """The job was cancelled, or stopped by an operator."""

    def __init__(self, job: str, how: str) -> None:
        super().__init__(f"job {job} was {how}")


class JobFailed(QueueError):
    """The job raised on the worker: the request was refused, or the worker is not set up right."""

    def __init__(self, job: str, trace: str) -> None:
        lines = trace.strip().splitlines() or ["the worker left no reason"]
        said = f"job {job} failed on its worker: {lines[-1]}"
        if lines[-1].startswith("rq.exceptions.DeserializationError"):
            said += ". Jobs are JSON: start it with --serializer rq.serializers.JSONSerializer"
        super().__init__(said)
        self.trace = trace


class ResultExpired(QueueError):
    """Redis has forgotten the job."""

    def __init__(self, job: str) -> None:
        super().__init__(
            f"job {job} is not in Redis any more: its result expired (result_ttl), or it was "
            "deleted, or Redis lost its data. It can be submitted again"
        )


class TrainingPaused(QueueError):
    """A breaker is open: too many of the last programs had no outcome, for which no program is to
    blame. Raised if it is asked for, so that nobody trains on holes.

    It tries a few by itself, `retry_after` seconds after the last failure, once they are asked for
    again.
    """

    retry_after = PAUSE

    def __init__(self, where: str, why: str) -> None:
        super().__init__(
            f"{where} is paused by its breaker: {why}. Stop training, or ask again in "
            f"{self.retry_after:g} s or later. What is broken: penstock top"
        )
        self.why = why
