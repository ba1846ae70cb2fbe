"""The example's advantages: what is masked is in nobody's mean."""

import importlib.util
import os
import statistics
import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.worker.tool.hosts import ROOT, load_file

EXAMPLE = ROOT / "examples" / "verl" / "masked_grpo.py"


class Rows(list[Any]):
    """As much of a tensor as the example asks for."""

    def sum(self, dim: int) -> "Rows":
        assert dim == -1
        return Rows(sum(row) for row in self)

    def __eq__(self, other: object) -> Any:
        return Rows(value == other for value in self)

    __hash__ = None  # type: ignore[assignment]


def grpo(
    token_level_rewards: Any, response_mask: Any, index: Any, *, norm_adv_by_std_in_grpo: bool,
    config: Any,
) -> Any:  # fmt: skip
    """verl's GRPO, told anew: a reward less its group's mean, over its deviation if asked for."""
    groups: dict[Any, list[float]] = {}
    rewards = token_level_rewards.sum(-1)
    for group, reward in zip(index, rewards, strict=True):
        groups.setdefault(group, []).append(reward)
    found = []
    for group, reward, mask in zip(index, rewards, response_mask, strict=True):
        alone = len(groups[group]) == 1
        mean = 0.0 if alone else statistics.mean(groups[group])
        by = 1.0 if alone or not norm_adv_by_std_in_grpo else statistics.stdev(groups[group])
        found.append([(reward - mean) / by * token for token in mask])
    return found


@pytest.fixture
def masked_grpo(monkeypatch: pytest.MonkeyPatch) -> Any:
    core = SimpleNamespace(
        register_adv_est=lambda name: lambda fn: fn, compute_grpo_outcome_advantage=grpo
    )
    module = ModuleType("verl.trainer.ppo")
    module.core_algos = core  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "verl.trainer.ppo", module)
    return load_file(EXAMPLE, "_masked_grpo_of_a_test").masked_grpo


@pytest.mark.parametrize("by_std", [True, False])
def test_a_masked_trajectory_changes_nobodys_advantage(masked_grpo, by_std) -> None:
    config = {"norm_adv_by_std_in_grpo": by_std}
    rewards = Rows([[0, 1], [0, 0], [0, 1], [0, 0], [0, 5], [0, 7]])
    masks = Rows([[1, 1], [1, 1], [1, 0], [0, 0], [1, 1], [1, 1]])  # the fourth is masked
    found = masked_grpo(rewards, masks, [*"aaaabb"], config=config, reward_baselines=None)
    without = [n for n in range(6) if n != 3]
    alone = grpo(
        Rows(rewards[n] for n in without), [masks[n] for n in without], "aaabb",
        norm_adv_by_std_in_grpo=by_std, config=None,
    )  # fmt: skip
    assert found[3] == [0, 0]
    assert [found[n] for n in without] == alone
    counted = grpo(rewards, masks, "aaaabb", norm_adv_by_std_in_grpo=by_std, config=None)
    assert counted[0] != found[0]  # what verl's own would have made of it


@pytest.mark.skipif(
    importlib.util.find_spec("verl") is None, reason="verl is not installed: make conformance"
)
def test_verl_finds_it_by_its_name() -> None:
    said = subprocess.run(
        [sys.executable, "-c",
         "from tests.worker.tool import verl_stubs; verl_stubs.install()\n"
         "import inspect, verl\n"
         "from verl.trainer.ppo import core_algos\n"
         "arguments = dict.fromkeys(['norm_adv_by_std_in_grpo', 'config'])\n"
         "inspect.signature(core_algos.compute_grpo_outcome_advantage)"
         ".bind(None, None, None, **arguments)\n"
         "print(core_algos.get_adv_estimator_fn('masked_grpo').__module__)"],
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{EXAMPLE.parent}",
                          "VERL_USE_EXTERNAL_MODULES": "masked_grpo"},
        capture_output=True, text=True, timeout=200, check=True,
    ).stdout  # fmt: skip
    assert said.strip().splitlines()[-1] == "masked_grpo"
