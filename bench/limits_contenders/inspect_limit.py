"""inspect_ai's controller in each process, with its defaults. PORT CALLERS SECOND

It keeps its place while it backs off, and does not count a success that was retried. Its cooldown
is scaled to the simulated second.
"""

import asyncio
import sys
from pathlib import Path

from inspect_ai.util._concurrency import AdaptiveConcurrency, AdaptiveConcurrencyController

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench.limits_contenders.load import Ask, play


async def main(port: str, callers: str, second: str) -> None:
    config = AdaptiveConcurrency()
    scaled = config.model_copy(update={"cooldown_seconds": config.cooldown_seconds * float(second)})
    controller = AdaptiveConcurrencyController("api", scaled, visible=False)

    async def hold(ask: Ask) -> None:
        async with controller.semaphore:
            clean = True
            while (wait := await ask()) is not None:
                clean = False
                controller.notify_retry(wait)
                await asyncio.sleep(wait)
            if clean:
                controller.notify_success()

    await play(hold, int(port), int(callers))


asyncio.run(main(*sys.argv[1:]))
