"""A configuration of rq-dashboard, for queues of JSON jobs.

    rq-dashboard --config worker.rq_dashboard --json --redis-url redis://…

With only `--json`, its page of workers answers 500 as soon as one is busy: what a worker
runs, rq-dashboard 0.9 reads with pickle all the same.
"""

from typing import Any

import rq_dashboard.web
from rq import Queue, Worker
from rq.exceptions import NoSuchJobError
from rq.job import Job
from rq.serializers import JSONSerializer


class JsonWorkers(Worker):
    """The workers as that page lists them, with jobs that it can read."""

    @classmethod
    def all(cls, *args: Any, **kwargs: Any) -> list[Any]:
        return super().all(*args, **{"serializer": JSONSerializer} | kwargs)

    def get_current_job(self) -> Job | None:
        """The current job, one of many, because RQ 2 expects a worker to have one."""
        if (job := super().get_current_job()) is not None:
            return job
        execution: Any = self.connection.srandmember(f"{self.key}:executions")
        if not execution:
            return None
        try:
            id = execution.decode().partition(":")[0]
            return self.job_class.fetch(id, self.connection, self.serializer)
        except NoSuchJobError:  # it ended meanwhile
            return None


class QueueWithShares(Queue):
    """Jobs with a share wait in a list of its own, `code~training`, and have the origin `code`."""

    def fetch_job(self, job_id: str) -> Job | None:
        name, _, share = self.name.partition("~")
        if not share:
            return super().fetch_job(job_id)
        try:
            job = self.job_class.fetch(job_id, self.connection, self.serializer)
        except NoSuchJobError:  # it was deleted
            self.remove(job_id)
            return None
        return job if job.origin in (name, self.name) else None


rq_dashboard.web.Worker = JsonWorkers
rq_dashboard.web.Queue = QueueWithShares
