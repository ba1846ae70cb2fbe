"""What happens in processes that tests kill and freeze; they start sooner without pytest."""

import asyncio
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ground import timers
from ground.redis import engine, shortcut, unit
from limiter import PermitLost, TokenBucket, client, exchange, gate, ledger, token_bucket
from limiter import engine as gate_engine
from tests.harness import doomed
from tests.harness.interrupting import Interrupts
from tests.limiter.by_shortcut import on_its_shortcut
from tests.limiter.in_flight import settled_sync


def holds(url: str, name: str, lease: float, how: str) -> str:
    """Take the gate's permit and end, or not."""
    permit = TokenBucket(url, name, limit=1, lease=lease).sync.acquire()
    doomed.reached("holding")
    if how == "returns":
        return "with the permit in hand"
    if how == "os._exit":
        os._exit(0)
    try:
        while True:
            permit.check()
            time.sleep(0.01)
    except PermitLost:
        return "lost"


kept: list[Any] = []


def ends_well(url: str, name: str) -> None:
    """Return with a permit in hand, a pool of threads at rest, and one that asks for more."""
    gate = TokenBucket(url, name, limit=2, lease=600)
    pool, returned = ThreadPoolExecutor(1), threading.Event()
    kept.extend((pool, gate.sync.acquire()))
    threading._register_atexit(returned.set)  # as it begins to wait for its threads

    def ask_late() -> None:
        returned.wait()
        kept.append(gate.sync.acquire())

    pool.submit(threading.Thread(target=ask_late).start).result()


def waits(url: str, name: str, lease: float) -> bool:
    gate = TokenBucket(url, name, limit=1, lease=lease)
    doomed.reached("asking")
    permit = gate.sync.acquire()
    doomed.reached("holding")
    permit.release()
    return permit.lost


def many_wait(url: str, name: str, lease: float, number: int) -> None:
    async def all_of_them() -> None:
        gate: Any = TokenBucket(url, name, limit=1, lease=lease)
        await asyncio.gather(*(gate.acquire() for _ in range(number)))

    asyncio.run(all_of_them())


def is_interrupted_at_every_statement_of_a_shortcut(url: str) -> None:
    """As a loop takes it: who waits is served all the same, and every permit comes back."""
    interrupts = Interrupts(
        timers, unit, shortcut, engine, ledger, exchange, gate_engine, client, gate, token_bucket
    )
    shortcut.WORTH_IT, shortcut.LATE, ledger.LATE = 1, 0.05, 0.05
    bucket = token_bucket.TokenBucket(url, "interrupted", limit=2, lease=0.6)

    async def pair() -> None:
        async with bucket.hold(timeout=100):
            await asyncio.sleep(0)

    async def pairs() -> None:
        await pair()  # granted at once
        await asyncio.gather(pair(), pair(), pair(), return_exceptions=True)

    interrupts.at_every_statement(
        lambda: on_its_shortcut(bucket), pairs, lambda: settled_sync(bucket, in_flight=0, waiting=0)
    )


def is_interrupted_at_every_line(url: str) -> None:
    """A signal's handler may raise between the grant and the permit's being in hand."""
    gate = TokenBucket(url, "g", limit=1)
    lines, last = 0, False
    while not last:
        lines, left = lines + 1, lines + 1

        def interrupting(frame: Any, event: str, _: Any) -> Any:
            nonlocal left
            if not frame.f_code.co_filename.endswith(("gate.py", "client.py", "permit.py")):
                return None
            if event == "line" and frame.f_code.co_name not in ("__del__", "release"):
                left -= 1
                if left == 0:
                    raise KeyboardInterrupt
            return interrupting

        sys.settrace(interrupting)
        try:
            permit = gate.sync.acquire(timeout=100)
            sys.settrace(None)
            permit.release()
            last = left > 0
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        settled_sync(gate, in_flight=0, waiting=0)
    assert lines > 20
