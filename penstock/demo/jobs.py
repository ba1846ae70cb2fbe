"""What the demo's workers run. Light: a worker imports this before its first job."""

import os
import time
from functools import cache

from rq import get_current_job

from ground.redis_url import SETTING
from limiter import TokenBucket

SECONDS = 0.15
AT_ONCE = 2
LEASE = 2.0


@cache
def gate(name: str) -> TokenBucket:
    """The demo's gate: as many jobs at once over all workers, however many workers there are."""
    return TokenBucket(os.environ[SETTING], name, limit=AT_ONCE, lease=LEASE)


def grade(gate_name: str, answer: int) -> int:
    """A stand-in for a slow check of a model's answer; its result can be told in advance."""
    with gate(gate_name) as permit:
        if job := get_current_job():
            job.meta["permit"] = permit.id
            job.save_meta()
        time.sleep(SECONDS)
    return answer * answer
