"""One worker process of the queue suite, Penstock's or RQ's own.

    python -m bench._queue_worker URL NAME

It says that it is ready, waits for a line, works, and says what that took.
"""

import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import redis
from rq import SimpleWorker, Worker
from rq.serializers import JSONSerializer
from rq.worker import BaseWorker

import bench._queue_jobs  # noqa: F401 - so that what RQ forks need not

STOCK: dict[str, Callable[..., BaseWorker]] = {"rq": Worker, "rq simple": SimpleWorker}


def main(url: str, name: str) -> None:
    client: Any = redis.Redis.from_url(url)
    worker = class_of(name)(["bench"], connection=client, serializer=JSONSerializer)
    print("ready", flush=True)
    sys.stdin.readline()
    cpu, memory, began = _processor(), _memory(), time.time()
    worker.work(burst=not name.endswith("client"), logging_level="WARNING")
    ended = time.time()
    used = {"began": began, "ended": ended, "seconds": ended - began,
            "cpu": _processor() - cpu, "memory": _memory() - memory}  # fmt: skip
    print(json.dumps(used))


def class_of(name: str) -> Callable[..., BaseWorker]:
    if not name.startswith("penstock"):
        return STOCK[name.removesuffix(" client")]
    from worker import ConcurrentWorker  # RQ's forks go without it

    return ConcurrentWorker


def _memory() -> float:
    """The most that this process had at once, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _processor() -> float:
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(used.ru_utime + used.ru_stime for used in spent)


if __name__ == "__main__":
    main(*sys.argv[1:])
