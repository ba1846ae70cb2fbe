"""OpenRLHF's own executor and generator of samples with our reward; Ray and vLLM are stubs."""

import asyncio
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("openrlhf", reason="openrlhf is not installed: make conformance")

import openrlhf
import torch

from tests.worker.hosts.programs import RIGHT, SQUARES, WRONG
from worker.hosts import openrlhf as ours

PACKAGE = Path(openrlhf.__file__).parent
ROWS = {"broken: ": "{", "well: ": json.dumps(SQUARES)}


class Tokens:
    """A token for each character."""

    def __call__(self, text: str, **_: Any) -> Any:
        return {"input_ids": torch.tensor([[*map(ord, text)]])}

    def decode(self, tokens: Any, **_: Any) -> str:
        return "".join(map(chr, tokens))


class Engine:
    """In the place of a Ray actor with vLLM: it says what is written for the prompt."""

    def __init__(self, executor: Any, says: dict[str, list[str]]) -> None:
        self._executor, self._says = executor, says
        self.generate_responses = SimpleNamespace(remote=self._responses)
        self.get_num_unfinished_requests = SimpleNamespace(remote=lambda: 0)

    async def generate(self, tokens: list[int], *_: Any, **__: Any) -> Any:
        text = self._says[Tokens().decode(tokens)].pop(0)
        output = SimpleNamespace(
            token_ids=[*map(ord, text)], text=text, finish_reason="stop", logprobs=None
        )
        return SimpleNamespace(outputs=[output])

    def _responses(
        self, prompt: str, label: str, sampling_params: Any, max_length: int, hf_tokenizer: Any,
        num_samples: int, images: Any = None,
    ) -> Any:  # fmt: skip
        async def all_of_them() -> Any:
            return [
                await self._executor.execute(
                    prompt, label, sampling_params, max_length, hf_tokenizer, self
                )
                for _ in range(num_samples)
            ]

        return asyncio.run(all_of_them())


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Its two files, without what their packages import beside them."""
    ray = SimpleNamespace(get=lambda ref: ref, wait=lambda refs, **_: (refs[:1], refs[1:]))
    log = SimpleNamespace(info=print, warning=print)
    stubs = {
        "ray": ray,
        "vllm": SimpleNamespace(SamplingParams=SimpleNamespace),
        "openrlhf.trainer.ppo_utils.experience": SimpleNamespace(Experience=SimpleNamespace),
        "openrlhf.trainer.ray.vllm_engine": SimpleNamespace(batch_vllm_engine_call=None),
        "openrlhf.utils.logging_utils": SimpleNamespace(init_logger=lambda _: log),
    }
    for package in ("trainer", "trainer.ppo_utils", "trainer.ray", "utils"):
        stubs[f"openrlhf.{package}"] = SimpleNamespace(__path__=[])
    for name, stub in stubs.items():
        monkeypatch.setitem(sys.modules, name, stub)
    return _loaded("utils/agent.py"), _loaded("trainer/ppo_utils/samples_generator.py")


def _loaded(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, PACKAGE / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def samples(modules: Any, *, filtering: bool) -> Any:
    agent, generator = modules
    executor = agent.SingleTurnAgentExecutor(ours.__file__)
    engine = Engine(executor, {prompt: [RIGHT, WRONG] for prompt in ROWS})
    args = SimpleNamespace(
        rollout=SimpleNamespace(batch_size=1, n_samples_per_prompt=2, vllm_generate_batch_size=1),
        algo=SimpleNamespace(
            dynamic_filtering_enable=filtering, dynamic_filtering_range=(-0.1, 1.1),
            advantage=SimpleNamespace(is_correction_level="off"),
        ),
        vllm=SimpleNamespace(enable_sleep=False),
    )  # fmt: skip
    batches = [(None, [prompt], [label], [None]) for prompt, label in ROWS.items()]
    made = generator.SamplesGenerator(SimpleNamespace(args=args), batches, None, Tokens(), [engine])
    return made.generate_samples(max_len=4096, max_new_tokens=1024)


def test_a_group_that_is_masked_is_dropped_and_another_one_asked_for(modules) -> None:
    experiences, _, consumed, _ = samples(modules, filtering=True)
    assert consumed == 2
    assert [one.prompts for one in experiences] == [["well: "], ["well: "]]
    assert [one.rewards.item() for one in experiences] == [1.0, 0.0]
    assert [one.info["traj_masked"].item() for one in experiences] == [0.0, 0.0]


def test_without_filtering_it_trains_on_a_zero_and_says_so(modules) -> None:
    experiences, *_ = samples(modules, filtering=False)
    assert [one.rewards.item() for one in experiences] == [0.0, 0.0]
    assert [one.info["traj_masked"].item() for one in experiences] == [1.0, 1.0]
