"""Stock RQ's worker inside the calling process, which stays as it was."""

import asyncio
import inspect
from collections.abc import Sequence
from typing import Any

import redis
from rq import Queue, SimpleWorker
from rq.job import Job
from rq.serializers import JSONSerializer
from rq.timeouts import BaseDeathPenalty

from ground import process
from worker.judging.reading import close_readers_here
from worker.run.choice import close_sandboxes_here
from worker.settings import worker_settings


def run_queued(client: redis.Redis, *names: str) -> list[Job]:
    """Run what is queued on these queues, or on all, until nothing is; returns the jobs run."""
    worker_settings.cache_clear()  # the environment may be another than it was for the last test
    done: list[Job] = []
    try:
        while queues := _with_jobs(client, names):
            worker = _InProcessWorker(
                queues, connection=client, serializer=JSONSerializer, job_class=_Job
            )
            worker.ran = done
            worker.work(burst=True, logging_level="WARNING")
    finally:
        process.stop(_close_all_here)
    return done


async def _close_all_here() -> None:
    await close_sandboxes_here()
    await close_readers_here()


def _with_jobs(client: redis.Redis, names: Sequence[str]) -> list[Queue]:
    queues = [
        Queue(name, connection=client, serializer=JSONSerializer) for name in names
    ] or Queue.all(connection=client, serializer=JSONSerializer)
    return [queue for queue in queues if len(queue)]


class _NoAlarm(BaseDeathPenalty):
    """This time limit sets no alarm: the calling process may use SIGALRM for a time limit of its
    own."""

    def setup_death_penalty(self) -> None: ...

    def cancel_death_penalty(self) -> None: ...


class _Job(Job):
    """This job closes the event loop that a coroutine job ran on; RQ 2 leaves it to the
    collector."""

    def _execute(self) -> Any:
        if inspect.iscoroutinefunction(self.func):
            return asyncio.run(self.func(*self.args, **self.kwargs))
        return super()._execute()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and self.id == other.id

    __hash__ = Job.__hash__


class _InProcessWorker(SimpleWorker):
    """This worker takes no signals, no alarm and no thread from the process that it runs in."""

    death_penalty_class = _NoAlarm
    ran: list[Job]

    def _install_signal_handlers(self) -> None: ...

    def subscribe(self) -> None: ...

    def unsubscribe(self) -> None: ...

    def execute_job(self, job: Job, queue: Queue) -> Any:
        self.ran.append(job)
        return super().execute_job(job, queue)
