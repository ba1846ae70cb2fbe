"""Jobs per second of one worker process, beside RQ's own workers, on the same queue and server.

Two kinds of job: one that does nothing, and one that waits for 50 ms as a call to a
sandbox does. Processor time is the worker process's, children included, and the server's.
"""

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import redis
from rq import Queue, SimpleWorker, Worker
from rq.serializers import JSONSerializer
from rq.worker import BaseWorker

from bench.suite import Ratio, Suite, Target
from ground import EmbeddedServer, bundled_server

ROOT = Path(__file__).parents[1]
KINDS: dict[str, Callable[..., BaseWorker]] = {"rq": Worker, "rq simple": SimpleWorker}
OURS = ("penstock", "penstock gated")


def measure(quick: bool) -> Suite:
    home = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    server = EmbeddedServer(home, binary=bundled_server())
    sizes = {"rq": (50, 20), "rq simple": (300, 20)} | dict.fromkeys(OURS, (5_000, 2_500))
    if not quick:
        sizes = {name: (noops * 4, waits * 4) for name, (noops, waits) in sizes.items()}

    def contender(name: str) -> Callable[[], Mapping[str, float]]:
        noops, waits = sizes[name]
        return lambda: _run(server.url, name, "noop", noops) | _run(server.url, name, "wait", waits)

    def clean_up() -> None:
        server.stop()
        shutil.rmtree(home)

    return Suite(
        contenders={name: contender(name) for name in sizes},
        rounds=2 if quick else 5,
        conditions={"server": bundled_server().name, "jobs": sizes, "concurrency": 256},
        ratios=[
            Ratio("noop jobs/s", "penstock", "rq"),
            Ratio("noop jobs/s", "penstock", "rq simple"),
            Ratio("wait jobs/s", "penstock", "rq"),
            Ratio("noop jobs/s", "penstock gated", "penstock"),
        ],
        targets=[
            Target("penstock noop jobs/s vs rq", at_least=44),
            Target("penstock wait jobs/s vs rq", at_least=210),
            Target("penstock gated noop jobs/s vs penstock", at_least=0.9),
            Target("penstock noop server us", at_most=35),
        ],
        clean_up=clean_up,
    )


def _run(url: str, name: str, kind: str, count: int) -> dict[str, float]:
    """One burst in a process of its own, from its first job to its last."""
    client: Any = redis.Redis.from_url(url)
    client.flushall()
    queue = Queue("bench", connection=client, serializer=JSONSerializer)
    job = Queue.prepare_data(f"bench.queue.{kind}", timeout=180, result_ttl=600, description="job")
    for i in range(0, count, 500):
        queue.enqueue_many([job] * min(500, count - i))
    before = _server_seconds(client)
    said = subprocess.run(
        [sys.executable, "-m", "bench.queue", url, name],
        cwd=ROOT, env=os.environ | _gate(name), stdout=subprocess.PIPE, text=True, check=True,
    ).stdout  # fmt: skip
    used = json.loads(said.splitlines()[-1])
    server = _server_seconds(client) - before
    assert client.zcard("rq:finished:bench") == count, "not every job was finished"
    client.close()
    return {
        f"{kind} jobs/s": count / used["seconds"],
        f"{kind} worker us": used["cpu"] / count * 1e6,
        f"{kind} server us": server / count * 1e6,
    }


def _gate(name: str) -> dict[str, str]:
    return {"PENSTOCK_GATE": "bench", "PENSTOCK_GATE_LIMIT": "256"} if "gated" in name else {}


def _server_seconds(client: Any) -> float:
    used = client.info("cpu")
    return float(used["used_cpu_user"] + used["used_cpu_sys"])


def _work(url: str, name: str) -> None:
    from worker import ConcurrentWorker

    client: Any = redis.Redis.from_url(url)
    make = KINDS.get(name, ConcurrentWorker)
    worker = make(["bench"], connection=client, serializer=JSONSerializer)
    cpu, began = _processor(), time.perf_counter()
    worker.work(burst=True, logging_level="WARNING")
    seconds = time.perf_counter() - began
    print(json.dumps({"seconds": seconds, "cpu": _processor() - cpu}))


def _processor() -> float:
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(used.ru_utime + used.ru_stime for used in spent)


async def noop() -> None:
    """Does nothing."""


async def wait() -> None:
    import asyncio

    await asyncio.sleep(0.05)


if __name__ == "__main__":
    _work(*sys.argv[1:])
