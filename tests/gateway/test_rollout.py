"""`worker.rollout` at a gateway: a conversation with tools, and the exact tokens of it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import pytest

import ground
from buffer import RolloutBuffer
from gateway.items import rows_in
from tests.gateway.scripted.model import CALL, Model, misproved
from tests.gateway.scripted.sglang import ScriptedSglang
from tests.gateway.scripted.vllm import ScriptedVllm
from tests.gateway.serving import World, free_port, user, world
from worker.rollout import (
    GatewayRefusal,
    Rollout,
    RolloutRequest,
    StopReason,
    Trajectory,
    run_batch,
)
from worker.tool.schemas import OpenAIFunctionToolSchema, ToolResponse

SHELL = OpenAIFunctionToolSchema.model_validate(
    {
        "type": "function",
        "function": {
            "name": "sh",
            "description": "Run a command.",
            "parameters": {
                "type": "object",
                "properties": {"command": {"type": "string"}},
                "required": [],
            },
        },
    }
)
HELLO = [user("hello")]


class Shell:
    """A tool whose commands do nothing, well or not at all."""

    name, tool_schema = "sh", SHELL

    def __init__(self, *, works: bool = True) -> None:
        self._works = works
        self.ran = 0

    async def create(self, instance_id: str | None = None, **_: Any) -> Any: ...

    async def execute(self, instance_id: str, parameters: dict[str, Any], **_: Any) -> Any:
        self.ran += 1
        broken = {} if self._works else {"error_kind": "infrastructure"}
        return ToolResponse(text="done"), None, broken

    async def calc_reward(self, instance_id: str, **_: Any) -> Any: ...

    async def release(self, instance_id: str, **_: Any) -> None: ...


@asynccontextmanager
async def rollout(here: World, *tools: Shell, **more: Any) -> AsyncIterator[Rollout]:
    """Rollouts of the task `math`."""
    url = f"{here.http.base_url}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="token") as client:
        yield Rollout(client, "m", tools, score=lambda _: 0.5, task="math", **more)


@pytest.fixture
async def one(real_redis: ground.Client) -> AsyncIterator[World]:
    """One engine behind a gateway."""
    async with world(real_redis, ScriptedVllm(model=calls_then_ends()), port=True) as made:
        yield made


def calls_then_ends() -> Model:
    """Two commands, and then some words."""
    call = '<tool_call>\n{"name": "sh", "arguments": {"command": "ls"}}\n</tool_call>'
    return Model(script=lambda prompt, chance: call if prompt.count(CALL) < 2 else "fixed")


async def items(redis: ground.Client) -> list[dict[str, Any]]:
    buffer = RolloutBuffer(redis, "math")
    batch = await buffer.take(1, wait=100)
    assert batch is not None
    await buffer.aclose()
    return list(batch.items)


def proves_itself(trajectory: Trajectory) -> int:
    """How many tokens of it are trained on; each was sampled in the context that the row has."""
    trained = 0
    for row in trajectory.rows:
        zeros = [0] * (len(row.ids) - row.response_length)
        versions = [version for tokens, version in row.versions for _ in range(tokens)]
        mask, logprobs = zeros + row.mask, [0.0, *zeros][1:] + row.logprobs
        assert misproved(row.ids, mask, logprobs, zeros + [max(v, 0) for v in versions]) == []
        trained += sum(mask)
    return trained


@pytest.mark.parametrize("face", [ScriptedVllm, ScriptedSglang])
async def test_a_conversation_with_tools_has_its_exact_tokens(
    real_redis: ground.Client, face: Any
) -> None:
    async with world(real_redis, face(model=calls_then_ends()), port=True) as here:
        shell = Shell()
        async with rollout(here, shell) as playing:
            request = playing.request(HELLO, request_id="u1", instance_id=7, data={"label": "4"})
            trajectory = await playing.run(request)
        sampled = sum(len(each.sampled) for each in here.engine.log)
        assert (trajectory.stop_reason, trajectory.score, shell.ran) == ("stop", 0.5, 2)
        assert trajectory.exact
        assert trajectory.sample()["exact"] is True
        assert len(trajectory.rows) == 1
        assert proves_itself(trajectory) == sampled
        (item,) = await items(real_redis)
    assert (item["uid"], item["instance_id"], item["reward"]) == ("u1", 7, 0.5)
    assert item["messages"] == trajectory.messages
    assert item["extra_info"]["label"] == "4"
    ((row, reward),) = rows_in(item)
    assert (row.tokens.tolist(), reward) == (trajectory.rows[0].ids, 0.5)


async def test_what_was_played_before_a_death_is_not_sampled_again(one: World) -> None:
    async with rollout(one, Shell()) as playing:
        request = playing.request(HELLO, request_id="u1")
        dies = asyncio.create_task(playing.run(request))
        while len(one.engine.log) < 2:  # noqa: ASYNC110 - in its second turn
            await asyncio.sleep(0.001)
        dies.cancel()
        await asyncio.wait([dies])
    async with rollout(one, Shell()) as playing:
        trajectory = await playing.run(request)
        assert (len(trajectory.turns), len(one.engine.log)) == (3, 3)
        assert proves_itself(trajectory) == sum(len(each.sampled) for each in one.engine.log)
        over = await playing.run(request)
    assert over.exit_reason.startswith("gateway: session")


async def test_an_interrupted_one_goes_on_in_its_session(one: World) -> None:
    class Interrupts(Shell):
        async def execute(self, instance_id: str, parameters: dict[str, Any], **more: Any) -> Any:
            playing.interrupt()
            return await super().execute(instance_id, parameters, **more)

    async with rollout(one, Interrupts()) as playing:
        request = playing.request(HELLO, request_id="u1")
        first = await playing.run(request)
        assert (first.stop_reason, first.rows) == (StopReason.INTERRUPTED, [])
    async with rollout(one, Shell()) as playing:
        second = await playing.run(request, partial=first.partial())
    assert second.stop_reason == StopReason.STOP
    assert len(second.rows) == 1
    assert proves_itself(second) == sum(len(each.sampled) for each in one.engine.log)


async def test_a_tool_that_fails_for_us_masks_all_rows_of_the_item(
    one: World, real_redis: ground.Client
) -> None:
    async with rollout(one, Shell(works=False)) as playing:
        trajectory = await playing.run(playing.request(HELLO))
    assert trajectory.masked
    assert not trajectory.exact
    (item,) = await items(real_redis)
    assert item.get("reward") is None
    ((row, _),) = rows_in(item)
    assert (row.masked, row.cause) == (True, trajectory.exit_reason)
    assert {bit for _, bit in row.mask} == {0}


@pytest.mark.parametrize(("scores", "label"), [(float("nan"), "4"), (1.0, {"4"})])
async def test_what_is_no_json_masks_and_the_batch_goes_on(
    one: World, scores: Any, label: Any
) -> None:
    class Scored(Shell):
        async def calc_reward(self, instance_id: str, **_: Any) -> Any:
            return scores if instance_id == "u1" else 1.0

    async with rollout(one, Scored()) as playing:
        requests = [
            playing.request(HELLO, request_id="u1", data={"label": label}),
            playing.request(HELLO, request_id="u2", data={"label": "4"}),
        ]
        odd, even = (await run_batch(playing, requests)).trajectories
    assert odd.exit_reason.startswith("gateway: its reward_scores, data or messages are no JSON")
    assert (odd.score, even.score) == (None, 0.5)


async def test_sampling_is_the_sessions(one: World) -> None:
    async with rollout(one) as playing:
        sampling = {"temperature": 0.7, "extra_body": {"top_k": 5}}
        await playing.run(playing.request(HELLO, sampling=sampling))
    used = one.engine.log[-1].body["sampling_params"]
    assert (used["temperature"], used["top_k"]) == (0.7, 5)


@pytest.mark.parametrize("wrong", [{"sampling": {"best_of": 3}}, {"session": {"budget": 3}}])
async def test_what_a_gateway_refuses_is_an_error_of_the_caller(
    one: World, wrong: dict[str, Any]
) -> None:
    async with rollout(one) as playing:
        with pytest.raises(GatewayRefusal, match="refused a session"):
            await playing.run(RolloutRequest(messages=HELLO, **wrong))


async def test_a_gateway_that_is_not_there_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.rollout.exact._PATIENT", {"max_retries": 0})
    place = f"127.0.0.1:{free_port()}"
    url = f"http://any:s3cret@{place}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="token") as client:
        playing = Rollout(client, "m", task="math")
        trajectory = await playing.run(playing.request(HELLO))
    assert trajectory.exit_reason.startswith("gateway: Connection error")
    assert f"http://{place}" in trajectory.exit_reason
    assert "s3cret" not in trajectory.exit_reason


@pytest.mark.parametrize(
    ("url", "more", "why"),
    [
        ("http://x/", {}, "base_url is a gateway's"),
        ("http://x/v1", {"version": lambda: 1}, "leave out version"),
    ],
)
def test_what_does_not_go_with_a_task_is_refused(url: str, more: Any, why: str) -> None:
    client = openai.AsyncOpenAI(base_url=url, api_key="-", http_client=httpx.AsyncClient())
    with pytest.raises(ValueError, match=why):
        Rollout(client, "m", task="math", **more)
