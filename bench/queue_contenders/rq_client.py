"""What a trainer's side does a second with RQ itself: jobs one by one, and enqueues.

    python rq_client.py URL COUNT

A stock worker serves the queue `bench`; ten enqueues for each round trip go to a queue that
nobody serves.
"""

import json
import statistics
import sys
import time
from typing import Any

import redis
from rq import Queue
from rq.serializers import JSONSerializer

URL, COUNT = sys.argv[1], int(sys.argv[2])
JOB = "bench._queue_jobs.plain_noop"


def main() -> None:
    client: Any = redis.Redis.from_url(URL, socket_timeout=None)
    served, unserved = (
        Queue(name, connection=client, serializer=JSONSerializer) for name in ("bench", "unserved")
    )
    _round_trip(served)
    print(json.dumps(round_trips(served) | enqueues(unserved)))


def round_trips(queue: Queue) -> dict[str, float]:
    ordered = statistics.quantiles([_round_trip(queue) for _ in range(COUNT)], n=100)
    return {"round trip ms, p50": ordered[49], "round trip ms, p99": ordered[98]}


def enqueues(queue: Queue) -> dict[str, float]:
    count = 10 * COUNT
    began = time.perf_counter()
    for _ in range(count):
        queue.enqueue(JOB)
    return {"enqueued/s, awaited singly": count / (time.perf_counter() - began)}


def _round_trip(queue: Queue) -> float:
    began = time.perf_counter()
    result = queue.enqueue(JOB).latest_result(timeout=60)
    assert result is not None, "no result came within a minute"
    assert result.type == result.Type.SUCCESSFUL, result.exc_string
    return (time.perf_counter() - began) * 1000


main()
