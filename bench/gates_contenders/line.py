"""What one call costs the server while so many wait: `line.py URL CALLS WAITING...`.

Median microseconds by the server's own account (INFO commandstats), taken call by call, so
that one which the machine interrupted counts for no more than the others. All lengths stand
on one server and are called in turns: the same call may take twice as long a minute later.
"""

import itertools
import json
import random
import statistics
import sys
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from ground import connect
from ground.keys import tagged
from ground.lua import Command
from limiter.commands import SCRIPTS, GateCommands
from limiter.terms import Terms

HOUR = 3_600_000_000  # microseconds
CHUNK = 500


class Line:
    """A gate whose one permit is held, and those who wait for it: in order, or in turns of so many
    shares, whose names end their ids."""

    def __init__(self, redis: Any, length: int, name: str = "", *, shares: int = 0) -> None:
        self._redis = redis
        self._name = name or f"line-{length}"
        self._waiters = GateCommands(self._name, Terms(limit=1), "bench:1:waiters")
        self._holders = GateCommands(self._name, Terms(limit=1), "bench:2:holders")
        if shares:
            self._waiters.use_full()
            self._holders.use_full()
        self.shares = [f"run{n}" for n in range(shares)]
        self._turns = itertools.cycle(self.shares or [""])
        self.holder = ""
        self._waiting: list[str] = []
        self.acquire()
        while len(self._waiting) < length:
            self.acquire(min(CHUNK, length - len(self._waiting)))

    def weigh(self, weights: Mapping[str, float]) -> None:
        changes = {f"weight:{share}": str(weight) for share, weight in weights.items()}
        self._redis.execute_command(*self._holders.configure(changes))

    def go_round(self) -> dict[str, int]:
        """One call of each kind; the line is as long as before."""
        taken = {
            "acquire": self.acquire(), "cancel": self.cancel(), "pair": self.pair(),
            "release": self.release(),
        }  # fmt: skip
        self.acquire()
        return taken

    def acquire(self, count: int = 1) -> int:
        taken = self._cost(self._ask(*(self._new() for _ in range(count))))
        self._let_in()
        return taken

    def pair(self) -> int:
        """A release rides with an acquire: the next one is let in, who asks stands last."""
        taken = self._cost(self._ask(self._new(), released=[self._given_back()]))
        self._let_in()
        return taken

    def cancel(self) -> int:
        """Somebody, anywhere in the line, gives up."""
        gone = self._waiting.pop(random.randrange(len(self._waiting)))
        return self._cost(self._waiters.cancel("cancelled", [gone]))

    def release(self) -> int:
        """The permit goes to the next one."""
        taken = self._cost(self._holders.release([self._given_back()]))
        self._let_in()
        return taken

    def _new(self) -> tuple[str, str]:
        share = next(self._turns)
        return f"{uuid.uuid4().hex}:{share}", share

    def _ask(self, *asks: tuple[str, str], released: Sequence[tuple[str, int]] = ()) -> Command:
        self._waiting += [id for id, _ in asks]
        rows = [(id, f"0 {share}" if share else 0, "", HOUR) for id, share in asks]
        return self._waiters.acquire(
            rows, HOUR, join=True, released=released, shares=bool(self.shares)
        )

    def _given_back(self) -> tuple[str, int]:
        held, self.holder = self.holder, ""
        return held, int(self._redis.hget(tagged("gate", self._name), "fence"))

    def _let_in(self) -> None:
        for id in self._redis.zrange(tagged("gate", self._name, "leases"), 0, 0):
            if not self.holder:
                self.holder = id.decode()
                self._waiting.remove(self.holder)

    def _cost(self, command: Command) -> int:
        before = self._spent()
        self._redis.execute_command(*command)
        return self._spent() - before

    def _spent(self) -> int:
        stats = self._redis.info("commandstats").get("cmdstat_evalsha", {"usec": 0})
        return int(stats["usec"])


def in_turns(lines: Mapping[str, Line], calls: int) -> dict[str, dict[str, float]]:
    """The medians of each line's calls."""
    taken: dict[str, list[dict[str, int]]] = {name: [] for name in lines}
    for _ in range(calls):
        for name, line in lines.items():
            taken[name].append(line.go_round())
    return {name: _medians(costs) for name, costs in taken.items()}


def cleared(url: str) -> Any:
    """A client of an emptied server that knows the scripts."""
    redis: Any = connect(url)
    redis.flushall()
    for script in SCRIPTS.values():
        redis.script_load(script.source)
    return redis


def main() -> None:
    url, calls, *lengths = sys.argv[1:]
    redis = cleared(url)
    lines = {waiting: Line(redis, int(waiting)) for waiting in lengths}
    print(json.dumps(in_turns(lines, int(calls))))


def _medians(costs: list[dict[str, int]]) -> dict[str, float]:
    return {
        f"server µs per {call}": statistics.median(cost[call] for cost in costs)
        for call in costs[0]
    }


if __name__ == "__main__":
    main()
