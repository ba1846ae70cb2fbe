"""What happens in processes that tests kill and freeze; they start sooner without pytest."""

import asyncio
import os
import time
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
