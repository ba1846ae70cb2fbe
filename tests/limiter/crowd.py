"""Processes full of threads and coroutines that want permits, for chaos tests to kill.

At a gate with `bounds` their permits have costs and shares, and report nothing of its service.
"""

import asyncio
import os
import threading
import time
from collections import Counter
from pathlib import Path
from random import Random

from ground.redis import shortcut
from limiter import Adaptive, LimitTimeout, PermitLost, TokenBucket
from tests.limiter import by_shortcut
from tests.limiter.observer import seen

LEASE = 3.0


def crowd(url, gate, observer, seed, threads, end):
    """A process whose threads take permits in every way there is, until that file exists; with
    `loops` each keeps an event loop, and a shortcut, for all that time."""
    if gate.get("loops"):
        shortcut.WORTH_IT = 1
    dice = Random(seed)
    door = a_door(url, gate)
    counts, failures = Counter(), []

    def guard(member, dice):
        try:
            if gate.get("loops"):
                asyncio.run(time_and_again(door, observer, dice, counts, end))
            while not Path(end).exists():
                member(door, observer, dice, counts)
        except BaseException as failure:
            failures.append(repr(failure))
            raise

    members = [
        threading.Thread(
            target=guard, args=[coroutine if n % 4 == 0 else thread, Random(dice.random())]
        )
        for n in range(threads)
    ]
    for one in members:
        one.start()
    for one in members:
        one.join()
    return {"failures": failures, **counts}


def a_door(url, gate):
    terms = {"limit": Adaptive(*gate["bounds"])} if "bounds" in gate else gate["terms"]
    return TokenBucket(url, gate["name"], **terms, lease=LEASE)


def wish(gate, dice):
    """What a permit costs, and on whose account; of a plain gate, none of these."""
    if not isinstance(gate.terms.limit, Adaptive):
        return {}
    return {"cost": dice.randint(1, 4), "share": dice.choice(["", "a", "b"])}


def thread(gate, observer, dice, counts):
    """One permit in a thread, half of the time with a timeout that is often too short."""
    asked_at, wanted = time.time(), wish(gate, dice)
    try:
        permit = gate.sync.acquire(timeout=dice.choice([None, dice.uniform(0, 0.1)]), **wanted)
    except LimitTimeout:
        counts["timeouts"] += 1
        return
    with seen(observer, permit, asked_at=asked_at, **wanted):
        time.sleep(dice.expovariate(50))
    if wanted:
        permit.unreported()
    if dice.random() < 0.8:
        permit.release()
    counts["held"] += 1


def coroutine(gate, observer, dice, counts):
    """Some coroutines at once, each cancelled if it is not done after a random time."""
    asyncio.run(cancelled_at_random(gate, observer, dice, counts))


async def time_and_again(gate, observer, dice, counts, end):
    while not Path(end).exists():
        await cancelled_at_random(gate, observer, dice, counts)
        await asyncio.sleep(dice.expovariate(100))
        counts["direct"] += by_shortcut.takes_it(gate)


async def cancelled_at_random(gate, observer, dice, counts):
    async def hold():
        asked_at, wanted = time.time(), wish(gate, dice)
        async with gate.hold(**wanted) as permit:
            if wanted:
                permit.unreported()
            with seen(observer, permit, asked_at=asked_at, **wanted):
                await asyncio.sleep(dice.expovariate(50))
        counts["held"] += 1

    tasks = [asyncio.create_task(hold()) for _ in range(3)]
    for task in tasks:
        await asyncio.wait([task], timeout=dice.uniform(0, 0.1))
        counts["cancelled"] += task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if outcome and not isinstance(outcome, asyncio.CancelledError | PermitLost):
            raise outcome


def in_line(url, name, observer, number):
    """Threads that all wait in line, among those of other processes."""
    gate = TokenBucket(url, name, limit=1, lease=60)

    def wait():
        with gate.hold() as permit, seen(observer, permit, id=permit.id, pid=os.getpid()):
            pass

    threads = [threading.Thread(target=wait) for _ in range(number)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
