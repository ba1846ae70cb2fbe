"""Workers for the tests: in a thread of the test, or as a process that can be killed."""

import contextlib
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import redis
from rq import Queue
from rq.serializers import JSONSerializer

from jail.fusion.client import SandboxFusion
from tests.harness.servers import until
from worker.concurrent.worker import ConcurrentWorker
from worker.settings import WorkerSettings

LEASE = 0.6  # of workers that are killed or frozen; a machine under load takes longer to renew it
HEIR = {"job_lease": 3.0}  # of one that takes over what they leave, and is to keep it
PATIENT = 15.0
TIMES = {"run_timeout": 0.5, "compile_timeout": 0.1}  # of programs whose worker is killed
_FOR_WORK = ("max_jobs", "max_idle_time", "with_scheduler", "dequeue_strategy")


def open_queue(client: Any, name: str = "code") -> Queue:
    return Queue(name, connection=client, serializer=JSONSerializer)


def new_worker(client: Any, *names: str, **settings: Any) -> ConcurrentWorker:
    options = {
        "exception_handlers", "disable_default_exception_handler", "name", "default_result_ttl",
        "maintenance_interval",
    }  # fmt: skip
    given = {key: settings.pop(key) for key in list(settings) if key in options}
    return ConcurrentWorker(
        [open_queue(client, name) for name in names or ("code",)],
        connection=client,
        serializer=JSONSerializer,
        settings=WorkerSettings.load(**({"job_lease": PATIENT} | settings)),
        **given,
    )


def burst(client: Any, *names: str, **settings: Any) -> ConcurrentWorker:
    """One that works until the queues are empty."""
    worker = new_worker(client, *names, **settings)
    worker.work(burst=True, logging_level="WARNING")
    return worker


@contextlib.contextmanager
def at_work(client: Any, *names: str, **settings: Any) -> Iterator[ConcurrentWorker]:
    """One that works for as long as the block lasts."""
    given = {name: settings.pop(name) for name in _FOR_WORK if name in settings}
    worker = new_worker(client, *names, **settings)
    thread = threading.Thread(
        target=worker.work, kwargs={"logging_level": "WARNING", **given}, daemon=True
    )
    thread.start()
    until(lambda: worker._shift is not None or not thread.is_alive(), "the worker")
    try:
        yield worker
    finally:
        worker._call(worker.request_stop_here, "the test is over")
        thread.join(100)
        assert not thread.is_alive(), "the worker does not stop"


def work_in_process(url: str, names: list[str], settings: dict[str, Any]) -> None:
    """A scenario for `tests.harness.killing`: works until it is killed or told to stop."""
    client: Any = redis.Redis.from_url(url)
    new_worker(client, *names, **settings).work(logging_level="WARNING")


def nothing_left(client: Any, queue: str = "code") -> dict[str, Any]:
    """What should be gone when all is done: empty if it is."""
    left: dict[str, Any] = {
        "queue": client.lrange(f"rq:queue:{queue}", 0, -1),
        "intermediate": client.lrange(f"rq:queue:{queue}:intermediate", 0, -1),
        "wip": client.zrange(f"rq:wip:{queue}", 0, -1),
        "leases": client.zrange(f"penstock:work:{{{queue}}}:leases", 0, -1),
        "executions": client.keys("rq:execution*"),
        "hands": client.keys("penstock:work:*:hand:*"),
    }
    return {name: found for name, found in left.items() if found}


def expire_all_leases(client: Any) -> None:
    """As when their time is over."""
    for key in ("penstock:work:{code}:leases", "penstock:gate:{code}:leases"):
        for member in client.zrange(key, 0, -1):
            client.zadd(key, {member: 1}, xx=True)


def parked(client: Any) -> int:
    """How many workers are blocked until a job comes."""
    return int(client.execute_command("CLIENT", "LIST").count(b"cmd=blmove"))


def strand(queue: Queue) -> None:
    """What waits is now where RQ's workers keep what they popped, and has been for minutes."""
    for id in queue.job_ids:
        queue.connection.lmove(queue.key, queue.intermediate_queue_key, "LEFT", "RIGHT")
        seen = datetime.now(UTC).timestamp() - 120
        queue.connection.set(queue.intermediate_queue.get_first_seen_key(id), seen, ex=3600)


def brisk_fusion(settings: WorkerSettings) -> SandboxFusion:
    """A dead worker's permits are held for as long as its programs may run: here not for long."""
    return SandboxFusion(settings.fusion_urls, margin=1.4)
