"""What happens in the demo: jobs pass a gate, a worker is killed inside it, nothing is lost."""

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis
from rq import Queue, Retry
from rq.job import Job
from rq.queue import EnqueueData
from rq.registry import StartedJobRegistry
from rq.serializers import JSONSerializer

from ground import connect, parse_redis_url, read_facts
from limiter import TokenBucket
from limiter.commands import INDEX
from limiter.engines import engine_for
from penstock.demo.crew import Crew, DemoFailed
from penstock.demo.jobs import AT_ONCE, LEASE, grade
from penstock.demo.screen import Screen

WORKERS = ("ada", "bob", "cid")
SUCCESSOR = "dan"
PATIENCE = 90.0
_RETRIES = 3


@dataclass(frozen=True)
class Outcome:
    """What happened, in numbers."""

    server: str
    jobs: int
    right: int
    limit: int
    most_at_once: int
    killed: int
    permits_granted: int
    permits_expired: int
    permits_left: int
    permit_back_after: float
    repeated: int
    seconds: float

    @property
    def well(self) -> bool:
        return self.right == self.jobs and self.most_at_once <= self.limit and not self.permits_left


class Story:
    """One playing of the demo on one queue."""

    def __init__(self, url: str, queue: Queue, jobs: int, logs: Path, screen: Screen) -> None:
        self._queue = queue
        self._jobs = jobs
        self._screen = screen
        self._gate = TokenBucket(url, queue.name, limit=AT_ONCE, lease=LEASE)
        self._crew = Crew(url, queue, self._gate, logs)
        self._abandoned = StartedJobRegistry(
            queue.name, connection=queue.connection, serializer=JSONSerializer
        )
        self._most_at_once = 0

    def play(self, server: str) -> Outcome:
        self._screen.say(
            f"{server} is up: {self._jobs} jobs, {len(WORKERS)} workers, "
            f"and a gate that lets {AT_ONCE} work at once"
        )
        try:
            for name in WORKERS:
                self._crew.hire(name)
            self._until(self._crew.ready, "the workers are up")
            began = time.monotonic()
            self._queue.enqueue_many([self._order(number) for number in range(self._jobs)])
            back_after = self._with_an_accident()
            return self._outcome(server, back_after, time.monotonic() - began)
        finally:
            self._crew.dismiss()

    def _with_an_accident(self) -> float:
        self._until(lambda: self._done() >= self._jobs // 3, "a third of the jobs are done")
        victim, lost = self._crew.kill_one_at_work()
        killed = time.monotonic()
        self._screen.say(
            f"worker {victim} is killed with -9 in job {self._number(lost)}, permit in hand; "
            f"{SUCCESSOR} starts instead"
        )
        self._crew.hire(SUCCESSOR)
        self._until(lambda: self._gate.sync.status().expired > 0, "the permit comes back")
        back_after = time.monotonic() - killed
        self._screen.say(f"the permit came back by itself after {back_after:.1f} s")
        self._until(lambda: self._job(lost).retries_left != _RETRIES, "the job is handed out again")
        again = time.monotonic() - killed
        self._screen.say(f"job {self._number(lost)} was handed out again after {again:.1f} s")
        self._until(lambda: self._done() >= self._jobs, "all jobs are done")
        self._until(lambda: self._gate.sync.status().in_flight == 0, "all permits are back")
        return back_after

    def _until(self, so: Callable[[], bool], what: str) -> None:
        """Watch until it is so; what a dead worker held goes back to the queue on the way."""
        deadline = time.monotonic() + PATIENCE
        while not so():
            if time.monotonic() > deadline:
                done = f"{self._done()} of {self._jobs} jobs are done"
                raise DemoFailed(f"waited {PATIENCE:.0f} s until {what}; {done}")
            self._crew.check()
            self._abandoned.cleanup()
            self._most_at_once = max(self._most_at_once, self._gate.sync.status().in_flight)
            self._screen.progress(self._done())
            time.sleep(0.05)
        self._screen.progress(self._done())

    def _outcome(self, server: str, back_after: float, seconds: float) -> Outcome:
        answers = [self._job(self._id(number)) for number in range(self._jobs)]
        gate = self._gate.sync.status()
        return Outcome(
            server=server,
            jobs=self._jobs,
            right=sum(job.return_value() == n * n for n, job in enumerate(answers)),
            limit=AT_ONCE,
            most_at_once=self._most_at_once,
            killed=1,
            permits_granted=gate.granted,
            permits_expired=gate.expired,
            permits_left=gate.in_flight,
            permit_back_after=round(back_after, 2),
            repeated=sum(job.retries_left != _RETRIES for job in answers),
            seconds=round(seconds, 2),
        )

    def _order(self, number: int) -> EnqueueData:
        return Queue.prepare_data(
            grade,
            [self._queue.name, number],
            job_id=self._id(number),
            retry=Retry(max=_RETRIES),
            timeout=30,
        )

    def _done(self) -> int:
        return int(self._queue.finished_job_registry.get_job_count(cleanup=False))

    def _id(self, number: int) -> str:
        return f"{self._queue.name}-{number}"

    def _number(self, id: str) -> str:
        return id.removeprefix(f"{self._queue.name}-")

    def _job(self, id: str) -> Job:
        found = self._queue.fetch_job(id)
        if found is None:
            raise DemoFailed(f"job {self._number(id)} is gone from Redis")
        return found


def play(url: str, jobs: int, logs: Path, screen: Screen) -> Outcome:
    """Play it on this Redis, and leave nothing of it there."""
    with _queue(url) as (queue, server):
        return Story(url, queue, jobs, logs, screen).play(server)


@contextmanager
def _queue(url: str) -> Iterator[tuple[Queue, str]]:
    target = parse_redis_url(url)
    client = connect(target)
    assert isinstance(client, redis.Redis)  # noqa: S101 - a cluster was refused at the door
    name = f"penstock-demo-{secrets.token_hex(4)}"
    try:
        server = read_facts(client, target).name
        yield Queue(name, connection=client, serializer=JSONSerializer), server
    finally:
        engine_for(target).stop()  # before its server ends, which it would report
        _sweep(client, name)
        client.close()


def _sweep(client: redis.Redis, name: str) -> None:
    # All jobs and workers of the demo carry the queue's name, and so does each of their keys.
    for key in client.scan_iter(f"*{name}*", count=1000):
        client.delete(key)
    client.srem(INDEX, name)
    client.delete("rq:clean_groups")  # RQ 3 notes when it last looked after groups
    client.srem("rq:queues", f"rq:queue:{name}")
    client.srem("rq:workers", *(f"rq:worker:{name}-{one}" for one in (*WORKERS, SUCCESSOR)))
