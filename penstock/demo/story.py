"""The demo's story: one small RL step, with an accident on the way, and nothing lost.

A scripted model writes programs; they pass queue, gate and sandbox; trajectories
become groups in the buffer, and a trainer takes them. One worker is killed with -9.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

from buffer import RolloutBuffer, TaskConfig
from ground import connect
from ground.keys import tagged
from ground.redis.check import read_facts
from ground.redis.url import parse_redis_url
from ground.tasks import heed_cancellation
from limiter import TokenBucket
from limiter.commands import INDEX
from limiter.engine import engine_for
from penstock.demo.agents import Agents, Tally, job_id
from penstock.demo.crew import AT_ONCE, Crew
from penstock.demo.model import SLOW, scripted_model
from penstock.demo.record import DemoFailed, Outcome, Record, Sample
from penstock.demo.screen import Screen
from penstock.in_order import run_in_order
from worker import CodeQueue
from worker.queue.engine import client_engine

WORKERS = ("ada", "bob", "cid")
SUCCESSOR = "dan"
SAMPLES = 4
PATIENCE = 90.0
GROUP_TIMEOUT = 6.0  # longer than what a killed worker's programs are late by
_DIED = 2


class Story:
    """A story is played once, on one queue, one gate and one task."""

    def __init__(self, url: str, name: str, jobs: int, folder: Path, screen: Screen) -> None:
        self._name = name
        self._screen = screen
        self._asked = _asked(jobs)
        self._groups = len({number for number, _ in self._asked})
        self._gate = TokenBucket(url, name, limit=AT_ONCE)
        self._crew = Crew(url, name, self._gate, folder)
        self._queue = CodeQueue(url, name)
        config = TaskConfig(
            group_size=SAMPLES, group_timeout_seconds=GROUP_TIMEOUT,
            min_timeout_group_size_ratio=0.75,
        )  # fmt: skip
        self._buffer = RolloutBuffer(url, name, config, run=name)
        self._tally = Tally()
        self._trainer = Trainer(self._buffer, self._timed_out)
        self._most_at_once = 0
        self._began = time.monotonic()
        self.record = Record(AT_ONCE)

    async def play(self, server: str) -> Outcome:
        jobs = len(self._asked)
        self._screen.say(
            f"{server} is up: {jobs} programs of {self._groups} questions, {len(WORKERS)} workers, "
            f"and a gate that lets {AT_ONCE} run at once"
        )
        try:
            for name in WORKERS:
                self._crew.hire(name)
            await self._until(self._crew.ready, "the workers are up")
            self._began = time.monotonic()
            self.record.samples.clear()
            with scripted_model() as model:
                async with asyncio.TaskGroup() as group:
                    agents = Agents(model, self._queue, self._buffer, self._tally)
                    group.create_task(agents.play(self._asked))
                    group.create_task(self._trainer.train(self._groups))
                    killed, back_after = await self._with_an_accident()
                    await self._until(self._all_accounted_for, "every group is accounted for")
            await self._until(self._no_permit_is_out, "all permits are back")
            return await self._outcome(server, killed, back_after)
        finally:
            await asyncio.to_thread(self._crew.dismiss)
            await self._buffer.aclose()

    async def _with_an_accident(self) -> tuple[int, float]:
        job = job_id(self._name, *SLOW)
        # In a thread: this loop is busy with the agents, and the program does not wait for it.
        striking = asyncio.create_task(asyncio.to_thread(self._crew.kill_in_the_middle_of, job))
        try:
            await self._until(striking.done, "a worker is in the middle of the long program")
            dead = await striking
        finally:
            striking.cancel()  # where the demo has failed meanwhile, nobody asks how it went
        if dead is None:
            raise DemoFailed("the long program ended before it was seen running")
        self._happened(f"{dead.victim} killed")
        self._screen.say(
            f"worker {dead.victim} is killed with -9 in job {self._short(job)}, permit in hand; "
            f"{SUCCESSOR} starts instead"
        )
        self._crew.hire(SUCCESSOR)
        await self._until(
            lambda: self._crew.ledger().get("requeued", 0) > dead.requeued_before,
            "its jobs come back",
        )
        back_after = time.monotonic() - dead.at
        self._happened("its jobs and permits are back")
        self._screen.say(
            f"its jobs and permits came back by themselves after {back_after:.1f} s; "
            "others run them again"
        )
        return dead.ended, back_after

    def _timed_out(self, id: str) -> None:
        self._happened("a group timed out")
        self._screen.say(f"group {id} timed out: two of its agents died, as planned")

    def _all_accounted_for(self) -> bool:
        everything = self._tally.done == len(self._asked)
        return everything and self._trainer.accounted_for == self._groups

    def _no_permit_is_out(self) -> bool:
        return self._gate.sync.status().in_flight == 0

    async def _until(self, so: Any, what: str) -> None:
        """Watch until it is so, and note the figures on the way."""
        deadline = time.monotonic() + PATIENCE
        while not await asyncio.to_thread(so):
            heed_cancellation()
            if time.monotonic() > deadline:
                done = f"{self._tally.done} of {len(self._asked)} programs are done"
                raise DemoFailed(f"waited {PATIENCE:.0f} s until {what}; {done}")
            self._crew.check()
            await self._look()
            await asyncio.sleep(0.05)

    async def _look(self) -> None:
        gate, stats = await self._gate.status(), await self._buffer.catalog.stats()
        self._most_at_once = max(self._most_at_once, gate.in_flight)
        waiting = await asyncio.to_thread(self._crew.waiting)
        at = round(time.monotonic() - self._began, 3)
        self.record.samples.append(Sample(
            at, waiting, gate.in_flight, stats["open_groups"], stats["ready_groups"],
            self._trainer.delivered,
        ))  # fmt: skip
        self._screen.progress(self._tally.done)

    def _happened(self, what: str) -> None:
        self.record.events.append((round(time.monotonic() - self._began, 3), what))

    async def _outcome(self, server: str, killed: int, back_after: float) -> Outcome:
        await self._look()
        gate, ledger = await self._gate.status(), self._crew.ledger()
        self._screen.progress(self._tally.done)
        return Outcome(
            server=server,
            jobs=len(self._asked),
            finished=ledger.get("finished", 0),
            executions=ledger.get("claimed", 0),
            repeated=ledger.get("requeued", 0),
            limit=AT_ONCE,
            most_at_once=max(self._most_at_once, self._crew.most_permits),
            killed=killed,
            permits_granted=gate.granted,
            permits_expired=gate.granted - gate.released - gate.in_flight,
            permits_left=gate.in_flight,
            permit_back_after=round(back_after, 2),
            groups=self._groups,
            groups_delivered=self._trainer.delivered,
            groups_timed_out=len(self._trainer.timed_out),
            trajectories=len(self._tally.rewards),
            mean_reward=round(sum(self._tally.rewards) / max(1, len(self._tally.rewards)), 3),
            seconds=round(time.monotonic() - self._began, 2),
        )

    def _short(self, id: str) -> str:
        return id.removeprefix(f"{self._name}-")


def jobs_of(wanted: int) -> int:
    """How many programs that makes."""
    return len(_asked(wanted))


def _asked(wanted: int) -> list[tuple[int, int]]:
    """The samples that are asked for, in whole groups. The last one's agents die on the way, so
    that it can only time out.

    It is asked first: its time runs while the others play.
    """
    last = max(2, wanted // SAMPLES) - 1
    stray = [(last, s) for s in range(SAMPLES - _DIED)]
    return stray + [(n, s) for n in range(last) for s in range(SAMPLES)]


def play(url: str, jobs: int, folder: Path, screen: Screen) -> tuple[Outcome, Record]:
    """Play it on this Redis, and leave nothing of it there."""
    with _name(url) as (name, server):
        story = Story(url, name, jobs, folder, screen)
        return run_in_order(story.play(server)), story.record


@contextmanager
def _name(url: str) -> Iterator[tuple[str, str]]:
    target = parse_redis_url(url)
    client = connect(target)
    assert isinstance(client, redis.Redis)  # noqa: S101 - a cluster was refused at the door
    name = f"penstock-demo-{secrets.token_hex(4)}"
    try:
        yield name, read_facts(client, target).name
    finally:
        client_engine(target).stop()  # before its server ends, which they would report
        engine_for(target).stop()
        _sweep(client, name)
        client.close()


def _sweep(client: redis.Redis, name: str) -> None:
    # All jobs and workers of the demo carry the queue's name, and so does each of their keys.
    for key in client.scan_iter(f"*{name}*", count=1000):
        client.delete(key)
    client.srem(INDEX, name)
    client.delete("rq:clean_groups", tagged("buffer", name, "tasks"))
    client.srem("rq:queues", f"rq:queue:{name}")
    client.srem("rq:workers", *(f"rq:worker:{name}-{one}" for one in (*WORKERS, SUCCESSOR)))


class Trainer:
    """The demo's trainer takes what is ready from the buffer, and counts every group once, with
    data or without.

    It says of each group that comes without data that it timed out.
    """

    def __init__(self, buffer: RolloutBuffer, timed_out: Callable[[Any], None]) -> None:
        self._buffer = buffer
        self._say = timed_out
        self.delivered = 0
        self.timed_out: list[Any] = []

    @property
    def accounted_for(self) -> int:
        return self.delivered + len(self.timed_out)

    async def train(self, groups: int) -> None:
        """Take and acknowledge, until this many groups are accounted for."""
        while self.accounted_for < groups:
            heed_cancellation()
            if batch := await self._buffer.take(2, wait=0.2):
                await self._buffer.ack(batch)
                self.delivered += len(batch.groups)
                # A batch takes along what has timed out by then: the story says it here, or below.
                self._note(batch.discarded)
            await self._buffer.sweep()
            self._note(await self._buffer.unreported())

    def _note(self, ids: list[Any]) -> None:
        for id in ids:
            if id not in self.timed_out:
                self.timed_out.append(id)
                self._say(id)
