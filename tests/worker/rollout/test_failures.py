"""What breaks on our side masks a trajectory, with its reason; the batch goes on."""

import asyncio
import contextlib
import math
from typing import Any

import pytest
from openai import AsyncOpenAI

import ground
from tests.harness import killing
from tests.harness.scripted_model import called, refused, said, scripted_model
from tests.harness.servers import url_of
from tests.worker.concurrent.crew import at_work, work_in_process
from tests.worker.rollout.players import (
    QueueTool,
    assistant_turns,
    code,
    playing,
    queue_of,
    script,
    user,
)
from tests.worker.scripted_answers import Answer
from tests.worker.scripted_fusion import ScriptedFusion
from worker.hosts import Grade
from worker.rollout import Rollout, run_batch
from worker.settings import worker_settings
from worker.tool.schemas import CODE_INTERPRETER, ToolResponse


@pytest.fixture
def fusion(monkeypatch):
    monkeypatch.setenv("PENSTOCK_SANDBOX_ATTEMPTS", "2")
    with ScriptedFusion(default=Answer.ok("4\n")) as fusion:
        monkeypatch.setenv("PENSTOCK_SANDBOX_FUSION_URL", fusion.url)
        worker_settings.cache_clear()
        yield fusion
    worker_settings.cache_clear()


def two_programs(request: dict[str, Any], _: int) -> Any:
    """Conversation n runs the programs `n 0` and `n 1`, then answers what it saw last."""
    turn = assistant_turns(request)
    number = request["messages"][0]["content"]
    if turn < 2:
        return called(code(f"{number} {turn}"))
    return said(f"#### {request['messages'][-1]['content']}")


def right(trajectory: Any) -> float:
    return float(trajectory.answer.strip() == "#### 4")


async def play(redis: Any, model: Any, number: int = 4, **options: Any) -> Any:
    tool = QueueTool(queue_of(redis, **options))
    async with playing(model, tool, score=right) as rollout:
        requests = [rollout.request(user(f"{n}")) for n in range(number)]
        batch = await run_batch(rollout, requests, concurrency=number)
    assert sorted(tool.released) == sorted(request.request_id for request in requests)
    return batch


async def test_a_sandbox_that_dies_masks_those_it_had(real_redis, fusion) -> None:
    fusion.programs = {f"{n} 1": Answer.cut() for n in (1, 2)}
    with at_work(real_redis), scripted_model(two_programs) as model:
        batch = await play(real_redis, model)
    assert [trajectory.masked for trajectory in batch.trajectories] == [False, True, True, False]
    assert (batch.mean_score, len(batch.masked)) == (1.0, 2)
    for trajectory in batch.masked:
        assert trajectory.exit_reason == "tool code_interpreter: cut"
        assert (trajectory.score, trajectory.sample()["traj_masked"]) == (None, 1)
        assert [message["role"] for message in trajectory.messages] == [
            "user", "assistant", "tool", "assistant",
        ]  # fmt: skip


async def test_a_sandbox_that_is_gone_masks_all_of_a_batch(real_redis, fusion) -> None:
    fusion.stop_listening()
    with at_work(real_redis), scripted_model(two_programs) as model:
        batch = await play(real_redis, model)
    assert (len(batch.masked), batch.mean_score) == (4, None)
    assert {trajectory.exit_reason for trajectory in batch.masked} == {
        "tool code_interpreter: connect"
    }


async def test_an_outage_of_redis_masks_those_in_it_and_no_later_ones(
    private_redis, fusion
) -> None:
    server = private_redis(aof=True, config=["appendfsync always"])
    with scripted_model(two_programs) as model:
        server.kill()
        lost = await play(server.target, model, number=2, patience=0.3)
        server.start()
        client = ground.connect(server.target)
        with at_work(client):
            found = await play(server.target, model, number=2)
        client.close()
    assert (len(lost.masked), lost.mean_score) == (2, None)
    for trajectory in lost.masked:
        assert trajectory.exit_reason.startswith("tool code_interpreter: QueueUnavailable: ")
    assert (found.masked, found.mean_score) == ([], 1.0)


