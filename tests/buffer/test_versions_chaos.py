"""Generators, trainers, connections and Redis are killed at random; an observer that keeps its own
ledger of versions finds no group over the bound, none trained twice, and none lost."""

import asyncio
import json
import math
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis.exceptions

import ground
from buffer import RolloutBuffer
from tests.buffer.ledger import lines_of
from tests.buffer.versions_ledger import CONFIG, POLICY, TASK
from tests.harness import leash
from tests.harness.nursery import ROOT
from tests.harness.proxy import Proxy
from tests.harness.servers import PrivateRedis, until

AT = f"penstock:buffer:{{default/{TASK}}}"


class Player:
    """A process that is started again whenever it was killed."""

    def __init__(self, file: Path, what: str, *rest: str) -> None:
        self.file, self._words = file, (what, str(file), *rest)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.buffer.versions_ledger", *self._words]
        self._process = leash.start(command, cwd=ROOT)

    def kill(self) -> None:
        assert self._process is not None
        assert self._process.poll() is None, f"{self._words} ended by itself"
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def restart(self) -> None:
        self.kill()
        self.start()


@pytest.mark.parametrize(
    ("generators", "groups", "rounds"),
    [
        pytest.param(2, 40, 1, id="80 groups", marks=pytest.mark.timeout(600)),
        pytest.param(
            8, 250, 4, id="2,000 groups", marks=[pytest.mark.soak, pytest.mark.timeout(3600)]
        ),
    ],
)
def test_no_kill_breaks_the_bound(
    generators: int,
    groups: int,
    rounds: int,
    private_redis: Callable[..., PrivateRedis],
    tmp_path: Path,
) -> None:
    seed = random.randrange(10**6)
    chance = random.Random(seed)
    print(f"seed {seed}")
    server = private_redis(aof=True, config=["appendfsync always"])
    asyncio.run(_configure(server))
    client: Any = ground.connect(server.target)
    with Proxy(server.target) as proxy:
        url = f"redis://127.0.0.1:{proxy.target.nodes[0][1]}/0"
        makers = [
            Player(tmp_path / f"g{n}", "generate", url, f"g{n}", str(groups))
            for n in range(generators)
        ]
        trainers = [Player(tmp_path / "lead", "lead", url), Player(tmp_path / "take", "take", url)]
        players = [*makers, *trainers]
        try:
            for player in players:
                player.start()
            victims: list[Any] = [
                victim
                for _ in range(rounds)
                for victim in chance.sample([*players, server, proxy], len(players) + 2)
            ]
            total = generators * groups
            for number, victim in enumerate(victims, 1):
                goal = total * number // (len(victims) + 2)
                until(lambda goal=goal: trained(client) >= goal, f"{goal} groups", 300)  # type: ignore[misc]
                if victim is proxy:
                    proxy.lose_replies(chance.randint(1, 20))
                    proxy.cut()
                else:
                    victim.restart()
            until(lambda: trained(client) >= total, f"all {total} groups", 300)
        finally:
            for player in players:
                player.stop()
        judge(client, trainers, {f"g{g}-{n}" for g in range(generators) for n in range(groups)})
    client.close()


async def _configure(server: PrivateRedis) -> None:
    buffer = RolloutBuffer(server.target, TASK, CONFIG)
    await buffer.set_policy(POLICY)
    await buffer.aclose()


def trained(client: Any) -> int:
    """Groups that stand as trained on now; a new line takes some of them back."""
    try:
        return int(client.zcard(f"{AT}:delivered"))
    except redis.exceptions.RedisError:  # it starts
        return 0


def judge(client: Any, trainers: list[Player], prompts: set[str]) -> None:
    """By the ledgers of the trainers, and by what Redis says of each batch."""
    rows: list[tuple[float, str, Any]] = []
    for trainer in trainers:
        for line in lines_of(trainer.file):
            what, rest = line.split(" ", 1)
            said, moment = rest.rsplit(" ", 1)
            rows.append((float(moment), what, json.loads(said)))
    lost = {said["receipt"] for _, what, said in rows if what == "lost"}
    lines = list(
        zip(
            [(moment, said) for moment, what, said in rows if what == "line"],
            [moment for moment, what, _ in rows if what == "began"] + [math.inf],
            strict=False,
        )
    )
    over: list[Any] = []
    surviving: Counter[str] = Counter()
    for moment, what, said in rows:
        if what != "took":
            continue
        over += [
            (name, said["version"], group)
            for name, group in said["groups"].items()
            if said["version"] - group["start"] > POLICY.max_age
        ]
        state = client.hget(f"{AT}:batch:{said['receipt']}", "state")
        if state != b"consumed" or said["receipt"] in lost:
            continue
        for name in said["groups"]:
            last = client.hget(f"{AT}:group:{name}:0:meta", "receipt").decode()
            undone = [
                moment < asked or last != said["receipt"]
                for (asked, version), began in lines
                if version <= said["version"] and moment < began
            ]
            surviving[name] += not any(undone)
    assert over == []
    assert {name for name, n in surviving.items() if n > 1} == set(), "trained on twice"
    assert {name for name, n in surviving.items() if n} == prompts, "each is trained on once"
    outstanding = sum(map(int, client.hvals(f"{AT}:starts")))
    assert outstanding <= POLICY.most_outstanding
