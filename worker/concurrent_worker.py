"""An RQ worker that runs hundreds of jobs in one process, and loses none.

    rq worker --worker-class worker.ConcurrentWorker --serializer rq.serializers.JSONSerializer code

RQ's command line, registries, commands and promises hold (docs/rq.md). Here is the
side that RQ sees; `worker/shift.py` does the work, `worker/pulse.py` keeps it ours.
"""

import asyncio
import contextlib
import importlib
import json
from collections.abc import Callable
from typing import Any

from redis import Redis
from redis.exceptions import RedisError
from rq.defaults import DEFAULT_LOGGING_DATE_FORMAT, DEFAULT_LOGGING_FORMAT
from rq.utils import now, utcformat
from rq.worker import BaseWorker, DequeueStrategy, WorkerStatus

from ground import target_of
from limiter import Gate, named_gate
from limiter.commands import INDEX, GateCommands
from worker.async_wire import AsyncWire, Command
from worker.claimed_turn import ClaimedTurn
from worker.claims import fields_of, known_of
from worker.execution_record import Outcome, Running
from worker.finishing import Finisher
from worker.gate_line import GateLine
from worker.lifecycle.reaper import reap_sandboxes
from worker.parking import Parking
from worker.performing import perform
from worker.pulse import Pulse
from worker.rq_ending import CallbackLimit, end_in_rqs_way
from worker.rq_job import follow_tasks, late_job, require_rqs_own_keys
from worker.sandbox.choice import close_sandboxes_here
from worker.settings import WorkerSettings
from worker.shift import Shift
from worker.signals import Signals
from worker.threads import Threads
from worker.turn import Turn, Unlimited, current_execution
from worker.work_commands import SCRIPTS, WorkCommands


