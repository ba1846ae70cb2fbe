"""A real vLLM on the processor, run by `make conformance-vllm`. Its model has random weights.

Each trained token is proved by the engine itself: what it says of a row when it reads the row as
one prompt is what was recorded when it sampled the tokens, turn by turn.

VLLM_PYTHON is the interpreter of an environment that has vLLM.
"""

import asyncio
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import ground
from gateway.packing import spread
from gateway.training_rows import Row, rows_of
from tests.gateway.serving import TOOLS, Agent, World, events_of, user, world
from tests.harness.servers import free_port

PYTHON = os.environ.get("VLLM_PYTHON", "")
MODEL = Path(__file__).with_name("random_model.py")
NEAR = 0.01  # of log-probabilities: one prompt is computed otherwise than token by token

pytestmark = pytest.mark.skipif(not PYTHON, reason="VLLM_PYTHON names no environment")
kinds = pytest.mark.parametrize("kind", ["vllm", "vllm-plain"])


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a vLLM with its scale-out endpoints, and those of a trainer."""
    folder, port = tmp_path_factory.mktemp("model"), free_port()
    subprocess.run([PYTHON, MODEL, folder], check=True)
    env = os.environ | {
        "VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    said = folder / "vllm.log"
    with said.open("wb") as out, subprocess.Popen(
        [Path(PYTHON).with_name("vllm"), "serve", folder, "--served-model-name", "m", "--host",
         "127.0.0.1", "--port", str(port), "--enforce-eager", "--max-model-len", "2048",
         "--dtype", "float32", "--enable-scale-out", "--enable-auto-tool-choice",
         "--tool-call-parser", "hermes"],
        env=env, stdout=out, stderr=out,
    ) as process:  # fmt: skip
        url = f"http://127.0.0.1:{port}"
        while process.poll() is None:
            try:
                httpx.get(f"{url}/health", timeout=5).raise_for_status()
                break
            except httpx.HTTPError:
                time.sleep(0.5)
        assert process.poll() is None, said.read_text()[-5000:]
        yield url
        process.terminate()


async def rows_that_prove_themselves(here: World, agent: Agent, engine: str) -> tuple[Row, ...]:
    """The rows of the agent, each read by the engine as one prompt."""
    rows = rows_of(await here.gateway._sessions.read(agent._session)).rows
    async with httpx.AsyncClient(base_url=engine, timeout=100) as http:
        for row in rows:
            ids = row.tokens.tolist()
            begin = len(ids) - row.response_length
            trained = [n for n, mask in enumerate(spread(row.mask)) if mask]
            assert trained
            for skip in (0, 1):
                body = {"model": "m", "prompt": ids[skip:], "max_tokens": 1, "prompt_logprobs": 0}
                (choice,) = (await http.post("/v1/completions", json=body)).json()["choices"]
                read = choice["prompt_logprobs"]
                apart = max(
                    abs(read[at - skip][str(ids[at])]["logprob"] - row.logprobs[at - begin])
                    for at in (begin + n for n in trained)
                )
                # Another context is told from the true one.
                assert (apart < NEAR) == (skip == 0), apart
    return rows


async def trainer(engine: str, path: str, **body: Any) -> None:
    """What a trainer tells the engine."""
    async with httpx.AsyncClient(base_url=engine, timeout=100) as http:
        (await http.post(path, json=body)).raise_for_status()


async def running(engine: str) -> bool:
    """Whether it samples."""
    async with httpx.AsyncClient(base_url=engine, timeout=100) as http:
        figures = (await http.get("/metrics")).text
    found = re.findall(r"^vllm:num_requests_running\{.*\} (.*)$", figures, re.M)
    return any(float(count) > 0 for count in found)


@kinds
async def test_a_conversation_is_one_row_that_the_engine_proves(
    real_redis: ground.Client, engine: str, kind: str
) -> None:
    await trainer(engine, "/update_weight_version", new_version="7")
    async with world(real_redis, gateway_engines=f"{kind}={engine}") as here:
        agent = await here.open()
        tools = {} if kind == "vllm-plain" else {"tools": TOOLS}
        for turn in range(4):
            stop = {"stop": ["e"]} if turn == 2 else {}
            answer = await agent.says(f"question {turn}", max_tokens=200, **tools, **stop)
            assert not (stop and "e" in answer["content"])
        (row,) = await rows_that_prove_themselves(here, agent, engine)
        assert [finish for *_, finish in row.calls] == ["length", "length", "stop", "length"]
        assert {version for n, version in row.versions if version >= 0} == {7}


async def test_both_dialects_stream_what_was_sampled(
    real_redis: ground.Client, engine: str
) -> None:
    async with world(real_redis, gateway_engines=f"vllm={engine}") as here:
        agent = await here.open()
        chat = await agent.chat([user("hello")], max_tokens=10, stream=True)
        assert events_of(chat.text)[-1] == "[DONE]"
        messages = await agent.messages([user("hello")], max_tokens=10, stream=True)
        assert events_of(messages.text)[-1]["type"] == "message_stop"
        assert len(await rows_that_prove_themselves(here, agent, engine)) == 2


async def test_an_update_in_the_middle_of_an_answer_is_joined_by_ids(
    real_redis: ground.Client, engine: str
) -> None:
    await trainer(engine, "/update_weight_version", new_version="7")
    async with world(real_redis, gateway_engines=f"vllm={engine}") as here:
        agent = await here.open()
        asking = asyncio.create_task(agent.says("a long one", max_tokens=1500))
        while not await running(engine):  # noqa: ASYNC110 - it notifies nobody
            await asyncio.sleep(0.01)
        await trainer(engine, "/pause?mode=abort")
        await trainer(engine, "/update_weight_version", new_version="8")
        await trainer(engine, "/resume")
        await asking
        (call,) = (await agent.calls()).values()
        await rows_that_prove_themselves(here, agent, engine)
        assert {version for _, version in call.spans} == {7, 8}


async def test_a_required_call_is_parsed_and_marked_as_constrained(
    real_redis: ground.Client, engine: str
) -> None:
    async with world(real_redis, gateway_engines=f"vllm={engine}") as here:
        agent = await here.open()
        answer = await agent.chat([user("look")], tools=TOOLS, tool_choice="required")
        assert answer.status_code == 200, answer.text
        assert (await agent.calls())[1].constrained


async def test_an_answer_to_a_tools_result_is_parsed(
    real_redis: ground.Client, engine: str
) -> None:
    async with world(real_redis, gateway_engines=f"vllm={engine}") as here:
        agent = await here.open()
        function = {"name": "sh", "arguments": '{"command": "ls"}'}
        call = {"id": "call-1", "type": "function", "function": function}
        agent.history = [
            user("look"), {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call-1", "content": "README"},
        ]  # fmt: skip
        assert (await agent.goes_on(tools=TOOLS, max_tokens=10))["content"]
        assert len(await rows_that_prove_themselves(here, agent, engine)) == 1


async def test_a_prompt_beyond_the_models_length_is_said_as_agents_know_it(
    real_redis: ground.Client, engine: str
) -> None:
    async with world(real_redis, gateway_engines=f"vllm={engine}") as here:
        agent = await here.open()
        refused = await agent.chat([user("x y " * 2000)])
        assert refused.json()["error"]["code"] == "context_length_exceeded"
