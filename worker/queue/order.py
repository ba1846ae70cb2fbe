"""An order is one job, from its caller's request to its outcome, and says how Redis keeps the
outcome."""

import base64
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any, Protocol

import redis
from rq import Callback
from rq.job import Job, JobStatus, Retry
from rq.serializers import JSONSerializer
from rq.utils import utcformat

from ground.lua import Command, chunks, fields_of, load_script
from ground.redis.answers import Answer
from ground.redis.unit import Unit
from ground.tracing.spans import OFF
from jail.judge.models import JudgeRequest
from jail.models import CodeRequest
from worker.errors import JobCancelled, JobFailed, QueueError, ResultExpired, ResultUnreadable

_SUCCESSFUL, _STOPPED = b"1", b"3"


class Stage(IntEnum):
    """How far an order has got. In those that are verbs, its client has something to send."""

    SEND = 1
    HELD = 2  # until the job of its token, which is being stopped, has ended
    SENT = 3
    LOOK = 4
    WITHDRAW = 5  # its outcome is there: nobody waits for the job any more
    STOPPING = 6  # withdrawn while it ran, and not seen to end
    OVER = 7


class Client(Unit, Protocol):
    """An order needs this of the `Orders` that it is among."""

    engine: Any

    def add(self, order: "Order") -> None: ...
    def watch(self, order: "Order", answer: Answer) -> None: ...
    def cancel(self, order: "Order", ack: Answer | None) -> None: ...
    def abandon(self, order: "Order") -> None: ...


class Order:
    """An order has what a caller asked for, who waits for it, and what came of it; by the engine's
    clock."""

    __slots__ = (
        "acks", "answers", "began", "client", "correlation", "cost", "data", "deadline",
        "description", "due", "hash", "id", "job_seconds", "outcome", "sent", "share", "span",
        "stage", "submission", "tries", "withdrawal",
    )  # fmt: skip

    def __init__(
        self,
        client: "Client",
        hash: "JobHash",
        id: str,
        request: "AnyRequest",
        began: float,
        deadline: float,
        share: str = "",
    ) -> None:
        self.client = client  # whose `Orders` it is among
        self.hash = hash
        self.id = id
        self.share = share
        self.cost = request.cost
        self.job_seconds = job_seconds(request, hash.spare)
        self.description = description_of(request, id)
        self.correlation = request.correlation_id or id
        self.data = data_of(request, self.correlation)
        self.began = began
        self.deadline = deadline
        self.acks: list[Answer] = []
        self.answers: list[Answer] = []
        self.span = OFF
        self.stage = Stage.SEND
        self.sent = False  # it may be on its queue
        self.withdrawal = ""  # how it is to be withdrawn
        self.outcome: bytes | QueueError | None = None
        self.submission = 0  # of this process's, which one; or the last that its withdrawal covers
        self.due = 0.0  # when it is looked at, or stopped, once more
        self.tries = 0  # looks since its notice came without a result, or stops without an end


def outcome_of(id: str, status: bytes, last: list[bytes]) -> bytes | QueueError | None:
    """The outcome by a job's status and its last result's fields; None while it is not over.

    Any process may have written them: if they cannot be read, only this job fails.
    """
    try:
        return _read_outcome(id, status, last)
    except (ValueError, zlib.error) as wrong:
        return ResultUnreadable(f"job {id}: what Redis keeps of its end cannot be read: {wrong}")


def _read_outcome(id: str, status: bytes, last: list[bytes]) -> bytes | QueueError | None:
    if status == b"unreadable":
        raise ValueError("its keys are not RQ's")
    fields = fields_of(last)
    kind = fields.get(b"type")
    if kind == _SUCCESSFUL:
        return base64.b64decode(fields.get(b"return_value", b""))
    if kind == _STOPPED or status == b"stopped":
        return JobCancelled(id, "stopped")
    if status == b"failed":
        trace = fields.get(b"exc_string", b"")
        return JobFailed(id, zlib.decompress(base64.b64decode(trace)).decode() if trace else "")
    if status == b"canceled":
        return JobCancelled(id, "cancelled")
    if status in (b"", b"finished"):
        return ResultExpired(id)
    return None


FUNCTION = "worker.jobs.run_code"
JUDGE = "worker.jobs.judge_code"  # a worker that does not know it fails the job
AnyRequest = CodeRequest | JudgeRequest
_ENQUEUE, _LOOK, _WITHDRAW = (
    load_script("worker.queue", name) for name in ("enqueue", "look", "withdraw")
)
_LOOK_AT_BREAKER = load_script("worker.queue", "look", "breaks")
SCRIPTS = {script.sha: script for script in (_ENQUEUE, _LOOK, _LOOK_AT_BREAKER, _WITHDRAW)}
_WITHDRAWN_TTL = 3600
_COMPRESS_ABOVE = 512  # bytes; of fewer, zlib saves too few for the time it takes
_CHUNK = 200  # jobs in one script call: keeps a call below a few milliseconds
# Differs from job to job, or is set when it is sent.
_OWN = {"data", "description", "timeout", "created_at", "enqueued_at"}


