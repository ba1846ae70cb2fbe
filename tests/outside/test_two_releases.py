"""Half a fleet is of the last release and half of this one, and all of it is killed at random.

The releases speak to each other by Redis alone: jobs, permits, groups and session sandboxes."""

import asyncio
import json
import random
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import ground
from buffer import RolloutBuffer, TaskConfig
from limiter import TokenBucket
from tests.harness.servers import PrivateRedis, until
from tests.outside.parts import SIZE
from tests.outside.releases import Release, both
from worker.lifecycle import SandboxLifecycle

pytestmark = [pytest.mark.outside, pytest.mark.timeout(1800)]
WITHIN = 600.0
TASK = TaskConfig(group_size=SIZE, lease=3, retain=86_400)
WORKER = ["worker", "code", "--sandbox", "local", "--gate", "both", "--concurrency", "8"]


class Player:
    """One process of the fleet, which is started again whenever it was killed."""

    def __init__(self, begin: Callable[[], "subprocess.Popen[bytes]"], ends: bool = True) -> None:
        self._begin, self._ends = begin, ends
        self.process = begin()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        if not self.finished():
            self.kill()
            self.process = self._begin()

    def finished(self) -> bool:
        code = self.process.poll()
        assert code in ((None, 0) if self._ends else (None,)), (
            f"{self.process.args!r} ended: {code}"
        )
        return code == 0


class Fleet:
    """Players of both releases on one Redis."""

    def __init__(self, redis: PrivateRedis, folder: Path) -> None:
        self.redis, self.folder, self.releases = redis, folder, both()
        self._stack = ExitStack()

    def __enter__(self) -> "Fleet":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        for log in sorted(self.folder.glob("*.log")):  # pytest shows it if the test has failed
            print(f"--- {log.name}\n{log.read_text()[-2000:]}")

    def worker(self, release: Release) -> Player:
        return self._player(lambda: release.begin(WORKER, self.redis.url, self.folder), False)

    def part(self, release: Release, what: str, count: int, ends: bool = True) -> Player:
        file = str(self.folder / f"{what}-{release.name}")
        words = [what, self.redis.url, file, release.name, str(count)]
        return self._player(lambda: release.part(words, self.redis.url, self.folder), ends)

    def _player(self, begin: Callable[[], Any], ends: bool) -> Player:
        player = Player(begin, ends)
        self._stack.callback(player.kill)
        return player

    def ledger(self, what: str) -> dict[str, list[Any]]:
        found = {}
        for release in self.releases:
            file = self.folder / f"{what}-{release.name}"
            lines = file.read_text().split("\n")[:-1] if file.exists() else []
            found[release.name] = [json.loads(line) for line in lines]
        return found


async def task_is_there(redis: PrivateRedis) -> None:
    buffer = RolloutBuffer(redis.target, "both", TASK)
    await buffer.config()
    await buffer.aclose()


@pytest.fixture
def fleet(private_redis: Callable[..., PrivateRedis], tmp_path: Path) -> Iterator[Fleet]:
    redis = private_redis(aof=True)
    TokenBucket(redis.target, "both", limit=6, lease=5.0).sync.status()
    asyncio.run(task_is_there(redis))  # a reader may start before a writer
    with Fleet(redis, tmp_path) as fleet:
        yield fleet


