"""One run of each contender of the queue suite, on a server of the suite's."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis
from rq import Queue
from rq.serializers import JSONSerializer

from bench.peers import run_json

ROOT = Path(__file__).parents[1]
PROGRAMS = ROOT / "bench" / "queue_contenders"
Metrics = dict[str, float]
Child = subprocess.Popen[str]


def run_burst(url: str, name: str, kind: str, count: int) -> Metrics:
    """All of a filled queue by a worker process, from its first job to its last."""
    client = filled(url, name, kind, count)
    before, called = server_seconds(client), _script_calls(client)
    with _workers(url, name, 1) as workers:
        used = _worked(workers)[0]
    server, scripts = server_seconds(client) - before, _script_calls(client) - called
    _require_finished(client, count)
    client.close()
    more = {f"{kind} seconds": used["seconds"], f"{kind} memory MB": used["memory"]}
    if name.startswith("penstock"):
        more[f"{kind} script calls a job"] = scripts / count
    return more | metrics(kind, count, used, server)


def run_fleet(url: str, name: str, size: int, kind: str, count: int) -> Metrics:
    """The same by several workers, from the first's first job to the last's last."""
    client = filled(url, name, kind, count)
    before = server_seconds(client)
    with _workers(url, name, size, kind) as workers:
        said = _worked(workers)
    server = server_seconds(client) - before
    _require_finished(client, count)
    client.close()
    seconds = max(used["ended"] for used in said) - min(used["began"] for used in said)
    cpu = sum(used["cpu"] for used in said)
    most = _most_at_once(cpu / size, server, cpu + server)
    ideal = {f"{kind} jobs/s if cores were all": count / most}
    return metrics(kind, count, {"seconds": seconds, "cpu": cpu}, server) | ideal


def run_peer(url: str, name: str, python: Path, kind: str, count: int) -> Metrics:
    """By a peer's own program, which fills its queue itself."""
    _emptied(url).close()
    said = run_json(python, PROGRAMS / f"{name}_worker.py", url, kind, str(count), env=os.environ)
    return metrics(kind, count, said, None)


def run_client(url: str, name: str, program: str, count: int) -> Metrics:
    """A trainer's program, while a worker serves the queue `bench`."""
    _emptied(url).close()
    with _workers(url, name, 1) as (worker,):
        _go(worker)
        try:
            return run_program(url, program, count)
        finally:
            worker.terminate()
            worker.communicate()


def run_program(url: str, program: str, count: int) -> Metrics:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    said = run_json(Path(sys.executable), PROGRAMS / program, url, str(count), env=environment)
    return {name: float(value) for name, value in said.items()}


def metrics(kind: str, count: int, used: Mapping[str, float], server: float | None) -> Metrics:
    found = {
        f"{kind} jobs/s": count / used["seconds"],
        f"{kind} worker us": used["cpu"] / count * 1e6,
    }
    return found if server is None else found | {f"{kind} server us": server / count * 1e6}


def _most_at_once(worker: float, server: float, together: float) -> float:
    """The least seconds it can take: a process uses one core, and all of them those there are."""
    return max(worker, server, together / len(os.sched_getaffinity(0)))


# The queue and its server


def filled(url: str, name: str, kind: str, count: int) -> Any:
    client = _emptied(url)
    queue = Queue("bench", connection=client, serializer=JSONSerializer)
    call = f"bench._queue_jobs.{'' if name.startswith('penstock') else 'plain_'}{kind}"
    job = Queue.prepare_data(call, timeout=180, result_ttl=600, description="job")
    for i in range(0, count, 500):
        queue.enqueue_many([job] * min(500, count - i))
    return client


def server_seconds(client: Any) -> float:
    used = client.info("cpu")
    return float(used["used_cpu_user"] + used["used_cpu_sys"])


def _emptied(url: str) -> Any:
    client: Any = redis.Redis.from_url(url)
    client.flushall()
    return client


def _require_finished(client: Any, count: int) -> None:
    finished = client.zcard("rq:finished:bench")
    left = client.hgetall("penstock:work:{bench}"), client.llen("rq:queue:bench")
    assert finished == count, f"{finished} of {count} jobs were finished: {left}"


def _script_calls(client: Any) -> int:
    stats = client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("evalsha", "eval"))


# Worker processes


@contextmanager
def _workers(url: str, name: str, size: int, kind: str = "") -> Iterator[list[Child]]:
    """Ready to begin, all of them: how long they take to start is not what is measured."""
    command = [sys.executable, "-m", "bench._queue_worker", url, name]
    workers = [
        subprocess.Popen(
            command, cwd=ROOT, env=os.environ | _settings(name, kind), text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )
        for _ in range(size)
    ]  # fmt: skip
    try:
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n", f"a worker of {name} did not start"
        yield workers
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()


def _go(worker: Child) -> None:
    assert worker.stdin is not None
    worker.stdin.write("\n")
    worker.stdin.flush()


def _worked(workers: list[Child]) -> list[Metrics]:
    for worker in workers:
        _go(worker)
    return [json.loads(worker.communicate()[0].splitlines()[-1]) for worker in workers]


def _settings(name: str, kind: str) -> dict[str, str]:
    if "gated" in name:
        return {"PENSTOCK_GATE": "bench", "PENSTOCK_GATE_LIMIT": "256"}
    if name.endswith("client"):
        return {"PENSTOCK_SANDBOX": "bench._queue_jobs.Echo"}
    if kind == "work":  # one after the other: nobody is left with hundreds at the end
        return {"PENSTOCK_CONCURRENCY": "8"}
    return {"PENSTOCK_CONCURRENCY": "2000"} if "long" in name else {}
