"""SkyRL's own generator and advantages with our environment, on the CPU; no engine has a model."""

from typing import Any

import pytest

from tests.worker.hosts.boxes import Boxes
from tests.worker.hosts.programs import ENDLESS, RIGHT, SQUARES, UNLUCKY, WRONG, Flaky
from tests.worker.hosts.stubbed import host

if not host("skyrl"):
    pytest.skip("skyrl is not installed: make hosts", allow_module_level=True)
pytest.importorskip("skyrl")

import _python_312  # noqa: F401
import numpy as np
import torch
from skyrl.backends.skyrl_train.utils.ppo_utils import compute_grpo_outcome_advantage
from skyrl.train.config import GeneratorConfig, SkyRLGymConfig
from skyrl.train.generators.skyrl_gym_generator import SkyRLGymGenerator
from skyrl.train.generators.utils import prepare_generator_input
from skyrl.train.utils.trainer_utils import validate_generator_output
from skyrl_gym import register

from tests.harness.servers import free_port
from worker.hosts.skyrl import MaskingGenerator

END = "\x03"


HERE = "worker.hosts.skyrl:CodeEnv"
register("flaky", HERE, {"grader": Flaky(on="local", case_timeout=0.5)})
register("dead", HERE, {"on": f"redis://127.0.0.1:{free_port()}", "patience": 0.3})


class Tokens:
    """A token for each character."""

    eos_token, eos_token_id = END, ord(END)

    def encode(self, text: str, **_: Any) -> list[int]:
        return [*map(ord, text)]

    def apply_chat_template(self, messages: Any, add_generation_prompt: bool = False, **_: Any):
        if messages and isinstance(messages[0], list):
            return [self.apply_chat_template(one, add_generation_prompt) for one in messages]
        text = "".join(f"{one['role']}: {one['content']}{END}" for one in messages)
        return self.encode(text + ("assistant: " if add_generation_prompt else ""))


class Engine:
    """It says what is written for a sample, turn by turn; a function is called before."""

    model_name = "none"

    def __init__(self, says: dict[str, list[Any]]) -> None:
        self._says = {sample: [*turns] for sample, turns in says.items()}

    async def generate(self, engine_input: Any, model: Any = None) -> Any:
        samples = engine_input.get("session_ids") or [*self._says]
        texts = [await self._next(sample) for sample in samples]
        return {
            "responses": texts,
            "response_ids": [[*map(ord, text + END)] for text in texts],
            "stop_reasons": ["stop"] * len(texts),
            "response_logprobs": [[0.0] * (len(text) + 1) for text in texts],
        }

    async def _next(self, sample: str) -> str:
        said = self._says[sample].pop(0)
        if callable(said):
            await said()
            return await self._next(sample)
        return str(said)

    async def finish_session(self, session: str) -> None: ...


async def generated(env_class: str, *groups: list[list[Any]], **config: Any) -> Any:
    """One batch by SkyRL's own generator, as its trainer asks for it."""
    prompts = [
        {
            "prompt": [{"role": "user", "content": "Print a square."}], "env_class": env_class,
            "env_extras": {"reward_spec": {"ground_truth": SQUARES}}, "uid": f"p{number}",
        }
        for number in range(len(groups))
    ]  # fmt: skip
    size = len(groups[0])
    says = {f"p{n}_{k}": turns for n, group in enumerate(groups) for k, turns in enumerate(group)}
    batch, uids = prepare_generator_input(prompts, size, None, env_class, "train", 1)
    options: dict[str, Any] = {"max_input_length": 100_000, **config}
    generator = MaskingGenerator(
        SkyRLGymGenerator(GeneratorConfig(**options), SkyRLGymConfig(), Engine(says), Tokens())
    )
    output = await generator.generate(batch, disable_tqdm=True)
    output.pop("rollout_metrics")
    step_wise = bool(config.get("step_wise_trajectories"))
    validate_generator_output(len(uids), output, step_wise=step_wise)
    return output, uids


def totals(output: Any) -> list[float]:
    return [sum(one) if isinstance(one, list) else one for one in output["rewards"]]


def advantages(rewards: list[float], uids: list[str]) -> list[float]:
    found, _ = compute_grpo_outcome_advantage(
        torch.tensor(rewards)[:, None], torch.ones(len(rewards), 1), np.array(uids),
        grpo_norm_by_std=False,
    )  # fmt: skip
    return [float(one) for one in found[:, 0]]


@pytest.mark.parametrize("batched", [False, True])
async def test_siblings_of_a_masked_one_have_the_advantages_of_a_group_without_it(
    batched: bool,
) -> None:
    output, uids = await generated(
        "flaky", [[RIGHT], [WRONG], [UNLUCKY]], [[RIGHT], [WRONG], [WRONG]], batched=batched
    )
    assert totals(output) == [1.0, 0.0, 0.5, 1.0, 0.0, 0.0]
    assert [any(mask) for mask in output["loss_masks"]] == [True, True, False, True, True, True]
    with_it, alone = advantages(totals(output), uids), advantages([1.0, 0.0], ["p0", "p0"])
    assert with_it[:2] == pytest.approx(alone, abs=1e-6)


async def test_a_slow_program_is_a_zero_that_is_trained_on() -> None:
    output, _ = await generated("flaky", [[RIGHT], [ENDLESS]])
    assert totals(output) == [1.0, 0.0]
    assert all(any(mask) for mask in output["loss_masks"])


async def test_a_dead_redis_masks_a_batch_and_raises_nothing() -> None:
    output, _ = await generated("dead", *[[[RIGHT]] * 8] * 4)
    assert totals(output) == [0.0] * 32
    assert not any(any(mask) for mask in output["loss_masks"])


def call(code: str) -> str:
    return f"<tool><python>{code}</python></tool>"


TURNS = [call("x = 6"), call("print(x * 7)"), RIGHT]


@pytest.mark.parametrize("step_wise", [False, True])
async def test_a_sandbox_that_dies_masks_all_turns_of_its_episode(
    boxes: Boxes, step_wise: bool
) -> None:
    broken = [call("x = 1"), boxes.kill, call("print(x)"), RIGHT]
    output, _ = await generated(
        "flaky", [[WRONG], broken], max_turns=3, step_wise_trajectories=step_wise
    )
    rows = [True, False, False] if step_wise else [True, False]
    assert [any(mask) for mask in output["loss_masks"]] == rows
    assert totals(output) == [0.0] * len(rows)


async def test_a_model_runs_programs_and_no_sandbox_is_left(boxes: Boxes) -> None:
    output, _ = await generated("flaky", [TURNS, TURNS], max_turns=3)
    assert totals(output) == [1.0, 1.0]
    await boxes.ended()


async def test_a_batch_that_fails_leaves_no_sandbox(boxes: Boxes) -> None:
    """SkyRL then closes no environment."""

    async def fails() -> None:
        assert await boxes.names()
        raise ConnectionError("the engine is away")

    with pytest.raises(ConnectionError):
        await generated("flaky", [[call("x = 1"), fails], [call("x = 1"), RIGHT]], max_turns=3)
    await boxes.ended()
