"""Agents and SDKs as they are released, each in a process of its own, run by `make conformance`.

AGENTS_PYTHON is the interpreter of an environment that has them.
"""

import asyncio
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import ground
from tests.gateway.scripted.model import Model, babble, decode
from tests.gateway.scripted.sglang import ScriptedSglang
from tests.gateway.scripted.vllm import ScriptedVllm
from tests.gateway.serving import Agent, World, world

PYTHON = os.environ.get("AGENTS_PYTHON", "")
PROGRAMS = Path(__file__).parent / "clients"

pytestmark = pytest.mark.skipif(not PYTHON, reason="AGENTS_PYTHON names no environment")
faces = pytest.mark.parametrize("face", [ScriptedVllm, ScriptedSglang])


def in_order(texts: Sequence[str]) -> Callable[[list[int], random.Random], str]:
    """A model that answers its n-th turn with the n-th of these."""

    def script(prompt: list[int], chance: random.Random) -> str:
        turn = decode(prompt).count("<|im_start|>assistant\n") - 1
        return texts[min(turn, len(texts) - 1)]

    return script


def bash(command: str) -> str:
    """A call of mini-swe-agent's tool."""
    call = f'{{"name": "bash", "arguments": {{"command": "{command}"}}}}'
    return f"I go on.\n<tool_call>\n{call}\n</tool_call>"


async def run(name: str, here: World, agent: Agent) -> None:
    """The program, to its end."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OPENAI", "ANTHROPIC"))}
    env = clean | {
        "GATEWAY": str(here.http.base_url), "KEY": agent.key, "MSWEA_SILENT_STARTUP": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }  # fmt: skip
    process = await asyncio.create_subprocess_exec(
        PYTHON, PROGRAMS / f"{name}.py", env=env,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()[-5000:]


SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
STEPS = ["I compute.\n<code>\nprint(6 * 7)\n</code>", "Done.\n<code>\nfinal_answer(42)\n</code>"]


@faces
@pytest.mark.parametrize(
    ("name", "script", "rows"),
    [
        ("anthropic_sdk", babble, 1),
        ("litellm_sdk", babble, 2),
        ("mini_swe_agent", in_order([bash("ls"), bash(SUBMIT)]), 1),
        # It puts words of its own into the turns of the assistant: each is an edit, and forks.
        ("smolagents_agent", in_order(STEPS), 2),
        ("langchain_agent", babble, 1),
    ],
)
async def test_it_runs_unmodified_and_its_turns_are_rows(
    real_redis: ground.Client, face: Any, name: str, script: Any, rows: int
) -> None:
    engine = face(model=Model(3, script), max_model_len=20_000)
    async with world(real_redis, engine, port=True) as here:
        agent = await here.open()
        await run(name, here, agent)
        found = await agent.rows()
        assert len(found.rows) == rows
        assert found.counts["trained"] == sum(len(each.sampled) for each in here.engine.log)
        assert bool(found.counts["foreign"]) == (name == "smolagents_agent")