async def test_an_outage_of_redis_in_the_middle_masks_and_the_batch_goes_on(
    private_redis, fusion
) -> None:
    server = private_redis(aof=True, config=["appendfsync always"])
    workers = contextlib.ExitStack()

    def hire() -> None:
        workers.enter_context(killing.Child(work_in_process, server.url, ["code"], {}))

    class Outage(QueueTool):
        """Redis dies before the first one's second call, and is back for the second one."""

        async def create(self, instance_id: str | None = None, **_: Any) -> Any:
            if instance_id == "1":
                await asyncio.to_thread(server.start)
            hire()
            return await super().create(instance_id)

        async def execute(self, instance_id: str, parameters: dict[str, Any], **_: Any) -> Any:
            if parameters["code"] == "0 1":
                await asyncio.to_thread(server.kill)
            return await super().execute(instance_id, parameters)

    tool = Outage(queue_of(server.target, patience=3.0))
    with workers, scripted_model(two_programs) as model:
        async with playing(model, tool, score=right) as rollout:
            requests = [rollout.request(user(f"{n}"), request_id=f"{n}") for n in range(2)]
            batch = await run_batch(rollout, requests, concurrency=1)
    lost, found = batch.trajectories
    assert lost.exit_reason.startswith("tool code_interpreter: QueueUnavailable: ")
    assert [message["role"] for message in lost.messages][1:] == ["assistant", "tool", "assistant"]
    assert (found.masked, found.score, batch.mean_score) == (False, 1.0, 1.0)


async def test_a_short_outage_of_redis_in_the_middle_is_sat_out(private_redis, fusion) -> None:
    server = private_redis(aof=True, config=["appendfsync always"])
    arguments = (server.url, ["code"], {"job_lease": 1.0})
    fusion.default = Answer.ok("4\n", seconds=0.2)
    with scripted_model(two_programs) as model, killing.Child(work_in_process, *arguments):
        playing = asyncio.create_task(play(server.target, model))
        await asyncio.to_thread(fusion.wait_until, lambda: fusion.requests >= 1, 100)
        await asyncio.to_thread(server.restart)
        with killing.Child(work_in_process, *arguments):
            batch = await playing
    assert (batch.masked, batch.mean_score) == ([], 1.0)


async def test_a_killed_worker_costs_nothing_where_there_is_another(real_redis, fusion) -> None:
    arguments = (url_of(real_redis), ["code"], {"job_lease": 1.0})
    at = killing.before("worker.concurrent.finish:Finisher._record", hit=2)
    with (
        scripted_model(two_programs) as model,
        killing.Child(work_in_process, *arguments, at=at) as doomed,
    ):
        playing = asyncio.create_task(play(real_redis, model))
        await asyncio.to_thread(doomed.wait)
        with killing.Child(work_in_process, *arguments):
            batch = await playing
    assert (batch.masked, batch.mean_score) == ([], 1.0)


async def test_a_killed_worker_masks_what_may_not_run_again(real_redis, fusion) -> None:
    fusion.programs = {f"{n} 1": Answer.ok(seconds=math.inf) for n in (1, 2)}
    url, once = url_of(real_redis), {"job_lease": 1.0, "job_deaths": 0}
    with (
        scripted_model(two_programs) as model,
        killing.Child(work_in_process, url, ["code"], once) as doomed,
    ):
        playing = asyncio.create_task(play(real_redis, model, retries=0))
        await asyncio.to_thread(fusion.wait_until, lambda: fusion.in_flight == 2, 100)
        doomed.kill()
        with killing.Child(work_in_process, url, ["code"], once):
            batch = await playing
    assert {1, 2} <= {n for n, trajectory in enumerate(batch.trajectories) if trajectory.masked}
    assert batch.mean_score in (1.0, None)
    for trajectory in batch.masked:
        assert trajectory.exit_reason.startswith("tool code_interpreter: JobFailed: job ")
        assert trajectory.score is None


async def test_a_tool_that_says_nothing_masks() -> None:
    class Endless(QueueTool):
        async def execute(self, *_: Any, **__: Any) -> Any:
            await asyncio.Event().wait()

    with script(called(code("x"))) as model:
        async with playing(model, Endless(None), tool_timeout=0.05) as rollout:
            trajectory = await rollout.run(rollout.request(user("x")))
    assert trajectory.exit_reason == "tool code_interpreter: no answer within 0.05 s"


async def test_a_queue_that_nobody_works_on_masks(real_redis) -> None:
    with scripted_model(two_programs) as model:
        batch = await play(real_redis, model, number=2, no_workers_after=0.3)
    assert (len(batch.masked), batch.mean_score) == (2, None)
    for trajectory in batch.masked:
        assert trajectory.exit_reason.startswith("tool code_interpreter: NoWorkers: queue 'code'")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (refused(500, "out of order"), "model: InternalServerError: "),
        (refused(401, "who are you?"), "model: AuthenticationError: "),
        (refused(400, "what?"), "model: BadRequestError: "),
        ((200, {"choices": [], "object": "chat.completion"}), "model: the server's answer has no"),
        (said("broken", "abort"), "model: the server broke the answer off"),
    ],
)
async def test_a_model_that_fails_masks(answer, reason) -> None:
    with script(answer) as model:
        async with playing(model, score=right) as rollout:
            trajectory = await rollout.run(rollout.request(user("x")))
    assert (trajectory.masked, trajectory.score) == (True, None)
    assert trajectory.exit_reason.startswith(reason)


