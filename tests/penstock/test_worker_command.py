"""`penstock worker` works like RQ's own, with our options."""

import signal
import subprocess
import sys
from typing import Any

from limiter import existing_gate
from tests.harness import leash
from tests.harness.servers import until
from tests.worker import chores
from tests.worker.crew import open_queue
from tests.worker.test_worker_delivery import url_of


def penstock_worker(client: Any, *options: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "penstock", "--redis-url", url_of(client), "worker", *options]
    return leash.start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_a_burst_runs_what_is_queued_under_the_gate(real_redis) -> None:
    jobs = [open_queue(real_redis).enqueue(chores.add, 1, n) for n in range(5)]
    worker = penstock_worker(real_redis, "--burst", "--limit", "code", "--gate-limit", "2")
    assert worker.wait(60) == 0
    assert [job.return_value() for job in jobs] == [1, 2, 3, 4, 5]
    assert existing_gate(real_redis, "code").sync.status().limit == 2
    worker.communicate()


def test_it_takes_the_queues_in_order_and_ends_warmly_with_ctrl_c(real_redis) -> None:
    first = open_queue(real_redis, "urgent").enqueue(chores.takes, 0.3)
    with penstock_worker(real_redis, "urgent", "code", "--name", "w1") as worker:
        until(lambda: first.get_status() == "started", "the job")
        worker.send_signal(signal.SIGINT)
        assert worker.wait(30) == 0
        worker.communicate()
    assert first.get_status() == "finished"


def test_a_wrong_option_is_refused_in_one_sentence(real_redis) -> None:
    worker = penstock_worker(real_redis, "--concurrency", "0")
    _, said = worker.communicate(timeout=60)
    assert worker.returncode == 2
    assert b"PENSTOCK_CONCURRENCY: Input should be greater than or equal to 1" in said
