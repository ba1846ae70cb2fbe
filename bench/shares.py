"""What shares cost the server for each job of a queue, and how exact they are.

100,000 jobs wait without a share, in one share, or in 1,000. The server's own microseconds are
counted (`INFO commandstats`), which other work on the machine disturbs less than a rate.
"""

import math
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from bench.suite import Ratio, Suite, Target
from ground import EmbeddedServer, connect
from ground.redis.connect import target_of
from jail.models import CodeRequest
from worker.concurrent.commands import SCRIPTS as WORK
from worker.concurrent.commands import WorkCommands
from worker.queue.order import SCRIPTS, JobHash, Order
from worker.queue.shares import QueueShares

_CONTENDERS = {"no share": 0, "1 share": 1, "1,000 shares": 1_000}
_HASH = JobHash(
    "code", result_ttl=600, failure_ttl=600, retries=3, abandon=False, spare=600.0,
    patience=60.0, no_workers_after=60.0,
)  # fmt: skip
_ENQUEUED_AT_ONCE, _CLAIMED_AT_ONCE, _TURNS = 200, 32, 1_000
_ALL = "server us per job"
_SINGLY = "server us per job claimed singly"
_ERROR = "largest error in 1,000 turns, jobs"


def measure(quick: bool) -> Suite:
    waiting = 20_000 if quick else 100_000
    with ExitStack() as starting:
        home = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
        starting.callback(shutil.rmtree, home, ignore_errors=True)
        url = starting.enter_context(EmbeddedServer(home)).url
        return Suite(
            contenders={
                name: partial(_run, url, shares, waiting) for name, shares in _CONTENDERS.items()
            },
            rounds=2 if quick else 5,
            conditions={
                "jobs that wait": waiting, "enqueued at once": _ENQUEUED_AT_ONCE,
                "claimed at once": _CLAIMED_AT_ONCE,
            },
            ratios=[
                Ratio(metric, name, "no share")
                for name in ("1 share", "1,000 shares")
                for metric in (_ALL, _SINGLY)
            ],
            targets=[
                Target(f"1,000 shares {_ALL} vs no share", at_most=1.3),
                Target(f"1,000 shares {_SINGLY} vs no share", at_most=1.3),
                Target(f"1,000 shares {_ERROR}", at_most=1.01),
            ],
            clean_up=starting.pop_all().close,
        )  # fmt: skip


def _run(url: str, shares: int, waiting: int) -> Mapping[str, float]:
    client: Any = connect(url)
    client.flushall()
    client.config_set("appendonly", "no")  # to rewrite its file takes time at random
    for script in (*SCRIPTS.values(), *WORK.values()):
        client.script_load(script.source)
    work = WorkCommands("code", "bench", 3000.0, None)
    client.zadd("penstock:work:{code}:workers", {"bench": 9e15})
    client.sadd("rq:workers:code", "rq:worker:bench")
    names = [f"run{n}" for n in range(shares)] or [""]
    if shares > 1:
        QueueShares(target_of(url), "code").set_weights(weights_of(names), None)
    enqueued = _spent(client, lambda: _enqueue(client, names, waiting))
    _claim(client, work, 1, Counter())  # it was next before the other shares came
    served: Counter[str] = Counter()
    singly = _spent(client, lambda: [_claim(client, work, 1, served) for _ in range(_TURNS)])
    error = largest_error(served, weights_of(names))
    rounds = range(waiting // 2 // _CLAIMED_AT_ONCE)
    whole = _spent(client, lambda: _work(client, work, rounds))
    client.close()
    worked = len(rounds) * _CLAIMED_AT_ONCE
    return {
        _ALL: enqueued / waiting + whole / worked,
        "server us per job enqueued": enqueued / waiting,
        _SINGLY: singly / _TURNS,
        **({_ERROR: error} if shares else {}),
    }


def _enqueue(client: Any, names: list[str], waiting: int) -> None:
    """Each share its jobs, in turns, as runs beside each other do."""
    blank, each = CodeRequest(code="print(1)"), math.ceil(waiting / len(names))
    for at in range(0, each, _ENQUEUED_AT_ONCE):
        for name in names:
            orders = [
                Order(None, _HASH, f"{name or 'none'}_{n}", blank, 0.0, math.inf, name)  # type: ignore[arg-type]
                for n in range(at, min(at + _ENQUEUED_AT_ONCE, each))
            ]
            client.execute_command(*_HASH.enqueue("bench", "", orders))


def _claim(client: Any, work: WorkCommands, want: int, served: Counter[str]) -> list[Any]:
    jobs: list[Any] = client.execute_command(*work.claim(want))[4:]
    served.update(id.decode().rpartition("_")[0] for id, *_ in jobs)
    return jobs


def _work(client: Any, work: WorkCommands, rounds: range) -> None:
    """Claim, and record the ends."""
    began = f"{time.time():.6f}"
    for _ in rounds:
        jobs = _claim(client, work, _CLAIMED_AT_ONCE, Counter())
        rows = [(id, execution, "1", 600, "{}", began, "", "{}", 0) for id, execution, _ in jobs]
        client.execute_command(*work.finish(rows))


def weights_of(names: list[str]) -> dict[str, float]:
    """Some of many are heavier."""
    return {name: 3.0 if n % 10 == 0 and len(names) > 1 else 1.0 for n, name in enumerate(names)}


def largest_error(served: Mapping[str, int], weights: Mapping[str, float]) -> float:
    """By how many turns a share had more or less than its weight says."""
    turns = sum(served.values()) / sum(weights.values())
    return max(abs(served.get(name, 0) - turns * weight) for name, weight in weights.items())


def _spent(client: Any, act: Callable[[], object]) -> float:
    """Microseconds in which the server ran scripts."""
    client.config_resetstat()
    act()
    said = client.info("commandstats")
    return float(said["cmdstat_evalsha"]["usec"])
