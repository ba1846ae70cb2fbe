"""An RQ worker that runs hundreds of jobs in one process, and loses none.

    rq worker --worker-class worker.ConcurrentWorker --serializer rq.serializers.JSONSerializer code

RQ's command line, registries, commands and promises hold (docs/reference/rq.md). This
file is what RQ sees; `shift.py` claims and runs jobs, `heartbeat.py` renews their leases.
"""

import asyncio
import contextlib
import copy
import gc
import importlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

from redis.exceptions import RedisError
from rq.defaults import DEFAULT_LOGGING_DATE_FORMAT, DEFAULT_LOGGING_FORMAT
from rq.logutils import setup_loghandlers
from rq.registry import StartedJobRegistry
from rq.utils import now
from rq.worker import BaseWorker, DequeueStrategy, WorkerStatus

from ground import SettingError, tracing
from ground.complaint import Complaint
from ground.redis.connect import target_of
from worker.allowed import SETTING as ALLOW
from worker.allowed import Allowed, AllowedJob, allowed, checked, require_no_pickle
from worker.concurrent.end_or_retry_by_rq import CallbackLimit, Ending
from worker.concurrent.heartbeat import Heartbeat
from worker.concurrent.parking import standing
from worker.concurrent.rq_job import replace_current_job, require_rqs_keys_of, warn_unless_json
from worker.concurrent.shift import Shift
from worker.concurrent.threads import Threads
from worker.lifecycle.reaper.reaper import reap_sandboxes
from worker.run.choice import check_choice, described, prove_sandbox_here
from worker.settings import WorkerSettings


class _Forks:
    """A job may fork, as `multiprocessing` does. Its child has the handlers of a new process. With
    the worker's, a signal to the child would wake the worker's loop, by the socket that both have.
    It would stop the worker. A signal that comes before the child has them waits until then."""

    def __init__(self) -> None:
        self.handled: frozenset[signal.Signals] = frozenset()  # by the worker of this process
        self._waiting = threading.local()
        os.register_at_fork(
            before=self._hold, after_in_parent=self._let_go, after_in_child=self._forget_parent
        )

    def _hold(self) -> None:
        self._waiting.mask = signal.pthread_sigmask(signal.SIG_BLOCK, self.handled)

    def _let_go(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._waiting.mask)

    def _forget_parent(self) -> None:
        if self.handled:
            signal.set_wakeup_fd(-1)
        for number in self.handled:
            ctrl_c = number == signal.SIGINT
            signal.signal(number, signal.default_int_handler if ctrl_c else signal.SIG_DFL)
        self.handled = frozenset()
        self._let_go()


_forks = _Forks()


class Signals:
    """Each stops the worker if it runs in the main thread. `nohup` still works."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, stop: Callable[[signal.Signals], None]
    ) -> None:
        self._loop, self._stop = loop, stop
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            before = signal.getsignal(number)
            if before is not signal.SIG_IGN or number != signal.SIGHUP:
                self._before[number] = before
                self._loop.add_signal_handler(number, self._stop, number)
        _forks.handled = frozenset(self._before)

    def __exit__(self, *_: object) -> None:
        _forks.handled = frozenset()
        for number, before in self._before.items():
            self._loop.remove_signal_handler(number)
            signal.signal(number, before)  # type: ignore[arg-type]


_LAST_WORK = 10.0  # seconds that an ending worker waits for RQ's maintenance
_LISTEN_AGAIN = 2.0  # seconds after Redis' channel was lost, as RQ's own waits
_COLD_LAST_WORK = 0.1


class NameInUse(SettingError, ValueError):
    """Another worker has this one's name. RQ raises ValueError."""


