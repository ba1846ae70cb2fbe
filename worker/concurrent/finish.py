"""Record how jobs ended: plain ends together, many in one script call. Ends with callbacks,
retries, dependents and the like go one by one, by RQ's own code (`end_or_retry_by_rq.py`).

Both ways are fenced: they take effect only while this worker holds the execution's lease. The lease
ends in the transaction that writes the job's new state. While Redis does not answer, we retry. An
end that cannot be recorded becomes a failure that says why; if that cannot be recorded either, a
bare failure. So no execution is left open.
"""

import asyncio
import contextvars
import logging
import math
import time
import zlib
from base64 import b64encode
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

from redis.exceptions import RedisError
from rq.defaults import DEFAULT_FAILURE_TTL, UNSERIALIZABLE_RETURN_VALUE_PAYLOAD
from rq.job import Retry
from rq.serializers import JSONSerializer
from rq.worker import BaseWorker

from ground.backoff import backoff
from ground.quick_json import write_json
from ground.redis.async_connection import AsyncConnection
from ground.redis.connection import is_full, is_passing, trouble
from ground.tracing.spans import OFF
from worker.concurrent import traced
from worker.concurrent.commands import WorkCommands
from worker.concurrent.end_or_retry_by_rq import Ending, JobDeleted, LeaseLost
from worker.concurrent.rq_job import free_slot
from worker.concurrent.running import (
    OUR_CALLBACKS,
    ClaimedJob,
    ExcInfo,
    Outcome,
    RunningJobs,
    exc_string,
)
from worker.concurrent.threads import Threads
from worker.notices import NOTICE_LIMIT
from worker.outcomes import counted_as

log = logging.getLogger("penstock.worker")

RECORDED, LOST, HAS_DEPENDENTS, PUT_OFF = 1, 0, 2, 3
BARE = "bare"  # a failure that the script records whatever else the job has
FAILED, FUNCTION = "0", "1"  # else a word for how a program ended
_CHUNK = 200  # ends in one script call: a few milliseconds of the server's time
_CHUNK_BYTES = 64 << 20  # of results in one call, exceeded by at most one; a server takes 1 GiB
_LARGEST = 256 << 20  # bytes of one result; a server takes no argument above 512 MiB
_CALLBACKS = (b"success_callback_name", b"failure_callback_name", b"stopped_callback_name")
_SPECIAL = (b"webhooks", b"repeats_left", b"rate_limit_key", b"group_id")
_RETRY_FOR = 300.0  # seconds; far beyond every lease, after which the answer is "lost" anyway
_COLD_RETRY_FOR = 5.0  # seconds, from a cold stop

Row = tuple[Any, ...]
End = tuple[Outcome, Row]


