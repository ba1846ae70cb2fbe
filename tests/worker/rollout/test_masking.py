"""The trainers' tool in rollouts: what breaks on our side is masked, and the batch goes on."""

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.harness import killing
from tests.harness.scripted_model import called, said, scripted_model
from tests.worker.concurrent.crew import work_in_process
from tests.worker.rollout.players import assistant_turns, code, playing, user
from tests.worker.scripted_answers import Answer
from tests.worker.scripted_fusion import ScriptedFusion
from worker.rollout import Batch, run_batch
from worker.settings import worker_settings
from worker.tool import SandboxFusionTool

DOOMED = "1 1"  # the program under which something breaks


@pytest.fixture
def fusion(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedFusion]:
    monkeypatch.setenv("PENSTOCK_SANDBOX_ATTEMPTS", "1")
    with ScriptedFusion(default=Answer.ok("4\n")) as fusion:
        monkeypatch.setenv("PENSTOCK_SANDBOX_FUSION_URL", fusion.url)
        worker_settings.cache_clear()
        yield fusion
    worker_settings.cache_clear()


class Watched(SandboxFusionTool):
    """Tells which trajectory begins, and which program is to run: `before` may break something."""

    def __init__(self, url: str, before: Callable[[str], object]) -> None:
        super().__init__({"redis_url": url})
        self._before = before
        self._impatient = SandboxFusionTool({"redis_url": url, "max_wait": 2.0})

    async def create(self, instance_id: str | None = None, *args: Any, **kwargs: Any) -> Any:
        await asyncio.to_thread(self._before, str(instance_id))
        return await super().create(instance_id, *args, **kwargs)

    async def execute(self, instance_id: str, parameters: Any, **kwargs: Any) -> Any:
        await asyncio.to_thread(self._before, parameters["code"])
        tool = self._impatient if parameters["code"] == DOOMED else super()
        return await tool.execute(instance_id, parameters, **kwargs)


def programs(request: dict[str, Any], _: int) -> Any:
    """Conversation n runs the programs `n 0` and `n 1`, then answers what it saw last."""
    turn, number = assistant_turns(request), request["messages"][0]["content"]
    if turn < 2:
        return called(code(f"{number} {turn}"))
    return said(f"#### {request['messages'][-1]['content']}")


async def play(tool: SandboxFusionTool) -> Batch:
    """Three trajectories, one after the other; a right answer is worth 1."""

    def right(trajectory: Any) -> float:
        return float(trajectory.answer.strip() == "#### 4")

    with scripted_model(programs) as model:
        async with playing(model, tool, score=right) as rollout:
            requests = [rollout.request(user(f"{n}"), request_id=f"{n}") for n in range(3)]
            return await run_batch(rollout, requests, concurrency=1)


def only_the_second_is_masked(batch: Batch, reason: str) -> None:
    before, lost, after = batch.trajectories
    assert [(t.masked, t.score) for t in (before, after)] == [(False, 1.0), (False, 1.0)]
    assert lost.sample() == {
        "reward_score": 0.0, "exact": False, "traj_masked": 1,
        "traj_exit_reason": f"tool code_interpreter: infrastructure: {reason}",
    }  # fmt: skip
    assert (lost.score, batch.mean_score) == (None, 1.0)


async def test_a_dead_sandbox(private_redis, fusion) -> None:
    url = private_redis().url
    fusion.programs = {DOOMED: Answer.cut()}
    with killing.Child(work_in_process, url, ["code"], {}):
        batch = await play(Watched(url, lambda _: None))
    only_the_second_is_masked(batch, "cut")


async def test_an_outage_of_redis(private_redis, fusion) -> None:
    server = private_redis(aof=True, config=["appendfsync always"])
    with contextlib.ExitStack() as crew:

        def before(what: str) -> None:
            if what == DOOMED:
                server.kill()
            if what == "2":
                server.start()
            if what in ("0", "2"):
                crew.enter_context(killing.Child(work_in_process, server.url, ["code"], {}))

        batch = await play(Watched(server.url, before))
    only_the_second_is_masked(batch, "DeadlineExceeded")


async def test_a_killed_worker(private_redis, fusion) -> None:
    url = private_redis().url
    fusion.programs = {DOOMED: Answer.ok(seconds=math.inf)}
    with contextlib.ExitStack() as crew:
        crews: list[killing.Child] = []

        def kill_when_it_runs() -> None:
            fusion.wait_until(lambda: fusion.codes[DOOMED] == 1, 100)
            crews[0].kill()

        def before(what: str) -> None:
            if what in ("0", "2"):
                crews.append(crew.enter_context(killing.Child(work_in_process, url, ["code"], {})))

        tool = Watched(url, before)
        killer = asyncio.create_task(asyncio.to_thread(kill_when_it_runs))
        batch = await play(tool)
        await killer
    only_the_second_is_masked(batch, "DeadlineExceeded")
