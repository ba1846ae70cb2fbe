"""Limits that are found: real processes, and a service whose hidden capacity halves and returns.

One gate for all processes beside inspect_ai's controller in each of them, and a fixed limit. The
service serves so many at once for one simulated second, and refuses the others after 50 ms with a
hint of 2 s. Four phases: 100, then 50, then 50 while two of eight processes have work, then 100.
With `quota` it starts 500 in 10 s, then 250. What the best limit would have served is 1.00.
"""

import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench.peers import environment
from bench.suite import Ratio, Suite, Target
from ground import EmbeddedServer
from ground.server.binary import bundled_server

HERE = Path(__file__).parent / "limits_contenders"
PINS = ["inspect-ai==0.3.248"]
SECOND, CALLERS = 0.25, 400  # real seconds in a simulated one; callers in all
CAPACITY, HALF = 100, 50
PHASES = ("full", "half", "two in eight", "full again")
QUIET, USED, SETTLED = 0.05, 0.8, 10  # settled: 10 s below 5% refused and above 80% used


def measure(quick: bool) -> Suite:
    home = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    server = EmbeddedServer(home, binary=bundled_server())
    gates = itertools.count()
    seconds = 40 if quick else 120
    fleets = (8,) if quick else (8, 64)

    def penstock(port: int, callers: int, _: int) -> list[str]:
        arguments = [server.url, str(port), str(callers), f"limits-{next_gate[0]}"]
        return [sys.executable, str(HERE / "penstock_limit.py"), *arguments]

    def static(port: int, callers: int, processes: int) -> list[str]:
        limit = str(CAPACITY // processes)
        return [sys.executable, str(HERE / "static_limit.py"), str(port), str(callers), limit]

    def inspect(port: int, callers: int, _: int) -> list[str]:
        python = environment("inspect", PINS)
        return [str(python), str(HERE / "inspect_limit.py"), str(port), str(callers), str(SECOND)]

    next_gate = [0]

    def clean_up() -> None:
        server.stop()
        shutil.rmtree(home)

    def once(command: Callable[[int, int, int], list[str]], processes: int, quota: bool) -> Any:
        next_gate[0] = next(gates)
        return _run(command, processes, seconds, quota=quota)

    ways = {"penstock": penstock, "inspect_ai": inspect}
    contenders: dict[str, Any] = {
        f"{name}, {processes} processes": partial(once, way, processes, False)
        for processes in fleets
        for name, way in ways.items()
    }
    contenders["static, 8 processes"] = partial(once, static, 8, False)
    contenders |= {f"{name}, quota": partial(once, way, 8, True) for name, way in ways.items()}
    targets = [
        Target(f"penstock, {n} processes {metric}, {phase}", **goal)
        for n in fleets
        for phase in PHASES
        for metric, goal in (
            ("goodput", {"at_least": 0.93}),
            ("refused %", {"at_most": 2}),
            ("s to settle", {"at_most": 5}),
        )
    ]
    targets += [
        Target("penstock, quota goodput, full", at_least=0.95),
        Target("penstock, quota refused %, full", at_most=16),
    ]
    return Suite(
        contenders=contenders,
        rounds=1,
        conditions={"one simulated second": SECOND, "seconds a phase": seconds, "callers": CALLERS},
        ratios=[
            Ratio(f"goodput, {phase}", "penstock, 8 processes", "inspect_ai, 8 processes")
            for phase in PHASES
        ],
        targets=targets,
        clean_up=clean_up,
    )


def _run(
    command: Callable[[int, int, int], list[str]], processes: int, seconds: int, *, quota: bool
) -> dict[str, float]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    capacities = (500, 250) if quota else (CAPACITY, HALF, HALF, CAPACITY)
    phases = [[seconds, capacity] for capacity in capacities]
    script = {"port": port, "second": SECOND, "phases": phases, "quota": quota}
    service = subprocess.Popen(
        [sys.executable, str(HERE / "service.py"), json.dumps(script)], stdout=subprocess.PIPE
    )
    crew: list[Any] = []
    try:
        _wait_for(port)
        words = command(port, CALLERS // processes, processes)
        crew = [_start(words) for _ in range(processes)]
        for process in crew:
            process.stdout.readline()  # ready
        with socket.create_connection(("127.0.0.1", port)) as line:
            line.sendall(b"start\n")
        _direct(crew, seconds, len(phases))
        assert service.stdout is not None
        said = json.loads(service.stdout.readline())
    finally:
        for process in crew:
            process.kill()
            process.wait()
        service.kill()
        service.wait()
    return _figures(said, seconds, capacities, quota=quota)


def _start(words: list[str]) -> Any:
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen(words, **pipes, env=dict(os.environ), cwd=HERE.parents[1])


def _wait_for(port: int) -> None:
    for _ in range(200):
        with socket.socket() as line:
            if line.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise TimeoutError("the service does not listen")


def _direct(crew: list[Any], seconds: int, phases: int) -> None:
    """Everybody has work, but for the third phase, in which one process in four has."""
    began = time.monotonic()
    for phase in range(phases):
        for number, process in enumerate(crew):
            idle = phase == 2 and number >= len(crew) // 4
            process.stdin.write("rest\n" if idle else "go\n")
            process.stdin.flush()
        time.sleep(max(0.0, began + (phase + 1) * seconds * SECOND - time.monotonic()))


def _figures(
    said: Any, seconds: int, capacities: tuple[int, ...], *, quota: bool
) -> dict[str, float]:
    """By phase, of what the service counted in tenths of a simulated second."""
    served, refused = (_by_second(said[what]) for what in ("served", "refused"))
    figures: dict[str, float] = {}
    for number, capacity in enumerate(capacities):
        first, last = number * seconds, (number + 1) * seconds
        best = capacity / (10 if quota else 1)
        got = [served.get(at, 0) for at in range(first, last)]
        lost = [refused.get(at, 0) for at in range(first, last)]
        phase = PHASES[number]
        figures[f"goodput, {phase}"] = sum(got) / (best * seconds)
        figures[f"refused %, {phase}"] = 100 * sum(lost) / max(1, sum(got) + sum(lost))
        if not quota:
            figures[f"s to settle, {phase}"] = _settled(got, lost, best)
    return figures


def _by_second(counted: dict[str, int]) -> dict[int, int]:
    seconds: dict[int, int] = {}
    for tenth, count in counted.items():
        at = int(tenth) // 10
        seconds[at] = seconds.get(at, 0) + count
    return seconds


def _settled(got: list[int], lost: list[int], best: float) -> float:
    """Until 10 s follow with fewer than 5% refused and more than 80% used; else all of them."""
    for at in range(len(got) - SETTLED + 1):
        yes, no = sum(got[at : at + SETTLED]), sum(lost[at : at + SETTLED])
        if no <= QUIET * (yes + no) and yes >= USED * best * SETTLED:
            return at
    return len(got)
