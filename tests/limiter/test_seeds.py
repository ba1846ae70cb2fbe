"""What verl's rate limiter and uni-agent's semaphore promised, and tested, held by our gates."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import ground
from limiter import StartingGate, TokenBucket
from tests.harness import killing
from tests.limiter.in_flight import Observer, settled_sync

ROUND = 0.1


def test_six_jobs_at_a_limit_of_three_take_two_rounds_and_keep_their_order(redis):
    gate, observer = TokenBucket(redis, "g", limit=3), Observer()
    rounds: list[None] = []
    all_inside = threading.Barrier(3, action=lambda: rounds.append(None), timeout=100)

    def seen(number: int) -> int:
        with observer:
            all_inside.wait()
            return slow_square(number)

    began = time.monotonic()
    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(gate.limited(seen), range(6)))
    took = time.monotonic() - began
    assert results == [0, 1, 4, 9, 16, 25]
    assert took >= 2 * ROUND
    assert len(rounds) == 2
    assert observer.peak == 3


def slow_square(number: int) -> int:
    time.sleep(ROUND)  # a round of the seed's own
    return number * number


def test_a_job_that_fails_leaves_the_gate_to_the_other_nineteen(redis):
    gate = TokenBucket(redis, "g", limit=3)

    @gate.limited
    def job(number: int) -> int:
        if number == 7:
            raise ValueError("rotten")
        return number

    with ThreadPoolExecutor(10) as pool:
        futures = [pool.submit(job, number) for number in range(20)]
    outcomes = [future.exception() or future.result() for future in futures]
    assert [o for o in outcomes if isinstance(o, int)] == [n for n in range(20) if n != 7]
    settled_sync(gate, in_flight=0, waiting=0)


def works_at_a_shared_gate(url: str, jobs: int) -> int:
    """A process: as many threads as jobs, each of which says on the server that it is inside."""
    gate, server = TokenBucket(url, "shared", limit=6), ground.connect(url)
    inside: Any = server.register_script(
        "local n = redis.call('INCR', 'inside')"
        " if n > tonumber(redis.call('GET', 'peak') or 0) then redis.call('SET', 'peak', n) end"
    )

    def job(_: int) -> None:
        with gate.hold(timeout=100):
            inside()
            time.sleep(0.01)  # others come meanwhile
            server.decr("inside")

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(job, range(jobs)))
    return jobs


def test_two_processes_share_one_limit(private_redis):
    server = private_redis(aof=False)
    with (
        killing.Child(works_at_a_shared_gate, server.url, 20) as one,
        killing.Child(works_at_a_shared_gate, server.url, 20) as other,
    ):
        assert [one.outcome().returned, other.outcome().returned] == [20, 20]
    assert int(server.ask("GET", "peak")) == 6
    assert server.ask("ZCARD", "penstock:gate:{shared}:leases") == 0


@pytest.mark.parametrize("workers", [1, 5, 40])
async def test_the_cap_is_exact_whatever_the_number_of_workers(redis, workers):
    gate, observer = StartingGate(redis, limit=4), Observer()

    async def worker():
        async with gate:
            with observer:
                await asyncio.sleep(0.005)  # others come meanwhile

    await asyncio.gather(*(worker() for _ in range(workers)))
    assert observer.peak == min(4, workers)


async def test_gates_of_one_name_are_one_gate(redis):
    one, other = StartingGate(redis, limit=2), StartingGate(redis, limit=2)
    permits = [await one.acquire(), await other.acquire()]
    assert not await one.try_acquire()
    assert not await other.try_acquire()
    permits.pop().release()
    assert await other.try_acquire()


async def test_gates_of_two_runs_do_not_meet(redis):
    one, other = (StartingGate(redis, limit=1, run=run) for run in ("a", "b"))
    async with one, other:
        assert (await one.status()).in_flight == (await other.status()).in_flight == 1


async def test_a_start_that_fails_gives_its_permit_back(redis):
    gate = StartingGate(redis, limit=1)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="no image"):
            async with gate.hold(timeout=100):
                raise RuntimeError("no image")
    assert (await gate.status()).in_flight == 0
