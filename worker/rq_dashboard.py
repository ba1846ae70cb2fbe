"""A configuration of rq-dashboard, for queues of JSON jobs.

    rq-dashboard --config worker.rq_dashboard --json --redis-url redis://…

With `--json` alone its page of workers answers 500 as soon as one is busy: what a worker
runs, rq-dashboard 0.9 reads with pickle all the same.
"""

from typing import Any

import rq_dashboard.web
from rq import Worker
from rq.serializers import JSONSerializer


class JsonWorkers(Worker):
    """The workers as that page lists them, with jobs that it can read."""

    @classmethod
    def all(cls, *args: Any, **kwargs: Any) -> list[Any]:
        return super().all(*args, **{"serializer": JSONSerializer} | kwargs)


rq_dashboard.web.Worker = JsonWorkers
