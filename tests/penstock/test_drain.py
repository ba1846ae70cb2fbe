"""Workers leave while they are full, as when Kubernetes scales down or drains a node."""

import signal

from rq import Queue

from tests.harness.servers import until, url_of
from tests.penstock.commands import CHORES, penstock_worker
from tests.worker.concurrent import chores
from tests.worker.concurrent.crew import nothing_left, open_queue

WORKERS = ("w1", "w2", "w3", "w4")
LEAVING, STAYING = WORKERS[:2], WORKERS[2:]


def test_half_the_workers_end_under_running_jobs_none_is_lost_and_none_runs_twice(
    real_redis,
) -> None:
    queue, url = open_queue(real_redis), url_of(real_redis)
    count, later = 1000, 20
    enqueue(queue, url, [f"early-{n}" for n in range(count)])
    options = (*CHORES, "--concurrency", str(count // len(WORKERS)))
    quiet = {"PENSTOCK_LOG_LEVEL": "WARNING"}  # nobody reads what they say
    workers = {
        name: penstock_worker(real_redis, *options, "--name", name, **quiet) for name in WORKERS
    }
    until(lambda: real_redis.hlen("ran") == count, "all to run at once", within=250)

    for name in LEAVING:
        workers[name].send_signal(signal.SIGTERM)
    for name in LEAVING:
        until(
            lambda name=name: real_redis.hexists(f"rq:worker:{name}", "shutdown_requested_date"),
            "its word that it ends",
        )
    enqueue(queue, url, [f"later-{n}" for n in range(later)])
    real_redis.xadd("gates", {"open": 1})

    for name in LEAVING:
        assert workers[name].wait(100) == 128 + signal.SIGTERM
    everything = count + later
    until(lambda: queue.finished_job_registry.count == everything, "all to finish", within=250)
    until(lambda: nothing_left(real_redis) == {}, "everything to be put away")
    ran = real_redis.hgetall("ran")
    assert (len(ran), set(ran.values())) == (everything, {b"1"})
    by = {real_redis.hget(f"rq:job:later-{n}", "worker_name").decode() for n in range(later)}
    assert by <= set(STAYING), "one that was told to end took more"
    for name in STAYING:
        workers[name].send_signal(signal.SIGTERM)
        assert workers[name].wait(100) == 128 + signal.SIGTERM
    for worker in workers.values():
        worker.communicate()


def enqueue(queue: Queue, url: str, ids: list[str]) -> None:
    wait = chores.runs_until_the_gates_open
    queue.enqueue_many([Queue.prepare_data(wait, (url,), job_id=id) for id in ids])
