"""OpenAI's SDK, as it is released, through the gateway: whole, in streams, and when it fails."""

import asyncio
import threading
from typing import Any

import openai
import pytest

import ground
from tests.gateway.scripted.engine import Fault
from tests.gateway.scripted.model import Model
from tests.gateway.scripted.sglang import ScriptedSglang
from tests.gateway.scripted.vllm import ScriptedVllm
from tests.gateway.serving import TOOLS, Agent, World, set_within, user, world

faces = pytest.mark.parametrize("face", [ScriptedVllm, ScriptedSglang])


def client(here: World, agent: Agent, **more: Any) -> openai.AsyncOpenAI:
    """The SDK with a session's key."""
    url = f"{here.http.base_url}/v1"
    return openai.AsyncOpenAI(api_key=agent.key, base_url=url, **more)


@faces
@pytest.mark.parametrize("stream", [False, True])
async def test_an_agent_on_the_sdk_leaves_one_row(
    real_redis: ground.Client, face: Any, stream: bool
) -> None:
    async with world(real_redis, face(model=Model(3)), port=True) as here:
        agent = await here.open()
        async with client(here, agent) as sdk:
            history: list[Any] = [{"role": "system", "content": "Be brief."}, user("look")]
            for _ in range(6):
                if stream:
                    history.append(await streamed(sdk, history))
                else:
                    done = await sdk.chat.completions.create(
                        model="m", messages=history, tools=TOOLS
                    )  # type: ignore[call-overload]
                    history.append(done.choices[0].message)
                calls = getattr(history[-1], "tool_calls", None) or ()
                history += [
                    {"role": "tool", "tool_call_id": call.id, "content": "done"} for call in calls
                ] or [user("go on")]
        rows = await agent.rows()
        assert len(rows.rows) == 1
        assert rows.counts["trained"] == sum(len(each.sampled) for each in here.engine.log)


async def streamed(sdk: openai.AsyncOpenAI, history: list[Any]) -> Any:
    """The message that the SDK itself makes of a stream."""
    async with sdk.beta.chat.completions.stream(model="m", messages=history, tools=TOOLS) as stream:  # type: ignore[arg-type]
        async for _ in stream:
            pass
        return (await stream.get_final_completion()).choices[0].message


async def test_the_sdk_outlives_an_engine_that_is_away(real_redis: ground.Client) -> None:
    async with world(real_redis, ScriptedVllm(), port=True, gateway_attempts=1) as here:
        agent = await here.open()
        here.engine.faults += [Fault("error", value=503), Fault("error", value=500)]
        async with client(here, agent, max_retries=5) as sdk:
            done = await sdk.chat.completions.create(model="m", messages=[user("hello")])
        assert done.choices[0].message.content is not None
        assert (await agent.rows()).counts["trained"] == len(here.engine.log[-1].sampled)


async def test_a_retry_of_the_sdk_after_its_timeout_is_the_same_turn(
    real_redis: ground.Client,
) -> None:
    async with world(real_redis, ScriptedVllm(), port=True, gateway_keepalive=0.05) as here:
        agent = await here.open()
        held = threading.Event()
        here.engine.faults.append(Fault("wait", after=1, value=held))
        async with client(here, agent, max_retries=8, timeout=1.0) as sdk:
            asking = asyncio.create_task(
                sdk.chat.completions.create(model="m", messages=[user("hello")])
            )
            await set_within(here.engine.waits)
            while here.gateway._tally._events["hung_up"] == 0:  # noqa: ASYNC110 - the SDK gave up
                await asyncio.sleep(0.02)
            held.set()
            done = await asking
        assert len(here.engine.log) == 1
        assert done.choices[0].finish_reason == "stop"
        await here.gateway._sessions._notes.flush()
        assert (await agent.rows()).counts["trained"] == len(here.engine.log[0].sampled)


async def test_the_sdk_has_its_own_errors(real_redis: ground.Client) -> None:
    async with world(real_redis, ScriptedVllm(max_model_len=300), port=True) as here:
        agent = await here.open(budget={"turns": 1})
        async with client(here, agent) as sdk:
            ask = sdk.chat.completions.create
            with pytest.raises(openai.BadRequestError, match="only text") as refused:
                await ask(model="m", messages=[user([{"type": "image_url", "image_url": {}}])])  # type: ignore[list-item]
            assert refused.value.type == "invalid_request_error"
            with pytest.raises(openai.BadRequestError) as long:
                await ask(model="m", messages=[user("x" * 900)])
            assert long.value.code == "context_length_exceeded"
            with pytest.raises(openai.PermissionDeniedError):
                await ask(model="m", messages=[user("hello")])
        await here.finalize(agent)
        async with client(here, agent) as sdk:
            with pytest.raises(openai.ConflictError):
                await sdk.chat.completions.create(model="m", messages=[user("hello")])
        async with openai.AsyncOpenAI(api_key="none", base_url=f"{here.http.base_url}/v1") as sdk:
            with pytest.raises(openai.AuthenticationError):
                await sdk.models.list()
