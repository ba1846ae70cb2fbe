"""Jobs per second of one worker process, beside RQ's own workers and other queues on Redis.

Two kinds of job: one that does nothing, and one that waits for 50 ms as a call to a
sandbox does. Peers run in environments of their own (`bench/queue_contenders/`), on the same
server. Processor time is the worker process's, children included, and the server's. What the
trainer's side costs, `bench/queue_contenders/our_client.py` measures.
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
from functools import partial
from pathlib import Path
from typing import Any

import redis
from rq import Queue, SimpleWorker, Worker
from rq.serializers import JSONSerializer
from rq.worker import BaseWorker

from bench.peers import environment, run_json
from bench.suite import Ratio, Suite, Target
from ground import EmbeddedServer, bundled_server

ROOT = Path(__file__).parents[1]
KINDS: dict[str, Callable[..., BaseWorker]] = {"rq": Worker, "rq simple": SimpleWorker}
OURS = ("penstock", "penstock gated")
PINS = {
    "saq": ["saq==0.26.4", "typing-extensions==4.15.0", "redis==7.4.1", "hiredis==3.5.0"],
    "arq": ["arq==0.28.0"],
    "taskiq": ["taskiq==0.13.0", "taskiq-redis==1.2.4", "hiredis==3.5.0"],
    "dramatiq": ["dramatiq[redis]==2.2.1", "hiredis==3.5.0"],
    "huey": ["huey==3.5.4", "redis==8.1.0", "hiredis==3.5.0"],
}
CLIENT = "penstock client"


def measure(quick: bool) -> Suite:
    home = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    server = EmbeddedServer(home, binary=bundled_server())
    sizes = {"rq": (50, 20), "rq simple": (300, 20)} | dict.fromkeys(OURS, (5_000, 2_500))
    sizes |= dict.fromkeys(PINS, (2_000, 1_000))
    if not quick:
        sizes = {name: (noops * 4, waits * 4) for name, (noops, waits) in sizes.items()}

    def contender(name: str) -> Callable[[], Mapping[str, float]]:
        noops, waits = sizes[name]
        run = _run_peer if name in PINS else _run
        return lambda: run(server.url, name, "noop", noops) | run(server.url, name, "wait", waits)

    def clean_up() -> None:
        server.stop()
        shutil.rmtree(home)

    fleet = {f"penstock x{n}": partial(_run_fleet, server.url, n, sizes["penstock"][0])
             for n in (1, 2)}  # fmt: skip
    return Suite(
        contenders={name: contender(name) for name in sizes}
        | fleet
        | {"penstock long": partial(_run, server.url, "penstock long", "second", 4_000),
           CLIENT: partial(_run_client, server.url, quick)},
        rounds=2 if quick else 5,
        conditions={
            "server": bundled_server().name, "jobs": sizes, "concurrency": 256, "peers": PINS,
        },
        ratios=[
            *(Ratio(f"{kind} jobs/s", "penstock", peer)
              for kind in ("noop", "wait") for peer in ("rq", "rq simple", *PINS)),
            Ratio("noop jobs/s", "penstock gated", "penstock"),
            Ratio("noop worker us", "penstock gated", "penstock"),
            Ratio("noop server us", "penstock", "rq simple"),
            Ratio("noop jobs/s", "penstock x2", "penstock x1"),
            Ratio("noop jobs/s if cores were all", "penstock x2", "penstock x1"),
        ],
        targets=[
            Target("penstock noop jobs/s vs rq", at_least=44),
            Target("penstock wait jobs/s vs rq", at_least=210),
            Target("penstock noop jobs/s", at_least=5_500),
            Target("penstock wait jobs/s", at_least=3_500),
            *(Target(f"penstock noop jobs/s vs {peer}", at_least=1)
              for peer in ("saq", "arq", "taskiq")),
            Target("penstock gated noop jobs/s vs penstock", at_least=0.9),
            Target("penstock noop server us", at_most=35),
            Target("penstock noop server us vs rq simple", at_most=0.11),
            Target("penstock long second seconds", at_most=2.4),
            Target("penstock long second memory MB", at_most=25),
            Target("penstock x2 noop jobs/s vs penstock x1", at_least=1.7),
            Target(f"{CLIENT} round trip ms, p50", at_most=1.5),
            Target(f"{CLIENT} round trip ms, p99", at_most=3),
            Target(f"{CLIENT} enqueued/s, batched", at_least=12_000),
            Target(f"{CLIENT} enqueued/s, awaited singly", at_least=5_000),
            Target(f"{CLIENT} us per completion", at_most=20),
        ],
        clean_up=clean_up,
    )  # fmt: skip


def _run(url: str, name: str, kind: str, count: int) -> dict[str, float]:
    """One burst in a process of its own, from its first job to its last."""
    client: Any = _filled(url, kind, count)
    before, told = _server_seconds(client), _script_calls(client)
    with _start(url, name) as worker:
        said, _ = worker.communicate()
    used = json.loads(said.splitlines()[-1])
    server, scripts = _server_seconds(client) - before, _script_calls(client) - told
    _require_finished(client, count)
    client.close()
    more = {f"{kind} seconds": used["seconds"], f"{kind} memory MB": used["memory"]}
    if name in OURS:
        more[f"{kind} script calls a job"] = scripts / count
    return more | _metrics(kind, count, used, server)


def _run_fleet(url: str, size: int, count: int) -> dict[str, float]:
    """Several workers on one queue, from the first's first job to the last's last."""
    client: Any = _filled(url, "noop", count)
    before = _server_seconds(client)
    workers = [_start(url, f"penstock x{size}") for _ in range(size)]
    said = [json.loads(worker.communicate()[0].splitlines()[-1]) for worker in workers]
    server = _server_seconds(client) - before
    _require_finished(client, count)
    client.close()
    seconds = max(used["ended"] for used in said) - min(used["began"] for used in said)
    cpu = sum(used["cpu"] for used in said)
    most = _most_at_once(cpu / size, server, cpu + server)
    ideal = {"noop jobs/s if cores were all": count / most}
    return _metrics("noop", count, {"seconds": seconds, "cpu": cpu}, server) | ideal


def _most_at_once(worker: float, server: float, together: float) -> float:
    """The least seconds it can take: a process uses one core, and all of them those there are."""
    return max(worker, server, together / len(os.sched_getaffinity(0)))


def _run_peer(url: str, name: str, kind: str, count: int) -> dict[str, float]:
    client: Any = redis.Redis.from_url(url)
    client.flushall()
    python = environment(name, PINS[name])
    program = ROOT / "bench" / "queue_contenders" / f"{name}_worker.py"
    used = run_json(python, program, url, kind, str(count), env=os.environ)
    client.close()
    return _metrics(kind, count, used, None)


def _run_client(url: str, quick: bool) -> dict[str, float]:
    client: Any = redis.Redis.from_url(url)
    client.flushall()
    client.close()
    with _start(url, CLIENT) as worker:
        try:
            program = ROOT / "bench" / "queue_contenders" / "our_client.py"
            jobs = "1000" if quick else "4000"
            environment = os.environ | {"PYTHONPATH": str(ROOT)}
            said = run_json(Path(sys.executable), program, url, jobs, env=environment)
        finally:
            worker.terminate()
            worker.communicate()
    return {name: float(value) for name, value in said.items()}


def _metrics(
    kind: str, count: int, used: Mapping[str, float], server: float | None
) -> dict[str, float]:
    found = {
        f"{kind} jobs/s": count / used["seconds"],
        f"{kind} worker us": used["cpu"] / count * 1e6,
    }
    return found if server is None else found | {f"{kind} server us": server / count * 1e6}


def _filled(url: str, kind: str, count: int) -> Any:
    client: Any = redis.Redis.from_url(url)
    client.flushall()
    queue = Queue("bench", connection=client, serializer=JSONSerializer)
    job = Queue.prepare_data(f"bench.queue.{kind}", timeout=180, result_ttl=600, description="job")
    for i in range(0, count, 500):
        queue.enqueue_many([job] * min(500, count - i))
    return client


def _require_finished(client: Any, count: int) -> None:
    finished = client.zcard("rq:finished:bench")
    told = client.hgetall("penstock:work:{bench}"), client.llen("rq:queue:bench")
    assert finished == count, f"{finished} of {count} jobs were finished: {told}"


def _start(url: str, name: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "bench.queue", url, name],
        cwd=ROOT, env=os.environ | _settings(name), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def _settings(name: str) -> dict[str, str]:
    if "gated" in name:
        return {"PENSTOCK_GATE": "bench", "PENSTOCK_GATE_LIMIT": "256"}
    if name == CLIENT:
        return {"PENSTOCK_SANDBOX": "bench.queue.Echo"}
    return {"PENSTOCK_CONCURRENCY": "2000"} if "long" in name else {}


def _server_seconds(client: Any) -> float:
    used = client.info("cpu")
    return float(used["used_cpu_user"] + used["used_cpu_sys"])


def _script_calls(client: Any) -> int:
    stats = client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("evalsha", "eval"))


def _work(url: str, name: str) -> None:
    from worker import ConcurrentWorker

    client: Any = redis.Redis.from_url(url)
    make = KINDS.get(name, ConcurrentWorker)
    worker = make(["bench"], connection=client, serializer=JSONSerializer)
    cpu, memory, began = _processor(), _memory(), time.time()
    worker.work(burst=name != CLIENT, logging_level="WARNING")
    ended = time.time()
    used = {"began": began, "ended": ended, "seconds": ended - began,
            "cpu": _processor() - cpu, "memory": _memory() - memory}  # fmt: skip
    print(json.dumps(used))


def _memory() -> float:
    """The most that this process had at once, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _processor() -> float:
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(used.ru_utime + used.ru_stime for used in spent)


class Echo:
    """A sandbox for what the queue itself costs: every program prints `ok`, at once."""

    name, languages = "echo", frozenset({"python"})

    def __init__(self, _: object) -> None: ...

    async def run(self, request: Any) -> Any:
        from worker import CodeResult, CommandResult

        ended = CommandResult(status="Finished", return_code=0, stdout="ok\n")
        return CodeResult(status="Success", run_result=ended)

    async def close(self) -> None: ...


async def noop() -> None:
    """Does nothing."""


async def wait() -> None:
    import asyncio

    await asyncio.sleep(0.05)


async def second() -> None:
    import asyncio

    await asyncio.sleep(1)


if __name__ == "__main__":
    _work(*sys.argv[1:])
