"""A fixed limit, shared evenly by the processes, as each has it today. PORT CALLERS LIMIT"""

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench.limits_contenders.load import Ask, play


async def main(port: str, callers: str, limit: str) -> None:
    semaphore = asyncio.Semaphore(int(limit))

    async def hold(ask: Ask) -> None:
        async with semaphore:
            while (wait := await ask()) is not None:  # noqa: ASYNC110 - it asks a service
                await asyncio.sleep(wait)

    await play(hold, int(port), int(callers))


asyncio.run(main(*sys.argv[1:]))
