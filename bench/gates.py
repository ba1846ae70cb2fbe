"""Gates beside what else counts permits for a cluster: Ray's actor, redis-py's locks, a library.

All of them in one run, and all but Ray on one server. Their programs are in
`bench/gates_contenders/`, whose `workload.py` says what each is put through, and whose
`line.py` asks what a long line of waiters costs the server.
"""

import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from bench.peers import environment, run_json
from bench.suite import Ratio, Suite, Target
from ground import EmbeddedServer, connect
from ground.lua import load_script
from ground.server.binary import bundled_server

PENSTOCK = "penstock"
PROGRAMS = {
    PENSTOCK: "penstock_gate.py",
    "ray": "ray_actor.py",
    "redis-py locks": "redis_locks.py",
    "redis-rate-limiters": "redis_rate_limiters.py",
}
PINS = {
    "ray": ["ray==2.60.0"],
    "redis-rate-limiters": ["redis-rate-limiters==0.5.0", "redis==8.1.0", "hiredis==3.5.0"],
}
GOALS = {  # by how much we are to be faster than Ray
    "pairs/s, 1 task": 6,
    "pairs/s, 32 tasks": 10,
    "pairs/s, 256 tasks": 10,
    "pairs/s, 32 tasks at 4 permits": 4,
    "pairs/s, 256 tasks at 16 permits": 4,
}
OTHERS = ("pairs/s, 32 threads", "hand-over ms, p50", "hand-over ms, p99", "8 x 16 threads, s")
SHORT, LONG = f"{PENSTOCK}, 1 waiting", f"{PENSTOCK}, 100,000 waiting"
LINES = {f"{PENSTOCK}, 0 waiting": 0, SHORT: 1, f"{PENSTOCK}, 1,000 waiting": 1_000, LONG: 100_000}
COSTS = tuple(f"server µs per {call}" for call in ("acquire", "cancel", "pair", "release"))

TAKEN = {"alone": 200, "fleet": 8 * (1 + 16 * 5)}  # permits, by the workload's part
Metrics = dict[str, float]
ACQUIRE = load_script("limiter", "acquire").sha
OPENING = {"AUTH", "CLIENT", "COMMAND", "HELLO", "PING", "SELECT"}  # what a new connection says


def measure(quick: bool) -> Suite:
    home = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    server = EmbeddedServer(home, binary=bundled_server())
    seconds, hand_overs, calls = ("0.2", "10", "100") if quick else ("1", "100", "500")

    def contend(name: str) -> Metrics:
        once = partial(_run, name, server.url, seconds, hand_overs)
        if name == "ray":  # which keeps its own server
            return once("fleet", "hand-over", "pairs")
        metrics = once("fleet") | _hand_over(server.url, partial(once, "hand-over")) | once("pairs")
        for part in TAKEN:
            metrics |= _count_commands(part, server.url, partial(once, part))
        return metrics

    lines: dict[int, Metrics] = {}

    def stand_in_line(waiting: int) -> Metrics:
        """The first of a round measures all lengths, in turns, and the others read theirs."""
        if waiting not in lines:
            lengths = [str(length) for length in LINES.values()]
            measured = _program(Path(sys.executable), "line.py", server.url, calls, *lengths)
            lines.update({int(length): metrics for length, metrics in measured.items()})
        return lines.pop(waiting)

    def clean_up() -> None:
        server.stop()
        shutil.rmtree(home)

    return Suite(
        contenders={name: partial(contend, name) for name in PROGRAMS}
        | {name: partial(stand_in_line, waiting) for name, waiting in LINES.items()},
        rounds=1 if quick else 3,
        conditions={"server": bundled_server().name, "peers": PINS},
        ratios=list(_ratios()),
        targets=list(_targets()),
        clean_up=clean_up,
    )


def _ratios() -> Iterator[Ratio]:
    for peer in PROGRAMS:
        if peer != PENSTOCK:
            yield from (Ratio(metric, PENSTOCK, peer) for metric in (*GOALS, *OTHERS))
    yield from (Ratio(cost, LONG, SHORT) for cost in COSTS)


def _targets() -> Iterator[Target]:
    for metric, goal in GOALS.items():
        yield Target(Ratio(metric, PENSTOCK, "ray").name, at_least=goal)
    for part in TAKEN:
        yield Target(f"{PENSTOCK} acquire calls per permit, {part}", at_most=1.0)
    yield Target(Ratio("hand-over ms, p99", PENSTOCK, "ray").name, at_most=1)
    for cost in COSTS:
        yield Target(Ratio(cost, LONG, SHORT).name, at_most=2)


def _run(name: str, *arguments: str) -> Metrics:
    pins = PINS.get(name)
    python = environment(name, pins) if pins else Path(sys.executable)
    metrics: Metrics = _program(python, PROGRAMS[name], *arguments)
    return metrics


def _program(python: Path, name: str, *arguments: str) -> Any:
    program = Path(__file__).parent / "gates_contenders" / name
    return run_json(python, program, *arguments, env=os.environ)


def _hand_over(url: str, deed: Callable[[], Metrics]) -> Metrics:
    """How long hand-overs take, and the share of one processor that they cost meanwhile."""
    before = _server_seconds(url)
    metrics = deed()
    spent = metrics.pop("hand-over clients' s") + _server_seconds(url) - before
    share = 100 * spent / metrics.pop("hand-over s")
    return metrics | {"hand-over CPU %": share}


def _server_seconds(url: str) -> float:
    client: Any = connect(url)
    cpu = client.info("cpu")
    client.close()
    return float(cpu["used_cpu_sys"] + cpu["used_cpu_user"])


def _count_commands(part: str, url: str, deed: Callable[[], object]) -> Metrics:
    """What was sent to the server meanwhile, by the server's own account."""
    seen: Counter[str] = Counter()
    client: Any = connect(url, timeout=None)
    with client.monitor() as monitor:
        deed()
        client.echo("that was all")
        for line in monitor.listen():
            command, *words = line["command"].split(" ", 2)
            if command == "ECHO":
                break
            if line["client_type"] != "lua" and command not in OPENING:
                seen["all"] += 1
                seen[words[0] if words else ""] += 1
    counted = {f"commands per permit, {part}": seen["all"] / TAKEN[part]}
    if seen[ACQUIRE]:
        counted[f"acquire calls per permit, {part}"] = seen[ACQUIRE] / TAKEN[part]
    return counted
