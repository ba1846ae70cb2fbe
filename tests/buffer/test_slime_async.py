"""slime's fully asynchronous training over the buffer: bounded, and whole after kills.

`SLIME_SOURCE=CHECKOUT` runs it with slime's own worker, data source and samples.
"""

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ground
from buffer import ItemRefused, Policy, RolloutBuffer, TaskConfig
from tests.buffer import slime_trainer
from tests.buffer.ledger import lines_of
from tests.buffer.slime_trainer import BATCH, MAX_AGE, SIZE
from tests.harness import leash
from tests.harness.nursery import ROOT
from tests.harness.servers import PrivateRedis, until

CONFIG = TaskConfig(group_size=SIZE, dialect="v1")
POLICY = Policy(groups_per_version=BATCH, max_age=MAX_AGE, slot_lease=2.0)
STEPS, KILLS = 9, 2
SOURCE = os.environ.get("SLIME_SOURCE", "")


class Trainer:
    def __init__(self, url: str, folder: Path, steps: int, source: str) -> None:
        self._folder, self._steps, self._source = folder, steps, source
        self._environment = {**os.environ, "PENSTOCK_REDIS_URL": url}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        words = [str(self._folder), str(self._steps), *([self._source] if self._source else [])]
        command = [sys.executable, "-m", "tests.buffer.slime_trainer", *words]
        self._process = leash.start(command, cwd=ROOT, env=self._environment)

    def kill(self) -> None:
        assert self._process is not None
        assert self._process.poll() is None, "it ended by itself"
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def wait(self) -> int:
        assert self._process is not None
        return self._process.wait(300)

    def rows(self) -> list[dict[str, Any]]:
        """Steps that were trained; what a kill cut off is no step."""
        return [json.loads(line) for line in lines_of(self._folder / "trained")]


@pytest.fixture(params=["stand-in", "slime itself"])
def source(request: pytest.FixtureRequest) -> str:
    if request.param == "slime itself" and not SOURCE:
        pytest.skip("SLIME_SOURCE names no checkout of slime")
    return SOURCE if request.param == "slime itself" else ""


@pytest.fixture
def trainer_of(
    shared_server: PrivateRedis, real_redis: ground.Client, tmp_path: Path
) -> Iterator[Callable[..., Trainer]]:
    started: list[Trainer] = []

    def make(steps: int, source: str) -> Trainer:
        started.append(Trainer(shared_server.url, tmp_path, steps, source))
        started[-1].start()
        return started[-1]

    yield make
    for trainer in started:
        trainer.stop()


def weights(row: dict[str, Any]) -> int:
    """The step that the oldest tokens of a trained step were made for."""
    said = [int(w) for group in row["groups"] for one in group["samples"] for w in one["weights"]]
    return min(said) - 1 + row["first"]


@pytest.mark.timeout(900)
def test_each_step_gets_its_groups_and_none_is_older_than_the_bound(
    source: str, trainer_of: Callable[..., Trainer]
) -> None:
    trainer = trainer_of(6, source)
    assert trainer.wait() == 0
    rows = trainer.rows()
    assert [row["step"] for row in rows] == list(range(6))
    groups = [group for row in rows for group in row["groups"]]
    assert len({group["group"] for group in groups}) == len(groups) == 6 * BATCH
    for group in groups:
        assert len(group["samples"]) == SIZE
        for one in group["samples"]:
            assert (one["status"], one["reward"]) == ("completed", 1.0)
            assert one["tokens"] == [group["group"]] * 3 * len(one["weights"])
            assert one["log_probs"] == [-0.25] * len(one["tokens"])
    assert any(len(one["weights"]) > 1 for group in groups for one in group["samples"])
    assert all(row["step"] - weights(row) <= MAX_AGE for row in rows)


@pytest.mark.timeout(1800)
def test_after_kills_each_step_has_other_groups_and_no_group_is_missing(
    source: str,
    trainer_of: Callable[..., Trainer],
    shared_server: PrivateRedis,
    real_redis: ground.Client,
) -> None:
    buffer = RolloutBuffer(shared_server.url, "fully-async", CONFIG)
    buffer.sync.set_policy(POLICY)
    buffer.sync.close()
    chance = random.Random(random.randrange(10**6))
    trainer = trainer_of(STEPS, source)
    for kill in range(KILLS):
        goal = 3 * kill + chance.randint(1, 3)
        until(lambda goal=goal: any(r["step"] >= goal for r in trainer.rows()), "steps", 300)  # type: ignore[misc]
        trainer.kill()
        trainer.start()
    assert trainer.wait() == 0
    last = {row["step"]: row for row in trainer.rows()}  # a step that was trained again counts so
    assert sorted(last) == list(range(STEPS))
    trained = [group["group"] for row in last.values() for group in row["groups"]]
    assert len(set(trained)) == len(trained) == STEPS * BATCH, "none is trained on twice"
    assert all(step - weights(row) <= MAX_AGE for step, row in last.items())
    begun = [n for n in range(1000) if real_redis.exists(buffer._task.meta_key(f"{n}:0"))]
    assert len(begun) <= len(trained) + POLICY.most_outstanding, "no restart began a burst"
    for name in set(range(max(trained))) - set(trained):
        meta = real_redis.hgetall(buffer._task.meta_key(f"{name}:0"))
        assert meta, f"group {name} was begun, and is nowhere"


def test_a_prompt_that_is_no_json_ends_the_run_with_a_sentence(
    real_redis: ground.Client, shared_server: PrivateRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "slime"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setenv("PENSTOCK_REDIS_URL", shared_server.url)
    slime_trainer.install(slime_trainer.Engines(), "")
    from buffer.adapters.slime import DataSource

    class Pictures(slime_trainer.Prompts):
        def get_samples(self, number: int) -> Any:
            groups: Any = super().get_samples(number)
            groups[0][0].tokens = [object()]
            return groups

    sys.modules["slime.rollout.data_source"].RolloutDataSource = Pictures  # type: ignore[attr-defined]
    source = DataSource(SimpleNamespace(n_samples_per_prompt=SIZE, rollout_batch_size=BATCH))
    source.publish(0)
    with pytest.raises(ItemRefused, match="the item is not JSON"):
        source.get_samples(1)
    with pytest.raises(ItemRefused, match="the item is not JSON"):
        source.take(1)
    for name in [name for name in sys.modules if name.split(".")[0] == "slime"]:
        del sys.modules[name]