class JobHash:
    """The fields that the jobs of one `CodeQueue` have in common."""

    def __init__(
        self,
        queue: str,
        *,
        result_ttl: int,
        failure_ttl: int,
        retries: int,
        abandon: bool,
        spare: float,
        patience: float,
        no_workers_after: float,
        share: str = "",
        raises: bool = False,
    ) -> None:
        self.queue = queue
        self.share = share
        self.raises = raises  # while a breaker has paused the queue
        self.abandon = abandon
        self.spare = spare
        self.patience = patience
        self.no_workers_after = no_workers_after
        fields = _shared_fields(
            origin=queue,
            result_ttl=result_ttl,
            failure_ttl=failure_ttl,
            retry=Retry(max=retries) if retries else None,
        )
        self._words = [word for pair in fields.items() for word in pair]

    def enqueue(self, reply_to: str, client: str, orders: "Sequence[Order]") -> Command:
        """Put these, all of one share and cost, on the queue; a repeat changes nothing."""
        sent = utcformat(datetime.now(UTC))
        words = [*self._words, "created_at", sent, "enqueued_at", sent]
        if orders[0].cost > 1:
            words += "penstock_cost", orders[0].cost
        rows: list[Any] = []
        for order in orders:
            rows += (order.id, order.job_seconds, order.description, order.correlation,
                     order.data, order.submission, order.span.traceparent)  # fmt: skip
        args = [reply_to, client if self.abandon else "", orders[0].share, len(words) // 2,
                *words, *rows]  # fmt: skip
        return _ENQUEUE.command(("rq:queues", f"rq:queue:{self.queue}"), args)


def _shared_fields(**given: Any) -> dict[str, Any]:
    job = Job.create(
        FUNCTION,
        args=[{}],
        connection=redis.Redis(),  # never used: it connects at its first command
        serializer=JSONSerializer,
        status=JobStatus.QUEUED,
        on_success=Callback("worker.notices.on_success"),
        on_failure=Callback("worker.notices.on_failure"),
        on_stopped=Callback("worker.notices.on_stopped"),
        **given,
    )
    # What is empty RQ reads as if it were not there.
    fields = {k: v for k, v in job.to_dict().items() if k not in _OWN and v not in ("", b"")}
    return fields | {"status": JobStatus.QUEUED.value}


def by_hash(orders: "Iterable[Order]") -> "Iterator[tuple[JobHash, list[Order]]]":
    """The orders of a queue object, share and cost together, in lists short enough for one
    script call."""
    groups: dict[tuple[JobHash, str, int], list[Order]] = {}
    for order in orders:
        groups.setdefault((order.hash, order.share, order.cost), []).append(order)
    for (hash, _, _), group in groups.items():
        yield from ((hash, chunk) for chunk in chunks(group, _CHUNK))


def look(hash: "JobHash", ids: Sequence[str]) -> Command:
    """How these stand."""
    script = _LOOK_AT_BREAKER if hash.raises else _LOOK
    return script.command((f"rq:workers:{hash.queue}", f"rq:queue:{hash.queue}"), ids)


def withdraw(hash: "JobHash", reply_to: str, rows: "Iterable[tuple[Order, str]]") -> Command:
    """Take these back, or stop them; each with how: `cancel`, `abandon` or `again`."""
    words = [word for order, how in rows for word in (order.id, order.submission, how)]
    return _WITHDRAW.command((f"rq:queue:{hash.queue}",), (_WITHDRAWN_TTL, reply_to, *words))


def data_of(request: AnyRequest, correlation: str) -> bytes:
    """The call, as RQ's JSON serializer writes it. A copy of the request would cost more."""
    function = JUDGE if isinstance(request, JudgeRequest) else FUNCTION
    fields = request.model_dump_json(exclude={"correlation_id", "cost"})[:-1]  # all but the brace
    wanted = f'{fields},"correlation_id":{json.dumps(correlation)}}}'
    call = f'["{function}", null, [{wanted}], {{}}]'.encode()
    if len(call) < _COMPRESS_ABOVE:
        return call
    # zlib's own default takes a quarter of a megabyte from the system for each call.
    small = zlib.compressobj(1, wbits=14, memLevel=6)
    return small.compress(call) + small.flush()


def description_of(request: AnyRequest, token: str) -> str:
    """A job's description for lists and logs. It has nothing of the code, which may hold
    secrets."""
    what = f"{request.language} {len(request.code.encode())} bytes"
    if isinstance(request, JudgeRequest):
        return f"judge_code {what} {request.count} cases {token}"
    return f"run_code {what} {token}"


def job_seconds(request: AnyRequest, spare: float) -> int:
    """RQ's time limit: the program's own, and what permits and retries may take."""
    if isinstance(request, JudgeRequest):
        return math.ceil(request.longest + spare)
    return math.ceil(request.compile_timeout + request.run_timeout + spare)
