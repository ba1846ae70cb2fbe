"""The OpenEnv environment: what a step becomes, by the real package or by our stand-in."""

import asyncio
from typing import Any

import pytest

from tests.harness.servers import free_port
from tests.worker.hosts.boxes import Boxes
from tests.worker.hosts.stubbed import host

host("openenv")

from worker.hosts.grading import Grader  # noqa: E402
from worker.hosts.openenv import (  # noqa: E402
    CodeAction,
    CodeEnvironment,
    InfrastructureFailed,
)
from worker.queue.code_queue import CodeQueue  # noqa: E402

CASES = {"inputs": ["3", "4"], "outputs": ["9", "16"]}
RIGHT = "print(int(input()) ** 2)"
HERE = Grader(on="local", case_timeout=0.3)


def run(code: str) -> Any:
    return CodeAction(kind="run_code", code=code)


def submit(code: str) -> Any:
    return CodeAction(kind="submit", code=code)


async def begun(**settings: Any) -> CodeEnvironment:
    environment = CodeEnvironment(settings.pop("grader", HERE), **settings)
    await environment.reset_async(episode_id="1", ground_truth=CASES)
    return environment


async def test_programs_run_and_a_submission_has_its_reward() -> None:
    environment = await begun(timeout=60.0)
    assert (await environment.step_async(run("print(6 * 7)"))).output == "42\n"
    for code, reward in ((RIGHT, 1.0), ("print(9)", 0.5), ("while True: pass", 0.0)):
        ended = await environment.step_async(submit(code))
        assert (ended.reward, ended.done) == (reward, True)
    assert environment.state.step_count == 4


async def test_a_slow_program_is_shown_to_the_model() -> None:
    environment = await begun(timeout=0.5)
    seen = await environment.step_async(run("while True: pass"))
    assert "time limit" in seen.output
    assert seen.metadata["traj_masked"] == 0


async def test_what_is_wrong_with_a_call_is_said() -> None:
    environment = CodeEnvironment(HERE)
    with pytest.raises(ValueError, match="ground_truth: "):
        await environment.reset_async(ground_truth={"inputs": 3})
    await environment.reset_async()
    with pytest.raises(ValueError, match="the episode has no cases"):
        await environment.step_async(submit(RIGHT))


def dead() -> dict[str, Any]:
    url = f"redis://127.0.0.1:{free_port()}"
    return {"grader": Grader(on=url, patience=0.2), "queue": CodeQueue(url, patience=0.2)}


async def test_a_dead_queue_raises_and_is_never_a_reward() -> None:
    environment = await begun(**dead())
    for action in (run("print(1)"), submit(RIGHT)):
        with pytest.raises(InfrastructureFailed, match=r"infrastructure: \w+: .*could not be"):
            await environment.step_async(action)


async def test_a_dead_queue_is_a_reward_of_none_where_that_is_wanted() -> None:
    environment = await begun(on_failure="none", **dead())
    ended = await environment.step_async(submit(RIGHT))
    assert (ended.reward, ended.done, ended.metadata["traj_masked"]) == (None, True, 1)


async def test_an_episode_has_one_sandbox_which_ends_with_its_client(boxes: Boxes) -> None:
    environment = await begun(sessions=True)
    await environment.step_async(run("x = 6"))
    assert (await environment.step_async(run("print(x * 7)"))).output == "42\n"
    first = await boxes.names()
    await environment.reset_async(ground_truth=CASES)
    await environment.step_async(run("print(1)"))
    assert len(first) == len(await boxes.names()) == 1
    assert first != await boxes.names()
    environment.close()
    async with asyncio.timeout(100):
        while await boxes.names():  # noqa: ASYNC110 - nobody says so
            await asyncio.sleep(0.05)


async def test_an_episode_whose_sandbox_died_has_no_reward(boxes: Boxes) -> None:
    environment = await begun(sessions=True)
    await environment.step_async(run("x = 6"))
    await boxes.kill()
    for action in (run("print(x)"), submit(RIGHT)):
        with pytest.raises(InfrastructureFailed, match="infrastructure: sandbox_lost"):
            await environment.step_async(action)
    await environment.reset_async(ground_truth=CASES)
    assert (await environment.step_async(submit(RIGHT))).reward == 1.0
