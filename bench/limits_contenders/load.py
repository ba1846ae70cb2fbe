"""What each contender's processes do: callers that ask the service, again and again.

A contender's program gives `play` its way to hold a place: `hold(ask)` awaits `ask()` under the
limit, which returns None, or the seconds after which to try again, and tells the controller. The
parent starts and ends the work by lines on stdin.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable

Ask = Callable[[], Awaitable[float | None]]
Hold = Callable[[Ask], Awaitable[None]]


async def play(hold: Hold, port: int, callers: int) -> None:
    """Until stdin ends: the lines `go` and `rest` say whether there is work."""
    working, loop = asyncio.Event(), asyncio.get_running_loop()
    tasks = [asyncio.create_task(_call(hold, port, working)) for _ in range(callers)]
    print("ready", flush=True)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        working.set() if line == "go\n" else working.clear()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _call(hold: Hold, port: int, working: asyncio.Event) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def ask() -> float | None:
        writer.write(b"run\n")
        answer = (await reader.readline()).split()
        if not answer:
            raise ConnectionError("the service has ended")
        return float(answer[1]) if answer[0] == b"no" else None

    while True:
        await working.wait()
        await hold(ask)
