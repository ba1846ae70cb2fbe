"""The jobs of one queue in one state, a page at a time, in a bounded number of round trips."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from ground.keys import tagged
from penstock.fleet.model import Job, Worker
from penstock.fleet.one_job import first_line, program_in
from penstock.fleet.work import ended_last, read_jobs

JobState = Literal[
    "waiting", "running", "finished", "failed", "deferred", "scheduled", "canceled"
]  # fmt: skip
JOB_STATES: tuple[str, ...] = get_args(JobState)
MOST_LOOKED_AT = 2000  # jobs, for one page of those that fit a filter
_AT_ONCE = 250
_REGISTRIES = {"running": "wip"}
_SHARES_SHOWN = 200


@dataclass(frozen=True)
class JobFilter:
    """The condition on the jobs of a page. `find` is in the id or the description."""

    outcome: str = ""
    worker: str = ""
    find: str = ""

    def fits(self, job: Job) -> bool:
        return (
            (not self.outcome or job.outcome == self.outcome)
            and (not self.worker or job.worker == self.worker)
            and (not self.find or self.find.lower() in f"{job.id} {job.description}".lower())
        )

    @property
    def is_any(self) -> bool:
        return not (self.outcome or self.worker or self.find)


ANY = JobFilter()


@dataclass(frozen=True)
class JobPage:
    """Some jobs of a queue, the newest first; waiting ones in the order of their turn.

    total   jobs in this state, of whatever outcome
    looked  how many of them were looked at for this page
    next    where the next page begins; None at the end
    """

    jobs: tuple[Job, ...]
    total: int
    looked: int
    next: int | None


async def jobs_of(
    client: Any,
    queue: str,
    state: str,
    fitting: JobFilter = ANY,
    *,
    start: int = 0,
    count: int = 50,
    most: int = MOST_LOOKED_AT,
) -> JobPage:
    """Read a page of jobs. Of those that fit a filter it may be short, and `next` still not
    None."""
    listing = _Waiting(client, queue) if state == "waiting" else _Registered(client, queue, state)
    total = await listing.total()
    found: list[Job] = []
    at = start
    while at < total and len(found) < count and at - start < most:
        wanted = min(count - len(found), most) if fitting.is_any else _AT_ONCE
        ids = await listing.ids(at, wanted)
        if not ids:
            return JobPage(tuple(found), total, at - start, None)
        for job in await read_jobs(client, [(queue, id) for id in ids]):
            if len(found) == count:
                break
            at += 1
            if job is not None and fitting.fits(job):
                found.append(job)
    listed = tuple(await with_programs(client, found))
    return JobPage(listed, total, at - start, at if at < total else None)


async def with_programs(client: Any, jobs: Sequence[Job]) -> list[Job]:
    """These jobs with the first lines of their programs, by which people tell them apart. What is
    too long for a look at many is left out."""
    keys = [f"rq:job:{job.id}" for job in jobs]
    pipe = client.pipeline(transaction=False)
    for key in keys:
        pipe.hstrlen(key, "data")
    small = [size <= _SMALL for size in await pipe.execute()]
    for key, is_small in zip(keys, small, strict=True):
        if is_small:
            pipe.hget(key, "data")
    found = iter(await pipe.execute())
    return [
        replace(job, program=first_line(program_in(next(found) or b""))[:_FIRST])
        if is_small
        else job
        for job, is_small in zip(jobs, small, strict=True)
    ]


_SMALL = 32 << 10  # bytes of a job's call, compressed
_FIRST = 200  # characters


class _Registered:
    """The jobs of one of RQ's registries, the latest first: among 1,000, if they have ended."""

    def __init__(self, client: Any, queue: str, state: str) -> None:
        self._client = client
        self._key = f"rq:{_REGISTRIES.get(state, state)}:{queue}"
        self._queue, self._state = queue, state
        self._sorted: list[str] | None = None if state in ("finished", "failed") else []

    async def total(self) -> int:
        return int(await self._client.zcard(self._key))

    async def ids(self, start: int, count: int) -> list[str]:
        if self._sorted is None:
            ended = await ended_last(self._client, [self._queue], self._state)
            self._sorted = [id for _, id in ended]
        if start < len(self._sorted):
            return self._sorted[start : start + count]
        members = await self._client.zrevrange(self._key, start, start + count - 1)
        return [_id(member) for member in members]


class _Waiting:
    """The jobs in the queue's list, then those of each share."""

    def __init__(self, client: Any, queue: str) -> None:
        self._client = client
        self._queue = queue
        self._lists: list[tuple[str, int]] = []

    async def total(self) -> int:
        key = tagged("work", self._queue, "shares")
        shares = await self._client.zrange(key, 0, _SHARES_SHOWN - 1)
        names = [share.decode(errors="replace") for share in shares if share]
        names = [self._queue, *(f"{self._queue}~{share}" for share in names)]
        pipe = self._client.pipeline(transaction=False)
        for name in names:
            pipe.llen(f"rq:queue:{name}")
        self._lists = list(zip(names, await pipe.execute(), strict=True))
        return sum(length for _, length in self._lists)

    async def ids(self, start: int, count: int) -> list[str]:
        pipe, left = self._client.pipeline(transaction=False), count
        for name, length in self._lists:
            if start < length and left > 0:
                pipe.lrange(f"rq:queue:{name}", start, start + left - 1)
                left -= min(left, length - start)
            start = max(0, start - length)
        return [_id(member) for members in await pipe.execute() for member in members]


async def jobs_of_worker(client: Any, worker: Worker) -> tuple[list[Job], list[Job]]:
    """The jobs that a worker runs now, the longest first, and the latest that it ended."""
    held = await client.smembers(f"rq:worker:{worker.name}:executions")
    ids = sorted(map(_id, held))[:_SHOWN_RUNNING]
    running = [job for job in await read_jobs(client, await _origins(client, ids)) if job]
    running = await with_programs(client, running)
    running.sort(key=lambda job: job.started)
    return running, await _run_by(client, worker.name, worker.queues)


async def _origins(client: Any, ids: list[str]) -> list[tuple[str, str]]:
    """The queue of each job, with its id."""
    pipe = client.pipeline(transaction=False)
    for id in ids:
        pipe.hget(f"rq:job:{id}", "origin")
    origins = await pipe.execute()
    named = [(origin or b"").decode(errors="replace") for origin in origins]
    return list(zip(named, ids, strict=True))


async def _run_by(client: Any, worker: str, queues: Sequence[str], count: int = 20) -> list[Job]:
    """The latest jobs that a worker has ended, as far as its queues still list them."""
    found: list[Job] = []
    for queue in queues[:_MOST_QUEUES]:
        for state in ("finished", "failed"):
            page = await jobs_of(
                client, queue, state, JobFilter(worker=worker), count=count, most=_OF_A_WORKER
            )
            found += page.jobs
    return sorted(found, key=lambda job: -job.ended)[:count]


def _id(member: bytes) -> str:
    """The job's id: a running one is `<job>:<execution>`, and no id has a colon."""
    return member.decode(errors="replace").partition(":")[0]


_SHOWN_RUNNING = 500
_MOST_QUEUES = 4
_OF_A_WORKER = 500