class ConcurrentWorker(BaseWorker):
    """Concurrency, lease and gate come from `PENSTOCK_*`."""

    death_penalty_class = CallbackLimit
    ending: Ending | None = None  # only in the copy that RQ's own code ends one job with

    def __init__(self, *args: Any, settings: WorkerSettings | None = None, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._settings = settings
        self.ended_by = 0  # the first signal that stopped it
        self._shift: Shift | None = None  # from the start of `work`
        self._threads = Threads()
        self._deaf = Complaint(self.log, f"Worker {self.name}: its commands are not heard")
        self._background: list[asyncio.Task[None]] = []  # awaited at the end of `work`

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
        """Work as RQ's own worker does; returns whether any job was started."""
        settings = self._settings or WorkerSettings.load()
        require_rqs_keys_of(self)
        allow = self._restrict_to(settings.allow)
        # Raise its ImportError here; in a job RQ would say "Invalid attribute name".
        importlib.import_module("worker.jobs")
        replace_current_job()
        self.bootstrap(logging_level, date_format, log_format)
        setup_loghandlers(logging_level, date_format, log_format, name="penstock")
        self.log.info("Worker %s: Redis at %s", self.name, target_of(self.connection))
        self._warn_of(settings, allow)
        self.set_state(WorkerStatus.IDLE)
        self._dequeue_strategy = dequeue_strategy
        if with_scheduler:
            self._start_scheduler(burst, logging_level, date_format, log_format)
        try:
            gc.freeze()  # start-up made many objects, which each full collection would visit
            return self._to_its_end(self._work(settings, allow, burst, max_jobs, max_idle_time))
        finally:
            gc.unfreeze()
            self.teardown()  # type: ignore[no-untyped-call,unused-ignore]

    def _to_its_end(self, work: Coroutine[Any, Any, bool]) -> bool:
        """Run it on a loop of its own. A task of a job's may raise SystemExit, as `sys.exit` does,
        which asyncio lets out of its loop: the loop goes on, and the job fails of it."""
        with asyncio.Runner() as runner:
            loop = runner.get_loop()
            whole = loop.create_task(work)
            while True:
                try:
                    return loop.run_until_complete(whole)
                except (SystemExit, KeyboardInterrupt) as exit:
                    ctrl_c = signal.getsignal(signal.SIGINT) is signal.default_int_handler
                    if whole.done() or (ctrl_c and isinstance(exit, KeyboardInterrupt)):
                        raise
                    self.log.warning(
                        "Worker %s: a task of a job raised %r, which does not end the worker",
                        self.name, exit,
                    )  # fmt: skip

    def register_birth(self) -> None:
        """Say who has the name, if it is in use: mostly a worker that was killed just now."""
        try:
            super().register_birth()  # type: ignore[no-untyped-call,unused-ignore]
        except ValueError:
            raise NameInUse(
                "--name",
                f"a worker named {self.name!r} lives, or was killed: RQ counts a killed one as "
                f"alive for {self.connection.ttl(self.key)} s from now. Give another name, or none",
            ) from None

    def _restrict_to(self, names: str | None) -> Allowed:
        """The job class checks as well: RQ's own code makes calls at a job's end and in
        maintenance."""
        if names is None and issubclass(self.job_class, AllowedJob):
            names = ""
        allow = allowed(names)
        if allow.anything:
            return allow
        require_no_pickle(self.serializer)
        self.job_class = checked(self.job_class, allow)
        self.queues = [copy.copy(queue) for queue in self.queues]
        for queue in self.queues:
            queue.job_class = self.job_class
        return allow

    def _warn_of(self, settings: WorkerSettings, allow: Allowed) -> None:
        warn_unless_json(self.serializer)
        if settings.allow is None and allow.anything:
            self.log.warning(
                "Worker %s runs whatever function, callback or webhook a job names, as RQ does: "
                "anyone who can write to Redis can run anything here. %s names what it may run; "
                "%s='*' is the same as now, without this warning",
                self.name, ALLOW, ALLOW,
            )  # fmt: skip
        try:
            check_choice(settings)
        except SettingError as refusal:  # with it `penstock worker` does not even start
            self.log.warning("Worker %s: code jobs fail here: %s", self.name, refusal)

    async def _work(
        self,
        settings: WorkerSettings,
        allow: Allowed,
        burst: bool,
        max_jobs: int | None,
        max_idle: int | None,
    ) -> bool:
        strategy = str(getattr(self._dequeue_strategy, "value", self._dequeue_strategy))
        shift = self._shift = Shift(
            self, settings, strategy=strategy, threads=self._threads, allow=allow
        )
        target = target_of(self.connection)
        heartbeat = Heartbeat(self, target, settings, shift)
        heartbeat.start()
        over = asyncio.Event()
        reaping = asyncio.create_task(reap_sandboxes(target))
        self._background = [reaping, asyncio.create_task(self._maintain(over, once=burst))]
        # Until the last step: a signal must not keep the worker from closing its sandboxes.
        with Signals(asyncio.get_running_loop(), self._signalled):
            try:
                with tracing.span("start worker"):
                    await prove_sandbox_here(settings)
                saying = asyncio.create_task(self._say_what_it_is(settings, shift))
                self._background.append(saying)
                await shift.work(burst=burst, max_jobs=max_jobs, max_idle=max_idle)
            finally:
                heartbeat.stop()
                over.set()
                reaping.cancel()
                timeout = _COLD_LAST_WORK if shift.cold else _LAST_WORK
                await asyncio.wait(self._background, timeout=timeout)
                await shift.close()
        return shift.started > 0

    async def _say_what_it_is(self, settings: WorkerSettings, shift: Shift) -> None:
        gate = "no gate"
        if shift.gate is not None:
            gate = await standing(shift.gate, settings.gate_limit)
        self.log.info(
            "Worker %s: %d jobs at once, sandbox %s, %s",
            self.name, settings.jobs_at_once, described(settings), gate,
        )  # fmt: skip

    async def _maintain(self, over: asyncio.Event, *, once: bool) -> None:
        """RQ's maintenance, in a thread, every `maintenance_interval` seconds."""
        # It calls back for jobs of dead stock workers, and RQ's alarm works in no thread.
        registry: Any = StartedJobRegistry
        registry.death_penalty_class = CallbackLimit
        while not over.is_set():
            try:
                await self._threads.run(self.run_maintenance_tasks)
            except Exception:
                self.log.exception("Worker %s: maintenance failed; it is tried again", self.name)
            if once:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), self.maintenance_interval)

    def cleanup_execution(self, job: Any, pipeline: Any, execution: Any = None) -> None:
        """RQ calls it inside the transaction that ends an execution."""
        if self.ending is not None:
            self.ending.clean_up(job, pipeline)
        elif execution is not None:  # one of RQ's own, in RQ 3; RQ 2's maintenance has none
            super().cleanup_execution(job, pipeline, execution)  # type: ignore[call-arg,unused-ignore]

    # Commands and signals

    def handle_payload(self, message: Any) -> None:
        """RQ's commands. An error would end the thread of RQ's that listens for them."""
        self._deaf.over()
        try:
            command = json.loads(message["data"])
        except (ValueError, TypeError, RecursionError) as wrong:
            self.log.warning("Worker %s: a command that cannot be read: %s", self.name, wrong)
        else:
            self._call(self._obey, command if isinstance(command, dict) else {})

    def _pubsub_exception_handler(self, trouble: BaseException, *_: Any) -> None:
        """Listen again. RQ's own ends the thread at a connection that timed out, and then no
        command is heard any more."""
        if not isinstance(trouble, (RedisError, OSError)):
            raise trouble
        self._deaf.of(trouble)
        time.sleep(_LISTEN_AGAIN)

    def _obey(self, command: dict[str, Any]) -> None:
        match command.get("command"):
            case "stop-job":
                self._stop_job(command.get("job_id"), None)
            case "stop-execution":
                self._stop_job(command.get("job_id"), command.get("execution_id"))
            case "kill-horse":
                self._kill_jobs()
            case "look":  # of pause.lua
                self._look_again()
            case "shutdown":
                self.request_stop_here("the command `shutdown` came by Redis")

    def _kill_jobs(self) -> None:
        if (shift := self._shift) is not None:
            shift.jobs.interrupt(list(shift.jobs.values()), "killed")

    def _look_again(self) -> None:
        if (shift := self._shift) is not None:
            shift.look_again()

    def _stop_job(self, id: str | None, execution: str | None) -> None:
        assert self._shift is not None  # noqa: S101 - only a shift's loop obeys commands
        jobs = self._shift.jobs
        found = [
            claimed
            for claimed in jobs.values()
            if claimed.id == id and execution in (None, claimed.execution)
        ]
        if not found:
            self.log.warning("Worker %s: not working on job %s, command ignored", self.name, id)
        jobs.interrupt(found, "stopped")

    def unsubscribe(self) -> None:
        """Stop the thread first: in RQ's order it sleeps on for up to a second."""
        if self.pubsub_thread is not None and self.pubsub is not None:
            self.pubsub_thread.stop()
            with contextlib.suppress(RedisError, OSError):  # Redis is away
                self.pubsub.unsubscribe()
            self.pubsub_thread.join(timeout=1)  # it closes its connection when it ends

    def _signalled(self, number: signal.Signals) -> None:
        self.ended_by = self.ended_by or number
        self.request_stop_here(f"{number.name} was sent to it")

    def request_stop_here(self, why: str) -> None:
        """Stop this worker: the first request is warm, the second cold; one within a second of the
        first is the same request."""
        shift = self._shift
        if shift is None:
            return
        if self._shutdown_requested_date is None:
            self._shutdown_requested_date = now()
            self.handle_warm_shutdown_request()  # type: ignore[no-untyped-call,unused-ignore]
            shift.stop(why)
            self._background.append(asyncio.create_task(self._note_shutdown()))
        elif (now() - self._shutdown_requested_date).total_seconds() > 1:
            self.log.warning("Worker %s: cold shut down: %s once more", self.name, why)
            shift.stop_cold()

    async def _note_shutdown(self) -> None:
        try:
            await self._threads.run(self.set_shutdown_requested_date)
        except (RedisError, OSError) as failure:
            self.log.warning("Worker %s: its shutdown could not be noted: %s", self.name, failure)

    def _call(self, function: Callable[..., Any], *args: Any) -> None:
        """Call a function on the loop of the shift, if there is one, from any thread."""
        if self._shift is not None:
            self._shift.call(function, *args)
