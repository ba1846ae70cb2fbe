"""A semaphore of redis-py's locks: `limit` of them by name, and the first free one is taken.

Nobody stands in line: who finds none free sleeps for as long as `Lock.acquire` does.
"""

import asyncio
import random
import time
from collections.abc import Iterator

import redis
import redis.asyncio
import workload
from redis.asyncio.lock import Lock as AsyncLock
from redis.lock import Lock

LEASE = 30.0
PAUSE = 0.1  # the default of `Lock`
CONNECTIONS = 1024  # one for each task that asks; the default refuses the hundred and first


class RedisLocks:
    def __init__(self, url: str, name: str, limit: int) -> None:
        self._locks = [f"{name}:{number}" for number in range(limit)]
        self._redis = redis.Redis.from_url(url, max_connections=CONNECTIONS)
        self._async_redis = redis.asyncio.Redis.from_url(url, max_connections=CONNECTIONS)

    def acquire(self) -> Lock:
        while True:
            for name in self._from_anywhere():
                lock: Lock = self._redis.lock(name, LEASE, thread_local=False)
                if lock.acquire(blocking=False):
                    return lock
            time.sleep(PAUSE)

    def release(self, held: Lock) -> None:
        held.release()

    async def pair(self) -> None:
        await (await self._acquire_async()).release()

    async def _acquire_async(self) -> AsyncLock:
        while True:
            for name in self._from_anywhere():
                lock = self._async_redis.lock(name, LEASE, thread_local=False)
                if await lock.acquire(blocking=False):
                    return lock
            await asyncio.sleep(PAUSE)

    def _from_anywhere(self) -> Iterator[str]:
        """All names, beginning where others probably do not."""
        first = random.randrange(len(self._locks))
        yield from self._locks[first:]
        yield from self._locks[:first]


if __name__ == "__main__":
    workload.main(RedisLocks)
