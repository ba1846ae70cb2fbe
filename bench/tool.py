"""A model's tool calls per second, beside verl's pool of Ray actors; the programs do nothing.

Penstock's is the whole way: arguments checked, a job on the queue, a permit, a worker process, the
answer as text. verl's is its pool, called as its tool calls it, with a function that does
nothing: an actor with threads, and its limiter, another actor. Both have room for 128 calls.
The programs are in `bench/tool_contenders/`, whose `calling.py` says what each is put through.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.peers import ROOT, environment, run_json
from bench.suite import Ratio, Suite, Target
from ground import EmbeddedServer, connect
from ground.server.binary import bundled_server

PENSTOCK, POOL, PEER = "penstock tool", "penstock pool", "ray"
PROGRAMS = {PENSTOCK: "penstock_tool.py", POOL: "penstock_pool.py", PEER: "ray_pool.py"}
PINS = ["ray==2.60.0"]
CALLERS = (1, 16, 64)
ROOM = "128"
QUICK, LONG = "1", "2"  # seconds a level: a whole run takes two minutes


def measure(quick: bool) -> Suite:
    home = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    server = EmbeddedServer(home, binary=bundled_server())
    worker = subprocess.Popen(
        [sys.executable, "-m", "penstock", "worker", "code", "--gate", "code",
         "--gate-limit", ROOM],
        cwd=ROOT,
        env=_penstock(server.url) | {"PENSTOCK_SANDBOX": "bench.tool_contenders.nothing.Nothing"},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip

    # Of verl's pool, all processes are descendants of the contender's program.
    environment_of = dict.fromkeys(PROGRAMS, _penstock(server.url)) | {
        PENSTOCK: _penstock(server.url) | {"BENCH_PIDS": f"{worker.pid} {_pid_of(server)}"},
        POOL: _penstock(server.url) | {"BENCH_PIDS": f"{_pid_of(server)}"},
    }

    def clean_up() -> None:
        worker.terminate()
        worker.wait()
        server.stop()
        shutil.rmtree(home)

    seconds = QUICK if quick else LONG
    return Suite(
        contenders={name: _contender(name, environment_of[name], seconds) for name in PROGRAMS},
        rounds=1 if quick else 3,
        conditions={"server": bundled_server().name, "peers": {PEER: PINS}, "room": ROOM},
        ratios=list(_ratios()),
        targets=list(_targets()),
        clean_up=clean_up,
    )


def _contender(name: str, env: dict[str, str], seconds: str) -> Callable[[], dict[str, float]]:
    program = ROOT / "bench" / "tool_contenders" / PROGRAMS[name]

    def once() -> dict[str, float]:
        python = environment(PEER, PINS) if name == PEER else Path(sys.executable)
        metrics: dict[str, float] = run_json(
            python, program, seconds, ROOM, *map(str, CALLERS), env=env
        )
        return metrics

    return once


def _pid_of(server: EmbeddedServer) -> int:
    client: Any = connect(server.target)
    pid: int = client.info("server")["process_id"]
    client.close()
    return pid


def _penstock(url: str) -> dict[str, str]:
    return dict(os.environ) | {"PENSTOCK_REDIS_URL": url, "PYTHONPATH": str(ROOT)}


def _ratios() -> Iterator[Ratio]:
    for own in (PENSTOCK, POOL):
        for callers in CALLERS:
            yield Ratio(f"calls/s, {callers}", own, PEER)
            yield Ratio(f"p99 ms, {callers}", own, PEER)
            yield Ratio(f"cpu ms a call, {callers}", own, PEER)


def _targets() -> Iterator[Target]:
    for callers in CALLERS:
        yield Target(Ratio(f"calls/s, {callers}", PENSTOCK, PEER).name, at_least=2)
        yield Target(Ratio(f"p99 ms, {callers}", PENSTOCK, PEER).name, at_most=1)
