"""Everything is killed in random order while thousands of items pass; each is accounted for."""

import asyncio
import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ground
from buffer import RolloutBuffer, TaskConfig
from buffer.item import stored_item
from tests.buffer.ledger import TASK, items_of, lines_of
from tests.buffer.serving import ServerProcess
from tests.harness import leash
from tests.harness.nursery import ROOT
from tests.harness.servers import PrivateRedis, until

ROOM = f"penstock:buffer:{{default/{TASK}}}"


class Player:
    """A writer or reader that is started again whenever it was killed."""

    def __init__(self, file: Path, *words: str) -> None:
        self.file = file
        self._words = words
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        what, *rest = self._words
        self._process = leash.start(
            [sys.executable, "-m", "tests.buffer.ledger", what, str(self.file), *rest], cwd=ROOT
        )

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def restart(self) -> None:
        self.kill()
        self.start()

    def finished(self) -> bool:
        assert self._process is not None
        status = self._process.poll()
        assert status in (None, 0), f"{self._words} failed: {status}"
        return status == 0


@pytest.mark.parametrize(
    ("groups", "rounds"),
    [
        pytest.param(690, 1, id="5,000 items", marks=[pytest.mark.timeout(1200)]),
        pytest.param(
            13_750, 13, id="100,000 items", marks=[pytest.mark.soak, pytest.mark.timeout(3600)]
        ),
    ],
)
def test_every_item_written_with_success_is_accounted_for(
    groups: int, rounds: int, private_redis: Callable[..., PrivateRedis], tmp_path: Path
) -> None:
    seed = random.randrange(10**6)
    chance = random.Random(seed)
    print(f"seed {seed}")
    redis = private_redis(aof=True, config=["appendfsync always"])
    configure(redis)
    servers = [ServerProcess(redis.url, tmp_path) for _ in range(2)]
    urls = ",".join(server.url for server in servers)
    writers = [
        Player(tmp_path / f"writer-{name}", "write", urls, name, str(groups)) for name in "ab"
    ]
    reader = Player(tmp_path / "reader", "read", urls)
    try:
        for player in (*servers, *writers, reader):
            player.start()
        everybody: list[Any] = [*writers, reader, *servers, redis]
        victims = [
            victim for _ in range(rounds) for victim in chance.sample(everybody, len(everybody))
        ]
        total = 2 * sum(1 for _ in items_of("x", groups))
        for number, victim in enumerate(victims, 1):
            goal = total * number // (len(victims) + 1)
            until(lambda goal=goal: written(writers) >= goal, f"{goal} items", 300)  # type: ignore[misc]
            strike(victim)
        until(lambda: all(writer.finished() for writer in writers), "the writers", 300)
        until(lambda: drained(redis), "the reader", 120)
    finally:
        for player in (reader, *writers):
            player.kill()
        for server in servers:
            server.kill()
    account(redis, writers, reader, total)


def strike(victim: Any) -> None:
    if isinstance(victim, ServerProcess):
        victim.kill()
        victim.start()
    else:
        victim.restart()


def configure(redis: PrivateRedis) -> None:
    """Short leases, so that a killed reader's batches come back; long memory, to count."""
    config = TaskConfig(
        group_size=4, lease=3, retain=86_400, grace=86_400, late_window=86_400,
        group_timeout_seconds=2, min_timeout_group_size_ratio=0.7,
    )  # fmt: skip

    async def put() -> None:
        buffer = RolloutBuffer(redis.target, TASK, config)
        await buffer.config()
        await buffer._task.link.command("ZADD", "penstock:buffer:{default}:tasks", 1, TASK)
        await buffer.aclose()

    asyncio.run(put())


def written(writers: list[Player]) -> int:
    return sum(writer.file.read_text().count("\n") for writer in writers if writer.file.exists())


def drained(redis: PrivateRedis) -> bool:
    return not any(redis.ask("EXISTS", f"{ROOM}:{index}") for index in ("open", "ready", "leased"))


def account(redis: PrivateRedis, writers: list[Player], reader: Player, total: int) -> None:
    """Each item once: in one consumed batch, or in one group that was discarded."""
    client: Any = ground.connect(redis.target)
    outcomes = dict(line.split() for writer in writers for line in lines_of(writer.file))
    assert len(outcomes) == total
    stored = {uid for uid, outcome in outcomes.items() if outcome in ("stored", "repeated")}
    delivered: Counter[str] = Counter()
    for batch in map(json.loads, lines_of(reader.file)):
        if client.hget(f"{ROOM}:batch:{batch['receipt']}", "state") == b"consumed":
            delivered.update(set(batch["uids"]))  # padding repeats within a group
    discarded: Counter[str] = Counter()
    for gid in client.zrange(f"{ROOM}:kept", 0, -1):
        group = f"{ROOM}:group:{gid.decode()}"
        if client.hget(f"{group}:meta", "state") in (b"invalid", b"expired", b"quarantined"):
            discarded.update(stored_item(value)[1]["uid"] for value in client.hvals(group))
    client.close()
    assert len(stored) > 0.9 * total  # the rest came after its group had timed out
    assert not delivered.keys() & discarded.keys()
    assert max(discarded.values()) == max(delivered.values()) == 1
    assert stored == delivered.keys() | discarded.keys()
