"""A service with a hidden capacity: it serves so many at once, and refuses the others quickly.

    python service.py SCRIPT        one JSON object: port, second, phases, quota

Each phase is [seconds, capacity]; with a quota it is [seconds, starts per 10 s]. Each line that
comes is a request, and the answer is `ok`, or `no` with the seconds after which to ask again. A
line `start` begins the first phase. At the end of the last one it prints, for each tenth of a
simulated second, what was served and refused, as JSON.
"""

import asyncio
import json
import os
import sys
import time


class Service:
    def __init__(self, port: int, second: float, phases: list[list[float]], quota: bool) -> None:
        self.port, self.second, self.phases, self.quota = port, second, phases, quota
        self.began, self.busy = 0.0, 0
        self.started = asyncio.Event()
        self.window, self.used = -1, 0
        self.served: dict[int, int] = {}
        self.refused: dict[int, int] = {}

    def now(self) -> float:
        return (time.monotonic() - self.began) / self.second

    def capacity(self, now: float) -> float:
        for length, capacity in self.phases:
            if now < length:
                return capacity
            now -= length
        return self.phases[-1][1]

    def takes(self, now: float) -> bool:
        if not self.quota:
            return self.busy < self.capacity(now)
        if int(now // 10) != self.window:
            self.window, self.used = int(now // 10), 0
        return self.used < self.capacity(now)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            if line == b"start\n":
                self.began = time.monotonic()
                self.started.set()
                continue
            now = self.now()
            if self.takes(now):
                self.busy, self.used = self.busy + 1, self.used + 1
                await asyncio.sleep(self.second)
                self.busy -= 1
                self.count(self.served)
                writer.write(b"ok\n")
            else:
                await asyncio.sleep(0.05 * self.second)
                self.count(self.refused)
                hint = 10 - self.now() % 10 if self.quota else 2
                writer.write(b"no %.3f\n" % (hint * self.second))
        writer.close()

    def count(self, what: dict[int, int]) -> None:
        at = int(self.now() * 10)
        what[at] = what.get(at, 0) + 1

    async def run(self) -> None:
        await asyncio.start_server(self.answer, "127.0.0.1", self.port)
        await self.started.wait()
        await asyncio.sleep(self.second * sum(length for length, _ in self.phases))
        print(json.dumps({"served": self.served, "refused": self.refused}), flush=True)
        os._exit(0)  # its callers are still connected


if __name__ == "__main__":
    asyncio.run(Service(**json.loads(sys.argv[1])).run())
