"""Penstock: one gate that adapts, for all processes. REDIS PORT CALLERS GATE"""

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench.limits_contenders.load import Ask, play
from limiter import Adaptive, TokenBucket


async def main(redis: str, port: str, callers: str, name: str) -> None:
    gate = TokenBucket(redis, name, limit=Adaptive(start=20, min=1, max=400))

    async def hold(ask: Ask) -> None:
        ticket, wait = "", None
        while True:
            permit = await gate.acquire(ticket=ticket)
            ticket = permit.ticket
            wait = await ask()
            if wait is not None:
                permit.throttled(wait)
            permit.release()
            if wait is None:
                return
            await asyncio.sleep(wait)

    await play(hold, int(port), int(callers))


asyncio.run(main(*sys.argv[1:]))
