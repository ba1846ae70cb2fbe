"""How AReaL 1.0.4 asks for rewards: in processes, with a time limit, four times."""

import asyncio
from concurrent.futures import ProcessPoolExecutor
from functools import partial

# Kept until the process ends. One that is collected just then may fail in Python itself.
_pools: list[ProcessPoolExecutor] = []


class AsyncRewardWrapper:
    def __init__(self, reward_fn, timeout_seconds=15, max_workers=1, max_retries=3):
        self._reward_fn = reward_fn
        self._timeout, self._tries = timeout_seconds, max_retries + 1
        self._pool = ProcessPoolExecutor(max_workers)
        _pools.append(self._pool)

    async def __call__(self, *args, **row):
        loop = asyncio.get_running_loop()
        for left in reversed(range(self._tries)):
            asked = loop.run_in_executor(self._pool, partial(self._reward_fn, *args, **row))
            try:
                return await asyncio.wait_for(asked, self._timeout)
            except TimeoutError:
                continue
            except Exception:
                if not left:
                    raise
        return 0
