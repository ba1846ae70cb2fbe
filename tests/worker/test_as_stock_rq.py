"""What RQ documents of a job, done by RQ's own worker and by ours: Redis must hold the same after.

No expectation is written down here: RQ is the model, whichever release is installed.
"""

import gc
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import redis as redis_py
import rq
from rq import Callback, Queue, Repeat, Retry, SimpleWorker
from rq.exceptions import DuplicateJobError
from rq.group import Group
from rq.job import Dependency
from rq.registry import FailedJobRegistry
from rq.serializers import JSONSerializer

from tests.harness.servers import url_of
from tests.worker.concurrent import chores
from tests.worker.concurrent.crew import burst, open_queue, strand

REGISTRIES = ("wip", "finished", "failed", "deferred", "scheduled", "canceled")
TIMES = {b"created_at", b"enqueued_at", b"started_at", b"ended_at", b"last_heartbeat"}


def returns(queue: Queue, url: str) -> None:
    queue.enqueue(chores.add, 1, 2, job_id="sync", description="adds", meta={"a": 1})
    queue.enqueue(chores.add_later, args=(1,), kwargs={"b": 2}, job_id="async")
    queue.enqueue(chores.nothing, job_id="nothing", result_ttl=77)
    queue.enqueue(chores.save_meta, "hello", job_id="meta")


def keeps_results_for_as_long_as_is_said(queue: Queue, url: str) -> None:
    for ttl in (0, -1, 77):
        queue.enqueue(chores.add, 1, 2, job_id=f"good{ttl}", result_ttl=ttl)
        queue.enqueue(chores.fail, "it", job_id=f"bad{ttl}", failure_ttl=ttl)
    queue.enqueue(chores.add, 1, 2, job_id="queued-for-a-while", ttl=600)


def says_itself_for_how_long_it_is_kept(queue: Queue, url: str) -> None:
    for fails in (False, True):
        for ttl in (0, -1, 77):
            queue.enqueue(chores.is_kept_for, ttl, fails, job_id=f"{ttl}-{fails}")


def has_no_time_limit(queue: Queue, url: str) -> None:
    queue.enqueue(chores.add, 1, 2, job_id="sync", job_timeout=-1)
    queue.enqueue(chores.add_later, 1, 2, job_id="async", job_timeout=-1)
    queue.enqueue(chores.add, 1, 2, job_id="an-hour", job_timeout="1h")


def fails(queue: Queue, url: str) -> None:
    queue.enqueue(chores.fail, "it", job_id="raises")
    queue.enqueue("no.such.module.f", job_id="no-module")
    queue.enqueue("tests.worker.concurrent.chores.no_such_function", job_id="no-function")
    queue.enqueue(chores.add, 1, job_id="too-few-arguments")
    queue.enqueue(chores.unreadable_result, job_id="no-json")


def retries(queue: Queue, url: str) -> None:
    queue.enqueue(chores.fail_until, url, "good", 2, job_id="good", retry=Retry(max=2))
    queue.enqueue(chores.fail_until, url, "bad", 9, job_id="bad", retry=Retry(max=2))


def retries_later(queue: Queue, url: str) -> None:
    later = Retry(max=2, interval=[60, 120])
    queue.enqueue(chores.fail_until, url, "later", 1, job_id="later", retry=later)


def retries_before_what_waits(queue: Queue, url: str) -> None:
    first = Retry(max=1, enqueue_at_front=True)
    queue.enqueue(chores.told_and_fails_once, url, "first", job_id="first", retry=first)
    queue.enqueue(chores.told, url, "second", job_id="second")


def asks_for_a_retry(queue: Queue, url: str) -> None:
    queue.enqueue(chores.asks_for_retries, url, "good", job_id="good")
    queue.enqueue(chores.always_asks_for_a_retry, url, "bad", job_id="bad")


def repeats(queue: Queue, url: str) -> None:
    queue.enqueue(chores.told, url, "now", job_id="now", repeat=Repeat(times=2))
    queue.enqueue(
        chores.told, url, "later", job_id="later", repeat=Repeat(times=3, interval=[60, 90])
    )


