"""Run a job's function: coroutines on the event loop, everything else in a thread.

A function may run until its job's timeout. One in a thread that does not return even
when it is interrupted is abandoned, and its job fails.
"""

import asyncio
import contextlib
import inspect
import logging
import math
import time
import zlib
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from redis.exceptions import RedisError
from rq.exceptions import DeserializationError
from rq.serializers import JSONSerializer
from rq.timeouts import JobTimeoutException
from rq.utils import now, utcformat
from rq.worker import BaseWorker

from ground.lua import Command
from ground.quick_json import read_json
from ground.redis.async_connection import AsyncConnection
from ground.redis.connect import target_of
from limiter import Gate, Permit, Report
from worker.allowed import Allowed, refused_ends
from worker.concurrent.commands import WorkCommands
from worker.concurrent.rq_job import current_job
from worker.concurrent.running import GRACE, ClaimedJob, Outcome, RunningJobs
from worker.concurrent.threads import Threads
from worker.errors import NotAllowed
from worker.run.turn import (
    LAST_LANE,
    GateTurn,
    JobAtHand,
    Room,
    Turn,
    Unlimited,
    cost_or_none,
    give_back,
    job_at_hand,
)
from worker.settings import WorkerSettings

log = logging.getLogger("penstock.worker")


class Interrupted(BaseException):
    """Raised inside a function that must end: its job was stopped, or its lease was lost."""


class Performer:
    """A performer runs the functions of one worker's jobs."""

    def __init__(
        self,
        worker: BaseWorker,
        settings: WorkerSettings,
        *,
        gate: Gate | None,
        connection: AsyncConnection,
        commands: dict[str, WorkCommands],
        jobs: RunningJobs,
        room: Room,
        threads: Threads,
        allow: Allowed,
    ) -> None:
        self._serializer: Any = worker.serializer
        self._default_timeout: int = worker.queue_class.DEFAULT_TIMEOUT
        self._settings = settings
        self._target = target_of(worker.connection)
        self._gate = gate
        self._room = room
        self._connection = connection
        self._commands = commands
        self._jobs = jobs
        self._threads = threads
        self._allow = allow

    async def perform(self, claimed: ClaimedJob) -> Outcome:
        """Run it to its end. Cancellation passes through; every other end is an outcome."""
        try:
            timeout = claimed.number(b"timeout", 0) or self._default_timeout
            job_at_hand.set(self._at_hand(claimed, timeout))
            refused_ends(claimed.fields, self._allow)
            function = self._function_of(claimed)
            with current_job(claimed):
                value = await self._value_of(function, claimed, timeout)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - user code may raise anything; all of it is its outcome
            return Outcome.failed(claimed, error)
        return Outcome(claimed, value=value)

    def _at_hand(self, claimed: ClaimedJob, timeout: int) -> JobAtHand:
        enqueued = claimed.moment(b"enqueued_at")
        queued = 0.0 if enqueued is None else max(0.0, claimed.started - enqueued)
        seconds = float(timeout) if timeout > 0 else math.inf
        deaths = claimed.number(b"penstock_deaths", 0)
        return JobAtHand(
            self._turn(claimed), queued, seconds, self._settings, deaths, self._target,
            runs_once=partial(setattr, claimed, "once", True),
        )  # fmt: skip

    def _turn(self, claimed: ClaimedJob) -> Turn:
        if self._gate is None:
            return Unlimited(self._room)
        commands = self._commands[claimed.queue]
        return ClaimedPermit(claimed, self._gate, self._connection, commands, self._jobs)

    def _function_of(self, claimed: ClaimedJob) -> "partial[Any]":
        name, instance, args, kwargs = _call_of(claimed.fields[b"data"], self._serializer)
        if name is None:
            raise ValueError("Cannot execute job: function is None")
        if instance and not self._allow.anything:
            raise NotAllowed("method", str(name))
        function = getattr(instance, name) if instance else self._allow.function(name)
        return partial(function, *args, **kwargs)

    async def _value_of(
        self,
        function: "partial[Any]",
        claimed: ClaimedJob,
        timeout: float,  # noqa: ASYNC109
    ) -> Any:
        if inspect.iscoroutinefunction(function.func):
            return await _on_the_loop(function(), timeout)
        value = await self._in_a_thread(function, claimed, timeout)
        return await _on_the_loop(value, timeout) if inspect.iscoroutine(value) else value

    async def _in_a_thread(
        self,
        function: Callable[[], Any],
        claimed: ClaimedJob,
        timeout: float,  # noqa: ASYNC109
    ) -> Any:
        call = self._threads.start(function)
        claimed.interrupt = partial(call.interrupt, Interrupted)
        await asyncio.wait([call.done], timeout=timeout if timeout > 0 else None)
        if not call.done.done():
            call.interrupt(JobTimeoutException)
            await asyncio.wait([call.done], timeout=GRACE)
            if not call.done.done() or isinstance(call.failure, JobTimeoutException):
                raise _timed_out(timeout)
        return call.result()


