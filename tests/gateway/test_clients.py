"""Agents and SDKs as they are released, each in a process of its own, run by `make conformance`.

AGENTS_PYTHON is the interpreter of an environment that has them. AGENTS_NODE is the folder in which
npm has put the commands of Claude Code and opencode.
"""

import asyncio
import json
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import ground
from jail.sessions import CommandRequest, LocalSessions, Network, SessionRequest
from jail.sessions.settings import SessionSettings
from jail.settings import SandboxSettings
from tests.docs.blocks import steps
from tests.gateway.scripted.model import Model, babble, decode, shell
from tests.gateway.scripted.sglang import ScriptedSglang
from tests.gateway.scripted.vllm import ScriptedVllm
from tests.gateway.serving import Agent, World, world
from tests.jail.sessions.conftest import end_hubs

PYTHON = os.environ.get("AGENTS_PYTHON", "")
NODE = os.environ.get("AGENTS_NODE", "")
PROGRAMS = Path(__file__).parent / "clients"
GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "train-an-agent.md"

python = pytest.mark.skipif(not PYTHON, reason="AGENTS_PYTHON names no environment")
node = pytest.mark.skipif(not NODE, reason="AGENTS_NODE names no folder")
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


async def run(
    program: Path, here: World, agent: Agent | None = None, folder: Path | None = None
) -> str:
    """The program, to its end, and what it said."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OPENAI", "ANTHROPIC"))}
    env = clean | {
        "GATEWAY": str(here.http.base_url), "KEY": agent.key if agent else "",
        "MSWEA_SILENT_STARTUP": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }  # fmt: skip
    process = await asyncio.create_subprocess_exec(
        PYTHON, program, env=env, cwd=folder,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()[-5000:]
    return said.decode()


SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
STEPS = ["I compute.\n<code>\nprint(6 * 7)\n</code>", "Done.\n<code>\nfinal_answer(42)\n</code>"]


@python
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
        await run(PROGRAMS / f"{name}.py", here, agent)
        found = await agent.rows()
        assert len(found.rows) == rows
        assert found.counts["trained"] == sum(len(each.sampled) for each in here.engine.log)
        assert bool(found.counts["foreign"]) == (name == "smolagents_agent")


@python
async def test_the_guides_real_agent_hands_in(real_redis: ground.Client, tmp_path: Path) -> None:
    """The blocks of the page as they stand there, but for the gateway's address and task."""
    async with world(real_redis, ScriptedVllm(model=Model(0, shell)), port=True) as here:
        kept = {step.kept_as: step.program for step in steps(GUIDE) if step.kept_as}
        assert kept.keys() == {"session.py", "mini.py"}
        for name, text in kept.items():
            text = text.replace("http://127.0.0.1:8893", str(here.http.base_url))
            (tmp_path / name).write_text(text.replace("/tasks/shell/", "/tasks/math/"))
        said = await run(tmp_path / "mini.py", here, folder=tmp_path)
        assert said.splitlines()[-1] == "Submitted 1 row"


ASK = "Say which files there are."


def looks(tool: str) -> Callable[[list[int], random.Random], str]:
    """A model that looks around with this tool, if it has it, and says what it found."""

    def script(prompt: list[int], chance: random.Random) -> str:
        text = decode(prompt)
        if f'"name": "{tool}"' not in text or text.count("<|im_start|>assistant\n") > 1:
            return "There is a README."
        arguments = {"command": "ls", "description": "List files"}
        call = json.dumps({"name": tool, "arguments": arguments})
        return f"I look.\n<tool_call>\n{call}\n</tool_call>"

    return script


async def headless(here: World, folder: Path, *words: str, **env: str) -> str:
    """An agent of npm's in a session sandbox, whose only address is the gateway's. What it said."""
    gateway = here.http.base_url.netloc.decode()
    sessions = LocalSessions(
        SandboxSettings(sandbox_expose=str(Path(NODE).parent)),
        SessionSettings(session_network=gateway, local_sandboxes=str(folder), session_hub_idle=5),
    )
    session = await sessions.open(
        SessionRequest(
            ttl=600, memory_mb=4096, processes=512, disk_mb=1024, env=env,
            network=Network([gateway]),
        )
    )  # fmt: skip
    try:
        # The gateway is on this machine's loopback, which clients do not send to a proxy.
        run = 'export NO_PROXY= no_proxy=; echo "a test" > README; exec "$@"'
        ran = await session.run(
            CommandRequest(["sh", "-c", run, "sh", f"{NODE}/{words[0]}", *words[1:]], timeout=300)
        )
    finally:
        await session.end()
        end_hubs(folder)
    assert ran.exit.code == 0, (ran.stdout + ran.stderr).decode()[-5000:]
    return ran.stdout.decode()


@node
async def test_claude_code_runs_unmodified(real_redis: ground.Client, tmp_path: Path) -> None:
    """It speaks Messages, in streams."""
    engine = ScriptedVllm(model=Model(0, looks("Bash")))
    async with world(real_redis, engine, port=True) as here:
        agent = await here.open()
        said = await headless(
            here, tmp_path, "claude", "-p", ASK, "--model", "m", "--allowedTools", "Bash",
            ANTHROPIC_BASE_URL=str(here.http.base_url), ANTHROPIC_AUTH_TOKEN=agent.key,
            CLAUDE_CODE_ATTRIBUTION_HEADER="0", CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
        )  # fmt: skip
        assert "There is a README." in said
        rows = await agent.rows()
        assert (len(rows.rows), rows.counts["calls"], rows.counts["foreign"]) == (1, 2, 0)
        assert rows.counts["trained"] == sum(len(each.sampled) for each in engine.log)


@node
async def test_opencode_runs_unmodified(real_redis: ground.Client, tmp_path: Path) -> None:
    """It speaks chat, in streams. A second row is the title that it asks for beside."""
    engine = ScriptedVllm(model=Model(0, looks("bash")))
    async with world(real_redis, engine, port=True) as here:
        agent = await here.open()
        options = {"baseURL": f"{here.http.base_url}/v1", "apiKey": agent.key}
        provider = {"npm": "@ai-sdk/openai-compatible", "options": options, "models": {"m": {}}}
        config = {"provider": {"own": provider}, "small_model": "own/m"}
        said = await headless(
            here, tmp_path, "opencode", "run", "--model", "own/m", ASK,
            OPENCODE_CONFIG_CONTENT=json.dumps(config),
        )  # fmt: skip
        assert "There is a README." in said
        rows = await agent.rows()
        assert len(rows.rows) == 2
        assert rows.counts["trained"] == sum(len(each.sampled) for each in engine.log)
