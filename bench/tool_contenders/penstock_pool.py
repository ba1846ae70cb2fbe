"""Our execution pool, with a function that does nothing."""

from collections.abc import Awaitable, Callable

import calling

from worker.tool import init_execution_pool


def nothing(instance_id: str, code: str, timeout: int, language: str) -> str:
    return "220000.0\n"


def make(room: int) -> Callable[[], Awaitable[object]]:
    pool = init_execution_pool(num_workers=room, rate_limit=room)
    return lambda: pool.execute.remote(nothing, "instance", calling.CODE, 30, "python")


if __name__ == "__main__":
    calling.main(make)
