"""Our functions for slime, called as slime calls them; with slime's own code where
`SLIME_SOURCE` names a checkout, and torch is there."""

import inspect
import logging
import math
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.architecture.source import ROOT
from tests.harness.servers import free_port
from tests.worker.hosts.checkouts import checkout, function_of
from tests.worker.hosts.programs import ENDLESS, RIGHT, SQUARES, WRONG
from tests.worker.hosts.stubbed import STUBS
from worker.hosts.slime import (
    MASKED,
    CodeReward,
    Sandbox,
    eval_without_masked,
    keep_clean_groups,
    rm,
    without_masked,
)
from worker.lifecycle.errors import SandboxLost

SOURCE = os.environ.get("SLIME_SOURCE", "")


@pytest.fixture(autouse=True)
def slime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SOURCE or str(STUBS / "slime-rewards"))


class Sample(SimpleNamespace):
    """The part of slime's that rewards use."""

    def __init__(self, response: str = "", label: Any = SQUARES, **more: Any) -> None:
        given = {"remove_sample": False, "reward": None, "metadata": {}}
        super().__init__(response=response, label=label, **given | more)

    def get_reward_value(self, args: Any) -> Any:
        return self.reward[args.reward_key] if args.reward_key else self.reward


def arguments(**more: Any) -> SimpleNamespace:
    given = {
        "reward_key": None, "eval_reward_key": None, "advantage_estimator": "grpo",
        "rewards_normalization": True, "grpo_std_normalization": True, "n_samples_per_prompt": 4,
        "rollout_batch_size": 2,
    }  # fmt: skip
    return SimpleNamespace(**given | more)


def group(*rewards: float | None) -> list[Sample]:
    return [
        Sample(reward=reward or 0.0, remove_sample=reward is None, index=index)
        for index, reward in enumerate(rewards)
    ]


async def test_a_reward_and_what_cannot_be_graded_is_removed() -> None:
    samples = [Sample(RIGHT), Sample(WRONG), Sample(RIGHT, label="{")]
    assert [await rm(arguments(), sample) for sample in samples] == [1.0, 0.0, 0.0]
    assert [sample.remove_sample for sample in samples] == [False, False, True]
    assert samples[2].metadata == {MASKED: "unreadable"}
    assert await rm(arguments(), samples[:2]) == [1.0, 0.0]  # --group-rm
    assert await rm(arguments(reward_key="score"), samples[0]) == {"score": 1.0}


async def test_a_slow_program_is_a_zero_and_a_dead_redis_masks() -> None:
    slow = Sample(ENDLESS)
    assert (await CodeReward(case_timeout=0.3)(arguments(), slow), slow.remove_sample) == (0, False)
    dead = CodeReward(on=f"redis://127.0.0.1:{free_port()}", patience=0.3)
    samples = [Sample(RIGHT) for _ in range(8)]
    assert await dead(arguments(), samples) == [0.0] * 8
    assert {sample.metadata[MASKED] for sample in samples} == {"QueueUnavailable"}