class ConcurrentWorker(BaseWorker):
    """See the module. Concurrency, lease and gate come from `PENSTOCK_*`."""

    death_penalty_class = CallbackLimit
    ending: Any = None  # set on the shadow that RQ's own way of ending a job works with

    def __init__(self, *args: Any, settings: WorkerSettings | None = None, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._settings = settings
        self._shift: Shift | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._gate: Gate | None = None
        self._wire: AsyncWire | None = None
        self._threads = Threads()
        self._noting: asyncio.Task[None] | None = None
        self._commands: dict[str, WorkCommands] = {}

    def work(
        self,
        burst: bool = False,
        logging_level: str | None = None,
        date_format: str = DEFAULT_LOGGING_DATE_FORMAT,
        log_format: str = DEFAULT_LOGGING_FORMAT,
        max_jobs: int | None = None,
        max_idle_time: int | None = None,
        with_scheduler: bool = False,
        dequeue_strategy: DequeueStrategy = DequeueStrategy.DEFAULT,
    ) -> bool:
        """As RQ's; returns whether any job was started."""
        self._settings = self._settings or WorkerSettings.load()
        require_rqs_own_keys()
        # Here its own ImportError is seen; from a job RQ would say "Invalid attribute name".
        importlib.import_module("worker.jobs")
        follow_tasks()
        self.bootstrap(logging_level, date_format, log_format)
        self.set_state(WorkerStatus.IDLE)
        self._dequeue_strategy = dequeue_strategy
        if with_scheduler:
            self._start_scheduler(burst, logging_level, date_format, log_format)
        try:
            return asyncio.run(self._work(burst, max_jobs, max_idle_time))
        finally:
            self.teardown()  # type: ignore[no-untyped-call,unused-ignore]

    async def _work(self, burst: bool, max_jobs: int | None, max_idle: int | None) -> bool:
        settings = self._settings
        assert settings is not None  # noqa: S101 - set by `work`
        target = target_of(self.connection)
        gate = self._gate = _gate(self.connection, settings)
        names = list(dict.fromkeys(self.queue_names()))
        self._commands = commands = self._commands_for(names, settings, gate)
        wire = self._wire = AsyncWire(target, SCRIPTS, timeout=5.0)
        self._loop = asyncio.get_running_loop()
        shift = self._shift = self._shift_over(wire, commands, settings)
        shift.line = GateLine(gate, shift.stir) if gate else None
        pulse = Pulse(
            target, commands, lease=settings.job_lease, deaths=settings.job_deaths,
            running=lambda: list(shift.running.values()), about_worker=self._about_myself,
            lost=lambda gone: self._call(shift.lose, gone), condemned=self._condemned,
        )  # fmt: skip
        pulse.start()
        maintenance = asyncio.create_task(self._maintain(burst))
        reaping = asyncio.create_task(reap_sandboxes(target))
        try:
            with Signals(self._loop, self.request_stop_here):
                await shift.work(burst=burst, max_jobs=max_jobs, max_idle=max_idle)
        finally:
            pulse.stop()
            maintenance.cancel()
            reaping.cancel()
            await asyncio.wait([maintenance, reaping, *([self._noting] if self._noting else [])])
            await self._leave(wire, commands)
        return shift.started > 0

    def _commands_for(
        self, names: list[str], settings: WorkerSettings, gate: Gate | None
    ) -> dict[str, WorkCommands]:
        at = GateCommands(gate.name, gate.terms, self.name) if gate else None
        return {name: WorkCommands(name, self.name, settings.job_lease, at) for name in names}

    def _shift_over(
        self, wire: AsyncWire, commands: dict[str, WorkCommands], settings: WorkerSettings
    ) -> Shift:
        target = target_of(self.connection)
        parkings = {
            name: Parking(target, each.jobs, each.hand, lambda: shift.stir())
            for name, each in commands.items()
        }
        shift = Shift(
            wire, commands, parkings, concurrency=settings.jobs_at_once,
            strategy=str(getattr(self._dequeue_strategy, "value", self._dequeue_strategy)),
            new_running=self._new_running, perform=self._perform,
        )  # fmt: skip
        shift.finisher = Finisher(
            wire, commands, serializer=self.serializer,
            default_result_ttl=self.default_result_ttl,
            plain_failures=not self._exc_handlers and not self.disable_default_exception_handler,
            in_rqs_way=self._in_rqs_way, ended=shift.ended, busy=lambda: len(shift.running),
        )  # fmt: skip
        return shift

    # One job

    def _new_running(self, queue: str, job: list[Any], moment: float) -> Running:
        id, execution, fields = job[0].decode(), job[1].decode(), fields_of(job[2])
        late = late_job(id, fields, self.job_class, self.connection, self.serializer)
        running = Running(queue, id, execution, fields, moment, late)
        if len(job) > 3:
            running.permit, running.ticket = int(job[3]), _text(job[4])
        return running

    async def _perform(self, running: Running) -> Outcome:
        default = self.queue_class.DEFAULT_TIMEOUT
        turn = self._turn(running)
        current_execution.set(known_of(running, turn, default, self._settings))
        return await perform(running, running.job, self.serializer, default, self._threads)

    def _turn(self, running: Running) -> Turn:
        if self._gate is None:
            return Unlimited()
        return ClaimedTurn(
            running, self._gate, prolong=self._prolong_permit, give_back=self._free_permit
        )

    async def _prolong_permit(self, running: Running) -> None:
        assert self._wire is not None and self._shift is not None  # noqa: S101, PT018 - jobs run
        row = running.beat_row()
        beat = self._commands[running.queue].beat(utcformat(now()), [row])
        (answer,) = await self._wire.ask(beat)
        if running.is_lost(row, answer):
            self._shift.lose([running])

    async def _free_permit(self, running: Running, fence: int) -> None:
        assert self._wire is not None  # noqa: S101 - it is open for as long as jobs run
        await self._wire.ask(self._commands[running.queue].free_permit(running.member, fence))

    async def _in_rqs_way(self, outcome: Outcome) -> None:
        await self._threads.run(lambda: end_in_rqs_way(self, outcome))

    def cleanup_execution(self, job: Any, pipeline: Any, execution: Any = None) -> None:
        """Called by RQ inside the transaction that ends an execution: ours ends in it too."""
        ending = self.ending
        ending.execution.delete(job=job, pipeline=pipeline)
        running = ending.running
        commands: WorkCommands = self._commands[running.queue]
        pipeline.fence = (ending.execution.key, commands.leases, running.member)
        pipeline.execute_command(
            *commands.drop(running.id, running.execution, running.text(b"penstock_reply_to"),
                           ending.status, int(running.still_running * 1e6))
        )  # fmt: skip

    # Heartbeat and maintenance

    def _about_myself(self) -> list[Command]:
        self.last_heartbeat = moment = now()
        ttl, gate = self.worker_ttl + 60, self._gate.name if self._gate else ""
        return [
            ("HSET", self.key, "last_heartbeat", utcformat(moment), "penstock_gate", gate),
            ("EXPIRE", self.key, ttl),
            ("EXPIRE", f"{self.key}:executions", ttl),
            *([("SADD", INDEX, gate)] if gate else []),
        ]

    def _condemned(self, queue: str, jobs: list[Any]) -> None:
        """Jobs whose workers died too often, now ours to fail."""
        self._call(self._fail_condemned, queue, jobs)

    def _fail_condemned(self, queue: str, jobs: list[Any]) -> None:
        assert self._shift is not None  # noqa: S101 - there is a pulse only within a shift
        for job in jobs:
            running = self._new_running(queue, job, now().timestamp())
            deaths = running.number(b"penstock_deaths", 0)
            error = WorkerDied(
                f"job {running.id}: {deaths} workers died while they ran it; it is not run again"
            )
            self._shift.running[running.member] = running
            self._shift.finisher.finish(Outcome(running, error=(WorkerDied, error, None)))

    async def _maintain(self, burst: bool) -> None:
        """RQ's own maintenance: registries of stock workers' jobs, dead worker keys, scheduler."""
        while True:
            try:
                await self._threads.run(self.run_maintenance_tasks)
            except Exception:
                self.log.exception("Worker %s: maintenance failed; it is tried again", self.name)
            if burst:
                return
            await asyncio.sleep(self.maintenance_interval)

    async def _leave(self, wire: AsyncWire, commands: dict[str, WorkCommands]) -> None:
        try:
            for each in commands.values():
                await wire.ask(each.give_back([], leaving=True))
            if self._shift is not None:
                for parking in self._shift._parkings.values():
                    await parking.close()
        finally:
            await close_sandboxes_here()
            await wire.close()

    # Commands and signals

    def handle_payload(self, message: Any) -> None:
        """RQ's commands; called by its thread that listens for them."""
        payload = json.loads(message["data"].decode())
        handler: dict[str, Callable[[], None]] = {
            "stop-job": lambda: self._stop_jobs(payload.get("job_id"), None),
            "stop-execution": lambda: self._stop_jobs(
                payload.get("job_id"), payload.get("execution_id")
            ),
            "kill-horse": self._kill_all,
            "shutdown": self.request_stop_here,
        }
        if payload.get("command") in handler:
            self._call(handler[payload["command"]])

    def unsubscribe(self) -> None:
        """Stop the thread first: told in RQ's order, it sleeps on, and an end takes a second."""
        if self.pubsub_thread is not None and self.pubsub is not None:
            self.pubsub_thread.stop()
            with contextlib.suppress(RedisError, OSError):  # Redis was away, and hears us no more
                self.pubsub.unsubscribe()
            self.pubsub_thread.join(timeout=1)  # it closes what it reads from, when it ends

    def _stop_jobs(self, job_id: str | None, execution: str | None) -> None:
        assert self._shift is not None  # noqa: S101 - there is a loop to call us
        found = [
            running
            for running in self._shift.running.values()
            if running.id == job_id and execution in (None, running.execution)
        ]
        if not found:
            self.log.warning("Worker %s: not working on job %s, command ignored", self.name, job_id)
        self._shift.break_off(found, "stopped")

    def _kill_all(self) -> None:
        if self._shift is not None:
            self._shift.break_off(list(self._shift.running.values()), "killed")

    def request_stop_here(self) -> None:
        """The first time warm, the second cold; within a second of each other they are one."""
        shift = self._shift
        if shift is None:
            return
        if self._shutdown_requested_date is None:
            self._shutdown_requested_date = now()
            self.handle_warm_shutdown_request()  # type: ignore[no-untyped-call,unused-ignore]
            shift.stop()
            self._noting = asyncio.create_task(self._note_shutdown())
        elif (now() - self._shutdown_requested_date).total_seconds() > 1:
            self.log.warning("Worker %s: cold shut down", self.name)
            shift.stop_cold()

    async def _note_shutdown(self) -> None:
        try:
            await self._threads.run(self.set_shutdown_requested_date)
        except (RedisError, OSError) as failure:
            self.log.warning("Worker %s: its shutdown could not be noted: %s", self.name, failure)

    def _call(self, function: Callable[..., Any], *args: Any) -> None:
        """From any thread, on the loop."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *args)


class WorkerDied(Exception):
    """The outcome of a job that nobody lived to finish."""


def _gate(connection: "Redis", settings: WorkerSettings) -> Gate | None:
    if not settings.gate:
        return None
    # What a dead worker was granted while it waited comes back when its jobs do.
    lease = max(1.0, settings.job_lease)
    return named_gate(connection, settings.gate, settings.gate_limit, lease=lease)


def _text(score: bytes | int) -> str:
    return score.decode() if isinstance(score, bytes) else str(score)


__all__ = ["ConcurrentWorker", "WorkerDied", "WorkerStatus"]