def killed_until(done: Callable[[], bool], players: list[Player], every: float) -> None:
    """One of them dies now and then, until all of it is done."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    chance = random.Random(seed)
    deadline = time.monotonic() + WITHIN
    while not done():
        assert time.monotonic() < deadline
        strike = time.monotonic() + every
        until(lambda at=strike: done() or time.monotonic() > at, "the next kill")  # type: ignore[misc]
        if not done():
            chance.choice(players).restart()


def test_two_thousand_jobs_and_five_hundred_groups_pass_through_both(fleet: Fleet) -> None:
    workers = [fleet.worker(release) for release in fleet.releases for _ in range(2)]
    trainers = [fleet.part(release, "jobs", 1000) for release in fleet.releases]
    writers = [fleet.part(release, "writes", 250) for release in fleet.releases]
    readers = [fleet.part(release, "reads", 10, ends=False) for release in fleet.releases]
    players = [*workers, *trainers, *writers, *readers]
    ends = [*trainers, *writers]

    def done() -> bool:
        return all(player.finished() for player in ends) and drained(fleet.redis)

    killed_until(done, players, every=2.0)
    jobs_are_right(fleet, 1000)
    groups_are_whole(fleet, 250)
    until(lambda: in_flight(fleet.redis) == 0, "every permit's return", WITHIN)


def jobs_are_right(fleet: Fleet, count: int) -> None:
    for lines in fleet.ledger("jobs").values():
        right = [[n, "none", str(3 * n)] for n in range(count)]
        assert sorted({json.dumps(line): line for line in lines}.values()) == right


def drained(redis: PrivateRedis) -> bool:
    room = "penstock:buffer:{default/both}"
    return not any(redis.ask("EXISTS", f"{room}:{part}") for part in ("open", "ready", "leased"))


def groups_are_whole(fleet: Fleet, groups: int) -> None:
    """Each item that was stored came in one batch that was acknowledged, and in one only."""
    written = [line for lines in fleet.ledger("writes").values() for line in lines]
    stored = {uid for uid, outcome in written if outcome in ("stored", "repeated")}
    names = [release.name for release in fleet.releases]
    all_of_it = {f"{n}-{group}-{i}" for n in names for group in range(groups) for i in range(SIZE)}
    assert stored == all_of_it
    client: Any = ground.connect(fleet.redis.target)
    came: Counter[str] = Counter()
    for receipt, uids in (line for lines in fleet.ledger("reads").values() for line in lines):
        batch = f"penstock:buffer:{{default/both}}:batch:{receipt}"
        if client.hget(batch, "state") == b"consumed":
            came.update(set(uids))
    client.close()
    assert came.keys() == stored
    assert max(came.values()) == 1


def in_flight(redis: PrivateRedis) -> int:
    found = TokenBucket(redis.target, "both", limit=6, lease=5.0).sync.status()
    return found.in_flight + found.waiting


def test_session_sandboxes_of_both_leave_nothing_behind(fleet: Fleet) -> None:
    workers = [fleet.worker(release) for release in fleet.releases]  # with a reaper each
    owners = [fleet.part(release, "boxes", 30) for release in fleet.releases]
    killed_until(lambda: all(owner.finished() for owner in owners), [*owners, *workers], every=3.0)
    for name, lines in fleet.ledger("boxes").items():
        right = [[n, 0, f"{name} {n}"] for n in range(30)]
        assert sorted({line[0]: line for line in lines}.values()) == right
    life = SandboxLifecycle(fleet.redis.target, "local")
    until(lambda: life.registry.look().count == 0, "the reapers", WITHIN)
    life.registry.close()


@pytest.mark.parametrize("way", ["forwards", "back"])
def test_the_fleet_is_upgraded_under_load_and_taken_back(fleet: Fleet, way: str) -> None:
    """In the order of the guide: workers one by one, then the trainer; back in the opposite one."""
    old, new = fleet.releases if way == "forwards" else fleet.releases[::-1]
    workers = [fleet.worker(old), fleet.worker(old)]
    trainer = fleet.part(old, "jobs", 600)

    def change_workers() -> None:
        for worker in workers:
            worker.process.terminate()
            assert worker.process.wait(WITHIN) in (143, -15)
            fleet.worker(new)

    def change_trainer() -> Player:
        trainer.kill()
        return fleet.part(new, "jobs", 600)

    def answered(count: int) -> None:
        until(lambda: sum(map(len, fleet.ledger("jobs").values())) >= count, "jobs", WITHIN)

    answered(50)
    if way == "forwards":
        change_workers()
        answered(200)
        last = change_trainer()
    else:
        last = change_trainer()
        answered(200)
        change_workers()
    until(last.finished, "all jobs", WITHIN)
    lines = fleet.ledger("jobs")[new.name]
    right = [[n, "none", str(3 * n)] for n in range(600)]
    assert sorted({line[0]: line for line in lines}.values()) == right
    until(lambda: in_flight(fleet.redis) == 0, "every permit's return", WITHIN)
