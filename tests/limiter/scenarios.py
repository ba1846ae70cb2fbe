"""What happens in processes that tests kill and freeze; they start sooner without pytest."""

import asyncio
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import util
from typing import Any

from limiter import PermitLost, TokenBucket
from tests.harness import doomed


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
    util.Finalize(None, returned.set, exitpriority=-1000)  # when the others were called

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
