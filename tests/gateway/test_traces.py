"""One trace from who opens a session, over its agent's turns, to its item in the buffer."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import openai
import pytest

import ground
from buffer import RolloutBuffer, TaskConfig
from ground import tracing
from tests.gateway.fleet import Process
from tests.gateway.scripted.engine import Served
from tests.gateway.scripted.vllm import ScriptedVllm
from tests.gateway.serving import user, world
from tests.harness.servers import url_of
from tests.harness.traces import Collector, recorded
from worker.rollout import Rollout

OPENER = "00-0000000000000000000000000000000a-000000000000000b-01"


@pytest.fixture
async def buffer(real_redis: ground.Client) -> AsyncIterator[RolloutBuffer]:
    made = RolloutBuffer(real_redis, "math", TaskConfig(group_size=1, dialect="v1"))
    await made.config()
    yield made
    await made.aclose()


@pytest.fixture
async def traced(
    buffer: RolloutBuffer, real_redis: ground.Client, tmp_path: Path
) -> AsyncIterator[tuple[str, Collector]]:
    """A gateway that traces, and where its spans go."""
    with Collector().listening() as collector, Served(ScriptedVllm()) as engine:
        gateway = Process(
            tmp_path, "-m", "penstock", "gateway", "serve", "--port", "{port}", "--engines",
            f"vllm={engine.url}", healthy="/healthz", PENSTOCK_REDIS_URL=url_of(real_redis),
            OTEL_BSP_SCHEDULE_DELAY="20", OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
        )  # fmt: skip
        gateway.start()
        yield gateway.url, collector
        gateway.kill()


async def trace_of_the_item(buffer: RolloutBuffer) -> str:
    batch = await buffer.take(wait=100)
    assert batch is not None
    return str(batch.items[0]["traceparent"].split("-")[1])


def traces_of_turns(collector: Collector, turns: int) -> set[str]:
    collector.until(lambda: len(collector.named("turn math")) == turns)
    return {span.trace_id.hex() for span in collector.named("turn math")}


async def test_the_turns_of_an_agent_that_traces_nothing_are_in_the_trace_of_its_opener(
    traced: tuple[str, Collector], buffer: RolloutBuffer
) -> None:
    url, collector = traced
    async with httpx.AsyncClient(base_url=url, timeout=100, trust_env=False) as http:
        opened = await http.post(
            "/tasks/math/sessions", json={"uid": "u1", "instance_id": "i1"},
            headers={"traceparent": OPENER},
        )  # fmt: skip
        headers = {"authorization": f"Bearer {opened.json()['key']}"}
        for text in ("hello", "again"):
            asked = {"model": "m", "messages": [user(text)]}
            await http.post("/v1/chat/completions", json=asked, headers=headers)
        path = f"/tasks/math/sessions/{opened.json()['session']}/finalize"
        await http.post(path, json={"reward": 1})
    trace = OPENER.split("-")[1]
    assert traces_of_turns(collector, 2) == {trace}
    assert await trace_of_the_item(buffer) == trace


async def test_a_rollout_with_its_turns_and_its_item_is_one_trace(
    traced: tuple[str, Collector], buffer: RolloutBuffer
) -> None:
    url, collector = traced
    with recorded() as spans:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="-") as client:
            playing = Rollout(client, "m", score=lambda _: 0.5, task="math")
            await playing.run(playing.request([user("hello")], request_id="u1"))
        chat = spans.one("chat m").context
    (turn,) = [*traces_of_turns(collector, 1)]
    assert turn == f"{chat.trace_id:032x}" == await trace_of_the_item(buffer)
    asked = chat.span_id.to_bytes(8)
    collector.until(lambda: any(span.parent_span_id == asked for span in collector.spans))


async def test_without_traces_a_session_and_its_item_name_none(
    real_redis: ground.Client, buffer: RolloutBuffer
) -> None:
    assert not tracing.on()
    async with world(real_redis, ScriptedVllm()) as here:
        agent = await here.open()
        await agent.says("hello")
        assert (await here.finalize(agent)).status_code == 200
    batch = await buffer.take(wait=100)
    assert batch is not None
    assert "traceparent" not in batch.items[0]
