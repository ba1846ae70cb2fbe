"""Every field of both dialects, spoilt: refused in the dialect's own shape, and nothing is left."""

import copy
import json
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

import ground
from gateway.server.control import Open
from tests.gateway.scripted.vllm import ScriptedVllm
from tests.gateway.serving import TOOLS, answered_or_refused, user, world

SPOILT: list[Any] = [
    None, True, False, 0, -1, 1, 1.5, 2**70, 1e308, "", "x", "\ud800", "\0", [], [None], [[]], [0],
    {}, {"": None}, {"type": "image"}, [{}], [{"type": "text"}], [{"type": "text", "text": 5}],
    "x" * 3000, [{"role": "user"}], {"type": "function"}, {"type": "tool"},
]  # fmt: skip
CHAT = {
    "model": "m", "tools": TOOLS, "tool_choice": "auto", "temperature": 1.0, "top_p": 1.0,
    "max_tokens": 20, "max_completion_tokens": 20, "stop": ["four"], "n": 1, "stream": False,
    "stream_options": {"include_usage": True}, "logprobs": False, "top_logprobs": 0,
    "response_format": {"type": "text"}, "chat_template_kwargs": {"enable_thinking": True},
    "continue_final_message": False, "user": "u", "metadata": {}, "seed": 1, "store": False,
    "parallel_tool_calls": True, "logit_bias": {}, "modalities": ["text"], "audio": None,
    "previous_response_id": None,
    "messages": [
        {"role": "system", "content": "s"},
        {"role": "user", "name": "n", "content": [{"type": "text", "text": "hello"}]},
        {"role": "assistant", "content": None, "reasoning_content": "hm", "refusal": None,
         "tool_calls": [{"id": "c", "type": "function",
                         "function": {"name": "sh", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "done"},
    ],
}  # fmt: skip
MESSAGES = {
    "model": "m", "max_tokens": 20, "system": [{"type": "text", "text": "s"}], "stream": False,
    "tools": [{"name": "sh", "description": "d", "input_schema": {"type": "object"}}],
    "tool_choice": {"type": "auto"}, "stop_sequences": ["four"], "temperature": 1.0, "top_p": 1.0,
    "top_k": 5, "metadata": {"user_id": "u"}, "thinking": {"type": "enabled"}, "container": None,
    "mcp_servers": [], "service_tier": "auto",
    "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}},
    "messages": [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": ""},
            {"type": "text", "text": "I look", "cache_control": {"type": "ephemeral"}},
            {"type": "tool_use", "id": "c", "name": "sh", "input": {}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "c", "is_error": False,
             "content": [{"type": "text", "text": "done"}]},
            {"type": "text", "text": "go on"}]},
    ],
}  # fmt: skip


def places(body: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to each value, the whole among them."""
    yield at
    pairs = (
        body.items()
        if isinstance(body, dict)
        else enumerate(body)
        if isinstance(body, list)
        else ()
    )
    for key, value in pairs:
        yield from places(value, (*at, key))


def spoil(body: Any, at: tuple[Any, ...], value: Any) -> Any:
    """A copy with this value there."""
    if not at:
        return value
    made = copy.deepcopy(body)
    inside = made
    for key in at[:-1]:
        inside = inside[key]
    inside[at[-1]] = value
    return made


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("dialect", "path", "body"),
    [
        ("chat", "/v1/chat/completions", CHAT),
        ("messages", "/v1/messages", MESSAGES),
        ("messages", "/v1/messages/count_tokens", MESSAGES),
    ],
)
async def test_no_value_in_any_field_breaks_a_dialect(
    real_redis: ground.Client, dialect: str, path: str, body: dict[str, Any]
) -> None:
    chance = random.Random(1)
    async with world(real_redis, ScriptedVllm(max_model_len=2000)) as here:
        agent = await here.open()
        assert (await agent.post(path, body)).status_code == 200
        refused = 0
        for at in places(body):
            for value in chance.sample(SPOILT, 6):
                before = len(here.engine.log)
                answer = await agent.post(path, json.dumps(spoil(body, at, value)))
                answered_or_refused(dialect, answer)
                if answer.status_code != 200:
                    refused += 1
                    assert len(here.engine.log) == before, (at, value)
        assert refused > 100
        await here.gateway._sessions._notes.flush()  # those of calls that broke just now
        states = Counter(call.state for call in (await agent.calls()).values())
        assert states["done"] == len(here.engine.log)
        assert states.keys() <= {"done", "broken"}  # broken: too long for the model
        assert not (await agent.rows()).masked


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"\xff", b"NaN", b'{"model": NaN}', b"[" * 100_000, b"null", b"5", b'"x"', b"[]"],
)
@pytest.mark.in_turns("path")
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_what_is_no_request_at_all_is_refused(
    real_redis: ground.Client, path: str, raw: bytes
) -> None:
    async with world(real_redis, ScriptedVllm()) as here:
        agent = await here.open()
        answer = await agent.post(path, raw)
        assert answer.status_code == 400
        answered_or_refused("messages" if path == "/v1/messages" else "chat", answer)
        assert await agent.calls() == {}


async def test_any_count_of_retries_is_a_number(real_redis: ground.Client) -> None:
    async with world(real_redis, ScriptedVllm()) as here:
        agent = await here.open()
        for count in ("9" * 5000, "0", "-1"):
            answer = await agent.chat([user(count)], _x_stainless_retry_count=count)
            assert answer.status_code == 200


@pytest.mark.parametrize(
    "wrong",
    [{"round_number": 2**53}, {"instance_id": True}, {"sampling": {"stop": [""]}}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_no_session_is_opened_with_what_cannot_be_meant(wrong: dict[str, Any]) -> None:
    meant = {"uid": "u", "instance_id": 7, "round_number": 2**53 - 1, "sampling": {"stop": ["a"]}}
    assert Open.model_validate(meant).instance_id == 7
    with pytest.raises(ValidationError):
        Open.model_validate(meant | wrong)


async def test_a_request_too_large_is_refused_before_it_is_read_whole(
    real_redis: ground.Client,
) -> None:
    async with world(real_redis, ScriptedVllm(), gateway_max_body=2048) as here:
        agent = await here.open()
        answer = await agent.chat([user("x" * 5000)])
        assert answer.status_code == 413
        assert "at most 2048 bytes" in answer.json()["error"]["message"]


async def test_paths_and_methods_that_are_none_are_refused(real_redis: ground.Client) -> None:
    async with world(real_redis, ScriptedVllm()) as here:
        agent = await here.open()
        headers = {"authorization": f"Bearer {agent.key}"}
        wrong = await here.http.get("/v1/chat/completions", headers=headers)
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
        for path in ("/v1/responses", "/v1/", "/s/x/", "/v1/completions"):
            assert (await agent.post(path, {})).status_code == 404
