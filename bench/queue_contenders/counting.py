"""What every peer's program does beside its peer's own calls: count its jobs, and say what it took.

    python <peer>_worker.py URL KIND COUNT

KIND is `noop` or `wait` (50 ms). The jobs are queued first, then run by one worker of this
process; from its first job to its last is what counts.
"""

import asyncio
import json
import resource
import sys
import threading
import time

URL, KIND, COUNT = sys.argv[1], sys.argv[2], int(sys.argv[3])
SECONDS = {"noop": 0.0, "wait": 0.05}[KIND]

_counting = threading.Lock()
_left = COUNT
_began = 0.0
_spent = 0.0


def one_begins() -> None:
    global _began, _spent
    if not _began:
        _began, _spent = time.perf_counter(), _processor()


def one_ends() -> bool:
    """Whether it was the last one."""
    global _left
    with _counting:
        _left -= 1
        return _left == 0


async def job() -> bool:
    one_begins()
    if SECONDS:
        await asyncio.sleep(SECONDS)
    return one_ends()


def blocking_job() -> bool:
    one_begins()
    if SECONDS:
        time.sleep(SECONDS)
    return one_ends()


def tell() -> None:
    """Once every job is recorded; some peers run one twice when the machine is busy."""
    assert _left <= 0, f"{_left} of {COUNT} jobs did not run"
    seconds, cpu = time.perf_counter() - _began, _processor() - _spent
    print(json.dumps({"seconds": seconds, "cpu": cpu}), flush=True)


def _processor() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
