"""The semaphore of redis-rate-limiters: a list of tokens, popped by blocking."""

from typing import Any

import redis
import redis.asyncio
import workload
from limiters import AsyncSemaphore, SyncSemaphore


class ListSemaphore:
    def __init__(self, url: str, name: str, limit: int) -> None:
        # Each waiter blocks a connection, for longer than the default allows.
        patient: dict[str, Any] = {"socket_timeout": None, "max_connections": 1024}
        self._sync = SyncSemaphore(
            connection=redis.Redis.from_url(url, **patient), name=name, capacity=limit
        )
        self._async = AsyncSemaphore(
            connection=redis.asyncio.Redis.from_url(url, **patient), name=name, capacity=limit
        )

    def acquire(self) -> None:
        self._sync.__enter__()

    def release(self, held: None) -> None:
        self._sync.__exit__(None, None, None)

    async def pair(self) -> None:
        async with self._async:
            pass


if __name__ == "__main__":
    workload.main(ListSemaphore)