def calls_back(queue: Queue, url: str) -> None:
    both = {"on_success": Callback(chores.on_success), "on_failure": Callback(chores.on_failure)}
    queue.enqueue(chores.add, 1, 2, job_id="good", **both)
    queue.enqueue(chores.fail, "it", job_id="bad", **both)
    named = Callback("tests.worker.concurrent.chores.on_success")
    queue.enqueue(chores.add, 1, 2, job_id="by-name", on_success=named)


def fails_in_its_callback(queue: Queue, url: str) -> None:
    raises = Callback(chores.callback_that_raises)
    first = queue.enqueue(chores.add, 1, 2, job_id="good", on_success=raises)
    queue.enqueue(chores.add, 1, 2, job_id="waits-for-ever", depends_on=first)
    queue.enqueue(chores.fail, "it", job_id="bad", on_failure=raises)


def depends(queue: Queue, url: str) -> None:
    first = queue.enqueue(chores.told, url, "first", job_id="first")
    second = queue.enqueue(chores.told, url, "second", job_id="second", depends_on=first)
    queue.enqueue(chores.told, url, "third", job_id="third", depends_on=[first, second])
    bad = queue.enqueue(chores.fail, "it", job_id="bad")
    queue.enqueue(chores.told, url, "deferred", job_id="deferred", depends_on=bad)
    anyway = Dependency(jobs=[bad], allow_failure=True, enqueue_at_front=True)
    queue.enqueue(chores.told, url, "anyway", job_id="anyway", depends_on=anyway)


def is_cancelled(queue: Queue, url: str) -> None:
    first = queue.enqueue(chores.told, url, "first", job_id="first")
    queue.enqueue(chores.told, url, "released", job_id="released", depends_on=first)
    first.cancel(enqueue_dependents=True)
    queue.enqueue(chores.told, url, "deleted", job_id="deleted").delete()


def is_one_of_a_group(queue: Queue, url: str) -> None:
    group = Group.create(connection=queue.connection, name="group")
    group.enqueue_many(
        queue,
        [Queue.prepare_data(chores.add, (1, n), job_id=f"g{n}") for n in range(2)]
        + [Queue.prepare_data(chores.add, (1, 9), job_id="gone", result_ttl=0)],
    )


def is_unique(queue: Queue, url: str) -> None:
    queue.enqueue(chores.told, url, "one", job_id="one", unique=True)
    with pytest.raises(DuplicateJobError):
        queue.enqueue(chores.told, url, "one", job_id="one", unique=True)


def is_limited_by_a_key(queue: Queue, url: str) -> None:
    limit = rq.RateLimit(key="reports", concurrency=1)
    queue.enqueue(chores.told, url, "a", job_id="a", rate_limit=limit)
    queue.enqueue(chores.fail, "it", job_id="b", rate_limit=limit)
    queue.enqueue(chores.fail_until, url, "c", 1, job_id="c", rate_limit=limit, retry=Retry(max=1))
    later = Retry(max=1, interval=60)
    queue.enqueue(chores.fail_until, url, "d", 1, job_id="d", rate_limit=limit, retry=later)
    queue.enqueue(chores.told, url, "e", job_id="e", rate_limit=limit)


def comes_in_bulk_or_to_the_front(queue: Queue, url: str) -> None:
    queue.enqueue_many(
        [Queue.prepare_data(chores.told, (url, f"{n}"), job_id=f"{n}") for n in range(4)]
    )
    queue.enqueue(chores.told, url, "front", job_id="front", at_front=True)


def was_taken_by_a_worker_that_died_at_once(queue: Queue, url: str) -> None:
    queue.enqueue(chores.told, url, "stuck", job_id="stuck")
    strand(queue)
    queue.enqueue(chores.told, url, "next", job_id="next")


def calls_back_for_too_long(queue: Queue, url: str) -> None:
    slow = Callback(chores.callback_that_lasts, timeout=1)
    queue.enqueue(chores.add, 1, 2, job_id="good", on_success=slow)
    queue.enqueue(chores.fail, "it", job_id="bad", on_failure=slow)


def is_for_later(queue: Queue, url: str) -> None:
    queue.enqueue_in(timedelta(hours=1), chores.told, url, "later", job_id="later")


