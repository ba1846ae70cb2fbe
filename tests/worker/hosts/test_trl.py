"""`CodeReward` and `CodeEnvironment`, called as TRL calls them. `test_trl_itself.py` has TRL."""

import asyncio
import inspect
import multiprocessing
import pickle
from functools import partial
from typing import Any

import pytest

from ground import SettingError
from jail.sessions import LocalSessions
from tests.harness.servers import free_port
from tests.worker.hosts.programs import RIGHT, SQUARES, WRONG, fenced
from worker.hosts.trl import CodeEnvironment, CodeReward, code_reward


def length(completions: list[Any], **_: Any) -> list[float]:
    return [float(len(completion)) for completion in completions]


async def no_opinion(completions: list[Any], **_: Any) -> list[float | None]:
    return [None, 1.0]


def called(reward: CodeReward, completions: list[Any], **columns: Any) -> Any:
    rows = {"ground_truth": [SQUARES] * len(completions), "trainer_state": object()}
    given = {"prompts": [""] * len(completions), "completions": completions, "completion_ids": []}
    return reward(**given, **rows | columns)


async def test_a_reward_for_each_completion_and_none_for_what_cannot_be_graded() -> None:
    completions = [RIGHT, WRONG, [{"role": "assistant", "content": RIGHT}], "no program", RIGHT]
    truths = [SQUARES] * 4 + ["{"]
    found = await called(CodeReward(), completions, ground_truth=truths)
    assert found == [1.0, 0.0, 1.0, 0.0, None]


async def test_what_is_masked_is_counted_by_reason() -> None:
    metrics, table = {}, {}
    await called(
        CodeReward("cases"), [RIGHT, RIGHT, RIGHT], cases=["{", "[]", SQUARES],
        log_metric=metrics.__setitem__, log_extra=table.__setitem__,
    )  # fmt: skip
    assert metrics == {"penstock/masked": 2.0, "penstock/masked/unreadable": 2.0}
    assert table == {
        "penstock_reason": ["unreadable", "unreadable", ""], "penstock_job": ["", "", ""],
    }  # fmt: skip


async def test_other_rewards_are_added_and_one_that_is_unknown_masks_the_row() -> None:
    reward = CodeReward(also=[(length, 0.01), no_opinion])
    assert await called(reward, [RIGHT, WRONG]) == [None, 0.01 * len(WRONG) + 1.0]
    masked = await called(CodeReward(also=[length]), [RIGHT, WRONG], ground_truth=["{", SQUARES])
    assert masked == [None, float(len(WRONG))]


async def test_a_column_that_is_not_there_is_named() -> None:
    with pytest.raises(SettingError, match=r"'tests'; its columns are: ground_truth$"):
        await called(CodeReward("tests"), [RIGHT])


async def test_a_dead_redis_masks_a_batch() -> None:
    reward = CodeReward(on=f"redis://127.0.0.1:{free_port()}", patience=0.3)
    assert await called(reward, [RIGHT] * 64) == [None] * 64


async def test_a_slow_program_is_a_zero() -> None:
    assert await called(CodeReward(case_timeout=0.3), [fenced("while True: pass")]) == [0.0]


def in_a_spawned_child(reward: CodeReward, found: Any) -> None:
    found.put(asyncio.run(called(reward, [RIGHT, WRONG])))


def test_it_passes_to_a_spawned_child() -> None:
    context = multiprocessing.get_context("spawn")
    found = context.Queue()
    reward = CodeReward(also=[(length, 0.0)])
    child = context.Process(target=in_a_spawned_child, args=(reward, found))
    child.start()
    assert found.get(timeout=250) == [1.0, 0.0]
    child.join(100)


def test_trl_sees_a_coroutine_function_with_a_name_and_the_command_line_finds_one() -> None:
    assert inspect.iscoroutinefunction(code_reward.__call__)
    assert type(code_reward).__name__ == "CodeReward"


# Environments


def test_the_only_tool_is_run_code() -> None:
    members = inspect.getmembers(CodeEnvironment, predicate=inspect.isfunction)
    public = [name for name, _ in members if not name.startswith("_")]
    assert public == ["get_reward", "reset", "run_code"]
    assert "Args:\n" in inspect.getdoc(CodeEnvironment.run_code)
    assert inspect.signature(CodeEnvironment.run_code).parameters["code"].annotation is str


def test_its_factory_passes_to_a_child() -> None:
    pickle.loads(pickle.dumps(partial(CodeEnvironment, "cases", timeout=5.0)))


async def test_its_reward_is_the_last_programs_and_its_sandbox_ends_with_it(boxes) -> None:
    environment = CodeEnvironment(grader=CodeReward(on="local")._grader)
    environment.reset(prompt="…", ground_truth=SQUARES)
    assert await boxes.names() == []
    assert await environment.run_code("x = 5") == ""
    assert await environment.run_code("print(x)") == "5\n"
    assert len(await boxes.names()) == 1
    assert "EOFError" in await environment.run_code("print(int(input()) ** 2)")
    assert await environment.get_reward() == 1.0
    await boxes.ended()
    environment.reset(prompt="…", ground_truth=SQUARES)
    assert await environment.get_reward() == 0.0  # it ran nothing


async def test_a_sandbox_that_dies_masks_the_rollout_also_in_the_reward_function(boxes) -> None:
    environment, well = CodeEnvironment(), CodeEnvironment(truth=None)
    for one in (environment, well):
        one.reset(ground_truth=SQUARES)
        await one.run_code("1")
    await LocalSessions().end(environment._session._held.sandbox.name)
    assert "no fault of its own" in await environment.run_code("1")
    assert [await environment.get_reward(), await well.get_reward()] == [None, None]
    reward = CodeReward(on="local")
    found = await called(reward, [RIGHT, RIGHT], environments=[environment, well])
    assert found == [None, 1.0]
    environment.reset(ground_truth=SQUARES)
    assert environment._masked == ""
    assert await environment.run_code("print(1)") == "1\n"
    environment._close()
