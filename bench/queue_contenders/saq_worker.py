"""SAQ: 256 jobs at once on an event loop."""

import asyncio
from typing import Any

import counting
from saq import Queue, Worker


async def main() -> None:
    queue = Queue.from_url(counting.URL)
    await queue.connect()
    over = asyncio.Event()

    async def work(_: Any) -> None:
        if await counting.job():
            over.set()

    for i in range(0, counting.COUNT, 500):
        await asyncio.gather(*(queue.enqueue("work") for _ in range(min(500, counting.COUNT - i))))
    worker = Worker(queue, functions=[("work", work)], concurrency=256)
    running = asyncio.create_task(worker.start())
    await over.wait()
    counting.tell()
    await worker.stop()
    running.cancel()


asyncio.run(main())