def test_a_removed_sample_changes_no_siblings_reward() -> None:
    whole = group(1.0, 0.0, 0.5, None) + group(None, None, None, None)
    raw, trained = without_masked(arguments(), whole)
    assert raw == [1.0, 0.0, 0.5, 0.5, 0.0, 0.0, 0.0, 0.0]
    alone = arguments(n_samples_per_prompt=3, rollout_batch_size=1)
    _, siblings = without_masked(alone, group(1.0, 0.0, 0.5))
    assert trained == [*siblings, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert siblings == pytest.approx([1.0, -1.0, 0.0], abs=1e-5)


@pytest.mark.parametrize("estimator", ["grpo", "reinforce_plus_plus_baseline", "ppo"])
@pytest.mark.parametrize("normed", [True, False])
def test_without_removed_samples_the_rewards_are_slimes_own(estimator: str, normed: bool) -> None:
    torch = pytest.importorskip("torch")
    args = arguments(advantage_estimator=estimator, grpo_std_normalization=normed)
    samples = group(1.0, 0.0, 0.5, 1.0) + group(0.25, 0.0, 0.0, 0.5)
    own = slimes_own(torch)
    host = SimpleNamespace(args=args, custom_reward_post_process_func=None)
    raw, trained = own(host, samples)
    ours = without_masked(args, samples)
    assert ours[0] == raw
    assert ours[1] == pytest.approx(trained, abs=1e-5)


def slimes_own(torch: Any) -> Any:
    """The module imports Ray and Megatron, the method does not."""
    file = checkout("SLIME_SOURCE") / "slime" / "ray" / "rollout.py"
    return function_of(file, "_post_process_rewards", {"torch": torch, "Sample": Sample})


def test_a_group_with_a_removed_sample_is_dropped() -> None:
    kept = keep_clean_groups(arguments(), group(1.0, 0.0))
    dropped = keep_clean_groups(arguments(), [group(1.0), group(None)])
    base_types = import_module("slime.rollout.filter_hub.base_types")
    assert isinstance(kept, base_types.DynamicFilterOutput)
    assert (kept.keep, kept.reason, dropped.keep, dropped.reason) == (True, None, False, "masked")


def evaluated(*rewards: float | None) -> dict[str, Any]:
    samples = [
        Sample(metadata={MASKED: "http_503"} if reward is None else None) for reward in rewards
    ]
    return {"rewards": [reward or 0.0 for reward in rewards], "samples": samples}


def test_the_mean_of_an_evaluation_is_that_of_the_samples_that_were_graded() -> None:
    bare: dict[str, Any] = {"rewards": []}
    data = {"code": evaluated(1.0, None, 0.5), "whole": evaluated(1.0, 0.0), "bare": bare}
    assert eval_without_masked(3, arguments(), data, None) is False
    assert data["code"]["rewards"] == [1.0, 0.75, 0.5]
    assert (data["whole"]["rewards"], bare) == ([1.0, 0.0], {"rewards": []})
    lost = {"code": evaluated(None, None)}
    eval_without_masked(3, arguments(), lost)
    assert all(map(math.isnan, lost["code"]["rewards"]))


def test_slime_logs_that_mean() -> None:
    file = checkout("SLIME_SOURCE") / "slime" / "observability" / "rollout_metrics.py"
    logged: list[dict[str, Any]] = []
    given = {
        "load_function": lambda _: eval_without_masked,
        "compute_metrics_from_samples": lambda args, samples: {},
        "dict_add_prefix": lambda found, prefix: found,
        "compute_rollout_step": lambda args, rollout_id: rollout_id,
        "logger": logging.getLogger(),
        "logging_utils": SimpleNamespace(log=lambda args, found, step_key: logged.append(found)),
    }
    its = function_of(file, "log_eval_rollout_data", given)
    args = SimpleNamespace(custom_eval_rollout_log_function_path="ours", log_passrate=False)
    its(3, args, {"code": evaluated(1.0, None, 0.5)})
    assert logged == [{"eval/code": 0.75, "eval/step": 3}]


# Sandboxes of agents


async def test_a_sandbox_runs_commands_and_keeps_files(boxes) -> None:
    async with Sandbox() as sandbox:
        await sandbox.write_file("/tmp/a.txt", "seven\n")
        assert await sandbox.exec("cat /tmp/a.txt; echo $X >&2; exit 3", env={"X": "8"}) == (
            3, "seven\n", "8\n",
        )  # fmt: skip
        await sandbox.write_file("/tmp/b", Path(__file__))
        assert await sandbox.read_file("/tmp/b") == Path(__file__).read_text()
        assert await sandbox.read_file("/tmp/absent") == ""
        with pytest.raises(RuntimeError, match="exit code 2: oh"):
            await sandbox.exec("echo oh >&2; exit 2", check=True)
        with pytest.raises(TimeoutError):
            await sandbox.exec("sleep 60", timeout=1)
        assert await boxes.names() == [sandbox.sandbox_id]
    assert await boxes.names() == []


async def test_a_dead_sandbox_is_no_empty_file(boxes) -> None:
    async with Sandbox() as sandbox:
        await boxes.kill()
        with pytest.raises(SandboxLost):
            await sandbox.read_file("/tmp/absent")
        with pytest.raises(SandboxLost):
            await sandbox.exec("true")


@pytest.mark.skipif(not SOURCE, reason="SLIME_SOURCE names no checkout of slime")
async def test_slimes_own_helpers_run_on_it(boxes) -> None:
    module = import_module("slime.agent.sandbox")
    assert isinstance(Sandbox(), module.Sandbox)
    for name in ("exec", "write_file", "read_file"):
        ours, theirs = (inspect.signature(getattr(one, name)) for one in (Sandbox, module.Sandbox))
        assert [*ours.parameters] == [*theirs.parameters]
    async with Sandbox() as sandbox:
        ended = await module.exec_and_wait(
            sandbox, cmd="echo 42; (exit 5)", time_budget_sec=60, tag="t", want_output=True
        )
    assert ended == (5, "42\n")


def test_the_functions_are_found_by_the_paths_that_slime_is_given() -> None:
    program = (
        "from worker.hosts.slime import keep_clean_groups, rm, without_masked\n"
        "print(callable(rm) and callable(without_masked) and callable(keep_clean_groups))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert ran.stdout == "True\n"
