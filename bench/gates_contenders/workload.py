"""What every limiter is put through: the same for all, on the standard library alone.

A contender is a program beside this file, run in the environment of its packages as
`program ADDRESS SECONDS HAND_OVERS PART...`; its last line on stdout is its metrics.
"""

import asyncio
import json
import multiprocessing
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

AMPLE = 1024  # permits where nobody is to wait
PROCESSES, THREADS, LIMIT, ROUNDS, HOLD = 8, 16, 16, 5, 0.02  # of the fleet
FORK = multiprocessing.get_context("fork")


class Limiter(Protocol):
    """What a contender's program gives for an address, a name and a limit."""

    def acquire(self) -> Any:
        """Block this thread until there is a permit."""

    def release(self, held: Any) -> None: ...

    async def pair(self) -> None:
        """Take a permit and give it back, in a coroutine."""


Make = Callable[[str, str, int], Limiter]
Metrics = dict[str, float]


def main(make: Make) -> None:
    """Run the parts that are named, those that fork first."""
    address, seconds, hand_overs, *parts = sys.argv[1:]
    metrics: Metrics = {}
    if "fleet" in parts:
        metrics |= fleet(make, address)
    if "hand-over" in parts:
        metrics |= between_processes(make, address, int(hand_overs))
    if "pairs" in parts:
        metrics |= pairs(new_limiters(make, address), float(seconds))
    if "alone" in parts:
        limiter = make(address, new_name(), AMPLE)
        for _ in range(200):
            limiter.release(limiter.acquire())
    print(json.dumps(metrics))


def new_name() -> str:
    return f"bench-{random.randrange(1 << 60):x}"


# Pairs of acquire and release a second


def new_limiters(make: Make, address: str) -> dict[int, Limiter]:
    return {limit: make(address, new_name(), limit) for limit in (AMPLE, 4, 16)}


def pairs(limiters: dict[int, Limiter], seconds: float) -> Metrics:
    metrics = asyncio.run(_pairs_of_tasks(limiters, seconds))
    return metrics | {"pairs/s, 32 threads": rate_of_threads(limiters[AMPLE], 32, seconds)}


async def _pairs_of_tasks(limiters: dict[int, Limiter], seconds: float) -> Metrics:
    return {
        "pairs/s, 1 task": await _rate_of_tasks(limiters[AMPLE], 1, seconds),
        "pairs/s, 32 tasks": await _rate_of_tasks(limiters[AMPLE], 32, seconds),
        "pairs/s, 256 tasks": await _rate_of_tasks(limiters[AMPLE], 256, seconds),
        "pairs/s, 32 tasks at 4 permits": await _rate_of_tasks(limiters[4], 32, seconds),
        "pairs/s, 256 tasks at 16 permits": await _rate_of_tasks(limiters[16], 256, seconds),
    }


async def _rate_of_tasks(limiter: Limiter, tasks: int, seconds: float) -> float:
    done, stopping = 0, False

    async def play() -> None:
        nonlocal done
        while not stopping:
            await limiter.pair()
            done += 1

    await limiter.pair()  # whatever starts at the first call has started
    players = [asyncio.create_task(play()) for _ in range(tasks)]
    await asyncio.sleep(seconds / 4)
    before, began = done, time.monotonic()
    await asyncio.sleep(seconds)
    rate = (done - before) / (time.monotonic() - began)
    stopping = True
    await asyncio.gather(*players)
    return rate


def rate_of_threads(limiter: Limiter, threads: int, seconds: float) -> float:
    done, stopping = [0] * threads, threading.Event()

    def play(number: int) -> None:
        while not stopping.is_set():
            limiter.release(limiter.acquire())
            done[number] += 1

    limiter.release(limiter.acquire())
    players = [threading.Thread(target=play, args=(number,)) for number in range(threads)]
    for player in players:
        player.start()
    time.sleep(seconds / 4)
    before, began = sum(done), time.monotonic()
    time.sleep(seconds)
    rate = (sum(done) - before) / (time.monotonic() - began)
    stopping.set()
    for player in players:
        player.join()
    return rate


# From one process's release to another's return


def between_processes(make: Make, address: str, times: int) -> Metrics:
    """Also how long all of it took, and both processes' share of a processor's time."""
    name = new_name()
    here, there = FORK.Pipe()

    def wait_in_turn() -> None:
        limiter = make(address, name, 1)
        while there.recv():
            there.send(await_turn(limiter))
        there.send(time.process_time())

    waiter = FORK.Process(target=wait_in_turn)
    waiter.start()
    limiter = make(address, name, 1)
    began, spent = time.monotonic(), time.process_time()
    metrics = hand_overs(limiter, lambda: here.send(True), here.recv, times)
    here.send(False)
    spent = time.process_time() - spent + here.recv()
    waiter.join()
    return metrics | {"hand-over s": time.monotonic() - began, "hand-over clients' s": spent}


def await_turn(limiter: Limiter) -> float:
    """When the permit had come; given back at once."""
    held = limiter.acquire()
    came = time.monotonic()
    limiter.release(held)
    return came


def hand_overs(
    limiter: Limiter, send_waiter: Callable[[], object], came: Callable[[], float], times: int
) -> Metrics:
    """Hold the only permit until the other process has stood in line for a random while."""
    taken = []
    for _ in range(times + 3):
        held = limiter.acquire()
        send_waiter()
        time.sleep(random.uniform(0.02, 0.12))
        began = time.monotonic()
        limiter.release(held)
        taken.append((came() - began) * 1000)
    cuts = statistics.quantiles(taken[3:], n=100, method="inclusive")
    return {"hand-over ms, p50": cuts[49], "hand-over ms, p99": cuts[98]}


# Many processes at once


def fleet(make: Make, address: str) -> Metrics:
    """Seconds until all have had all their permits; 0.80 is ideal."""
    name = new_name()
    ready = FORK.Barrier(PROCESSES + 1)

    def member() -> None:
        limiter = make(address, name, LIMIT)
        limiter.release(limiter.acquire())
        ready.wait()
        play_rounds(limiter)
        ready.wait()

    members = [FORK.Process(target=member) for _ in range(PROCESSES)]
    for process in members:
        process.start()
    ready.wait()
    began = time.monotonic()
    ready.wait()
    taken = time.monotonic() - began
    for process in members:
        process.join()
    return {"8 x 16 threads, s": taken}


def play_rounds(limiter: Limiter) -> None:
    def play() -> None:
        for _ in range(ROUNDS):
            held = limiter.acquire()
            time.sleep(HOLD)
            limiter.release(held)

    players = [threading.Thread(target=play) for _ in range(THREADS)]
    for player in players:
        player.start()
    for player in players:
        player.join()