async def _on_the_loop(coroutine: Any, timeout: float) -> Any:  # noqa: ASYNC109
    if timeout <= 0:
        return await coroutine
    limit = asyncio.timeout(timeout)
    try:
        async with limit:
            return await coroutine
    except TimeoutError:
        if limit.expired():
            raise _timed_out(timeout) from None
        raise


def _timed_out(timeout: float) -> JobTimeoutException:
    return JobTimeoutException(f"Task exceeded maximum timeout value ({timeout:g} seconds)")


def _call_of(data: bytes, serializer: Any) -> tuple[Any, Any, Any, Any]:
    try:
        if not data.startswith(b"["):  # as JSON does, and nothing that is compressed
            with contextlib.suppress(zlib.error):  # RQ reads uncompressed data too
                data = zlib.decompress(data)
        in_json = serializer is JSONSerializer
        call = read_json(data, serializer.loads) if in_json else serializer.loads(data)
        name, instance, args, kwargs = call
    except Exception as failure:
        raise DeserializationError(
            f"the job cannot be read with {_name_of(serializer)}: {type(failure).__name__}; "
            "is it enqueued with the serializer that this worker was started with?"
        ) from failure
    return name, instance, args, kwargs


def _name_of(serializer: Any) -> str:
    return str(getattr(serializer, "__name__", type(serializer).__name__))


class ClaimedPermit:
    """A `worker.run.turn.Turn` that begins with the permit of the job's claim, if that had one."""

    def __init__(
        self,
        claimed: ClaimedJob,
        gate: Gate,
        connection: AsyncConnection,
        commands: WorkCommands,
        jobs: RunningJobs,
    ) -> None:
        self._claimed = claimed
        self._gate = gate
        self._connection = connection
        self._commands = commands
        self._jobs = jobs
        self._cost = max(1, claimed.number(b"penstock_cost", 1))
        self._permit: Permit | None = None  # acquired here, once the claim's is returned
        self._later: set[asyncio.Task[None]] = set()

    async def begin(self, outlives: float) -> None:
        self._claimed.hold = outlives
        if self._cost > 1:  # the claim's permit costs 1; who held that and waited could block all
            self.report(Report.NOTHING)
            await self.pause(0)
        if not self._claimed.permit:
            self._permit = await self._gate.acquire(
                ticket=self._claimed.ticket, orphan_hold=outlives, cost=cost_or_none(self._cost)
            )
        elif outlives > 0:
            await self._write_hold()

    async def _write_hold(self) -> None:
        """Write how long the permit stays, before the program can begin: if this worker dies, it
        outlives it as well."""
        row = self._claimed.beat_row()
        try:
            (answer,) = await self._connection.ask(self._commands.beat(utcformat(now()), [row]))
        except (RedisError, OSError) as failure:
            log.warning("could not write a permit's hold, the heartbeat tries again: %s", failure)
        else:
            if self._claimed.is_lost(row, answer):
                self._jobs.lose([self._claimed])

    def report(self, report: Report) -> None:
        if self._permit is not None:
            self._permit.report(report)
        else:
            self._claimed.report = report

    async def pause(self, still_running: float) -> None:
        if self._permit is not None:
            if (rest := self._release(still_running)) is not None:
                await rest
            return
        fence, self._claimed.permit = self._claimed.permit, 0
        if not fence:
            return
        report, self._claimed.report = self._claimed.report, Report.NOTHING
        command = self._commands.free_permit(self._claimed.member, fence, report)
        if still_running > 0:
            # From here on the heartbeat does not renew it: its hold, which is longer, keeps it;
            # and should the job end before that, its end does.
            self._claimed.busy_until = time.monotonic() + still_running
            task = asyncio.create_task(self._return_claimed(command, still_running))
            self._later.add(task)
            task.add_done_callback(self._later.discard)
        else:
            await self._return_claimed(command, 0)

    def end(self, still_running: float) -> Coroutine[Any, Any, None] | None:
        self._claimed.still_running = still_running
        return self._release(still_running)

    def another(self) -> Turn:
        return GateTurn(self._gate, LAST_LANE, cost=self._cost)

    def _release(self, still_running: float) -> Coroutine[Any, Any, None] | None:
        """The permit acquired here, if there is one; and what to await of that."""
        permit, self._permit = self._permit, None
        if permit is not None and still_running > 0:
            return give_back(permit, still_running)
        if permit is not None:
            permit.release()
        return None

    async def _return_claimed(self, command: Command, after: float) -> None:
        await asyncio.sleep(after)
        try:
            await self._connection.ask(command)
        except (RedisError, OSError) as failure:
            log.warning("a permit will come back at its lease's end: %s", failure)