async def test_a_model_that_is_not_there_masks() -> None:
    async with AsyncOpenAI(base_url="http://127.0.0.1:1", api_key="-", max_retries=0) as client:
        trajectory = await Rollout(client, "x").run(Rollout(client, "x").request(user("x")))
    assert trajectory.exit_reason.startswith("model: APIConnectionError: ")


async def test_a_password_in_the_models_url_is_not_told(caplog) -> None:
    url = "http://any:s3cret@127.0.0.1:1/v1"
    async with AsyncOpenAI(base_url=url, api_key="-", max_retries=0) as client:
        trajectory = await Rollout(client, "x").run(Rollout(client, "x").request(user("x")))
    assert "127.0.0.1:1" in trajectory.exit_reason
    assert "s3cret" not in trajectory.exit_reason + caplog.text


@pytest.mark.parametrize(
    ("grade", "score", "reason"),
    [(Grade(0.5), 0.5, ""), (Grade(None, "infrastructure"), None, "score: infrastructure")],
)
async def test_a_graders_grade_is_a_score(grade, score, reason) -> None:
    with script(said("4")) as model:
        async with playing(model, score=lambda _: grade) as rollout:
            trajectory = await rollout.run(rollout.request(user("x")))
    assert (trajectory.score, trajectory.masked) == (score, score is None)
    assert (trajectory.exit_reason or "").startswith(reason)


class Broken(QueueTool):
    """A tool that fails in one of its methods."""

    def __init__(self, where: str, how: Any) -> None:
        super().__init__(None)
        self._where, self._how = where, how

    async def _fail(self, where: str, else_: Any) -> Any:
        if where == self._where:
            if isinstance(self._how, Exception):
                raise self._how
            return self._how
        return else_

    async def create(self, *_: Any, **__: Any) -> Any:
        return await self._fail("create", "x")

    async def execute(self, *_: Any, **__: Any) -> Any:
        return await self._fail("execute", (ToolResponse(text="4"), None, {}))

    async def calc_reward(self, *_: Any, **__: Any) -> Any:
        return await self._fail("calc_reward", [])

    async def release(self, *arguments: Any, **_: Any) -> None:
        await super().release(*arguments)
        await self._fail("release", None)


MASKED = (ToolResponse(text="sorry"), None, {"traj_masked": 1, "traj_exit_reason": "no sandbox"})


@pytest.mark.parametrize(
    ("where", "how", "reason"),
    [
        ("create", ValueError("no truth"), "tool code_interpreter: ValueError: no truth"),
        ("execute", ValueError("a bug"), "tool code_interpreter: ValueError: a bug"),
        ("execute", None, "tool code_interpreter: execute returned a NoneType, not (response"),
        ("execute", ("x", 0.0), "tool code_interpreter: execute returned a tuple, not (response"),
        ("execute", MASKED, "tool code_interpreter: no sandbox"),
        ("calc_reward", ValueError("a bug"), "tool code_interpreter: ValueError: a bug"),
        ("release", ValueError("a bug"), ""),
    ],
)
async def test_a_tool_that_fails_masks_and_is_released(where, how, reason) -> None:
    tool = Broken(where, how)
    with script(called(code("x"), code("y")), said("#### 4")) as model:
        async with playing(model, tool, score=right) as rollout:
            trajectory = await rollout.run(rollout.request(user("x"), request_id="s"))
    assert trajectory.exit_reason.startswith(reason)
    assert (trajectory.masked, trajectory.score) == ((True, None) if reason else (False, 1.0))
    assert tool.released == ["s"]


async def test_a_cancelled_batch_ends_also_if_a_tool_makes_another_error_of_it() -> None:
    begun = asyncio.Event()

    class Closing(QueueTool):
        async def create(self, *_: Any, **__: Any) -> Any:
            begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise ConnectionError("closed") from None

    tool = Closing(None)
    with script(said("done")) as model:
        async with playing(model, tool) as rollout:
            requests = [rollout.request(user("x"), request_id=f"{n}") for n in range(3)]
            running = asyncio.create_task(run_batch(rollout, requests, concurrency=1))
            await begun.wait()
            running.cancel()
            await asyncio.wait([running], timeout=10)
            assert running.cancelled()
    assert tool.released == ["0"]


async def test_a_cancelled_rollout_releases_its_tools() -> None:
    begun = asyncio.Event()

    class Endless(QueueTool):
        async def execute(self, *_: Any, **__: Any) -> Any:
            begun.set()
            await asyncio.Event().wait()

    tool = Endless(None)
    with script(called(code("x"))) as model:
        async with playing(model, tool) as rollout:
            running = asyncio.create_task(rollout.run(rollout.request(user("x"), request_id="s")))
            await begun.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
    assert tool.released == ["s"]
    assert tool.tool_schema is CODE_INTERPRETER
