"""Two processes share a gate: together, they never run more than two programs at once.

    python examples/shared_gate.py [REDIS_URL]

Without a URL it starts a private server. It prints

    8 programs run by 2 processes, at most 2 at once
"""

import asyncio
import multiprocessing
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor

from ground import EmbeddedServer
from limiter import TokenBucket

PROCESSES, PROGRAMS_EACH = 2, 4
Span = tuple[float, float]


def process(url: str) -> list[Span]:
    return asyncio.run(run_programs(url))


async def run_programs(url: str) -> list[Span]:
    """Ask for all permits at once; return when each program began and ended."""
    gate = TokenBucket(url, "example", limit=2)

    async def run_program() -> Span:
        async with gate:  # handed over from whichever process is done
            began = time.monotonic()
            await asyncio.sleep(0.1)
            return began, time.monotonic()

    return list(await asyncio.gather(*(run_program() for _ in range(PROGRAMS_EACH))))


def most_at_once(spans: list[Span]) -> int:
    return max(sum(began <= start < ended for began, ended in spans) for start, _ in spans)


def show(url: str) -> None:
    # Started afresh, as on two machines: nothing is shared but the gate's name.
    afresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(PROCESSES, mp_context=afresh) as pool:
        spans = [span for spans in pool.map(process, [url] * PROCESSES) for span in spans]
    print(
        f"{len(spans)} programs run by {PROCESSES} processes, at most {most_at_once(spans)} at once"
    )


def main() -> None:
    if len(sys.argv) > 1:
        show(sys.argv[1])
        return
    with tempfile.TemporaryDirectory() as folder, EmbeddedServer(folder) as server:
        show(server.url)


if __name__ == "__main__":
    main()
