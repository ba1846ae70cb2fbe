"""A worker ends what others left, beside its jobs."""

import asyncio
from typing import Any

import redis as redis_py
from rq.serializers import JSONSerializer

from tests.harness import killing
from tests.worker.lifecycle.leases import leases_end
from tests.worker.lifecycle.owner import opens_and_waits
from worker import ConcurrentWorker


def works(url: str) -> None:
    """A process: `penstock worker`, with nothing to do."""
    connection: Any = redis_py.Redis.from_url(url)
    ConcurrentWorker(["code"], connection=connection, serializer=JSONSerializer).work()


async def test_a_worker_with_nothing_to_do_ends_what_the_dead_left(
    private_redis, cloud, monkeypatch
):
    for name, value in (("SANDBOX_LEASE", "1"), ("REAP_INTERVAL", "0.2"), ("SANDBOX_GRACE", "1")):
        monkeypatch.setenv(f"PENSTOCK_{name}", value)
    url = private_redis(aof=False).url
    with killing.Child(opens_and_waits, url, cloud.address, 600) as owner:
        owner.wait_for("open")
        owner.kill()
    leases_end(url)
    with killing.Child(works, url):
        async with asyncio.timeout(100):
            while cloud.live:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
