"""Many processes, killed at random: never above the limit, and nobody waits in vain.

What is asserted comes from the observer, not from the gate's own counters.
"""

import bisect
import contextlib
import os
import secrets
import time
from collections import Counter
from random import Random

import pytest

import ground
from limiter import Adaptive, TokenBucket
from tests.harness import killing
from tests.harness.servers import until
from tests.limiter.crowd import LEASE, crowd, in_line
from tests.limiter.observer import Observer


@pytest.fixture
def observer(tmp_path):
    with Observer(tmp_path) as observer:
        yield observer


@pytest.fixture(params=["one server", "a cluster"])
def place_of(request, real_redis, shared_server):
    """Where a gate is: a client of the server that has it, and the URL of the whole."""
    if request.param == "one server":
        return lambda name: (real_redis, shared_server.url)
    cluster = request.getfixturevalue("redis_cluster")

    def found(name):
        node = ground.connect(cluster.node_of(f"penstock:gate:{{{name}}}").url)
        request.addfinalizer(node.close)
        return node, cluster.url

    return found


@pytest.fixture
def dice():
    seed = int(os.environ.get("PENSTOCK_TEST_SEED") or secrets.randbelow(2**32))
    print(f"PENSTOCK_TEST_SEED={seed} repeats these dice")  # shown when the test fails
    return Random(seed)


class Processes:
    """As many as asked for; those killed are replaced."""

    def __init__(self, dice, *arguments, number, threads, end):
        self._dice = dice
        self._arguments = arguments
        self._end = end
        self._threads = threads
        self._living = [self._start() for _ in range(number)]
        self.killed = 0

    def kill_one(self):
        n = self._dice.randrange(len(self._living))
        self._living[n].__exit__(None, None, None)
        self._living[n] = self._start()
        self.killed += 1

    def outcome(self):
        """Let them come to an end: what those that lived to see it have counted."""
        self._end.touch()
        counts = Counter()
        for child in self._living:
            with child:
                outcome = child.outcome(within=250)
            assert not outcome.killed
            assert outcome.returned.pop("failures") == []
            counts.update(outcome.returned)
        return counts

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for child in self._living:
            child.kill()

    def _start(self):
        seed = self._dice.randrange(2**32)
        return killing.Child(crowd, *self._arguments, seed, self._threads, str(self._end))


class Limits:
    """The limit over the server's time, as the one who changes it knows it."""

    def __init__(self, server, gate, first):
        self._server, self._gate = server, gate
        self._since, self._bounds = [0], [first]
        self.now = first
        self.raised = self.lowered = 0

    def set(self, limit):
        self._bound(max(self.now, limit))  # until it has happened, it may be either
        self._gate.sync.configure(limit=limit)
        self._bound(limit)
        self.raised, self.lowered = (
            self.raised + (limit > self.now),
            self.lowered + (limit < self.now),
        )
        self.now = limit

    def at(self, fence):
        """The highest limit that may have been in force as a permit was granted."""
        return self._bounds[bisect.bisect_right(self._since, fence) - 1]

    def _bound(self, limit):
        seconds, micros = self._server.time()
        self._since.append(seconds * 1_000_000 + micros)
        self._bounds.append(limit)


def a_crowd_at_a_gate(server, url, observer, dice, end, *, seconds, loops=0):
    """The story of this file: kills and new limits at random, then a look at what was seen."""
    gate = TokenBucket(url, "chaos", limit=8, lease=LEASE)
    limits = Limits(server, gate, first=8)
    terms = {"name": "chaos", "terms": {"limit": 8}, "loops": loops}
    number, threads = (4, loops) if loops else (8, 16)
    with Processes(
        dice, url, terms, observer.address, number=number, threads=threads, end=end
    ) as processes:
        observer.wait_until(lambda seen: len(seen.arrivals) > 20)
        over = time.monotonic() + seconds
        while (
            time.monotonic() < over
            or len(observer.arrivals) < 100
            or not (processes.killed and limits.raised and limits.lowered)
        ):
            time.sleep(dice.uniform(0.1, 0.6))  # how often something happens, not a wait for it
            if dice.random() < 0.5:
                processes.kill_one()
                nothing_outlives_its_lease(server)
            else:
                limits.set(dice.randint(4, 12))
        counts = processes.outcome()
    observer.wait_until(lambda seen: not seen.present)
    print(dict(counts), "killed:", processes.killed, "seen:", len(observer.arrivals))
    above = [
        crowd
        for crowd in observer.crowds
        if sum(not excused(one) for one in crowd.holders) > limits.at(crowd.newest_fence)
    ]
    assert not above
    assert not [one for one in observer.arrivals if one.get("lost") and not overdue(one)]
    ways = ("direct",) if loops else ("timeouts", "cancelled")
    assert min(counts[way] for way in ways) > 0
    every_permit_is_there(gate, limits.now)


def overdue(holder):
    """Whether its lease may have ended while it held: nobody renews on a machine that starves."""
    return holder["left_at"] - holder["asked_at"] >= LEASE * 5 / 6


