"""Rollouts of verifiers itself: its agent, its server of tools, its retries; no model."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.worker.hosts.boxes import Boxes
from tests.worker.hosts.checkouts import checkout, function_of
from tests.worker.hosts.stubbed import host

if not host("verifiers"):
    pytest.skip("verifiers is not installed: make hosts", allow_module_level=True)

import penstock_harness
import verifiers.v1 as vf
from verifiers.v1.task import TaskConfig

from tests.harness.servers import free_port
from worker.hosts.grading import Grader
from worker.hosts.verifiers import (
    CodeState,
    CodeToolset,
    CodeToolsetConfig,
    reward_of,
)

CASES = {"inputs": ["3"], "outputs": ["9"]}
HERE = Grader(on="local")
RERUN = vf.RetryConfig(rules=[vf.RetryRule(type="SandboxError", max_retries=1)])


class Row(vf.TaskData):
    ground_truth: dict[str, Any] = CASES


class Square(vf.Task[Row, CodeState, TaskConfig]):
    graders: tuple[Grader, ...] = (HERE,)  # one for each attempt; the last for all others

    async def finalize(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        trace.root_reply = "```python\nprint(int(input()) ** 2)\n```"

    @vf.reward
    async def correct(self, trace: vf.Trace) -> float:
        grader, *others = self.graders
        self.graders = tuple(others) or self.graders
        return await reward_of(trace, self.data.ground_truth, grader)


class SquareWithTool(Square):
    @classmethod
    def toolsets(cls, config: TaskConfig) -> list[Any]:
        return [CodeToolset(CodeToolsetConfig())]


async def rolled_out(task: Any, retries: Any = None) -> Any:
    config = vf.AgentConfig(
        harness=vf.HarnessConfig(id="penstock-harness"), runtime=vf.SubprocessConfig(),
        model="none", retries=retries or vf.RetryConfig(),
    )  # fmt: skip
    async with vf.make_agent(config) as agent:
        return await agent.run(task)


@pytest.fixture(autouse=True)
def nothing_said() -> None:
    penstock_harness.told.clear()
    penstock_harness.between.clear()


def dead() -> Grader:
    return Grader(on=f"redis://127.0.0.1:{free_port()}", patience=0.2)


async def test_a_right_program_gets_1() -> None:
    trace = await rolled_out(Square(Row(prompt="?")))
    assert (trace.ok, trace.reward, trace.errors) == (True, 1.0, [])


class Unrewarded(vf.Task[Row, vf.State, TaskConfig]):
    async def finalize(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        trace.root_reply = "```python\nprint(int(input()) ** 2)\n```"


async def test_the_config_of_a_run_may_name_the_reward() -> None:
    named = {"correct": {"fn": "worker.hosts.verifiers:code_reward", "weight": 2.0}}
    trace = await rolled_out(Unrewarded(Row(prompt="?"), TaskConfig(rewards=named)))
    assert (trace.ok, trace.rewards["correct"].score, trace.reward) == (True, 1.0, 2.0)


async def test_a_dead_queue_is_no_reward_and_an_error_of_its_kind() -> None:
    task = Square(Row(prompt="?"))
    task.graders = (dead(),)
    trace = await rolled_out(task)
    assert (trace.ok, trace.last_error.type) == (False, "SandboxError")
    assert trace.rewards == {"correct": None}


async def test_prime_rl_trains_the_graded_trace_alone() -> None:
    file = checkout("PRIME_RL_SOURCE") / "src" / "prime_rl" / "orchestrator" / "algo" / "base.py"
    broken = Square(Row(prompt="?"))
    broken.graders = (dead(),)
    traces = [await rolled_out(task) for task in (Square(Row(prompt="?")), broken)]
    rows = [
        SimpleNamespace(
            has_error=trace.has_error, agent=SimpleNamespace(trainable=True),
            nodes=[SimpleNamespace(mask=[True])], reward=trace.reward,
        )
        for trace in traces
    ]  # fmt: skip
    trainable = function_of(file, "iter_trainable_traces", {})
    assert [row.reward for _, row in trainable([SimpleNamespace(traces=rows)])] == [1.0]


async def test_a_rule_of_retries_runs_it_again() -> None:
    task = Square(Row(prompt="?"))
    task.graders = (dead(), HERE)
    trace = await rolled_out(task, RERUN)
    assert (trace.ok, trace.reward) == (True, 1.0)
    assert [error.type for error in trace.errors] == ["SandboxError"]


async def test_the_tool_has_one_sandbox_for_its_rollout_and_ends_it(boxes: Boxes) -> None:
    trace = await rolled_out(SquareWithTool(Row(prompt="?")))
    assert (trace.ok, trace.reward, penstock_harness.told) == (True, 1.0, ["", "42\n"])
    assert await boxes.names() == []


async def test_a_sandbox_that_dies_between_two_calls_masks_the_rollout(boxes: Boxes) -> None:
    penstock_harness.between.append(boxes.kill)
    trace = await rolled_out(SquareWithTool(Row(prompt="?")))
    assert "for no fault of its own" in penstock_harness.told[1]
    assert (trace.ok, trace.last_error.type) == (False, "SandboxError")
