"""Grants over any window of t seconds: at most burst + rate * t, by the server's own record."""

import asyncio
import math
from concurrent.futures import ThreadPoolExecutor

from limiter import TokenBucket
from tests.harness import killing

RATE, BURST = 100.0, 5


def assert_paced(fences: list[int], rate: float, burst: int) -> None:
    """A fence is the server's time of the grant in microseconds (or the last one plus 1)."""
    fences = sorted(fences)
    for first, start in enumerate(fences):
        for granted, end in enumerate(fences[first:], 1):
            # Those of one burst are a microsecond apart, though granted at one time.
            assert granted <= burst + rate * (end - start + burst) / 1e6 + 1e-6


async def test_over_any_window_no_more_is_granted_than_the_rate_allows(redis):
    gate = TokenBucket(redis, "g", rate=RATE, burst=BURST)
    fences = []

    async def one():
        async with gate as permit:
            fences.append(permit.fence)

    await asyncio.gather(*(one() for _ in range(30)))
    await asyncio.sleep(0.1)  # a burst is earned
    await asyncio.gather(*(one() for _ in range(15)))
    assert len(fences) == 45
    assert_paced(fences, RATE, BURST)


def test_threads_are_paced_too(redis):
    gate = TokenBucket(redis, "g", limit=3, rate=RATE, burst=BURST)

    def one(_: int) -> int:
        with gate as permit:
            return permit.fence

    with ThreadPoolExecutor(16) as pool:
        assert_paced(list(pool.map(one, range(32))), RATE, BURST)


async def test_a_new_bucket_starts_empty(redis):
    gate = TokenBucket(redis, "g", rate=2.0, burst=100)
    wait = await gate.try_acquire()
    assert not wait
    assert 0 < wait <= 0.5
    status = await gate.status()
    assert status.granted == 0
    assert status.tokens is not None
    assert status.tokens < 1


async def test_a_token_is_spent_at_the_grant_and_not_given_back(redis):
    gate = TokenBucket(redis, "g", rate=0.01, burst=1)
    await gate.status()
    redis.hset("penstock:gate:{g}", "tokens", "1")
    (await gate.acquire(timeout=100)).release()
    wait = await gate.try_acquire()
    assert not wait
    assert 90 < wait < math.inf


async def test_a_raised_rate_lets_waiters_in_sooner(redis):
    gate = TokenBucket(redis, "g", rate=0.001, burst=1)
    waiting = asyncio.create_task(gate.acquire())
    while (await gate.status()).waiting != 1:  # noqa: ASYNC110
        await asyncio.sleep(0.002)
    await gate.configure(rate=1000.0, burst=20)
    async with asyncio.timeout(100):
        assert await waiting


def takes_many(url: str, number: int) -> list[int]:
    gate = TokenBucket(url, "g", rate=RATE, burst=BURST, lease=60)

    def one(_: int) -> int:
        with gate.hold(timeout=100) as permit:
            return permit.fence

    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(one, range(number)))


def test_two_processes_at_a_paced_gate_both_get_on(private_redis):
    """The head of the line, in one process, may be the one that the other waits behind."""
    server = private_redis(aof=False)
    with (
        killing.Child(takes_many, server.url, 40) as one,
        killing.Child(takes_many, server.url, 40) as other,
    ):
        fences = one.outcome().returned + other.outcome().returned
    assert len(set(fences)) == 80
    assert_paced(fences, RATE, BURST)