def excused(holder):
    """Its permit may be another's already: it was told, or killed before it could be."""
    return overdue(holder) and holder.get("lost", True)


def nothing_outlives_its_lease(server):
    """Whatever the dead have held ends a lease from now at the latest, as the server has it."""
    leases = server.zrange("penstock:gate:{chaos}:leases", 0, -1, withscores=True)
    seconds, micros = server.time()
    assert max((end for _, end in leases), default=0) <= (seconds + LEASE) * 1_000_000 + micros


def every_permit_is_there(gate, limit):
    """What the killed have held comes back as their leases end."""
    permits = [gate.sync.acquire(timeout=LEASE + 100) for _ in range(limit)]
    status = gate.sync.status()
    assert (status.in_flight, status.waiting) == (limit, 0)
    for permit in permits:
        permit.release()
    assert gate.sync.status().in_flight == 0


def test_the_limit_holds_over_kills_cancellations_and_new_limits(
    place_of, observer, dice, tmp_path
):
    a_crowd_at_a_gate(*place_of("chaos"), observer, dice, tmp_path / "end", seconds=4)


def test_the_limit_holds_for_event_loops_that_take_their_shortcuts(
    real_redis, shared_server, observer, dice, tmp_path
):
    end = tmp_path / "end"
    a_crowd_at_a_gate(real_redis, shared_server.url, observer, dice, end, seconds=3, loops=2)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_the_limit_holds_for_ten_minutes(real_redis, shared_server, observer, dice, tmp_path):
    a_crowd_at_a_gate(real_redis, shared_server.url, observer, dice, tmp_path / "end", seconds=600)


def test_kills_move_no_limit_and_leak_no_cost(place_of, observer, dice, tmp_path):
    """No holder reports anything, so what moved the limit would be a kill."""
    server, url = place_of("weighed")
    gate = TokenBucket(url, "weighed", limit=Adaptive(start=8, min=4, max=12), lease=LEASE)
    terms = {"name": "weighed", "bounds": [8, 4, 12]}
    with Processes(
        dice, url, terms, observer.address, number=4, threads=12, end=tmp_path / "end"
    ) as processes:
        for n in range(1, 6):
            observer.wait_until(lambda seen, n=n: len(seen.arrivals) > n * 30)
            processes.kill_one()
        processes.outcome()
    observer.wait_until(lambda seen: not seen.present)
    for seen in observer.crowds:
        assert sum(one["cost"] for one in seen.holders if not excused(one)) <= 8
    status = gate.sync.status()
    assert (status.limit, status.adaptive.cuts, status.adaptive.raises) == (8, 0, 0)
    every_permit_is_there(gate, 8)
    assert gate.sync.status().cost == 0
    left = {key.decode().rpartition("}:")[2] for key in server.keys("penstock:gate:{weighed}:*")}
    assert left.isdisjoint({"costs", "order", "shares:0", "idle:0", "queue", "waiters", "leases"})


def test_the_rate_holds_over_every_window_and_process(
    real_redis, shared_server, observer, dice, tmp_path
):
    rate, burst = 100.0, 10
    gate = {"name": "rate", "terms": {"rate": rate, "burst": burst}}
    with Processes(
        dice, shared_server.url, gate, observer.address, number=3, threads=8, end=tmp_path / "end"
    ) as processes:
        for n in range(1, 4):
            observer.wait_until(lambda seen, n=n: len(seen.arrivals) > n * 50)
            processes.kill_one()
        processes.outcome()
    # A fence is the server's time of the grant, in microseconds; the witness confirms it.
    for holder in observer.arrivals:
        assert holder["asked_at"] * 1e6 - 2 <= holder["fence"] <= holder["seen_at"] * 1e6 + 2
    grants = sorted(holder["fence"] for holder in observer.arrivals)
    # grants in a window <= burst + rate * its length, over all windows in one pass.
    lowest = float("inf")
    for n, at in enumerate(grants):
        seconds = (at - grants[0]) / 1e6
        lowest = min(lowest, n - rate * seconds)
        assert n + 1 - rate * seconds - lowest <= burst + 0.01


def test_grants_come_in_the_order_of_the_line_over_all_processes(place_of, observer):
    server, url = place_of("fifo")
    gate = TokenBucket(url, "fifo", limit=1, lease=60)
    permit = gate.sync.acquire()
    with contextlib.ExitStack() as children:
        for _ in range(4):
            child = killing.Child(in_line, url, "fifo", observer.address, 25)
            children.enter_context(child)
        until(lambda: gate.sync.status().waiting == 100, "all to be in line")
        line = server.zrange("penstock:gate:{fifo}:queue", 0, -1)
        permit.release()
        observer.wait_until(lambda seen: len(seen.arrivals) == 100)
    assert [holder["id"].encode() for holder in observer.arrivals] == line
    assert len({holder["pid"] for holder in observer.arrivals}) == 4
    fences = [holder["fence"] for holder in observer.arrivals]
    assert fences == sorted(set(fences))
    assert max(crowd.size for crowd in observer.crowds) == 1
