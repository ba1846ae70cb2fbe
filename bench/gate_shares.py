"""What shares of a gate cost the server, how exact they are, and how long big permits wait.

100,000 wait for one permit: in one line, in one share, or in 1,000. The server's own microseconds
are counted, call by call and in turns. Permits with costs are served in simulated seconds: with
small ones that pass a big first one, and in exact order.
"""

import itertools
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from bench import _big_permits
from bench.gates import COSTS
from bench.gates_contenders.line import Line, cleared, in_turns
from bench.shares import largest_error, weights_of
from bench.suite import Ratio, Suite, Target
from ground import EmbeddedServer
from ground.server.binary import bundled_server

_PLAIN, _MANY = "one line", "1,000 shares"
_LINES = {_PLAIN: 0, "1 share": 1, _MANY: 1_000}
_PASS, _EXACT = "costs, small ones pass", "costs, exact order"
_PASSING = {_PASS: 4, _EXACT: 0}
_GRANTS, _LOAD = 1_000, 0.8
_ERROR = f"largest error in any {_GRANTS:,} grants"
_WAITS = ("wait", "wait and use")


def measure(quick: bool) -> Suite:
    waiting, calls, permits = (20_000, 50, 5_000) if quick else (100_000, 300, 30_000)
    with ExitStack() as starting:
        home = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
        starting.callback(shutil.rmtree, home, ignore_errors=True)
        server = starting.enter_context(EmbeddedServer(home, binary=bundled_server()))
        lines = _Lines(server.url, waiting, calls)
        return Suite(
            contenders={name: partial(lines.measured, name) for name in _LINES}
            | {
                name: partial(_serve, server.url, permits, itertools.count(), passing)
                for name, passing in _PASSING.items()
            },
            rounds=1 if quick else 3,
            conditions={
                "waiters": waiting, "units": _big_permits.UNITS, "big": _big_permits.BIG,
                "one in": _big_permits.ONE_IN, "load": _LOAD, "permits with costs": permits,
            },
            ratios=[
                Ratio(cost, name, _PLAIN) for name in _LINES if name != _PLAIN for cost in COSTS
            ] + [_big_to_small(what, name) for name in _PASSING for what in _WAITS],
            targets=[Target(Ratio(cost, _MANY, _PLAIN).name, at_most=1.3) for cost in COSTS]
            + [
                Target(f"{_MANY} {_ERROR}", at_most=1.01),
                Target(_big_to_small("wait", _PASS).name, at_most=5),
            ],
            clean_up=starting.pop_all().close,
        )  # fmt: skip


def _big_to_small(what: str, name: str) -> Ratio:
    return Ratio(f"{what} of big s, p99", name, name, f"{what} of small s, p99")


class _Lines:
    """They stand on one server and are called in turns: the first asked measures for all."""

    def __init__(self, url: str, waiting: int, calls: int) -> None:
        self._url, self._waiting, self._calls = url, waiting, calls
        self._fresh: dict[str, dict[str, float]] = {}

    def measured(self, name: str) -> Mapping[str, float]:
        if name not in self._fresh:
            redis = cleared(self._url)
            redis.config_set("appendonly", "no")  # to rewrite its file takes time at random
            lines = {one: self._line(redis, one) for one in _LINES}
            self._fresh = in_turns(lines, self._calls)
            for one, line in lines.items():
                if line.shares:
                    self._fresh[one][_ERROR] = _served_wrongly(line)
            redis.flushall()
            redis.close()
        return self._fresh.pop(name)

    def _line(self, redis: object, name: str) -> Line:
        line = Line(redis, self._waiting, name.replace(" ", "-"), shares=_LINES[name])
        if line.shares:
            line.weigh(weights_of(line.shares))
        return line


def _served_wrongly(line: Line) -> float:
    """The largest error in windows that begin at every fiftieth grant."""
    order = []
    for _ in range(2 * _GRANTS):
        line.pair()
        order.append(line.holder.rpartition(":")[2])
    weights = weights_of(line.shares)
    windows = (order[first : first + _GRANTS] for first in range(0, _GRANTS + 1, 50))
    return max(largest_error(Counter(window), weights) for window in windows)


def _serve(
    url: str, permits: int, seeds: "itertools.count[int]", passing: int
) -> Mapping[str, float]:
    redis = cleared(url)
    found = _big_permits.waits(redis, _LOAD, permits, next(seeds), passing)
    redis.close()
    return found
