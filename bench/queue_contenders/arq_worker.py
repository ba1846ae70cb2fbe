"""arq: 256 jobs at once on an event loop."""

import asyncio
from typing import Any

import counting
from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker, func

SETTINGS = RedisSettings.from_dsn(counting.URL)


async def work(_: Any) -> None:
    await counting.job()


async def main() -> None:
    pool = await create_pool(SETTINGS)
    for i in range(0, counting.COUNT, 500):
        await asyncio.gather(
            *(pool.enqueue_job("work") for _ in range(min(500, counting.COUNT - i)))
        )
    worker = Worker(
        [func(work, name="work")], redis_settings=SETTINGS, burst=True, max_jobs=256,
        handle_signals=False,
    )  # fmt: skip
    await worker.async_run()
    counting.tell()
    await worker.close()
    await pool.aclose()


asyncio.run(main())