SINCE = {is_limited_by_a_key: "RateLimit"}
SCENARIOS = [
    returns, keeps_results_for_as_long_as_is_said, says_itself_for_how_long_it_is_kept,
    has_no_time_limit, fails, retries,
    retries_later, retries_before_what_waits, asks_for_a_retry, repeats, calls_back,
    fails_in_its_callback, depends, is_cancelled, is_one_of_a_group, is_unique,
    is_limited_by_a_key, comes_in_bulk_or_to_the_front, is_for_later,
    was_taken_by_a_worker_that_died_at_once, calls_back_for_too_long,
]  # fmt: skip


@pytest.mark.filterwarnings(  # RQ 2 leaves the event loop of each coroutine job open
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_a_job_leaves_what_it_leaves_under_rqs_own_worker(real_redis, scenario) -> None:
    if not hasattr(rq, SINCE.get(scenario, "Queue")):
        pytest.skip(f"this RQ has no {SINCE[scenario]}")
    stock = left_behind(real_redis, scenario, by_rqs_own)
    real_redis.flushall()
    ours = left_behind(real_redis, scenario, lambda client: burst(client, concurrency=1))
    assert ours == stock
    assert stock["jobs"], "the scenario shows nothing"


def by_rqs_own(client: Any) -> SimpleWorker:
    connection: Any = redis_py.Redis.from_url(url_of(client))
    worker = SimpleWorker(["code"], connection=connection, serializer=JSONSerializer)
    worker._install_signal_handlers = lambda: None
    worker.subscribe = worker.unsubscribe = lambda: None  # RQ takes a second to stop listening
    worker.work(burst=True, logging_level="WARNING")
    gc.collect()  # those loops, while their warnings are expected
    return worker


def left_behind(client: Any, scenario: Any, work: Callable[[Any], Any]) -> dict[str, Any]:
    """Everything in Redis that lasts, in a form that is the same from run to run."""
    scenario(open_queue(client), url_of(client))
    worker = work(client)
    worker.refresh()
    # A chore of RQ's, which a worker's maintenance may have come to already.
    FailedJobRegistry(queue=open_queue(client)).cleanup()
    ids = sorted(key.decode().removeprefix("rq:job:") for key in job_keys(client))
    return {
        "jobs": {id: job_of(client, id) for id in ids},
        "queue": client.lrange("rq:queue:code", 0, -1),
        "registries": {
            name: sorted(client.zrange(f"rq:{name}:code", 0, -1)) for name in REGISTRIES
        },
        "counted": (worker.successful_job_count, worker.failed_job_count),
        "order": client.lrange("order", 0, -1),
        "called back": client.lrange("called back", 0, -1),
        "other keys": sorted(other_keys(client)),
    }


def job_keys(client: Any) -> list[bytes]:
    return [key for key in client.scan_iter("rq:job:*") if client.type(key) == b"hash"]


def job_of(client: Any, id: str) -> dict[str, Any]:
    fields = client.hgetall(f"rq:job:{id}")
    job = open_queue(client).fetch_job(id)
    assert job is not None
    ttl, of_results = client.ttl(job.key), client.ttl(f"rq:results:{id}")
    if fields[b"status"] == b"failed" and of_results == -1:
        of_results = ttl  # RQ keeps a failure's result for ever where the job is kept a year
    return {
        "fields": {
            name: True if name in TIMES or name == b"worker_name" else value
            for name, value in fields.items()
            if not name.startswith(b"penstock_")
        },
        "results": [outcome(result) for result in job.results()],
        "ttl": (about(ttl), about(of_results), about(client.ttl(job.dependencies_key))),
    }


def outcome(result: Any) -> tuple[Any, ...]:
    last = (result.exc_string or "").strip().rpartition("\n")[2]
    return result.type, result.return_value, last, bool(result.worker_name)


def about(ttl: int) -> str:
    """-1 and -2 have a meaning of their own; else what it was a few seconds ago."""
    return str(ttl) if ttl < 0 else f"up to {-(-ttl // 30) * 30}"


def other_keys(client: Any) -> Iterator[str]:
    for key in client.scan_iter():
        name = key.decode()
        if re.match(
            r"(rq:(job|results|worker|workers|clean_registries|maintenance)\b|penstock:)", name
        ):
            continue
        yield f"{name} {client.type(key).decode()} {about(client.ttl(key))}"
