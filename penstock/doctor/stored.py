"""The doctor reads what Redis keeps of the fleet: the verdict on it, and whether a queue's two ends
write and read alike: JSON, and not RQ's default, pickle."""

import asyncio
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import redis

from ground.lua import chunks
from ground.redis.url import RedisTarget
from penstock.doctor.finding import Finding, fail, ok, warn
from penstock.fleet.health import MEANT
from penstock.fleet.model import Fleet
from penstock.fleet.one_job import error_text, unpacked
from penstock.fleet.reader import FleetReader

_LOOKED_AT = 5  # jobs at each end of a queue
_AT_ONCE = 20  # queues
_OURS = b"worker.jobs."
_SAID = ("DeserializationError", "UnpicklingError")


def check_queues(client: Any) -> Iterator[Finding]:
    """The jobs that wait in Penstock's queues, and those that failed there."""
    if not isinstance(client, redis.Redis):
        return  # RQ's queues do not live on a Cluster
    members: Any = client.smembers("rq:queues")
    names = sorted(key.decode(errors="replace").removeprefix("rq:queue:") for key in members)
    wrong = [found for some in chunks(names, _AT_ONCE) for found in _check(client, some)]
    yield from wrong
    if names and not wrong:
        yield ok("serializer", f"JSON, as far as {len(names)} queues show")


def _check(client: redis.Redis, names: Sequence[str]) -> Iterator[Finding]:
    """The first job of each of these queues that one end writes and the other cannot read."""
    pipe = client.pipeline(transaction=False)
    for name in names:
        pipe.lrange(f"rq:queue:{name}", 0, _LOOKED_AT - 1)
        pipe.zrevrange(f"rq:failed:{name}", 0, _LOOKED_AT - 1)
    jobs = [
        (name, id.decode(errors="replace"))
        for name, ends in zip(names, chunks(pipe.execute(), 2), strict=True)
        for id in chain(*ends)
    ]
    for _, id in jobs:
        pipe.hmget(f"rq:job:{id}", "data", "description")
        pipe.xrevrange(f"rq:results:{id}", count=1)
    found: dict[str, Finding] = {}
    for (name, id), (fields, results) in zip(jobs, chunks(pipe.execute(), 2), strict=True):
        if name not in found and (wrong := _wrong(name, id, fields, results)):
            found[name] = wrong
    yield from found.values()


def _wrong(queue: str, id: str, fields: list[bytes | None], results: Any) -> Finding | None:
    data, description = fields
    if not (description or b"").startswith(_OURS):
        return None  # another program's job: it may use any format
    if data and not unpacked(data).lstrip().startswith(b"["):
        return warn(
            f"queue {queue}",
            f"job {id} is not JSON; Penstock's workers refuse it",
            "enqueue with Queue(…, serializer=rq.serializers.JSONSerializer), or use CodeQueue",
        )
    error = error_text(results[0][1].get(b"exc_string")) if results else ""
    if any(said in error for said in _SAID):
        return warn(
            f"queue {queue}",
            f"a worker could not read job {id}: it expects pickle",
            "start stock workers with: rq worker --serializer rq.serializers.JSONSerializer "
            f"{queue}",
        )
    return None


def check_fleet(target: RedisTarget | None, run: str) -> Iterator[Finding]:
    """The verdict on the fleet of this Redis, as `penstock status` gives it."""
    if target is None:
        start = "set PENSTOCK_REDIS_URL, or start one here: penstock up"
        yield warn("fleet", "no Redis is named, and none runs here: there is none to judge", start)
        return
    if target.kind == "cluster":
        return  # it has no queues, and no workers of theirs
    fleet = asyncio.run(_read(target, run))
    for one in fleet.alarms:
        judged = fail if one.level == "bad" else warn
        yield judged(one.verdict, one.text, one.remedy)
    if fleet.level == "unused":
        yield warn("fleet", f"nothing has used this Redis yet in run {run!r}", MEANT)
    elif not fleet.alarms:
        yield ok("fleet", fleet.sentence)


async def _read(target: RedisTarget, run: str) -> Fleet:
    async with FleetReader(target, run) as reader:
        return await reader.read(workers=0)
