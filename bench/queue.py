"""Jobs per second of one worker process, beside RQ's own workers and other queues on Redis.

Two kinds of job: one that does nothing, and one that waits for 50 ms as a call to a
sandbox does. Peers run in environments of their own (`bench/queue_contenders/`), on the same
server. Processor time is the worker process's, children included, and the server's. Fleets of
one and two workers run the first kind, and one that computes for 5 ms. What a trainer's
side costs, with us and with RQ itself, programs in `bench/queue_contenders/` measure, and what
redis-py alone takes there.
"""

import shutil
import tempfile
from functools import partial
from pathlib import Path

from bench._queue_runs import Metrics, run_burst, run_client, run_fleet, run_peer, run_program
from bench.peers import environment
from bench.suite import Ratio, Run, Suite, Target
from ground import EmbeddedServer
from ground.server.binary import bundled_server

PENSTOCK = ("penstock", "penstock gated")
PINS = {
    "saq": ["saq==0.26.4", "typing-extensions==4.15.0", "redis==7.4.1", "hiredis==3.5.0"],
    "arq": ["arq==0.28.0"],
    "taskiq": ["taskiq==0.13.0", "taskiq-redis==1.2.4", "hiredis==3.5.0"],
    "dramatiq": ["dramatiq[redis]==2.2.1", "hiredis==3.5.0"],
    "huey": ["huey==3.5.4", "redis==8.1.0", "hiredis==3.5.0"],
}
CLIENT, STOCK_CLIENT = "penstock client", "rq client"
TRIP = "round trip ms"
SINGLY = "enqueued/s, awaited singly"


def measure(quick: bool) -> Suite:
    home = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    server = EmbeddedServer(home, binary=bundled_server())
    sizes = {"rq": (50, 20), "rq simple": (300, 20)} | dict.fromkeys(PENSTOCK, (5_000, 2_500))
    sizes |= dict.fromkeys(PINS, (2_000, 1_000))
    fleets = {"rq simple": {"noop": 300, "work": 200}, "penstock": {"noop": 5_000, "work": 400}}
    # Of fewer, the 99th percentile is one pause of the machine.
    trips = {CLIENT: 1_000, STOCK_CLIENT: 100, "rq simple client": 300}
    if not quick:
        sizes = {name: (noops * 4, waits * 4) for name, (noops, waits) in sizes.items()}
        fleets = {name: {kind: 4 * n for kind, n in jobs.items()} for name, jobs in fleets.items()}
        trips = {name: count * 4 for name, count in trips.items()}

    def clean_up() -> None:
        server.stop()
        shutil.rmtree(home)

    return Suite(
        contenders={name: _contender(server.url, name, *jobs) for name, jobs in sizes.items()}
        | {f"{name} x{n}": _fleet(server.url, name, n, jobs)
           for name, jobs in fleets.items() for n in (1, 2)}
        | {"penstock long": partial(run_burst, server.url, "penstock long", "second", 4_000)}
        | {name: _client(server.url, name, count) for name, count in trips.items()}
        | {"redis-py": partial(run_program, server.url, "redis_floor.py", trips[CLIENT])},
        rounds=2 if quick else 5,
        conditions={
            "server": bundled_server().name, "jobs": sizes, "fleets": fleets, "round trips": trips,
            "concurrency": 256, "peers": PINS,
        },
        ratios=_ratios(),
        targets=_targets(),
        clean_up=clean_up,
    )  # fmt: skip


def _contender(url: str, name: str, noops: int, waits: int) -> Run:
    def once(kind: str, count: int) -> Metrics:
        if name in PINS:
            return run_peer(url, name, environment(name, PINS[name]), kind, count)
        return run_burst(url, name, kind, count)

    return lambda: once("noop", noops) | once("wait", waits)


def _fleet(url: str, name: str, size: int, jobs: dict[str, int]) -> Run:
    once = partial(run_fleet, url, name, size)
    return lambda: {k: v for kind, count in jobs.items() for k, v in once(kind, count).items()}


def _client(url: str, name: str, count: int) -> Run:
    program = "our_client.py" if name == CLIENT else "rq_client.py"
    return partial(run_client, url, name, program, count)


def _ratios() -> list[Ratio]:
    return [
        *(Ratio(f"{kind} jobs/s", "penstock", peer)
          for kind in ("noop", "wait") for peer in ("rq", "rq simple", *PINS)),
        Ratio("noop jobs/s", "penstock gated", "penstock"),
        Ratio("noop worker us", "penstock gated", "penstock"),
        Ratio("noop server us", "penstock", "rq simple"),
        *(Ratio(f"{kind} jobs/s{when}", f"{name} x2", f"{name} x1") for kind in ("noop", "work")
          for name in ("penstock", "rq simple") for when in ("", " if cores were all")),
        Ratio(f"{TRIP}, p50", CLIENT, STOCK_CLIENT),
        Ratio(f"{TRIP}, p99", CLIENT, STOCK_CLIENT, f"{TRIP}, p50"),
        Ratio(SINGLY, CLIENT, STOCK_CLIENT),
        Ratio(SINGLY, CLIENT, "redis-py", "empty scripts/s"),
    ]  # fmt: skip


def _targets() -> list[Target]:
    """A ratio of a client's is what its rate was of RQ's on the machine where both were first
    measured: docs/inside/benchmark-notes.md derives each."""
    return [
        Target("penstock noop jobs/s vs rq", at_least=44),
        Target("penstock wait jobs/s vs rq", at_least=210),
        *(Target(f"penstock noop jobs/s vs {peer}", at_least=1)
          for peer in ("saq", "arq", "taskiq")),
        Target("penstock gated noop jobs/s vs penstock", at_least=0.9),
        Target("penstock noop server us vs rq simple", at_most=0.11),
        Target("penstock x2 work jobs/s vs penstock x1", at_least=1.7),
        Target("penstock x2 work jobs/s if cores were all vs penstock x1", at_least=1.7),
        Target(f"{CLIENT} {TRIP}, p50 vs {STOCK_CLIENT}", at_most=0.23),
        Target(f"{CLIENT} {TRIP}, p99 vs {STOCK_CLIENT} {TRIP}, p50", at_most=0.45),
        Target(f"{CLIENT} {SINGLY} vs {STOCK_CLIENT}", at_least=1.22),
        Target(f"{CLIENT} {SINGLY} vs redis-py empty scripts/s", at_least=0.27),
    ]  # fmt: skip
