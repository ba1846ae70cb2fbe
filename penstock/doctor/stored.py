"""What Redis keeps of queues, workers and tasks.

Of a queue, whether its two ends write and read alike: JSON, and not RQ's default, pickle. Of a
task, whether its policy on versions leaves slow problems their share of the training.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

import redis

from buffer.counters import generation_seconds
from ground.redis.url import RedisTarget
from penstock.doctor.finding import Finding, ok, warn
from penstock.fleet.model import Worker
from penstock.fleet.one_job import error_text, unpacked
from penstock.fleet.reader import FleetReader
from penstock.fleet.verdicts import bias, ungated

_LOOKED_AT = 5  # jobs at each end of a queue
_OURS = b"worker.jobs."
_REMEDY = (
    "`penstock groups versions` names the problems; set when_old to wait or mask, or raise max_age"
)
_SAID = ("DeserializationError", "UnpicklingError")


def check_queues(client: Any) -> Iterator[Finding]:
    """The jobs that wait in Penstock's queues, and those that failed there."""
    if not isinstance(client, redis.Redis):
        return  # RQ's queues do not live on a Cluster
    members: Any = client.smembers("rq:queues")
    names = sorted(key.decode(errors="replace").removeprefix("rq:queue:") for key in members)
    wrong = [found for name in names if (found := _check_queue(client, name))]
    yield from wrong
    if names and not wrong:
        yield ok("serializer", f"JSON, as far as {len(names)} queues show")


def _check_queue(client: redis.Redis, name: str) -> Finding | None:
    waiting: Any = client.lrange(f"rq:queue:{name}", 0, _LOOKED_AT - 1)
    failed: Any = client.zrevrange(f"rq:failed:{name}", 0, _LOOKED_AT - 1)
    for id in map(bytes.decode, [*waiting, *failed]):
        fields: Any = client.hmget(f"rq:job:{id}", "data", "description")
        data, description = fields
        if not (description or b"").startswith(_OURS):
            continue  # another program's job: it may use any format
        if data and not unpacked(data).lstrip().startswith(b"["):
            return warn(
                f"queue {name}",
                f"job {id} is not JSON; Penstock's workers refuse it",
                "enqueue with Queue(…, serializer=rq.serializers.JSONSerializer), or use CodeQueue",
            )
        if any(said in _failure_of(client, id) for said in _SAID):
            return warn(
                f"queue {name}",
                f"a worker could not read job {id}: it expects pickle",
                "start stock workers with: rq worker --serializer rq.serializers.JSONSerializer "
                f"{name}",
            )
    return None


def _failure_of(client: redis.Redis, id: str) -> str:
    results: Any = client.xrevrange(f"rq:results:{id}", count=1)
    return error_text(results[0][1].get(b"exc_string")) if results else ""


def check_tasks(target: RedisTarget, run: str) -> Iterator[Finding]:
    """A warning for each task of the run whose discarded groups took longer than the others."""
    for task, seconds in asyncio.run(_read(target, run)).items():
        if said := bias(seconds):
            yield warn(f"task {task}", said, _REMEDY)


def check_gates(target: RedisTarget) -> Iterator[Finding]:
    """A warning for each queue with workers that take permits, and others that take none."""
    workers = asyncio.run(_workers(target))
    for queue in sorted({queue for worker in workers for queue in worker.queues}):
        if said := ungated(queue, workers):
            fact, _, remedy = said.rpartition("; ")
            yield warn(f"queue {queue}", fact, remedy)


async def _workers(target: RedisTarget) -> list[Worker]:
    async with FleetReader(target) as reader:
        return await reader.workers()


async def _read(target: RedisTarget, run: str) -> dict[str, dict[str, float]]:
    async with FleetReader(target, run) as reader:
        buffers = await reader.open_buffers()
        return {one.task: generation_seconds(await one.catalog.stats()) for one in buffers}
