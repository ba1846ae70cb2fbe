"""inspect-ai's own checks of a sandbox, and evaluations by the package itself."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.worker.hosts.boxes import Boxes
from tests.worker.hosts.stubbed import OFFLINE, host

if not host("inspect-ai"):
    pytest.skip("inspect-ai is not installed: make conformance", allow_module_level=True)

from inspect_ai import Task, eval_async
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, get_model
from inspect_ai.scorer import Score, accuracy, scorer
from inspect_ai.solver import solver
from inspect_ai.util import sandbox
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

from limiter import StartingGate

EXCEPTIONS = {"test_exec_as_user": "a session has one user, and none can be added to this machine"}


@pytest_asyncio.fixture
async def sandbox_env(boxes: Boxes, request: Any) -> AsyncIterator[Any]:
    if reason := EXCEPTIONS.get(request.node.originalname):
        request.node.add_marker(pytest.mark.xfail(reason=reason, strict=True))
    from worker.hosts.inspect_ai import PenstockSandbox

    opened = await PenstockSandbox.sample_init("task", None, {})
    yield opened["default"]
    await PenstockSandbox.sample_cleanup("task", None, opened, False)


@scorer(metrics=[accuracy()])
def runs() -> Any:
    async def score(state: Any, target: Any) -> Any:
        ran = await sandbox().exec(["python3", "-c", state.output.completion], timeout=60)
        return Score(value=int(ran.stdout.strip() == target.text))

    return score


async def evaluated(samples: int = 1, **options: Any) -> Any:
    answers = [ModelOutput.from_content("mockllm/model", "print(9)")] * samples
    model = get_model("mockllm/model", custom_outputs=answers, memoize=False)
    dataset = [Sample("print 3 ** 2", target="9") for _ in range(samples)]
    solvers = {name: options.pop(name) for name in ("solver",) if name in options}
    task = Task(dataset, scorer=runs(), sandbox="penstock", **solvers)
    logs = await eval_async(task, model=model, **options)
    return logs[0]


async def test_a_right_program_scores_1(boxes: Boxes) -> None:
    log = await evaluated()
    assert log.status == "success", log.error
    assert log.results.scores[0].metrics["accuracy"].value == 1.0
    assert await boxes.names() == []


async def test_a_sandbox_that_died_before_scoring_gives_an_error_and_no_score(
    boxes: Boxes,
) -> None:
    @solver
    def kills() -> Any:
        async def solve(state: Any, generate: Any) -> Any:
            await boxes.kill()
            return await generate(state)

        return solve

    log = await evaluated(solver=kills(), fail_on_error=False)
    assert "SandboxUnavailableError" in log.samples[0].error.message
    assert not log.samples[0].scores


async def test_forty_samples_start_under_the_cap(
    boxes: Boxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_MAX_STARTING", "4")
    gate, peak = StartingGate(boxes.url, "starting", limit=4), 0

    async def watch() -> None:
        nonlocal peak
        while True:
            peak = max(peak, (await gate.status()).in_flight)
            await asyncio.sleep(0.005)

    watching = asyncio.create_task(watch())
    log = await evaluated(40, max_samples=40, max_sandboxes=40)
    watching.cancel()
    assert log.results.scores[0].metrics["accuracy"].value == 1.0
    assert log.results.completed_samples == 40
    assert 1 < peak <= 4
    assert await boxes.names() == []


SLEEPY = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.solver import solver
from inspect_ai.util import sandbox

@solver
def sleeps():
    async def solve(state, generate):
        await sandbox().write_file("here", "x")
        print("sleeping", flush=True)
        await sandbox().exec(["sleep", "600"])
        return state
    return solve

@task
def sleepy():
    return Task([Sample(str(n)) for n in range(4)], solver=sleeps(), sandbox="penstock")
"""


async def test_ctrl_c_leaves_no_sandbox(boxes: Boxes, tmp_path: Path) -> None:
    (tmp_path / "sleepy.py").write_text(SLEEPY)
    inspect = str(Path(sys.executable).with_name("inspect"))
    command = [inspect, "eval", "sleepy.py", "--model", "mockllm/model", "--display", "none"]
    evaluation = await asyncio.create_subprocess_exec(
        *command, cwd=tmp_path, stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(OFFLINE)},
    )  # fmt: skip
    assert evaluation.stdout
    for _ in range(4):
        await evaluation.stdout.readline()
    assert len(await boxes.names()) == 4
    evaluation.send_signal(signal.SIGINT)
    await asyncio.wait_for(evaluation.wait(), 100)
    assert await boxes.names() == []
