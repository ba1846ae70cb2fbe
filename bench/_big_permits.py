"""A gate of 100 units under load, in simulated seconds on the real scripts: who waits how long.

Permits come at random and are held for a second on average. One in fifty takes 60 units, the others
one. No script of such a gate looks at the clock, so nothing waits for real seconds.
"""

import heapq
import random
import statistics
from collections.abc import Iterator
from typing import Any

from ground.lua import Command
from limiter.commands import GateCommands
from limiter.terms import Terms

UNITS, BIG, ONE_IN = 100, 60, 50
DAY = 86_400_000_000  # microseconds
_MEAN = (BIG + ONE_IN - 1) / ONE_IN


def waits(redis: Any, load: float, permits: int, seed: int, passing: int) -> dict[str, float]:
    """Percentiles of the seconds that small and big ones wait, and until they are given back."""
    world = _World(redis, random.Random(seed), passing)
    world.run(load * UNITS / _MEAN, permits)
    return {
        f"{what} of {kind} s, p99": _p99([each for id, each in seconds.items() if fits(id)])
        for what, seconds in (("wait", world.waited), ("wait and use", world.taken))
        for kind, fits in (("small", world.is_small), ("big", world.is_big))
    } | {"units in use %": 100 * world.used / world.now / UNITS}


def _p99(seconds: list[float]) -> float:
    return statistics.quantiles(seconds, n=100)[-1]


class _World:
    def __init__(self, redis: Any, chance: random.Random, passing: int) -> None:
        self._redis, self._chance = redis, chance
        self._commands = GateCommands(f"big-{passing}", Terms(limit=UNITS), "bench:1:all")
        self._call(self._commands.configure({"passing": str(passing), "weighs": "1"}))
        self._came: dict[str, float] = {}
        self._ends: list[tuple[float, str, int]] = []
        self._costs: dict[str, int] = {}
        self.waited: dict[str, float] = {}
        self.taken: dict[str, float] = {}
        self.now = self.used = 0.0

    def is_big(self, id: str) -> bool:
        return self._costs[id] > 1

    def is_small(self, id: str) -> bool:
        return not self.is_big(id)

    def run(self, rate: float, permits: int) -> None:
        for n, comes in enumerate(self._arrivals(rate, permits)):
            while self._ends and self._ends[0][0] <= comes:
                self._end_one()
            self.now = comes
            self._come(f"{n}", BIG if self._chance.random() * ONE_IN < 1 else 1)
        while self._ends:
            self._end_one()

    def _arrivals(self, rate: float, permits: int) -> Iterator[float]:
        at = 0.0
        for _ in range(permits):
            at += self._chance.expovariate(rate)
            yield at

    def _come(self, id: str, cost: int) -> None:
        self._came[id], self._costs[id] = self.now, cost
        asks = [(id, 0, "", f"{DAY} {cost}")]
        fence = self._call(self._commands.acquire(asks, DAY, join=True, weighs=True))[7]
        if int(fence) > 0:
            self._grant(id, int(fence))

    def _end_one(self) -> None:
        self.now, id, fence = heapq.heappop(self._ends)
        self._call(self._commands.release([(id, fence)]))

    def _call(self, command: Command) -> list[Any]:
        """Its grants are all of this one process."""
        reply: list[Any] = self._redis.execute_command(*command)
        words = reply[2].decode().split()
        for id, fence in zip(words[::2], words[1::2], strict=True):
            self._grant(id, int(fence))
        return reply

    def _grant(self, id: str, fence: int) -> None:
        self.waited[id] = self.now - self._came.pop(id)
        held = self._chance.expovariate(1)
        self.taken[id] = self.waited[id] + held
        self.used += held * self._costs[id]
        heapq.heappush(self._ends, (self.now + held, id, fence))
