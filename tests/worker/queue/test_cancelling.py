"""A caller that is cancelled at any await leaves no job, no permit and no place in a queue."""

from collections.abc import Iterator
from typing import Any

import pytest

from limiter import TokenBucket
from tests.harness.cancelling import cancelled_at_every_await
from tests.worker.concurrent.crew import at_work, expire_all_leases, nothing_left
from tests.worker.queue.by_shortcut import eventually, on_its_shortcut
from worker import CodeQueue
from worker.concurrent.worker import ConcurrentWorker

OVER = {b"finished", b"stopped", b"canceled"}


@pytest.fixture
def worker(real_redis: Any, fusion: Any) -> Iterator[ConcurrentWorker]:
    with at_work(real_redis, gate="code", gate_limit=8) as worker:
        yield worker


async def runs(queue: CodeQueue) -> None:
    assert (await queue.run("print(42)")).ok


async def runs_until_its_deadline(queue: CodeQueue) -> None:
    assert (await queue.run("print(42)", timeout=100)).ok


async def runs_many(queue: CodeQueue) -> None:
    assert all(result.ok for result in await queue.run_many(["1", "2"]))


async def runs_by_token(queue: CodeQueue) -> None:
    assert (await queue.run("print(42)", token="one")).ok


async def submits(queue: CodeQueue) -> None:
    await queue.submit("print(42)")


async def submits_and_waits(queue: CodeQueue) -> None:
    assert (await (await queue.submit("print(42)")).result()).ok


async def submits_and_cancels(queue: CodeQueue) -> None:
    await (await queue.submit("print(42)")).cancel()


async def takes_them_as_they_end(queue: CodeQueue) -> None:
    handles = [await queue.submit(code) for code in ("1", "2")]
    assert [(await handle.result()).ok async for handle in queue.as_completed(handles)]


async def judges(queue: CodeQueue) -> None:
    await queue.judge("print(42)", [{"input": "", "output": "42"}])


WAYS = [
    runs, runs_until_its_deadline, runs_many, runs_by_token, submits, submits_and_waits,
    submits_and_cancels, takes_them_as_they_end, judges,
]  # fmt: skip


@pytest.mark.in_turns("line")
@pytest.mark.parametrize("line", ["the engine's", "a loop's own"])
@pytest.mark.parametrize("way", WAYS)
async def test_cancelled_at_any_await_it_leaves_nothing(real_redis, worker, way, line) -> None:
    queue, gate = CodeQueue(real_redis, "code"), TokenBucket(real_redis, "code", limit=8)

    def statuses() -> set[bytes]:
        jobs = real_redis.keys("rq:job:*")
        return {real_redis.hget(job, "status") for job in jobs} - {None}

    if line == "a loop's own":
        await on_its_shortcut(queue)

    def no_permit_is_out() -> bool:
        expire_all_leases(real_redis)  # a program that nobody awaits may run yet, and keeps its own
        return gate.sync.status().in_flight == 0

    places = set()
    async for where in cancelled_at_every_await(lambda: way(queue)):
        await eventually(lambda: statuses() <= OVER, f"all jobs to be over, cancelled {where}")
        await eventually(lambda: nothing_left(real_redis) == {}, f"all to be away, {where}")
        await eventually(lambda: not worker._shift.jobs, f"its slot to be free, {where}")
        await eventually(no_permit_is_out, f"the permits, {where}")
        places.add(where)
    assert len(places) > 2
    assert (await queue.run("print(42)", timeout=100)).ok
