"""A fake Redis and an in-process worker, for the tests of those who use Penstock.

    def test_my_reward(penstock_redis, penstock_worker):
        queue = Queue(connection=penstock_redis, serializer=JSONSerializer)
        job = queue.enqueue(my_reward, "42")
        penstock_worker()
        assert job.return_value() == 1.0

pytest loads this file in every run on a machine that has Penstock installed. So
it imports nothing of weight until a fixture is used.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import redis
    from rq.job import Job

InProcessWorker = Callable[..., list["Job"]]


@pytest.fixture
def penstock_redis() -> Iterator["redis.Redis"]:
    """A fake Redis with Lua, empty, and this test's own."""
    from ground.extras import needed_by

    with needed_by("the fixture penstock_redis"):
        import fakeredis

    client = fakeredis.FakeRedis(server=fakeredis.FakeServer())
    yield client
    client.close()


@pytest.fixture
def penstock_worker(penstock_redis: "redis.Redis") -> InProcessWorker:
    """Call it to run every queued job here and now, also those that jobs enqueue.

    `penstock_worker()` works on all queues, `penstock_worker("code")` on that one;
    it returns the jobs it ran, in order. A job that raises is failed, as on a worker:
    look at `job.latest_result()`.
    """
    from penstock.in_process import run_queued

    def run(*queues: str) -> "list[Job]":
        return run_queued(penstock_redis, *queues)

    return run