class Finisher:
    """A finisher gathers outcomes and records them; each job then leaves the running ones."""

    def __init__(
        self,
        worker: BaseWorker,
        *,
        connection: AsyncConnection,
        commands: dict[str, WorkCommands],
        jobs: RunningJobs,
        threads: Threads,
    ) -> None:
        self._worker = worker
        self._connection = connection
        self._commands = commands
        self._jobs = jobs
        self._threads = threads
        self._serializer: Any = worker.serializer
        # With an exception handler of the user's, RQ's own code has to end a failed job.
        handlers: Any = worker._exc_handlers
        self._plain_failures = not handlers and not worker.disable_default_exception_handler
        self._gathered: dict[str, list[End]] = defaultdict(list)
        self._tasks: set[asyncio.Task[None]] = set()
        self._flushing: asyncio.Task[None] | None = None
        self._until = math.inf  # by our clock: when a cold stop gives up what Redis does not take
        self._context = contextvars.copy_context()  # and not that of the job that ended

    def finish(self, outcome: Outcome) -> None:
        """Record it soon, together with others."""
        outcome.claimed.ending = True
        try:
            if outcome.claimed.span is not OFF:
                traced.ending(outcome)
            row = self._row(outcome)
        except BaseException as failure:  # noqa: BLE001 - a user's value may raise anything
            self._fail_instead(outcome, failure)
            return
        if row is None:
            self._spawn(self._record_by_rq(outcome))
        else:
            self._gather(outcome, row)

    def _fail_instead(self, outcome: Outcome, refusal: BaseException) -> None:
        """Fail the job if the end itself cannot be recorded."""
        claimed = outcome.claimed
        if outcome.error is None and not outcome.stopped:
            self.finish(Outcome.failed(claimed, refusal))
        else:
            self._gather(outcome, self._bare_row(outcome, refusal))
            why = exc_string((type(refusal), refusal, None)).strip()
            log.error("job %s: its end cannot be recorded as it should: %s", claimed.id, why)

    def _gather(self, outcome: Outcome, row: Row) -> None:
        self._gathered[outcome.claimed.queue].append((outcome, row))
        if self._flushing is None or self._flushing.done():
            self._flushing = self._spawn(self._flush())

    async def drain(self) -> None:
        """Wait until every end is recorded."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def stop_cold(self) -> None:
        """Try only for some seconds more. What Redis does not take by then runs again."""
        self._until = min(self._until, time.monotonic() + _COLD_RETRY_FOR)

    def _given_up(self) -> bool:
        return time.monotonic() > self._until

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(
            work, context=self._context.copy()
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _flush(self) -> None:
        while self._gathered:
            gathered, self._gathered = self._gathered, defaultdict(list)
            for queue, ends in gathered.items():
                for chunk in _chunks(ends):
                    await self._record(queue, chunk)

    async def _record(self, queue: str, ends: list[End]) -> None:
        try:
            command = self._commands[queue].finish(row for _, row in ends)
            verdicts = await until_answered(lambda: self._connection.ask(command), self._given_up)
        except Exception as failure:
            redis = isinstance(failure, RedisError | OSError)
            if not redis and len(ends) > 1:  # one that cannot be sent takes no other with it
                for end in ends:
                    await self._record(queue, [end])
                return
            if not redis and ends[0][1][2] != BARE:
                self._fail_instead(ends[0][0], failure)
                return
            log.error(  # noqa: TRY400 - a traceback only if it says more
                "queue %r: the ends of %d jobs were not recorded, and they run again when their"
                " leases end: %s", queue, len(ends), trouble(failure) if redis else failure,
                exc_info=not redis,
            )  # fmt: skip
            for outcome, _ in ends:
                self._jobs.ended(outcome.claimed)
            return
        for (outcome, _), verdict in zip(ends, verdicts, strict=True):
            self._digest(outcome, verdict)

    def _digest(self, outcome: Outcome, verdict: Any) -> None:
        if int(verdict) == HAS_DEPENDENTS:
            self._spawn(self._record_by_rq(outcome))
            return
        if int(verdict) == LOST:
            log.warning(
                "job %s: its lease had ended, or it was deleted; this result is refused",
                outcome.claimed.id,
            )
        if int(verdict) == PUT_OFF:
            log.info(
                "job %s: it had no outcome while the breaker is open; it waits in its queue again",
                outcome.claimed.id,
            )
        if outcome.claimed.fields.get(b"rate_limit_key"):  # else RQ's own code has freed its slot
            self._spawn(self._free_slot(outcome.claimed))
        self._jobs.ended(outcome.claimed)

    async def _free_slot(self, claimed: ClaimedJob) -> None:
        """Let the next job of its rate limit in, although RQ's own code did not end this one."""
        try:
            await self._threads.run(partial(free_slot, claimed, self._worker.connection))
        except (RedisError, OSError) as failure:
            log.warning("job %s: RQ's maintenance frees its rate limit: %s", claimed.id, failure)

    async def _record_by_rq(self, outcome: Outcome) -> None:
        try:
            commands = self._commands[outcome.claimed.queue]
            ending = Ending(self._worker, outcome, commands)
            await self._threads.run(ending.prepare)
            await until_answered(lambda: self._threads.run(ending.record), self._given_up)
        except LeaseLost as refusal:
            log.warning("%s; this result is refused", refusal)
        except JobDeleted as gone:
            log.warning("%s; this result is dropped", gone)
            self._gather(outcome, self._bare_row(outcome, gone))  # it ends the execution
            return
        except asyncio.CancelledError:
            raise  # the worker ends
        except BaseException as refusal:  # noqa: BLE001 - a callback may raise anything
            if not is_passing(refusal):
                self._fail_instead(outcome, refusal)
                return
            log.error(  # noqa: TRY400 - it is Redis that fails
                "job %s: its end was not recorded, and it runs again: %s",
                outcome.claimed.id, trouble(refusal),
            )  # fmt: skip
        self._jobs.ended(outcome.claimed)

    # What is plain enough for the script

    def _row(self, outcome: Outcome) -> Row | None:
        """The script's arguments; None if RQ's own code must end the job."""
        claimed = outcome.claimed
        if outcome.stopped or not _is_plain(claimed):
            return None
        if outcome.error is not None:
            return self._failure_row(claimed, outcome.error) if self._plain_failures else None
        ttl = claimed.number(b"result_ttl", self._worker.default_result_ttl)
        job = claimed.built  # the user's code may have changed it
        changed = job is not None and job.result_ttl not in (None, ttl)
        if ttl == 0 or changed or isinstance(outcome.value, Retry):
            return None
        word = counted_as(outcome.value, once=claimed.once)
        raw = self._dumped(outcome.value, of_program=bool(word))
        payload = b"" if outcome.value is None else b64encode(raw)
        notice = raw if self._serializer is JSONSerializer and len(raw) <= NOTICE_LIMIT else b""
        return self._end(claimed, word or FUNCTION, ttl, payload, notice)

    def _failure_row(self, claimed: ClaimedJob, error: ExcInfo) -> Row | None:
        job = claimed.built  # the user's code may have changed what is left
        retries = claimed.number(b"retries_left", 0) if job is None else job.retries_left
        ttl = claimed.number(b"failure_ttl", DEFAULT_FAILURE_TTL)
        changed = job is not None and job.failure_ttl not in (None, ttl)
        if ttl == 0 or changed or (retries and retries > 0):
            return None
        text = exc_string(error)
        log.warning("job %s failed: %s", claimed.id, text.strip().rpartition("\n")[2])
        return self._end(claimed, FAILED, ttl, b64encode(zlib.compress(text.encode())), b"")

    def _bare_row(self, outcome: Outcome, refusal: BaseException) -> Row:
        text = exc_string((type(refusal), refusal, refusal.__traceback__))
        if outcome.error is not None:
            text += f"\nThat kept this failure from being recorded:\n\n{exc_string(outcome.error)}"
        payload = b64encode(zlib.compress(text.encode()))
        if len(payload) > _LARGEST:
            payload = b""
        return self._end(outcome.claimed, BARE, DEFAULT_FAILURE_TTL, payload, b"")

    def _end(self, claimed: ClaimedJob, how: str, ttl: int, payload: bytes, notice: bytes) -> Row:
        if len(payload) > _LARGEST:
            raise ValueError(
                f"the result takes {len(payload):,} bytes, and at most {_LARGEST:,} can be stored;"
                " return less, or store it elsewhere and return where"
            )
        if b"penstock_reply_to" not in claimed.fields:
            notice = b""
        started, hold = f"{claimed.started:.6f}", claimed.hold_row(failed=how in (FAILED, BARE))
        return (
            claimed.id, claimed.execution, how, ttl, payload, started, claimed.waited, notice, hold,
        )  # fmt: skip

    def _dumped(self, value: Any, *, of_program: bool) -> bytes:
        try:
            if of_program and self._serializer is JSONSerializer:  # it is JSON already
                return write_json(value, self._serializer.dumps)
            return bytes(self._serializer.dumps(value))
        except BaseException:  # noqa: BLE001 - as RQ does: a text says that it cannot be written
            return bytes(self._serializer.dumps(UNSERIALIZABLE_RETURN_VALUE_PAYLOAD))


def _is_plain(claimed: ClaimedJob) -> bool:
    fields = claimed.fields
    if any(fields.get(name) for name in _SPECIAL):
        return False
    return all(
        not fields.get(name) or fields[name].startswith(OUR_CALLBACKS.encode())
        for name in _CALLBACKS
    )


async def until_answered(ask: Callable[[], Awaitable[Any]], given_up: Callable[[], bool]) -> Any:
    """Retry while Redis does not answer: recording an end is idempotent."""
    deadline, failures = time.monotonic() + _RETRY_FOR, 0
    while True:
        try:
            return await ask()
        except (RedisError, OSError) as failure:
            late = time.monotonic() > deadline and not is_full(failure)  # it renews the leases
            if late or given_up() or not is_passing(failure):
                raise
            failures += 1
            await asyncio.sleep(backoff(failures, 0.05, 1.0))


def _chunks(ends: list[End]) -> Iterator[list[End]]:
    """Each small enough for one script call."""
    chunk: list[End] = []
    size = 0
    for outcome, row in ends:
        chunk.append((outcome, row))
        size += len(row[4])
        if len(chunk) == _CHUNK or size >= _CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
