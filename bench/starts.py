"""1,000 sandboxes started at once: no cap, a share for each worker, or one gate for the fleet.

The provider is simulated: a cold start is lognormal, and the more are starting, the slower
each goes, as in a pipeline that is shared. A start that is not ready in 300 s has failed, and
is tried once more; those are uni-agent's figures. One simulated second takes 20 ms. The gate is
Penstock as it is, on a real server; the share is a semaphore in each worker, as upstream's.
"""

import asyncio
import contextlib
import heapq
import itertools
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from bench.suite import Ratio, Suite, Target
from ground import EmbeddedServer
from ground.server.binary import bundled_server
from limiter import StartingGate

STARTS, CAP, WORKERS = 1000, 128, 8
SECOND = 0.02
TIMEOUT, ATTEMPTS = 300.0, 2
MEDIAN, SIGMA = 12.0, 0.5  # seconds of a cold start that has the pipeline for itself
EVEN = [STARTS // WORKERS] * WORKERS
UNEVEN = [500, 200, 100, 80, 50, 30, 20, 20]

Permit = Callable[[], AbstractAsyncContextManager[object]]


def measure(quick: bool) -> Suite:
    home = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    server = EmbeddedServer(home, binary=bundled_server())
    runs = itertools.count()

    def gates(workers: int) -> list[Permit]:
        name = f"starts-{next(runs)}"
        return [StartingGate(server.target, name, limit=CAP).hold for _ in range(workers)]

    def end() -> None:
        server.stop()
        shutil.rmtree(home)

    ways: Mapping[str, Callable[[int], list[Permit]]] = {
        "no cap": lambda workers: [contextlib.nullcontext] * workers,
        "share a worker": lambda workers: [_share(CAP // workers) for _ in range(workers)],
        "fleet gate": gates,
    }
    loads = {"even": EVEN, "uneven": UNEVEN}
    contenders = {
        f"{way}, {load}": lambda make=make, counts=counts: asyncio.run(_run(make, counts))
        for load, counts in loads.items()
        for way, make in ways.items()
    }
    return Suite(
        contenders=contenders,
        rounds=1 if quick else 3,
        conditions={
            "starts": STARTS, "cap": CAP, "workers": WORKERS, "uneven": UNEVEN,
            "one simulated second": SECOND,
        },
        ratios=[
            Ratio("simulated s", f"fleet gate, {load}", f"share a worker, {load}")
            for load in loads
        ],
        targets=[
            Target("fleet gate, even ok %", at_least=100),
            Target("fleet gate, uneven ok %", at_least=100),
            Target("fleet gate, even peak", at_most=CAP),
            Target("fleet gate, uneven peak", at_most=CAP),
            Target("fleet gate, uneven simulated s vs share a worker, uneven", at_most=0.7),
        ],
        clean_up=end,
    )  # fmt: skip


def _share(size: int) -> Permit:
    semaphore = asyncio.Semaphore(size)

    @contextlib.asynccontextmanager
    async def permit():  # type: ignore[no-untyped-def]
        async with semaphore:
            yield

    return permit


async def _run(make: Callable[[int], list[Permit]], counts: list[int]) -> dict[str, float]:
    pipeline, draw = Pipeline(), random.Random(1)
    permits, began = make(len(counts)), time.monotonic()
    works = [
        _start(pipeline, permit, draw.lognormvariate(0, SIGMA) * MEDIAN)
        for permit, count in zip(permits, counts, strict=True)
        for _ in range(count)
    ]
    done = await asyncio.gather(*works)
    return {
        "ok %": 100 * sum(done) / len(done),
        "simulated s": (time.monotonic() - began) / SECOND,
        "peak": pipeline.peak,
    }


async def _start(pipeline: "Pipeline", permit: Permit, work: float) -> bool:
    for _ in range(ATTEMPTS):
        async with permit():
            try:
                async with asyncio.timeout(TIMEOUT * SECOND):
                    await pipeline.start(work)
                    return True
            except TimeoutError:
                continue
    return False


class Pipeline:
    """All that start share it: each goes at 1 / (1 + (starting / 128)²) of its speed alone."""

    def __init__(self) -> None:
        self.starting = self.peak = 0
        self._done, self._at = 0.0, time.monotonic()  # work that one start has had, and until when
        self._ends: list[tuple[float, int, asyncio.Event]] = []
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None

    async def start(self, work: float) -> None:
        self._enter(1)
        ready = asyncio.Event()
        heapq.heappush(self._ends, (self._done + work, next(self._numbers), ready))
        self._arm()
        try:
            await ready.wait()
        finally:
            self._enter(-1)
            self._arm()

    def _enter(self, by: int) -> None:
        now = time.monotonic()
        self._done += (now - self._at) / SECOND * self._speed()
        self._at = now
        self.starting += by
        self.peak = max(self.peak, self.starting)

    def _speed(self) -> float:
        return 1 / (1 + (self.starting / CAP) ** 2)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._ends:
            left = (self._ends[0][0] - self._done) / self._speed() * SECOND
            self._timer = asyncio.get_running_loop().call_later(max(0.0, left), self._ring)

    def _ring(self) -> None:
        self._enter(0)
        while self._ends and self._ends[0][0] <= self._done + 1e-9:
            heapq.heappop(self._ends)[2].set()
        self._arm()
