"""verifiers: a masked reward is a `SandboxError`, by its real package or by our stand-in."""

from typing import Any

import pytest

from tests.harness.servers import free_port
from tests.worker.hosts.boxes import Boxes
from tests.worker.hosts.stubbed import host

host("verifiers")

import verifiers.v1 as vf  # noqa: E402

from worker.hosts.grading import Grader  # noqa: E402
from worker.hosts.verifiers import (  # noqa: E402
    CodeState,
    CodeToolset,
    CodeToolsetConfig,
    code_reward,
    reward_of,
)

TRUTH = {"inputs": ["3", "4"], "outputs": ["9", "16"]}
HERE = Grader(on="local", case_timeout=0.3, all_or_nothing=True)


class Row(vf.TaskData):  # type: ignore[misc]
    ground_truth: dict[str, Any] = TRUTH


def trace_of(code: str, state: Any = None) -> Any:
    task = vf.TraceTask(type="Square", data=Row())
    trace = vf.Trace(task=task, agent=vf.AgentInfo(config=vf.AgentConfig()))
    trace.root_reply = f"```python\n{code}\n```"
    if state is not None:
        trace.state = state
    return trace


async def test_the_reward_is_the_grade_and_a_slow_program_gets_0() -> None:
    assert await reward_of(trace_of("print(int(input()) ** 2)"), TRUTH, HERE) == 1.0
    assert await reward_of(trace_of("print(9)"), TRUTH, Grader(on="local")) == 0.5
    assert await reward_of(trace_of("while True: pass"), TRUTH, HERE) == 0.0


async def test_a_dead_queue_is_a_sandbox_error() -> None:
    dead = Grader(on=f"redis://127.0.0.1:{free_port()}", patience=0.2)
    with pytest.raises(vf.SandboxError, match=r"QueueUnavailable: .*could not be asked"):
        await reward_of(trace_of("print(9)"), TRUTH, dead)


async def test_a_tool_whose_sandbox_died_masks_the_reward(boxes: Boxes) -> None:
    tools = CodeToolset(CodeToolsetConfig())
    await tools.setup()
    assert await tools.run_code("x = 6") == ""
    assert await tools.run_code("print(x * 7)") == "42\n"
    assert tools.state.masked == ""
    await boxes.kill()
    assert "for no fault of its own" in await tools.run_code("print(1)")
    assert tools.state.masked == "sandbox_lost"
    state = CodeState(masked=tools.state.masked)
    with pytest.raises(vf.SandboxError, match="sandbox_lost"):
        await code_reward(Row(), trace_of("print(int(input()) ** 2)", state))
    await tools._exit_stack.aclose()


async def test_the_sandbox_of_a_toolset_ends_with_its_server(boxes: Boxes) -> None:
    tools = CodeToolset(CodeToolsetConfig())
    await tools.setup()
    await tools.run_code("print(1)")
    assert len(await boxes.names()) == 1
    await tools._exit_stack.aclose()
    assert await boxes.names() == []
