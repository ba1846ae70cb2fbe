"""Our environment and generator for SkyRL, called as SkyRL calls them, by our stand-in for it."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from ground import SettingError
from tests.harness.servers import free_port
from tests.worker.hosts.boxes import Boxes
from tests.worker.hosts.programs import ENDLESS, RIGHT, SQUARES, WRONG
from tests.worker.hosts.stubbed import host

host("skyrl")

from skyrl_gym import make, register  # noqa: E402

from worker.hosts.skyrl import CodeEnv, MaskingGenerator  # noqa: E402

HERE = {"on": "local", "case_timeout": 0.3}
register("penstock", entry_point="worker.hosts.skyrl:CodeEnv", kwargs=HERE)


def row_of(truth: Any = SQUARES, **more: Any) -> dict[str, Any]:
    return {"reward_spec": {"method": "rule", "ground_truth": truth}, "max_turns": 1, **more}


def env_of(row: dict[str, Any], **settings: Any) -> Any:
    return CodeEnv(env_config={}, extras=row, **HERE | settings)


def call(code: str, end: str = "</python></tool>") -> str:
    return f"Let me see.\n<tool>\n<python>\n{code}\n{end}"


def test_a_turn_has_its_grade_and_a_slow_program_is_a_zero() -> None:
    for text, reward in ((RIGHT, 1.0), (WRONG, 0.0), (ENDLESS, 0.0), ("I do not know.", 0.0)):
        row = row_of()
        env = make("penstock", env_config={}, extras=row)
        assert env.init([{"role": "user", "content": "?"}])[0]
        ended = env.step(text)
        assert (ended["reward"], ended["done"], ended["observations"]) == (reward, True, [])
        assert ("traj_masked" in row, env.get_metrics()) == (False, {"traj_masked": 0})
        env.close()


def test_what_cannot_be_graded_is_noted_in_its_row_and_raises_nothing() -> None:
    dead = {"on": f"redis://127.0.0.1:{free_port()}", "patience": 0.2}
    for row, settings, reason in ((row_of("{"), {}, "unreadable"), (row_of(), dead, "Queue")):
        env = env_of(row, **settings)
        ended = env.step(RIGHT)
        assert (ended["reward"], ended["done"], row["traj_masked"]) == (0.0, True, 1)
        assert row["traj_exit_reason"].startswith(f"infrastructure: {reason}")
        assert env.get_metrics() == {"traj_masked": 1}
        env_of(row)  # a new episode
        assert "traj_masked" not in row


def test_a_row_without_cases_is_refused_at_once() -> None:
    with pytest.raises(SettingError, match=r"reward_spec.ground_truth: .* columns are: answer$"):
        CodeEnv(extras={"answer": "9"})
    with pytest.raises(SettingError, match="case_timeout: is a setting of the grader"):
        CodeEnv(extras=row_of(), grader=env_of(row_of())._grader, case_timeout=1.0)


async def test_turns_before_the_last_run_programs_in_one_sandbox(boxes: Boxes) -> None:
    env = env_of(row_of(max_turns=3))

    def episode() -> list[Any]:
        return [env.step(text) for text in (call("x = 6"), call("print(x * 7)", end=""), RIGHT)]

    first, second, last = await asyncio.to_thread(episode)
    assert first["observations"] == [{"role": "user", "content": "(no output)"}]
    assert second["observations"] == [{"role": "user", "content": "42\n"}]
    assert [first["done"], second["done"], last["done"]] == [False, False, True]
    assert [first["reward"], second["reward"], last["reward"]] == [0.0, 0.0, 1.0]
    assert len(await boxes.names()) == 1
    env.close()
    await boxes.ended()


async def test_an_answer_ends_an_episode_early_and_the_last_turn_runs_no_tool(boxes: Boxes) -> None:
    early, late = env_of(row_of(max_turns=3)), env_of(row_of(max_turns=1))
    assert (await asyncio.to_thread(early.step, RIGHT))["reward"] == 1.0
    ended = await asyncio.to_thread(late.step, call("print(1)"))
    assert (ended["reward"], ended["done"]) == (0.0, True)
    assert await boxes.names() == []


async def test_a_sandbox_that_dies_ends_the_episode_masked(boxes: Boxes) -> None:
    row = row_of(max_turns=3)
    env = env_of(row)
    await asyncio.to_thread(env.step, call("x = 6"))
    await boxes.kill()
    ended = await asyncio.to_thread(env.step, call("print(x)"))
    assert (ended["done"], ended["reward"], row["traj_masked"]) == (True, 0.0, 1)
    assert row["traj_exit_reason"] == "infrastructure: sandbox_lost"


async def test_an_environment_that_nobody_closed_ends_its_sandbox(boxes: Boxes) -> None:
    env = env_of(row_of(max_turns=2))
    await asyncio.to_thread(env.step, call("x = 6"))
    assert len(await boxes.names()) == 1
    del env
    await boxes.ended()


# The generator


class Generator:
    """In the place of SkyRL's: the rewards that a test wrote, of rows that it masks."""

    def __init__(self, **output: Any) -> None:
        self._output = {"is_last_step": None, "trajectory_ids": None, **output}

    async def generate(self, input_batch: Any) -> Any:
        return self._output


