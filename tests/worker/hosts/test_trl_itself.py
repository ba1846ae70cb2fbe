"""TRL's own GRPOTrainer with our reward and our environment: `make conformance`."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

from accelerate import PartialState
from datasets import Dataset

from tests.architecture.source import ROOT
from tests.harness.servers import free_port, url_of
from tests.worker.concurrent.crew import at_work
from tests.worker.hosts.programs import RIGHT, UNLUCKY, Flaky, fenced
from tests.worker.hosts.tiny_trl import Engine, tokenizer, trainer
from worker.hosts.trl import CodeEnvironment, CodeReward

CASES = {"inputs": ["0", "1", "2"], "outputs": ["0", "1", "4"]}
ROW = {"prompt": "Print a number's square.", "ground_truth": json.dumps(CASES)}
TALK = {**ROW, "prompt": [{"role": "user", "content": "Print a number's square."}]}
SLOW = fenced("while True: pass")
ONE_OF_THREE, TWO_OF_THREE = fenced("input(); print(0)"), fenced("print(int(input()))")
SAYS = [[UNLUCKY, ONE_OF_THREE, TWO_OF_THREE, RIGHT]]  # for the first its sandbox fails
LEFT_OUT = [0.0, -1.0, 0.0, 1.0]


def bonus(completions: list[Any], **_: Any) -> list[float]:
    return [2.0] * len(completions)


def advantages_of(folder: Path, rewards: Any, **config: Any) -> list[float]:
    one = trainer(folder, SAYS, rewards, [ROW], steps=2, **config)
    one.train()
    assert len(one.advantages) == 2
    assert one.advantages[0] == one.advantages[1]
    return one.advantages[0]


def test_a_masked_completion_is_in_no_groups_mean(tmp_path: Path) -> None:
    one = trainer(tmp_path, SAYS, CodeReward(grader=Flaky("local")), [ROW], steps=2)
    one.train()
    found = [reward for (reward,) in one.rewards[0]]
    assert found[1:] == pytest.approx([1 / 3, 2 / 3, 1.0])
    assert found[0] != found[0]  # NaN
    assert one.advantages == [pytest.approx(LEFT_OUT, abs=1e-3)] * 2
    logged = [entry for entry in one.state.log_history if "penstock/masked" in entry]
    assert [entry["penstock/masked"] for entry in logged] == [1.0, 1.0]
    assert logged[0]["penstock/masked/http_503"] == 1.0


def test_nor_beside_another_reward_that_is_added_by_ours(tmp_path: Path) -> None:
    reward = CodeReward(also=[bonus], grader=Flaky("local"))
    assert advantages_of(tmp_path, reward) == pytest.approx(LEFT_OUT, abs=1e-3)


def test_beside_another_reward_of_trls_it_counts_as_zero(tmp_path: Path) -> None:
    """Why `also` is there. Under `normalize_then_sum` TRL leaves it out itself."""
    apart = advantages_of(tmp_path, [CodeReward(grader=Flaky("local")), bonus])
    assert apart == pytest.approx([-1.162, -0.387, 0.387, 1.162], abs=1e-3)


def test_a_slow_program_is_a_zero(tmp_path: Path) -> None:
    one = trainer(tmp_path, [[SLOW, RIGHT]], CodeReward(case_timeout=0.5), [ROW], group=2)
    one.train()
    assert one.rewards == [[[0.0], [1.0]]]


def test_a_dead_redis_masks_all_and_the_training_goes_on(tmp_path: Path) -> None:
    reward = CodeReward(on=f"redis://127.0.0.1:{free_port()}")
    one = trainer(tmp_path, [[RIGHT]], reward, [ROW] * 16)
    began = time.monotonic()
    one.train()
    assert time.monotonic() - began < 70
    assert one.advantages == [[0.0] * 64]
    assert all(reward != reward for (reward,) in one.rewards[0])
    assert one.state.global_step == 1


def test_rewards_come_from_a_queue(tmp_path: Path, real_redis: Any) -> None:
    with at_work(real_redis, sandbox="local"):
        one = trainer(
            tmp_path, [[RIGHT, TWO_OF_THREE]], CodeReward(on=url_of(real_redis)), [ROW], group=2
        )
        one.train()
    assert one.rewards == [[[1.0], [pytest.approx(2 / 3)]]]


# Environments


def call(code: str) -> str:
    arguments = json.dumps({"name": "run_code", "arguments": {"code": code}})
    return f"<tool_call>\n{arguments}\n</tool_call>"


USES = [
    [call("x = 7"), call("print(int(input()) ** 2)"), call("1 / 0"), "I will not."],
    [call("print(x * 6)"), "Done.", "Done.", "Done."],
    ["Done."],
]


def graded_here() -> CodeEnvironment:
    return CodeEnvironment(grader=CodeReward(on="local")._grader)


def test_the_model_runs_code_and_no_sandbox_is_left(tmp_path: Path, boxes: Any) -> None:
    one = trainer(tmp_path, USES, [], [TALK], environment=graded_here, max_completion_length=2048)
    assert [tool.__name__ for tool in one.tools] == ["run_code"]
    one.train()
    assert one.rewards == [[[0.0], [1.0], [0.0], [0.0]]]
    assert one.state.log_history[0]["tools/call_frequency"] == 1.0
    assert one.state.log_history[0]["tools/failure_frequency"] == 0.0
    asyncio.run(boxes.ended())


def trains_for_ever(folder: str) -> None:
    """A program: a trainer whose rollouts have sandboxes, until it is killed."""
    forever = call("print('open', flush=True); import time; time.sleep(600)")
    first = [[call("x = 1")], [forever]]
    trainer(Path(folder), first, [], [TALK], group=2, environment=CodeEnvironment).train()


def test_a_killed_trainer_leaves_no_sandbox_after_its_lease(
    tmp_path: Path,
    boxes: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PENSTOCK_SANDBOX_LEASE")
    program = f"from {__name__} import trains_for_ever; trains_for_ever({str(tmp_path)!r})"
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT) as process:
        deadline = time.monotonic() + 60
        while len(asyncio.run(boxes.names())) < 2:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.2)
        os.kill(process.pid, signal.SIGKILL)
    killed = time.monotonic()
    asyncio.run(boxes.reaped())
    assert time.monotonic() - killed < 55


# AsyncGRPO: rewards and environments are in a spawned child; its trainer needs vLLM and a GPU.

UNEVEN = [0.0, -(1.5**0.5), 0.0, 1.5**0.5]  # by a standard deviation of the whole group


def rolled_out(monkeypatch: pytest.MonkeyPatch, says: Any, row: dict[str, Any], **more: Any) -> Any:
    """One group by its own worker: what each completion said, with its advantage."""
    from trl.experimental.async_grpo import async_rollout_worker as its

    PartialState(cpu=True)  # as a trainer makes it, for the worker's log
    monkeypatch.setattr(its, "is_vllm_available", lambda: True)
    words = tokenizer()
    with Engine(words, says) as engine:
        worker = its.AsyncRolloutWorker(
            model_name="none", dataset=Dataset.from_list([row]), processing_class=words,
            eos_token_ids=[words.eos_token_id], num_generations=4, max_inflight_tasks=4,
            vllm_server_url=engine.url, max_tokens=4096, **{"reward_funcs": [], **more},
        )  # fmt: skip
        worker.start()
        try:
            return [worker.rollout_buffer.get(timeout=120) for _ in range(4)]
        finally:
            worker.stop()


def test_in_the_child_of_asynchronous_training_a_masked_completion_has_no_advantage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = [UNLUCKY, ONE_OF_THREE, TWO_OF_THREE, RIGHT]
    reward = CodeReward(grader=Flaky(on="local"))
    samples = rolled_out(monkeypatch, lambda n, _: said[n % 4], TALK, reward_funcs=[reward])
    # Some versions of transformers take a message's last line end away.
    found = {sample.completion[0]["content"].strip(): sample.advantage for sample in samples}
    assert [found[text.strip()] for text in said] == pytest.approx(UNEVEN, abs=1e-3)


def test_in_the_child_of_asynchronous_training_environments_run_code_and_mask(
    monkeypatch: pytest.MonkeyPatch, boxes: Any
) -> None:
    programs = [
        "print(int(input()) ** 2)  # unlucky", "input(); print(0)", "print(int(input()))",
        "print(int(input()) ** 2)",
    ]  # fmt: skip

    def says(n: int, prompt: str) -> str:
        return "Done." if "<tool_response>" in prompt else call(programs[n % 4])

    samples = rolled_out(
        monkeypatch, says, TALK, environment_factory=partial(CodeEnvironment, grader=Flaky("local"))
    )
    ran = {one.completion[0]["tool_calls"][0]["function"]["arguments"]["code"]: one.advantage
           for one in samples}  # fmt: skip
    assert [ran[program] for program in programs] == pytest.approx(UNEVEN, abs=1e-3)
    boxes.leases_end()
    asyncio.run(boxes.reaped())


def test_the_example_learns() -> None:
    example = ROOT / "examples" / "trl" / "grpo_steps.py"
    ran = subprocess.run([sys.executable, example], capture_output=True, text=True, check=True)
    *rollouts, learned = ran.stdout.strip().splitlines()[-9:]
    assert all(-3 < float(rollout.split()[0]) < 3 for rollout in rollouts), ran.stdout
    before, after = (int(share) for share in re.findall(r"(\d+)%", learned))
    assert before < 50 < after
