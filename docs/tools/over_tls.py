"""What event loops pay over TLS, where none has a connection of its own: both ways, in turns.

    python -m docs.tools.over_tls          keeps the ratios in docs/tools/kept/over_tls.json

TLS itself is not in it: the server of the wheel has none. Both go by plain TCP, and what differs is
the way inside the process.
"""

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ground import EmbeddedServer
from ground.redis import loop_connection
from limiter import TokenBucket
from worker import CodeQueue

KEPT = Path(__file__).parent / "kept" / "over_tls.json"
ROUNDS, CALLS, TASKS = 5, 3000, 32
NAMES = ["acquire, 1", "acquire, 32", "submit, 1", "submit, 32"]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, EmbeddedServer(folder) as server:
        found: dict[str, list[list[float]]] = {"own": [], "engine": []}
        for _ in range(ROUNDS):
            for way, rows in found.items():
                command = [sys.executable, "-m", "docs.tools.over_tls", way, server.url]
                rows.append([float(word) for word in subprocess.check_output(command).split()])
    own, engine = (
        [statistics.median(each) for each in zip(*rows, strict=True)] for rows in found.values()
    )
    ratios = [over / plain for over, plain in zip(engine, own, strict=True)]
    KEPT.write_text(json.dumps(dict(zip(NAMES, ratios, strict=True)), indent=1) + "\n")


async def measure(url: str) -> list[float]:
    gate, queue = TokenBucket(url, "code", limit=1000), CodeQueue(url, "nobody", abandon="keep")

    async def pairs(count: int) -> None:
        for _ in range(count):
            (await gate.acquire()).release()

    async def submits(count: int) -> None:
        for _ in range(count):
            await queue.submit("1", timeout=600)

    took = []
    for work in (pairs, submits):
        await work(100)
        for together in (1, TASKS):
            began = time.perf_counter()
            await asyncio.gather(*(work(CALLS // together) for _ in range(together)))
            took.append((time.perf_counter() - began) / CALLS * 1e6)
    return took


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    else:
        if sys.argv[1] == "engine":
            loop_connection.possible = lambda target: False  # type: ignore[assignment]
        print(*asyncio.run(measure(sys.argv[2])))