def batch_of(*masked: bool, group: int = 3) -> Any:
    return {
        "env_extras": [{"traj_masked": 1} if one else {} for one in masked],
        "trajectory_ids": [trajectory(n // group, n % group) for n in range(len(masked))],
    }


def trajectory(group: int, number: int) -> Any:
    return SimpleNamespace(instance_id=f"prompt {group}", repetition_id=number)


async def test_a_masked_trajectory_has_no_loss_and_leaves_its_groups_mean() -> None:
    inner = Generator(
        rewards=[1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0], loss_masks=[[1, 0, 1]] * 9
    )
    batch = batch_of(False, False, True, False, False, False, True, True, True)
    output = await MaskingGenerator(inner).generate(batch, disable_tqdm=True)
    assert output["rewards"] == [1.0, 0.0, 0.5, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    masks = [any(mask) for mask in output["loss_masks"]]
    assert masks == [True, True, False, True, True, True, False, False, False]


async def test_rewards_per_token_keep_their_form() -> None:
    rewards = [[0.0, 1.0], [0.0, 0.25, 0.25], [0.0, 0.0, 0.0, 0.0]]
    inner = Generator(rewards=rewards, loss_masks=[[1] * len(one) for one in rewards])
    output = await MaskingGenerator(inner).generate(batch_of(False, False, True))
    assert output["rewards"] == [[0.0, 1.0], [0.0, 0.25, 0.25], [0.0, 0.0, 0.0, 0.75]]
    assert output["loss_masks"] == [[1, 1], [1, 1, 1], [0, 0, 0, 0]]


async def test_in_step_wise_training_all_rows_of_a_trajectory_are_masked() -> None:
    whole, broken = trajectory(0, 0), trajectory(0, 2)
    inner = Generator(
        rewards=[[0.0, 0.5], [0.0, 1.0], [0.0, 0.0], [0.0], [0.0]], loss_masks=[[1]] * 5,
        is_last_step=[False, True, True, False, True],
        trajectory_ids=[whole, whole, trajectory(0, 1), broken, broken],
    )  # fmt: skip
    output = await MaskingGenerator(inner).generate(batch_of(False, False, True))
    assert output["rewards"] == [[0.0, 0.5], [0.0, 1.0], [0.0, 0.0], [0.0], [0.5]]
    assert output["loss_masks"] == [[1], [1], [1], [0], [0]]


async def test_an_output_without_masks_stays_as_it_is() -> None:
    rewards, masks = [1.0, 0.0, 0.0], [[1]] * 3
    inner = Generator(rewards=rewards, loss_masks=masks)
    output = await MaskingGenerator(inner).generate(batch_of(False, False, False))
    assert output["rewards"] is rewards
    assert output["loss_masks"] is masks


async def test_without_ids_a_batch_is_one_group() -> None:
    inner = Generator(rewards=[1.0, 0.0, 0.5], loss_masks=[[1], [1], [1]])
    batch = {"env_extras": [{}, {"traj_masked": 1}, {}]}
    output = await MaskingGenerator(inner).generate(batch)
    assert output["rewards"] == [1.0, 0.75, 0.5]


def test_thirty_two_threads_grade_at_once() -> None:
    envs = [make("penstock", env_config={}, extras=row_of()) for _ in range(32)]
    with ThreadPoolExecutor(32) as threads:
        ended = list(threads.map(lambda env: env.step(RIGHT), envs))
    assert [one["reward"] for one in ended] == [1.0] * 32
