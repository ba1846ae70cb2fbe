"""The worker's heartbeat: a thread that renews its leases even while the event loop is busy.

One exchange per beat: RQ's worker key, every job's lease, every permit. It also takes back
what dead workers left; that script is atomic, so any worker may run it.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from importlib import metadata
from typing import Any

from redis.exceptions import RedisError
from rq.utils import now, utcformat
from rq.worker import BaseWorker

from ground.complaint import Complaint
from ground.lua import Command
from ground.redis.connection import (
    LastingConnection,
    is_full,
    is_passing,
    raise_if_passing,
    trouble,
)
from ground.redis.url import RedisTarget
from limiter.commands import INDEX
from worker.concurrent.commands import MOST, SCRIPTS, WorkCommands
from worker.concurrent.running import LOST, UNWANTED, BeatRow, ClaimedJob
from worker.concurrent.shift import Shift
from worker.run.choice import unreachable_sandboxes
from worker.settings import WorkerSettings

log = logging.getLogger("penstock.worker")

Reader = Callable[[Any], None]

_ROOM = "penstock_jobs_at_once"
_PACE_OVER = 60.0  # seconds, of whose jobs a beat says how long they took
_DONE = ("successful_job_count", "failed_job_count", "total_working_time", "penstock_timeout")


class Heartbeat:
    """A heartbeat beats every third of a lease, from `start` to `stop`."""

    def __init__(
        self, worker: BaseWorker, target: RedisTarget, settings: WorkerSettings, shift: Shift
    ) -> None:
        self._worker = worker
        self._loop = asyncio.get_running_loop()  # whose sandboxes may be out of reach
        self._target = target
        self._gate = shift.gate_name
        self._lease = settings.job_lease
        self._deaths = settings.job_deaths
        self._shift = shift
        self._release = metadata.version("penstock-rl")
        self._ahead = 0.0  # seconds that this machine's clock is before that of Redis
        self._done: deque[tuple[float, int, float, int]] = deque()
        self._refused = ""
        self._beaten = False
        self._forgotten = ""  # when Redis no longer knew this worker, if it ever did so
        self._connection = LastingConnection(target, self._lease / 6, SCRIPTS)
        self._complaint = Complaint(log, "heartbeat")
        self._stopping = threading.Event()
        self._tried = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-heartbeat", daemon=True)

    def start(self) -> None:
        """Start the thread, and wait for its first beat: the jobs of dead workers are back in their
        queues, and Redis knows this worker before it can get a job. If Redis is away, it returns as
        well."""
        self._thread.start()
        self._tried.wait(self._lease / 3)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(self._lease)

    def _run(self) -> None:
        wait = 0.0
        while not self._stopping.wait(wait):
            began = time.monotonic()
            try:
                self._beat(began)
                wait = max(0.0, self._lease / 3 - (time.monotonic() - began))
            except (RedisError, OSError) as failure:
                self._complaint.of(trouble(failure, self._target))
                self._connection.close()
                wait = min(0.5, self._lease / 12)
            except Exception:
                log.exception("heartbeat failed; it is tried again")
                wait = self._lease / 3
            self._tried.set()
        self._connection.close()

    def _beat(self, began: float) -> None:
        known, *more = self._about_worker()
        work: list[tuple[Command, Reader]] = [(known, self._reads_known)]
        work += [(command, _ignore) for command in more]
        work.append((("TIME",), self._reads_time))
        work.append((("HMGET", self._worker.key, *_DONE), self._reads_done(began)))
        held: dict[str, list[ClaimedJob]] = {queue: [] for queue in self._shift.commands}
        for claimed in list(self._shift.jobs.values()):
            held[claimed.queue].append(claimed)
        moment = utcformat(now())
        for queue, jobs in held.items():
            commands = self._shift.commands[queue]
            work += self._beats_of(commands, jobs, moment, began)
            work.append((commands.reap(self._deaths), self._reads_reaping(queue)))
        replies = self._connection.replies([command for command, _ in work])
        for (_, read), reply in zip(work, replies, strict=True):
            if not isinstance(reply, RedisError):
                read(reply)
        errors = [reply for reply in replies if isinstance(reply, RedisError)]
        final = [error for error in errors if is_full(error) or not is_passing(error)]
        self._refused = str(final[0]) if final else ""
        for error in final:
            self._complaint.of(f"{self._target} answered: {error}")
        for error in errors:
            if error not in final:
                raise_if_passing(error)
        if not final:
            self._complaint.over()

    def _about_worker(self) -> list[Command]:
        worker, gate = self._worker, self._gate
        worker.last_heartbeat = moment = now()
        ttl = worker.worker_ttl + 60
        unreachable = " ".join(unreachable_sandboxes(self._loop))
        refused = self._shift.refused or self._refused
        return [
            # Its birth once more, and below its name: it was forgotten if it seemed dead, or Redis
            # lost its data.
            ("HSET", worker.key, "last_heartbeat", utcformat(moment), "penstock_gate", gate,
             "birth", utcformat(worker.birth_date or moment), "hostname", worker.hostname,
             "pid", worker.pid, "queues", ",".join(worker.queue_names())),
            ("HSET", worker.key, "penstock_unreachable", unreachable, _ROOM, self._shift.at_once,
             "penstock_forgotten", self._forgotten, "penstock_refused", refused,
             "penstock_pace", self._pace(),
             "penstock_release", self._release, "penstock_ahead", f"{self._ahead:.3f}"),
            ("EXPIRE", worker.key, ttl),
            ("EXPIRE", f"{worker.key}:executions", ttl),
            ("SADD", "rq:workers", worker.key),
            *(("SADD", f"rq:workers:{queue}", worker.key) for queue in self._shift.commands),
            *([("SADD", INDEX, gate)] if gate else []),
        ]  # fmt: skip

    def _reads_known(self, new_fields: int) -> None:
        """Notice that Redis has lost its data: after the first beat it had all these fields."""
        if new_fields and self._beaten:
            self._forgotten = f"{time.time() - self._ahead:.3f}"
            log.error(
                "%s knew worker %s no longer, so it has lost its data", self._target,
                self._worker.name,
            )  # fmt: skip
        self._beaten = True

    def _reads_time(self, reply: list[bytes]) -> None:
        """RQ stamps jobs by this machine's clock, and leases are measured by that of Redis."""
        self._ahead = time.time() - int(reply[0]) - int(reply[1]) / 1e6

    def _reads_done(self, began: float) -> Reader:
        """How many jobs it has ended and how long it has worked, as RQ's record counts them. The
        last number is how many programs ran out of time."""

        def read(reply: list[bytes | None]) -> None:
            succeeded, failed, seconds, late = (float(one or 0) for one in reply)
            self._done.append((began, int(succeeded + failed), seconds, int(late)))
            while len(self._done) > 2 and began - self._done[0][0] > _PACE_OVER:
                self._done.popleft()

        return read

    def _pace(self) -> str:
        """The last minute's figures: jobs that it ended, the seconds that they took, and their
        programs that ran out of time."""
        if not self._done:
            return ""
        (_, before, had, were), (_, jobs, seconds, late) = self._done[0], self._done[-1]
        return f"{jobs - before} {seconds - had:.3f} {late - were}"

    def _beats_of(
        self, commands: WorkCommands, jobs: list[ClaimedJob], moment: str, began: float
    ) -> list[tuple[Command, Reader]]:
        work: list[tuple[Command, Reader]] = []
        for i in range(0, max(1, len(jobs)), MOST):
            chunk = jobs[i : i + MOST]
            rows = [claimed.beat_row() for claimed in chunk]
            work.append((commands.beat(moment, rows), self._reads_beat(chunk, rows, began)))
        return work

    def _reads_beat(self, jobs: list[ClaimedJob], rows: list[BeatRow], began: float) -> Reader:
        def read(reply: list[int]) -> None:
            answers = list(zip(jobs, rows, reply, strict=True))
            gone = [claimed for claimed, row, answer in answers if claimed.is_lost(row, answer)]
            for claimed, _, answer in answers:
                if answer != LOST:
                    claimed.leased = began
            if gone:
                self._shift.call(self._shift.jobs.lose, gone)
            if unwanted := [claimed for claimed, _, answer in answers if answer == UNWANTED]:
                self._shift.call(self._shift.jobs.interrupt, unwanted, "stopped")

        return read

    def _reads_reaping(self, queue: str) -> Reader:
        def read(reply: list[Any]) -> None:
            requeued, from_hands, *condemned = reply
            if requeued or from_hands:
                log.warning(
                    "queue %r: %d running and %d claimed jobs of dead workers are queued again",
                    queue, requeued, from_hands,
                )  # fmt: skip
            if condemned:
                at = time.time() - self._ahead  # by the clock of Redis, as all ends are
                self._shift.call(self._shift.fail, queue, condemned, at)

        return read


def _ignore(_: Any) -> None:
    """The reply has no information for us."""
