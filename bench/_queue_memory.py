"""What queued and finished code jobs cost a server in memory: the figures of docs/guide/queue.md.

    python -m bench._queue_memory [JOBS]

Programs of 1 kB, results of a few words, by `INFO memory`'s used_memory. No suite of `bench`:
memory is the same in every run, and has no peer.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import redis

from ground import EmbeddedServer, bundled_server
from worker import CodeQueue, CodeRequest

PROGRAM = CodeRequest(code="print('ok')\n" + "# " + "x" * 1010)


async def fill(queue: CodeQueue, count: int) -> None:
    for begin in range(0, count, 2_000):
        some = range(begin, min(begin + 2_000, count))
        await asyncio.gather(*(queue.submit(PROGRAM) for _ in some))


def main(count: int) -> None:
    with tempfile.TemporaryDirectory() as home:
        server = EmbeddedServer(Path(home), binary=bundled_server())
        client: Any = redis.Redis.from_url(server.url)
        try:
            empty = _used(client)
            queue = CodeQueue(server.url, "bench", abandon="keep", no_workers_after=3_600)
            asyncio.run(fill(queue, count))
            queued = _used(client) - empty
            subprocess.run(
                [sys.executable, "-m", "bench._queue_worker", server.url, "penstock"],
                env=os.environ | {"PENSTOCK_SANDBOX": "bench._queue_jobs.Echo"},
                input=b"\n", stdout=subprocess.DEVNULL, check=True,
            )  # fmt: skip
            assert client.zcard("rq:finished:bench") == count, "not every job was finished"
            finished = _used(client) - empty
        finally:
            client.close()
            server.stop()
    for name, used in (("queued", queued), ("finished", finished)):
        print(f"{count:,} {name}: {used / 1e6:,.0f} MB, {used / count:,.0f} bytes a job")


def _used(client: Any) -> int:
    return int(client.info("memory")["used_memory"])


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
