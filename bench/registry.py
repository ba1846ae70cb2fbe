"""What the registry adds to 10,000 session sandboxes that 64 clients open and end.

The clients are coroutines in eight processes. Each opens its next sandbox when the last one has
ended. The provider is simulated. With the cloud's time a creation takes a second, so that all
clients start in step; spread, it takes half a second to one and a half. Flat out it takes none, so
that the clients are as fast as the machine. Gate, records and leases are real, on a server that
keeps its data.

    registry call         one call of the registry, as the process sees it
    registry a start      all calls of one start together: what the registry adds to it
    start less provider   as the caller sees it: with the gate, threads and event loops
    CPU                   all that the clients' processes and the server compute
"""

import json
import math
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.peers import ROOT
from bench.suite import Suite
from ground import EmbeddedServer, connect
from ground.server.binary import bundled_server

CLIENTS, PROCESSES = 64, 8
SECONDS = 1.0  # of a creation at the simulated cloud


def measure(quick: bool) -> Suite:
    home = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    server = EmbeddedServer(home, binary=bundled_server())
    sandboxes = 640 if quick else 10_000

    def end() -> None:
        server.stop()
        shutil.rmtree(home)

    return Suite(
        contenders={
            "with the cloud's time": partial(_run, server, sandboxes, SECONDS),
            "with the cloud's time, spread": partial(_run, server, sandboxes, SECONDS, 0.5),
            "flat out": partial(_run, server, sandboxes, 0.0),
        },
        rounds=1,
        conditions={
            "sandboxes": sandboxes, "clients": CLIENTS, "processes": PROCESSES,
            "seconds of a creation": SECONDS,
        },
        clean_up=end,
    )  # fmt: skip


def _run(
    server: EmbeddedServer, sandboxes: int, seconds: float, spread: float = 0.0
) -> dict[str, float]:
    redis = connect(server.target)
    each, clients = sandboxes // PROCESSES, CLIENTS // PROCESSES
    figures = map(str, (clients, each, seconds, spread))
    words = [sys.executable, "-m", "bench._registry_client", *figures]
    processes = [
        subprocess.Popen(
            words, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )
        for _ in range(PROCESSES)
    ]  # fmt: skip
    try:
        for process in processes:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise RuntimeError("a process of clients did not start")
        cpu = _cpu_of(redis)
        began = time.perf_counter()
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(f"{server.url}\n")
            process.stdin.flush()
        answers = [json.loads(process.communicate()[0]) for process in processes]
        took = time.perf_counter() - began
    finally:
        for process in processes:
            process.kill()
    cpu = _cpu_of(redis) - cpu
    redis.close()
    times = {what: sorted(one for answer in answers for one in answer[what]) for what in answers[0]}
    if len(times["starts"]) != each * PROCESSES:
        raise RuntimeError(f"{len(times['starts'])} sandboxes were opened")
    return {
        "registry call p50 ms": _quantile(times["calls"], 0.5),
        "registry call p99 ms": _quantile(times["calls"], 0.99),
        "registry a start p50 ms": _quantile(times["of start"], 0.5),
        "registry a start p99 ms": _quantile(times["of start"], 0.99),
        "start less provider p50 ms": _quantile(times["starts"], 0.5),
        "start less provider p99 ms": _quantile(times["starts"], 0.99),
        "sandboxes a second": len(times["starts"]) / took,
        "client CPU ms a sandbox": sum(times["cpu"]) / len(times["starts"]),
        "server CPU ms a sandbox": cpu / len(times["starts"]),
    }


def _cpu_of(redis: Any) -> float:
    """Milliseconds that the server has computed."""
    found = redis.info("cpu")
    return float(found["used_cpu_user"] + found["used_cpu_sys"]) * 1e3


def _quantile(times: Sequence[float], part: float) -> float:
    return times[max(0, math.ceil(part * len(times)) - 1)]
