"""What the examples mask, through verl's own code from the reward to the loss: `make conformance`.

verl's agent loop worker, its reward's answer, its batches, its `compute_advantage` and its
`agg_loss` are real, and so is torch. Made up are the model, Ray and the queue between processes.
"""

import asyncio
import importlib
import importlib.util
import re
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.worker.tool import verl_stubs
from tests.worker.tool.hosts import ROOT, load_file
from worker.settings import worker_settings

pytestmark = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("verl", "torch", "tensordict")),
    reason="verl or torch is not installed: make conformance",
)

EXAMPLES = ROOT / "examples" / "verl"
TOKENS = 3
ANSWER = "```python\nprint(input())\n```"
CASES = '{"inputs": ["1"], "outputs": ["1"]}'


@pytest.fixture(scope="module")
def verl() -> Iterator[SimpleNamespace]:
    verl_stubs.install()
    ray: Any = importlib.import_module("ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray, "remote", lambda cls: cls, raising=False)
        yield SimpleNamespace(
            torch=importlib.import_module("torch"),
            numpy=importlib.import_module("numpy"),
            loop=importlib.import_module("verl.experimental.agent_loop.agent_loop"),
            queued=importlib.import_module("verl.trainer.ppo.v1.agent_loop_tq"),
            trainer=importlib.import_module("verl.trainer.ppo.v1.trainer_base"),
            ray_trainer=importlib.import_module("verl.trainer.ppo.ray_trainer"),
            core=importlib.import_module("verl.trainer.ppo.core_algos"),
            masking=load_file(EXAMPLES / "masking_agent_loop.py", "_masking_of_verl_itself"),
            grpo=load_file(EXAMPLES / "masked_grpo.py", "_masked_grpo_of_verl_itself"),
        )


@pytest.fixture(scope="module")
def documented_reward() -> Any:
    """The function that docs/guide/rewards.md has its readers copy."""
    page = (ROOT / "docs" / "guide" / "rewards.md").read_text()
    found = re.search(r"^```python my_reward.py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert found
    module = ModuleType("_my_reward_of_the_page")
    exec(found[1], module.__dict__)
    return module.compute_score


@pytest.fixture(autouse=True)
def one_attempt(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PENSTOCK_SANDBOX_ATTEMPTS", "1")
    worker_settings.cache_clear()
    yield
    worker_settings.cache_clear()


class Rewards:
    """verl's reward worker, by whose answer a row is scored or masked."""

    def __init__(self, documented_reward: Any) -> None:
        self._score = documented_reward
        self.compute_score = SimpleNamespace(remote=self._compute)

    async def _compute(self, data: Any) -> dict[str, Any]:
        given = data.non_tensor_batch["score"][0]
        found: dict[str, Any] = {"score": given, "traj_masked": 0, "traj_exit_reason": ""}
        if given is None:  # its sandbox is away
            found = self._score("taco", ANSWER, CASES, sandbox="http://127.0.0.1:1")
            assert found["traj_masked"] == 1
        return {"reward_score": found["score"], "reward_extra_info": found}


class Keys(SimpleNamespace):
    """Which rows of the store a batch is."""

    def __len__(self) -> int:
        return len(self.keys)


class Store:
    """The queue between verl's processes, in this one."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}

    async def async_kv_batch_put(self, keys: Any, fields: Any, **_: Any) -> None:
        for key, row in zip(keys, fields, strict=True):
            self.rows[key] = {name: row[name] for name in row.keys()}  # noqa: SIM118

    def kv_batch_get(self, keys: Any, select_fields: Any, **_: Any) -> Any:
        to_tensordict = importlib.import_module("verl.utils.tensordict_utils")
        rows = [self.rows[key] for key in keys]
        names = [name for name in select_fields if name in rows[0]]
        return to_tensordict.list_of_dict_to_tensordict(
            [{name: row[name] for name in names} for row in rows]
        )

    def kv_batch_put(self, keys: Any, fields: Any, **_: Any) -> None:
        for at, key in enumerate(keys):
            self.rows[key] |= {name: fields[name][at] for name in fields.keys()}  # noqa: SIM118


def output(verl: Any, at: int, extra_fields: dict[str, Any]) -> Any:
    """What a loop of verl's returns, of another length each time."""
    tokens = 1 + at % TOKENS
    made = verl.loop.AgentLoopOutput(
        prompt_ids=[1], response_ids=[5] * tokens, response_mask=[1] * tokens,
        num_turns=2, metrics={}, extra_fields=extra_fields,
    )  # fmt: skip
    return verl.masking.MaskedOutput.of(made)


def worker_of(verl: Any, cls: Any, rewards: Any) -> Any:
    class Tokenizer:
        pad_token_id = 0

        def pad(self, given: Any, max_length: int, return_attention_mask: bool, **_: Any) -> Any:
            row, fill = given["input_ids"], [0] * (max_length - len(given["input_ids"]))
            left = self.padding_side == "left"
            padded = {"input_ids": fill + row if left else row + fill}
            if return_attention_mask:
                ones = [1] * len(row)
                padded["attention_mask"] = fill + ones if left else ones + fill
            return {name: verl.torch.tensor([row]) for name, row in padded.items()}

        padding_side = "left"

    worker = object.__new__(cls)
    vars(worker).update(
        reward_loop_worker_handles=[rewards], distillation_enabled=False, processor=None,
        mm_processor_kwargs={}, tokenizer=Tokenizer(),
        rollout_config=SimpleNamespace(prompt_length=2, response_length=TOKENS + 1),
    )  # fmt: skip
    return worker


# A score; None where the sandbox of the reward is away; "tool" where that of the tool was.
GROUPS: dict[str, list[Any]] = {
    "easy": [1.0, 1.0, 1.0, None],
    "mixed": [1.0, 0.0, "tool", 0.0, None],
    "lost": [None, None],
    "alone": [1.0, None],
}
SAMPLES = [(uid, score) for uid, scores in GROUPS.items() for score in scores]
MASKED = [not isinstance(score, float) for _, score in SAMPLES]


def note(score: Any) -> dict[str, Any]:
    return {"extras": {"traj_masked": 1} if score == "tool" else None}


def played_for_v1(verl: Any, monkeypatch: Any, documented_reward: Any) -> tuple[Any, Any]:
    """Response masks and advantages of verl's trainer of today."""
    store = Store()
    monkeypatch.setattr(verl.queued, "tq", store)
    monkeypatch.setattr(verl.trainer, "tq", store)
    worker = worker_of(verl, verl.queued.AgentLoopWorkerTQ, Rewards(documented_reward))

    async def play() -> None:
        for at, (uid, score) in enumerate(SAMPLES):
            reward = 1.0 if score == "tool" else score
            await worker._agent_loop_postprocess(
                output(verl, at, note(score)), False, uid=uid, session_id=at, global_steps=1,
                score=reward,
            )  # fmt: skip

    asyncio.run(play())
    algorithm = {
        "adv_estimator": "masked_grpo", "gamma": 1.0, "lam": 1.0, "use_kl_in_reward": False,
        "norm_adv_by_std_in_grpo": True,
    }  # fmt: skip
    omegaconf: Any = importlib.import_module("omegaconf")
    config = {"algorithm": algorithm, "actor_rollout_ref": {"rollout": {"n": 4}}}
    trainer = SimpleNamespace(config=omegaconf.OmegaConf.create(config))
    batch = Keys(keys=list(store.rows), partition_id="train")
    verl.trainer.PPOTrainer._compute_advantage(trainer, batch, metrics={})
    rows = list(store.rows.values())
    assert all(verl.torch.equal(row["response_mask"], row["loss_mask"]) for row in rows)
    return [row["response_mask"] for row in rows], [row["advantages"] for row in rows]


def played_for_v0(verl: Any, monkeypatch: Any, documented_reward: Any) -> tuple[Any, Any]:
    """The same of the trainers that take a batch from the manager."""
    worker = worker_of(verl, verl.loop.AgentLoopWorker, Rewards(documented_reward))

    async def play() -> Any:
        made = []
        for at, (_, score) in enumerate(SAMPLES):
            reward = 1.0 if score == "tool" else score
            made.append(
                await worker._agent_loop_postprocess(
                    output(verl, at, note(score)), False, raw_prompt=[], score=reward
                )
            )
        return worker._postprocess(made)

    batch = asyncio.run(play())

    async def generate(manager: Any, prompts: Any) -> Any:
        return batch

    monkeypatch.setattr(verl.loop.AgentLoopManager, "generate_sequences", generate)
    manager = object.__new__(verl.masking.MaskingAgentLoopManager)
    batch = manager.generate_sequences(None)
    batch.non_tensor_batch["uid"] = verl.numpy.array([uid for uid, _ in SAMPLES], dtype=object)
    batch.batch["token_level_rewards"] = batch.batch["rm_scores"]
    found = verl.ray_trainer.compute_advantage(batch, "masked_grpo", config={})
    return [*found.batch["response_mask"]], [*found.batch["advantages"]]


@pytest.mark.parametrize("played", [played_for_v1, played_for_v0])
def test_a_masked_row_has_no_gradient_and_is_in_nobodys_mean(
    verl, monkeypatch, documented_reward, played
) -> None:
    masks, advantages = played(verl, monkeypatch, documented_reward)
    assert [bool(mask.sum() == 0) for mask in masks] == MASKED
    for (uid, score), mask, advantage in zip(SAMPLES, masks, advantages, strict=True):
        known = verl.torch.tensor([one for one in GROUPS[uid] if isinstance(one, float)])
        if not isinstance(score, float):
            expected = 0.0
        elif len(known) == 1:
            expected = score  # with nobody to compare it with, as in verl's own GRPO
        else:
            expected = float((score - known.mean()) / (known.std() + 1e-6))
        wanted = (expected * mask).float()
        assert verl.torch.allclose(advantage, wanted, atol=1e-5), (uid, score)


def test_of_a_reward_alone_verl_would_have_learnt(verl) -> None:
    """Why the examples are needed: verl's own GRPO takes the 0 of a lost reward for a failure."""
    rewards = verl.torch.tensor([[0.0, 1.0], [0.0, 1.0], [0.0, 1.0], [0.0, 0.0]])
    index = verl.numpy.array(["g"] * 4)
    found, _ = verl.core.compute_grpo_outcome_advantage(
        rewards, verl.torch.ones_like(rewards), index
    )
    assert round(float(found[3, 0]), 2) == -1.5


@pytest.mark.parametrize(
    ("mode", "finite"),
    [("token-mean", False), ("seq-mean-token-mean", True), ("seq-mean-token-sum", True)],
)
def test_the_loss_of_a_mini_batch_that_is_masked_as_a_whole(verl, mode, finite) -> None:
    """As verl's engine calls it: tokens and sequences are counted over all ranks."""
    logits = verl.torch.ones(2, TOKENS, requires_grad=True)
    mask = verl.torch.zeros(2, TOKENS)
    loss = verl.core.agg_loss(
        logits * 2, mask, mode, dp_size=2, batch_num_tokens=0, global_batch_size=4
    )
    assert bool(verl.torch.isfinite(loss)) is finite
    if finite:
        loss.backward()
        assert not logits.grad.any()
