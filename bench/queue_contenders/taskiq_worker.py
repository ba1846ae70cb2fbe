"""taskiq on a Redis list: 256 jobs at once on an event loop."""

import asyncio

import counting
from taskiq.api import run_receiver_task
from taskiq_redis import ListQueueBroker, RedisAsyncResultBackend


async def main() -> None:
    results = RedisAsyncResultBackend(counting.URL, result_ex_time=600)
    broker = ListQueueBroker(counting.URL).with_result_backend(results)
    over = asyncio.Event()

    @broker.task
    async def work() -> None:
        if await counting.job():
            over.set()

    await broker.startup()
    for i in range(0, counting.COUNT, 500):
        await asyncio.gather(*(work.kiq() for _ in range(min(500, counting.COUNT - i))))
    broker.is_worker_process = True
    running = asyncio.create_task(run_receiver_task(broker, max_async_tasks=256))
    await over.wait()
    counting.tell()
    running.cancel()
    await asyncio.wait([running])
    await broker.shutdown()


asyncio.run(main())
