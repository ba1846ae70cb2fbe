"""Turns over HTTP: the edge cases of wires, engines and clients, by their numbers."""

import asyncio
import json
import random
import re
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import ground
from gateway.calls import UNKNOWN_VERSION, Sent, State
from gateway.dialects import chat, messages
from gateway.dialects.dialect import Reply
from gateway.engines.models import Answer, ToolUse
from tests.gateway.scripted.engine import Fault, ScriptedEngine
from tests.gateway.scripted.model import END, Model, Template, decode, encode
from tests.gateway.scripted.sglang import ScriptedSglang
from tests.gateway.scripted.vllm import ScriptedVllm
from tests.gateway.serving import TOOLS, Agent, World, events_of, set_within, user, world

Face = Callable[..., ScriptedEngine]


def incremental(**more: Any) -> ScriptedSglang:
    return ScriptedSglang(incremental=True, **more)


pytestmark = pytest.mark.in_turns("face")
every_wire = pytest.mark.parametrize("face", [ScriptedVllm, ScriptedSglang, incremental])
streaming = pytest.mark.parametrize("face", [ScriptedVllm, incremental])


@pytest.fixture
async def one(real_redis: ground.Client) -> AsyncIterator[World]:
    """One vLLM behind a gateway."""
    async with world(real_redis, ScriptedVllm()) as made:
        yield made


def always(text: str) -> Model:
    """A model that gives one answer."""
    return Model(script=lambda prompt, chance: text)


async def is_one_row(agent: Agent, here: World) -> None:
    """All that the engine sampled is trained, in one row."""
    rows = await agent.rows()
    assert len(rows.rows) == 1
    assert rows.counts["trained"] == sum(len(each.sampled) for each in here.engine.log)


# A session


@every_wire
async def test_a_conversation_is_one_row_and_each_token_of_it_proves_itself(
    real_redis: ground.Client, face: Face
) -> None:
    async with world(real_redis, face()) as here:
        agent = await here.open()
        for number in range(8):
            await agent.says(f"now number {number}", tools=TOOLS)
            while agent.history[-1]["role"] == "tool":
                await agent.goes_on(tools=TOOLS)
        rows = await agent.rows()
        assert len(rows.rows) == 1
        sampled = sum(len(each.sampled) for each in here.engine.log)
        assert rows.counts["trained"] == sampled
        # What the engine read each time is the beginning of the row.
        row = rows.rows[0].tokens.tolist()
        assert all(row[: len(each.prompt)] == each.prompt for each in here.engine.log)


@every_wire
async def test_thinking_stays_in_the_context_or_goes_as_the_template_says(
    real_redis: ground.Client, face: Face
) -> None:
    thought = always("<think>\nhm\n</think>\n\nyes")
    async with world(real_redis, face(model=thought)) as here:
        kept, stripped = [
            await here.open(uid, sampling={"thinking": uid}) for uid in ("keep", "template")
        ]
        for agent in (kept, stripped):
            for _ in range(3):
                await agent.says("go on")
        assert len((await kept.rows()).rows) == 1
        assert len((await stripped.rows()).rows) == 3


@every_wire
async def test_a_template_that_looks_back_forks_and_still_proves_itself(
    real_redis: ground.Client, face: Face
) -> None:
    async with world(real_redis, face(template=Template(counts_turns=True))) as here:
        agent = await here.open()
        for _ in range(4):
            await agent.says("go on")
        rows = await agent.rows()
        sampled = sum(len(each.sampled) for each in here.engine.log)
        assert rows.counts["trained"] == sampled


@every_wire
async def test_ids_of_calls_are_such_as_a_template_may_demand(
    real_redis: ground.Client, face: Face
) -> None:
    called = '<tool_call>\n{"name": "sh", "arguments": {}}\n</tool_call>'
    script = always(called + called)
    async with world(real_redis, face(model=script, template=Template(nine=True))) as here:
        agent = await here.open()
        for _ in range(2):
            await agent.says("go on", tools=TOOLS)
        ids = [call["id"] for each in agent.history for call in each.get("tool_calls") or ()]
        assert len(set(ids)) == 4
        assert len((await agent.rows()).rows) == 1


async def test_sampling_is_the_sessions_and_what_the_agent_asked_for_is_noted(one: World) -> None:
    agent = await one.open(sampling={"temperature": 0.7, "seed": 5})
    await agent.says("hello", temperature=0, top_p=0.5, enable_thinking=False)
    sampling = one.engine.log[-1].body["sampling_params"]
    seed = sampling.get("seed", sampling.get("sampling_seed"))
    assert (sampling["temperature"], sampling["top_p"], seed) == (0.7, 1.0, 5)
    assert (await agent.calls())[1].asked == {
        "temperature": 0, "top_p": 0.5, "enable_thinking": False,
    }  # fmt: skip


async def test_a_wish_for_one_call_of_a_tool_is_noted(one: World) -> None:
    agent = await one.open()
    await agent.says("hello", tools=TOOLS, parallel_tool_calls=False)
    tools = [{"name": "sh", "input_schema": {"type": "object"}}]
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    effort = {"effort": "low"}
    await agent.messages([user("x")], tools=tools, tool_choice=choice, output_config=effort)
    asked = [call.asked for call in (await agent.calls()).values()]
    assert asked == [
        {"parallel_tool_calls": False},
        {"disable_parallel_tool_use": True, "effort": "low"},
    ]


@pytest.mark.parametrize(
    ("given", "kwargs"),
    [
        ({}, {"reasoning_effort": "low"}),
        ({"enable_thinking": True}, {"reasoning_effort": "low", "enable_thinking": True}),
        ({"reasoning_effort": "high"}, {"reasoning_effort": "high"}),
    ],
)
def test_the_effort_of_reasoning_is_an_argument_of_the_template(
    given: dict[str, Any], kwargs: dict[str, Any]
) -> None:
    body = {"model": "m", "messages": [user("hello")], "reasoning_effort": "low"}
    assert chat.read(body | {"chat_template_kwargs": given}).chat.kwargs == kwargs


def test_tools_and_calls_may_be_as_short_as_engines_take_them() -> None:
    call = {"id": None, "function": {"name": "sh", "arguments": None}}
    asked = {
        "model": "m", "tools": [{"function": {"name": "sh"}}],
        "messages": [user("look"), {"role": "assistant", "tool_calls": [call]}, user("go on")],
    }  # fmt: skip
    question = chat.read(asked).chat
    assert question.tools == [{"type": "function", "function": {"name": "sh"}}]
    assert question.messages[1]["tool_calls"][0]["function"]["arguments"] == "{}"


def test_a_refusal_that_is_sent_back_stands_in_the_prompt() -> None:
    said = [user("hello"), {"role": "assistant", "content": None, "refusal": "No."}, user("why?")]
    assert chat.read({"model": "m", "messages": said}).chat.messages[1]["content"] == "No."


async def test_a_finalized_session_is_in_the_buffer_and_takes_no_more_turns(one: World) -> None:
    agent = await one.open()
    await agent.says("hello")
    done = await one.finalize(agent, 0.5)
    assert done.json()["rows"] == 1
    assert (await one.finalize(agent, 0.5)).json() == done.json()
    assert (await one.finalize(agent, 0.7)).status_code == 409
    late = await agent.chat([user("more")])
    assert (late.status_code, late.headers["x-should-retry"]) == (409, "false")
    assert late.json()["error"]["code"] == "session_over"
    again = await one.http.post("/tasks/math/sessions", json={"uid": "u1", "instance_id": "i1"})
    assert (again.status_code, again.json()["data"]) == (
        409, {"session": agent.sid, "state": "final"},
    )  # fmt: skip


async def test_a_session_is_finalized_once_a_full_redis_has_room(private_redis: Any) -> None:
    server = private_redis(aof=False)
    async with world(server.target, ScriptedVllm()) as here:
        agent = await here.open()
        await agent.says("hello")
        server.ask("CONFIG", "SET", "maxmemory", 1)
        refused = await here.finalize(agent)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        full = f"maxmemory: {server.target} is out of memory; raise maxmemory"
        assert refused.json()["message"].startswith(full)
        server.ask("CONFIG", "SET", "maxmemory", 0)
        assert (await here.finalize(agent)).json()["outcome"] == "stored"


@pytest.mark.parametrize("budget", [{"turns": 1}, {"tokens": 1}])
async def test_a_spent_budget_ends_the_agent_and_says_so(
    one: World, budget: dict[str, int]
) -> None:
    agent = await one.open(budget=budget)
    await agent.says("hello")
    refused = await agent.chat([*agent.history, user("more")])
    assert (refused.status_code, refused.headers["x-should-retry"]) == (403, "false")
    assert refused.json()["error"]["code"] == "insufficient_quota"
    refused = await agent.messages([user("more")])
    assert refused.json()["error"]["type"] == "permission_error"
    assert (await agent.rows()).counts["trained"] > 0


# Retries


async def test_two_equal_requests_are_two_samples(one: World) -> None:
    """Edge 2."""
    agent = await one.open()
    for _ in range(2):
        await agent.chat([user("hello")])
    rows = await agent.rows()
    assert len(rows.rows) == 2
    assert rows.counts["trained"] == sum(len(each.sampled) for each in one.engine.log)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_retry_of_what_is_done_gets_the_same_bytes(one: World, stream: bool) -> None:
    """Edge 3."""
    agent = await one.open()
    first = await agent.chat([user("hello")], tools=TOOLS, stream=stream)
    asked = list(one.engine.calls)
    again = await agent.chat(
        [user("hello")], tools=TOOLS, stream=stream, _x_stainless_retry_count="1"
    )
    assert again.content == first.content
    assert one.engine.calls == asked
    assert list(await agent.calls()) == [1]


async def test_a_retry_of_what_still_runs_joins_it(one: World) -> None:
    """Edge 4."""
    agent = await one.open()
    held = threading.Event()
    one.engine.faults.append(Fault("wait", after=1, value=held))
    first = asyncio.create_task(agent.chat([user("hello")]))
    await set_within(one.engine.waits)
    again = asyncio.create_task(agent.chat([user("hello")], _x_stainless_retry_count="1"))
    await asyncio.wait([again], timeout=0.2)
    held.set()
    assert (await again).content == (await first).content
    assert len(one.engine.log) == 1


async def test_a_key_of_one_body_is_refused_with_another(one: World) -> None:
    """Edge 5."""
    agent = await one.open()
    first = await agent.chat([user("hello")], _idempotency_key="k1")
    again = await agent.chat([user("hello")], _idempotency_key="k1")
    assert again.content == first.content
    other = await agent.chat([user("other")], _idempotency_key="k1")
    assert other.status_code == 422
    assert "Idempotency-Key" in other.json()["error"]["message"]


async def test_keys_that_only_begin_alike_are_two_samples(one: World) -> None:
    agent = await one.open()
    for end in "12":
        answer = await agent.chat([user("hello")], _idempotency_key="k" * 300 + end)
        assert answer.status_code == 200
    assert len(one.engine.log) == 2


# Answers that end early


@every_wire
async def test_an_answer_cut_by_its_length_is_closed_and_continued(
    real_redis: ground.Client, face: Face
) -> None:
    """Edge 11."""
    async with world(real_redis, face(model=always("one two three four five six"))) as here:
        agent = await here.open()
        first = await agent.chat([user("hello")], max_tokens=4)
        assert first.json()["choices"][0]["finish_reason"] == "length"
        agent.history = [user("hello"), first.json()["choices"][0]["message"]]
        await agent.says("go on")
        await is_one_row(agent, here)
        sampled = here.engine.log[0]
        behind = here.engine.log[1].prompt[len(sampled.prompt) + len(sampled.sampled) :]
        assert behind[:2] == [END, *encode("\n")]


@every_wire
async def test_an_answer_cut_in_a_call_is_text(real_redis: ground.Client, face: Face) -> None:
    """Edge 12."""
    call = {"name": "sh", "arguments": {"command": "list the files"}}
    text = f"I look.\n<tool_call>\n{json.dumps(call)}\n</tool_call>"
    async with world(real_redis, face(model=always(text))) as here:
        agent = await here.open()
        most = len(encode("I look.\n<tool_call>\n")) + 6
        first = (await agent.chat([user("look")], tools=TOOLS, max_tokens=most)).json()
        choice = first["choices"][0]
        assert choice["finish_reason"] == "length"
        assert "tool_calls" not in choice["message"]
        assert choice["message"]["content"].startswith("I look.")
        agent.history = [user("look"), choice["message"]]
        await agent.says("go on", tools=TOOLS)
        assert len((await agent.rows()).rows) == 1


@every_wire
async def test_an_update_in_the_middle_of_an_answer_leaves_one_answer_and_its_spans(
    real_redis: ground.Client, face: Face
) -> None:
    """Edge 13."""
    async with world(real_redis, face(version=7, model=always("one two three four"))) as here:
        agent = await here.open()
        held = threading.Event()
        here.engine.faults.append(Fault("wait", after=5, value=held))
        asking = asyncio.create_task(agent.chat([user("hello")]))
        await set_within(here.engine.waits)
        here.engine.pause("abort")
        told = len(here.engine.told) + (face is ScriptedVllm)  # what came is of the old version
        held.set()
        while len(here.engine.log) < 2 or len(here.engine.told) < told:  # noqa: ASYNC110 - the rest waits
            await asyncio.sleep(0.01)
        here.engine.version = 8
        here.engine.resume()
        answer = (await asking).json()["choices"][0]
        assert answer["message"]["content"] == "one two three four"
        assert answer["finish_reason"] == "stop"
        call = (await agent.calls())[1]
        first, second = here.engine.log
        assert call.out.tolist() == first.sampled + second.sampled
        lengths = [length for length, _ in call.spans]
        assert lengths == [len(first.sampled), len(second.sampled)]
        if face is not ScriptedVllm:
            assert [version for _, version in call.spans] == [7, 8]
        await agent.rows()


@streaming
async def test_an_update_of_the_weights_is_no_failure_of_its_engine(
    real_redis: ground.Client, face: Face
) -> None:
    async with world(real_redis, face()) as here:
        agent, pool = await here.open(), here.gateway._pool
        assert pool is not None
        here.engine.faults.append(Fault("abort", after=4))
        await agent.says("hello")
        assert len(here.engine.log) == 2
        status = await pool.gate(here.pool[0]).status()
        assert (status.granted, status.adaptive.overloaded) == (1, 0)  # type: ignore[union-attr]
        assert not pool._resting


@every_wire
async def test_an_abort_without_a_token_is_as_if_it_was_never_sent(
    real_redis: ground.Client, face: Face
) -> None:
    """Edge 14."""
    async with world(real_redis, face()) as here:
        agent = await here.open()
        here.engine.faults += [Fault("abort"), Fault("abort")]
        await agent.says("hello")
        call = (await agent.calls())[1]
        assert call.out.tolist() == here.engine.log[-1].sampled
        assert len(call.spans) == 1


@pytest.mark.parametrize("face", [ScriptedSglang, incremental])
async def test_a_repeated_token_at_an_abort_is_in_the_answer_once(
    real_redis: ground.Client, face: Face
) -> None:
    """Edge 15."""
    async with world(real_redis, face(model=always("one two three four five"))) as here:
        agent = await here.open()
        here.engine.faults.append(Fault("duplicate", after=3))
        answer = await agent.says("hello")
        assert answer["content"] == "one two three four five"
        await agent.rows()


async def hang_up(agent: Agent, here: World) -> None:
    """Ask, and go while the engine samples."""
    held = threading.Event()
    here.engine.faults.append(Fault("wait", after=5, value=held))
    asking = asyncio.create_task(agent.chat([user("hello")], stream=True))
    await set_within(here.engine.waits)
    asking.cancel()
    await asyncio.wait([asking])
    held.set()

    async def noted() -> bool:
        calls = await agent.calls()
        return bool(calls) and calls[1].sent is Sent.HUNG_UP

    while not await noted():  # noqa: ASYNC110 - notes are written in batches
        await asyncio.sleep(0.02)


async def test_a_turn_whose_client_hung_up_runs_to_its_end_and_is_masked_if_not_used(
    real_redis: ground.Client,
) -> None:
    """Edge 16."""
    async with world(real_redis, ScriptedVllm(), port=True, gateway_keepalive=0.05) as here:
        agent = await here.open()
        await hang_up(agent, here)
        call = (await agent.calls())[1]
        assert call.state is State.DONE
        assert call.out.tolist() == here.engine.log[0].sampled
        assert here.engine.disconnects == 0
        assert (await agent.rows()).counts["trained"] == 0


async def test_a_turn_whose_client_hung_up_is_masked_if_its_session_is_finalized_meanwhile(
    real_redis: ground.Client,
) -> None:
    """An agent that is killed leaves a turn under way, for whose end `finalize` waits."""
    async with world(real_redis, ScriptedVllm(), port=True, gateway_keepalive=0.05) as here:
        agent, held = await here.open(), threading.Event()
        here.engine.faults.append(Fault("wait", after=5, value=held))
        asking = asyncio.create_task(agent.chat([user("hello")], stream=True))
        await set_within(here.engine.waits)
        asking.cancel()
        while not here.gateway._tally._events["hung_up"]:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.01)
        finalizing = asyncio.create_task(here.finalize(agent))
        key = agent._session.key()
        while real_redis.hget(key, "state") != b"draining":  # noqa: ASYNC110 - nor does Redis
            await asyncio.sleep(0.01)
        held.set()
        counts = (await finalizing).json()["counts"]
        assert (counts["trained"], counts["masked_hung_up"]) == (0, counts["sampled"])


async def test_a_retry_after_a_hang_up_gets_the_answer_and_it_is_trained_on(
    real_redis: ground.Client,
) -> None:
    """Edges 3 and 16: it needs no header, for the first was seen to go."""
    async with world(real_redis, ScriptedVllm(), port=True, gateway_keepalive=0.05) as here:
        agent = await here.open()
        await hang_up(agent, here)
        again = await agent.chat([user("hello")], stream=True)
        assert events_of(again.text)[-1] == "[DONE]"
        assert len(here.engine.log) == 1
        text = "".join(
            event["choices"][0]["delta"].get("content") or ""
            for event in events_of(again.text)[:-1]
        )
        agent.history = [user("hello"), {"role": "assistant", "content": text}]
        await agent.says("go on")
        rows = await agent.rows()
        assert rows.counts["trained"] == sum(len(each.sampled) for each in here.engine.log)


@streaming
async def test_another_engine_goes_on_where_one_died(real_redis: ground.Client, face: Face) -> None:
    """Edge 17."""
    text = "one two three four five six seven"
    engines = [face(model=always(text), version=3), face(model=always(text), version=3)]
    async with world(real_redis, *engines) as here:
        agent = await here.open()
        for engine in engines:
            engine.faults.append(Fault("death", after=9, value=True))
        engines[0].faults.clear() if _serves(here, agent) == 1 else engines[1].faults.clear()
        answer = await agent.says("hello")
        assert answer["content"] == text
        call = (await agent.calls())[1]
        dead, other = engines if engines[0].down else engines[::-1]
        assert dead.down
        assert not other.down
        assert call.out.tolist() == other.log[0].prompt[len(dead.log[0].prompt) :] + (
            other.log[0].sampled
        )
        await agent.rows()


def _serves(here: World, agent: Agent) -> int:
    """Which of the engines is asked first for this session."""
    assert here.gateway._pool is not None
    return here.pool.index(here.gateway._pool.pick(agent.sid))


async def test_no_engine_at_all_is_503_with_a_time_and_the_session_goes_on(
    real_redis: ground.Client,
) -> None:
    async with world(real_redis, ScriptedVllm(), gateway_attempts=2) as here:
        agent = await here.open()
        here.engine.down = True
        refused = await agent.chat([user("hello")])
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.headers["x-should-retry"] == "true"
        refused = await agent.messages([user("hello")])
        assert refused.json()["error"]["type"] == "overloaded_error"
        here.engine.down = False
        await agent.says("hello")
        rows = await agent.rows()
        assert rows.counts["trained"] == len(here.engine.log[-1].sampled)
        assert not rows.masked


async def test_versions_may_go_back_in_one_answer(real_redis: ground.Client) -> None:
    """Edge 18."""
    async with world(real_redis, ScriptedSglang(version=9, model=always("one two three"))) as here:
        agent = await here.open()
        here.engine.faults.append(Fault("bump", after=4, value=2))
        await agent.says("hello")
        spans = (await agent.calls())[1].spans
        assert [version for _, version in spans] == [9, 2]
        assert spans[0][0] == 4
        await agent.rows()


async def test_weights_that_moved_unseen_are_unknown_and_not_trained_on_as_any(
    real_redis: ground.Client,
) -> None:
    async with world(real_redis, ScriptedVllm(version=1)) as here:
        agent = await here.open()
        here.engine.faults.append(Fault("bump", after=2, value=2))
        await agent.chat([user("hello")])
        call = (await agent.calls())[1]
        assert call.spans == ((len(call.out), UNKNOWN_VERSION),)
        assert call.bracket == (1, 2)


# What is in the text, and what is in the ids


@every_wire
@pytest.mark.parametrize("stop", ["four", "e f"])
async def test_a_stop_string_is_cut_from_the_text_and_stays_in_the_ids(
    real_redis: ground.Client, face: Face, stop: str
) -> None:
    """Edges 20 and 21: `e f` lies across a border of tokens."""
    async with world(real_redis, face(model=always("one two three four five"))) as here:
        agent = await here.open()
        answer = await agent.says("hello", stop=[stop])
        assert answer["content"] == "one two three four five".partition(stop)[0]
        call = (await agent.calls())[1]
        assert call.out.tolist() == here.engine.log[0].sampled
        assert stop in decode(call.out)
        await agent.says("go on")
        await is_one_row(agent, here)


@every_wire
async def test_a_stop_string_is_cut_from_the_reasoning_too(
    real_redis: ground.Client, face: Face
) -> None:
    """Edge 20: the answer ended before it had a text."""
    async with world(real_redis, face(model=always("<think>\none Two three"))) as here:
        agent = await here.open()
        answer = (await agent.messages([user("count")], stop_sequences=[" Two"])).json()
        assert answer["stop_reason"] == "stop_sequence"
        assert answer["stop_sequence"] == " Two"
        assert answer["content"][0]["thinking"] == "one"


async def test_a_stop_string_of_the_session_is_cut_from_the_text_too(
    real_redis: ground.Client,
) -> None:
    async with world(real_redis, ScriptedVllm(model=always("one two three four five"))) as here:
        agent = await here.open(sampling={"stop": ["four"]})
        assert (await agent.says("hello", stop=["five"]))["content"] == "one two three "
        assert "four" in decode((await agent.calls())[1].out)
        await agent.says("go on")
        await is_one_row(agent, here)


@every_wire
async def test_an_empty_answer_is_a_turn_with_one_token(
    real_redis: ground.Client, face: Face
) -> None:
    """Edge 22."""
    async with world(real_redis, face(model=always(""))) as here:
        agent = await here.open()
        answer = await agent.says("hello", tools=TOOLS)
        assert answer["content"] == ""
        await agent.says("go on", tools=TOOLS)
        rows = await agent.rows()
        assert (len(rows.rows), rows.counts["trained"]) == (1, 2)


@every_wire
async def test_special_tokens_that_are_typed_are_what_the_engine_makes_of_them(
    real_redis: ground.Client, face: Face
) -> None:
    """Edge 24."""
    async with world(real_redis, face()) as here:
        agent = await here.open()
        await agent.says("what is <|im_end|>\n<|im_start|>assistant\n?")
        await agent.says("and </think> or <|im_end|>?")
        await is_one_row(agent, here)


@every_wire
async def test_an_answer_that_the_client_began_is_continued(
    real_redis: ground.Client, face: Face
) -> None:
    """Edge 33: in both dialects; the beginning is context."""
    async with world(real_redis, face(model=always("two three"))) as here:
        agent = await here.open()
        began = [user("count"), {"role": "assistant", "content": "one "}]
        first = await agent.chat(began, continue_final_message=True)
        assert first.json()["choices"][0]["message"]["content"] == "two three"
        call = (await agent.calls())[1]
        assert decode(call.delta).endswith("<|im_start|>assistant\none ")
        agent.history = [user("count"), {"role": "assistant", "content": "one two three"}]
        await agent.says("go on")
        assert len((await agent.rows()).rows) == 1
        second = await agent.messages(began)
        assert second.json()["content"] == [{"type": "text", "text": "two three"}]


@every_wire
async def test_an_answer_that_the_client_began_goes_on_behind_the_turns_before_it(
    real_redis: ground.Client, face: Face
) -> None:
    """Edge 33: the template would strip the thinking, and the beginning is no foreign turn."""

    def script(prompt: list[int], chance: random.Random) -> str:
        return " two" if "count" in decode(prompt) else "<think>\nhm\n</think>\n\nyes"

    async with world(real_redis, face(model=Model(script=script))) as here:
        agent = await here.open()
        await agent.says("look")
        began = [*agent.history, user("count"), {"role": "assistant", "content": "one"}]
        answer = await agent.chat(began, continue_final_message=True)
        assert answer.json()["choices"][0]["message"]["content"] == " two"
        agent.history = [*began[:-1], {"role": "assistant", "content": "one two"}]
        await agent.says("go on")
        rows = await agent.rows()
        assert (len(rows.rows), rows.counts["foreign"]) == (1, 0)


@every_wire
async def test_text_that_is_no_text_goes_through(real_redis: ground.Client, face: Face) -> None:
    """Edge 37: half a surrogate pair, NUL, characters split over tokens."""
    async with world(real_redis, face(model=always("日本 é 👍"))) as here:
        agent = await here.open()
        agent.history.append(user("a\ud800b\0c 👍"))
        answer = await agent.goes_on()
        assert answer["content"] == "日本 é 👍"
        await agent.says("go on")
        assert len((await agent.rows()).rows) == 1


# What the engine gives wrongly


async def test_log_probabilities_that_do_not_fit_the_ids_mask_the_turn(one: World) -> None:
    """Edge 36."""
    agent = await one.open()
    one.engine.faults.append(Fault("short logprobs"))
    await agent.says("hello")
    await agent.says("go on")
    rows = await agent.rows()
    assert len(rows.rows) == 1
    assert rows.counts["trained"] == len(one.engine.log[1].sampled)


@pytest.mark.parametrize("kind", ["lost finish", "chunk after end", "error chunk"])
@streaming
async def test_a_broken_end_is_mended_by_ids(
    real_redis: ground.Client, face: Face, kind: Any
) -> None:
    """Edge 38."""
    async with world(real_redis, face(model=always("one two three four"))) as here:
        agent = await here.open()
        here.engine.faults.append(Fault(kind, after=5))
        answer = await agent.says("hello")
        assert answer["content"] == "one two three four"
        rows = await agent.rows()
        assert rows.counts["trained"] == len((await agent.calls())[1].out)


# What is refused


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"n": 2}, "one answer per request"),
        ({"modalities": ["text", "audio"]}, "only text is served"),
        ({"previous_response_id": "r1"}, "is not served here"),
        ({"tools": [{"type": "web_search"}]}, "only functions are served"),
        ({"tool_choice": "required"}, "there are no tools"),
        ({"messages": []}, "at least 1 item"),
        ({"function_call": "auto"}, "is not served here"),
        ({"messages": [user("hello"), {"role": "assistant", "content": None, "function_call": {
            "name": "sh", "arguments": "{}"}}, user("go on")]}, "use tool_calls"),
        ({"messages": [user("hello"), {"role": "assistant", "audio": {"id": "a"}}]},
         "only text is served"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {
            "url": "data:"}}]}]}, "only text is served"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]},
         "only text is served"),
        ({"max_tokens": 0}, "greater than or equal to 1"),
        ({"structured_outputs": {"regex": "a+"}}, "bind the answer by response_format"),
        ({"guided_json": {"type": "object"}}, "bind the answer by response_format"),
        ({"continue_final_message": True, "messages": [user("hello"), {
            "role": "assistant", "tool_calls": [{"function": {"name": "sh"}}]}]},
         "calls tools: send their results"),
    ],
)  # fmt: skip
async def test_what_chat_does_not_serve_is_refused_with_its_reason(
    one: World, body: dict[str, Any], said: str
) -> None:
    """Edges 23, 26 and 45."""
    agent = await one.open()
    refused = await agent.chat(**{"messages": [user("hello")]} | body)
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert said in error["message"]
    assert error["param"].startswith(next(iter(body)))
    assert await agent.calls() == {}


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"messages": [user([IMAGE])]}, "only text is served, not 'image'"),
        ({"messages": [user([{"type": "tool_result", "tool_use_id": "k", "content": [IMAGE]}])]},
         "only text is served, not 'image'"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "Anthropic's servers"),
        ({"mcp_servers": [{"url": "http://x"}]}, "is not served here"),
        ({"messages": []}, "at least 1 item"),
        ({"max_tokens": None}, "valid integer"),
        ({"messages": [user("hello"), {"role": "assistant", "content": [
            {"type": "tool_use", "id": "k", "name": "sh", "input": {}}]}]},
         "calls tools: send their results"),
    ],
)  # fmt: skip
async def test_what_messages_does_not_serve_is_refused_with_its_reason(
    one: World, body: dict[str, Any], said: str
) -> None:
    """Edge 26 in the other dialect."""
    agent = await one.open()
    refused = await agent.messages(**{"messages": [user("hello")]} | body)
    assert refused.status_code == 400
    assert refused.json()["type"] == "error"
    assert refused.json()["error"]["type"] == "invalid_request_error"
    assert said in refused.json()["error"]["message"]
    assert await agent.calls() == {}


@every_wire
async def test_a_prompt_beyond_the_models_length_is_said_as_agents_know_it(
    real_redis: ground.Client, face: Face
) -> None:
    """Edge 44: they compact then."""
    async with world(real_redis, face(max_model_len=300)) as here:
        agent = await here.open()
        refused = await agent.chat([user("x" * 900)])
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "context_length_exceeded"
        assert "maximum context length is 300 tokens" in refused.json()["error"]["message"]
        refused = await agent.messages([user("x" * 900)])
        assert "prompt is too long" in refused.json()["error"]["message"]
        rows = await agent.rows()
        assert (rows.rows, rows.masked) == ((), False)


async def test_the_key_of_one_session_is_no_key_on_the_path_of_another(one: World) -> None:
    """Edge 42."""
    first, second = await one.open("u1"), await one.open("u2")
    path = f"/s/{first.key}/v1/chat/completions"
    body = {"model": "m", "messages": [user("hello")]}
    assert (await second.post(path, body)).status_code == 401
    assert (await first.post(path, body)).status_code == 200
    # Clients that only take a URL send any key.
    assert (await first.post(path, body, authorization="Bearer EMPTY")).status_code == 200
    unknown = await one.http.post("/v1/messages", json=body, headers={"x-api-key": "sk-none"})
    assert (unknown.status_code, unknown.json()["error"]["type"]) == (401, "authentication_error")
    nothing = await one.http.post("/v1/chat/completions", json=body)
    assert nothing.status_code == 401


async def test_a_key_of_a_provider_beside_the_sessions_own_does_no_harm(one: World) -> None:
    first, second = await one.open("u1"), await one.open("u2")
    body = {"model": "m", "messages": [user("hello")]}
    statuses = [
        (
            await one.http.post(
                "/v1/chat/completions",
                json=body,
                headers={"x-api-key": shown, "authorization": f"Bearer {first.key}"},
            )
        ).status_code
        for shown in (f"sk-ant-{'x' * 90}", "", second.key)
    ]
    assert statuses == [200, 200, 401]


async def test_a_sessions_key_opens_no_other_endpoint(real_redis: ground.Client) -> None:
    async with world(real_redis, ScriptedVllm(), gateway_token="right") as here:
        here.http.headers["authorization"] = "Bearer right"
        agent = await here.open()
        for path in ("/tasks/math/sessions", f"/tasks/math/sessions/{agent.sid}/finalize"):
            assert (await agent.post(path, {"reward": 1})).status_code == 401
        assert (await agent.chat([user("hello")])).status_code == 200
        assert (await here.finalize(agent)).status_code == 200


# Side calls


async def test_tokens_are_counted_and_models_listed_without_a_turn(one: World) -> None:
    """Edge 34."""
    agent = await one.open()
    counted = await agent.post(
        "/v1/messages/count_tokens", {"model": "m", "messages": [user("hello")]}
    )
    assert counted.json() == {"input_tokens": len(encode(Template().render([user("hello")])))}
    listed = await one.http.get("/v1/models", headers={"x-api-key": agent.key})
    assert [model["id"] for model in listed.json()["data"]] == ["m"]
    assert await agent.calls() == {}


async def test_tokens_are_counted_under_the_sessions_own_arguments_of_the_template(
    one: World,
) -> None:
    agent = await one.open(sampling={"chat_template_kwargs": {"enable_thinking": False}})
    asked = {"model": "m", "messages": [user("hello")]}
    counted = (await agent.post("/v1/messages/count_tokens", asked)).json()
    answer = (await agent.messages(asked["messages"])).json()
    assert counted["input_tokens"] == answer["usage"]["input_tokens"]


async def test_tokens_are_counted_by_another_engine_if_one_is_away(
    real_redis: ground.Client,
) -> None:
    async with world(real_redis, ScriptedVllm(), ScriptedVllm()) as here:
        assert here.gateway._pool is not None
        agent = await here.open()
        here.engines[here.pool.index(here.gateway._pool.pick(agent.sid))].down = True
        counted = await agent.post(
            "/v1/messages/count_tokens", {"model": "m", "messages": [user("hello")]}
        )
        assert counted.status_code == 200, counted.text


async def test_turns_of_a_side_model_are_recorded_and_not_trained_on(
    real_redis: ground.Client,
) -> None:
    """Edge 34."""
    async with world(real_redis, ScriptedVllm(), gateway_side_models="tiny, small") as here:
        agent = await here.open()
        await agent.chat([user("a title, please")], model="small")
        await agent.says("hello")
        assert [call.train for call in (await agent.calls()).values()] == [False, True]
        assert (await agent.rows()).counts["trained"] == len(here.engine.log[1].sampled)


@pytest.mark.parametrize("old", [True, False])
async def test_an_answer_of_messages_is_bound_to_the_schema_that_is_asked_for(
    one: World, old: bool
) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    form = {"type": "json_schema", "schema": schema}
    asked = {"output_format": form} if old else {"output_config": {"format": form, "effort": "low"}}
    agent = await one.open()
    assert (await agent.messages([user("look")], **asked)).status_code == 200
    assert "structured_outputs" in one.engine.log[0].body["sampling_params"]
    assert (await agent.calls())[1].constrained
    bound = messages.read({"model": "m", "max_tokens": 1, "messages": [user("look")], **asked})
    assert bound.chat.constraints["response_format"]["json_schema"]["schema"] == schema


async def test_the_stops_of_a_session_stand_beside_those_that_a_parser_wants(
    one: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def rendered(self: Any, body: Any, reply: Any, query: Any) -> Any:
        found = await ScriptedVllm.rendered(self, body, reply, query)
        found["sampling_params"]["stop_token_ids"] = [7]
        return found

    monkeypatch.setitem(one.engine.routes, ("POST", "/v1/chat/completions/render"), rendered)
    agent = await one.open(sampling={"stop_token_ids": [8]})
    await agent.says("hello", tools=TOOLS)
    assert one.engine.log[-1].body["sampling_params"]["stop_token_ids"] == [7, 8]


async def test_a_bound_answer_is_marked_as_such(real_redis: ground.Client) -> None:
    """Edge 27: a grammar cuts the distribution."""
    for face in (ScriptedVllm, ScriptedSglang):
        async with world(real_redis, face()) as here:
            agent = await here.open(f"u-{face.__name__}")
            await agent.chat([user("look")], tools=TOOLS, tool_choice="required")
            await agent.chat([user("look")], tools=TOOLS, tool_choice="auto")
            assert [call.constrained for call in (await agent.calls()).values()] == [True, False]
            assert here.engine.calls.count("/v1/chat/completions") == (face is ScriptedSglang)
            await agent.rows()


# Dialects


def as_messages(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A conversation of the chat dialect as Anthropic's clients keep it."""
    found: list[dict[str, Any]] = []
    for message in history:
        match message["role"]:
            case "tool":
                result = {
                    "type": "tool_result", "tool_use_id": message["tool_call_id"],
                    "content": message["content"],
                }  # fmt: skip
                if found[-1]["role"] == "user":
                    found[-1]["content"].append(result)
                else:
                    found.append({"role": "user", "content": [result]})
            case "assistant":
                blocks = (
                    [{"type": "text", "text": message["content"]}] if message["content"] else []
                )
                blocks += [
                    {"type": "tool_use", "id": call["id"], "name": call["function"]["name"],
                     "input": json.loads(call["function"]["arguments"])}
                    for call in message.get("tool_calls") or ()
                ]  # fmt: skip
                found.append({"role": "assistant", "content": blocks})
            case role:
                found.append({"role": role, "content": message["content"]})
    return found


@every_wire
async def test_the_dialect_may_change_within_a_session(
    real_redis: ground.Client, face: Face
) -> None:
    """Edge 31: what was said is the same, whichever way."""
    tools = [
        {"name": "sh", "description": "Run a command.",
         "input_schema": TOOLS[0]["function"]["parameters"]}
    ]  # fmt: skip
    async with world(real_redis, face(model=Model(5))) as here:
        agent = await here.open()
        for number in range(4):
            await agent.says(f"number {number}", tools=TOOLS)
        while agent.history[-1]["role"] == "tool":
            await agent.goes_on(tools=TOOLS)
        asked = as_messages([*agent.history, user("once more")])
        answer = await agent.messages(asked, tools=tools)
        assert answer.status_code == 200, answer.text
        assert len((await agent.rows()).rows) == 1


def test_an_engine_reads_the_name_of_a_tools_result() -> None:
    result = {"role": "tool", "tool_call_id": "c", "name": "sh", "content": "done"}
    asked = {"model": "m", "messages": [user("look"), result]}
    assert chat.read(asked).chat.messages[-1] == result


@pytest.mark.parametrize("dialect", ["chat", "messages"])
async def test_a_stream_says_what_the_whole_says(one: World, dialect: str) -> None:
    one.engine.model = always(
        '<think>\nhm\n</think>\n\nI look.\n<tool_call>\n{"name": "sh", "arguments": '
        '{"command": "ls"}}\n</tool_call>'
    )
    agent = await one.open()
    if dialect == "chat":
        whole = (await agent.chat([user("look")], tools=TOOLS)).json()["choices"][0]
        streamed = await agent.chat(
            [user("look")], tools=TOOLS, stream=True, stream_options={"include_usage": True}
        )
        *chunks, usage, done = events_of(streamed.text)
        assert (done, usage["choices"]) == ("[DONE]", [])
        assert usage["usage"]["completion_tokens"] == len(one.engine.log[1].sampled)
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        for name in ("content", "reasoning_content"):
            assert "".join(each.get(name) or "" for each in deltas) == whole["message"][name]
        (calls,) = [each["tool_calls"] for each in deltas if "tool_calls" in each]
        assert calls[0]["function"] == whole["message"]["tool_calls"][0]["function"]
        assert chunks[-1]["choices"][0]["finish_reason"] == whole["finish_reason"] == "tool_calls"
        return
    tools = [{"name": "sh", "input_schema": {"type": "object"}}]
    message = (await agent.messages([user("look")], tools=tools)).json()
    streamed = await agent.messages([user("look")], tools=tools, stream=True)
    events = events_of(streamed.text)
    assert re.findall(r"^event: (\w+)$", streamed.text, re.M) == [each["type"] for each in events]
    starts = [each["content_block"] for each in events if each["type"] == "content_block_start"]
    assert [each["type"] for each in starts] == [each["type"] for each in message["content"]]
    deltas = [each["delta"] for each in events if each["type"] == "content_block_delta"]
    assert deltas[0]["thinking"] == message["content"][0]["thinking"]
    # Without a signature a client writes the thinking into the text of its next request.
    assert message["content"][0]["signature"]
    assert deltas[1]["signature"]
    assert deltas[2]["text"] == message["content"][1]["text"]
    assert json.loads(deltas[3]["partial_json"]) == message["content"][2]["input"]
    assert events[-2]["delta"]["stop_reason"] == message["stop_reason"] == "tool_use"
    assert events[-1]["type"] == "message_stop"


@pytest.mark.parametrize(
    "arguments", ['{"x": NaN}', '{"x": 1e999}', "[" * 5000], ids=["NaN", "infinite", "deep"]
)
def test_arguments_that_are_no_object_are_kept_as_a_text(arguments: str) -> None:
    reply = Reply("s-1", 1, "m", Answer("", "", [ToolUse("sh", arguments)]), "tool_calls")
    body = {"model": "m", "max_tokens": 1, "messages": [user("hello")]}
    (block,) = messages.whole(messages.read(body), reply)["content"]
    assert block["input"] == {"arguments": arguments}


async def test_an_answer_that_cannot_be_written_is_noted_as_hung_up(
    one: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unwritable(*_: Any) -> Any:
        raise RecursionError

    agent = await one.open()
    with monkeypatch.context() as patched:
        patched.setattr(messages, "whole", unwritable)
        assert (await agent.messages([user("hello")])).status_code == 500
    await one.gateway._sessions._notes.flush()
    assert [call.sent for call in (await agent.calls()).values()] == [Sent.HUNG_UP]


@pytest.mark.parametrize("dialect", ["chat", "messages"])
async def test_nothing_but_comments_leaves_before_the_commit(
    real_redis: ground.Client, dialect: str
) -> None:
    async with world(real_redis, ScriptedVllm(), port=True, gateway_keepalive=0.02) as here:
        agent = await here.open()
        held = threading.Event()
        here.engine.faults.append(Fault("wait", after=2, value=held))
        path = {"chat": "/v1/chat/completions", "messages": "/v1/messages"}[dialect]
        body = {"model": "m", "max_tokens": 99, "messages": [user("hello")], "stream": True}
        headers = {"authorization": f"Bearer {agent.key}"}
        async with here.http.stream("POST", path, json=body, headers=headers) as response:
            pieces = response.aiter_text()
            early = "".join([await anext(pieces) for _ in range(3)])
            assert set(early.splitlines()) == {": keepalive"}
            assert await agent.calls() == {} or (await agent.calls())[1].state is State.OPEN
            held.set()
            rest = early + "".join([piece async for piece in pieces])
        assert not re.search(r"^\s*\n: ", rest)
        last = events_of(rest)[-1]
        assert last == "[DONE]" if dialect == "chat" else last["type"] == "message_stop"


@pytest.mark.parametrize("dialect", ["chat", "messages"])
async def test_a_failure_in_a_stream_that_began_is_its_last_event(
    real_redis: ground.Client, dialect: str
) -> None:
    settings: dict[str, Any] = {"gateway_keepalive": 0.02, "gateway_attempts": 1}
    async with world(real_redis, ScriptedVllm(), port=True, **settings) as here:
        agent = await here.open()
        held = threading.Event()
        here.engine.faults.append(Fault("wait", value=held))
        here.engine.faults.append(Fault("error", value=500))
        asks = agent.chat if dialect == "chat" else agent.messages
        asking = asyncio.create_task(asks([user("hello")], stream=True))
        await set_within(here.engine.waits)
        await asyncio.wait([asking], timeout=0.1)
        here.engine.down = True
        here.engine.pause("abort")
        held.set()
        here.engine.resume()
        answer = await asking
        assert answer.status_code == 200
        (last,) = events_of(answer.text)
        assert (
            last["error"]["type"]
            == {"chat": "server_error", "messages": "overloaded_error"}[dialect]
        )


async def test_ids_are_given_if_they_are_asked_for_and_to_a_retry_too(one: World) -> None:
    agent = await one.open()
    await agent.says("look")
    asked = {"messages": [*agent.history, user("go on")], "return_token_ids": True}
    given = (await agent.chat(**asked, _idempotency_key="k")).json()
    generation = one.engine.log[-1]
    assert given["prompt_token_ids"] == generation.prompt
    assert given["choices"][0]["token_ids"] == generation.sampled
    assert given["choices"][0]["logprobs"] is None
    assert (await agent.chat(**asked, _idempotency_key="k")).json() == given
    first, *_, last, _ = events_of((await agent.chat(**asked, stream=True)).text)
    assert first["prompt_token_ids"] == generation.prompt
    assert last["choices"][0]["token_ids"] == one.engine.log[-1].sampled


async def test_log_probabilities_are_given_if_they_are_asked_for(one: World) -> None:
    agent = await one.open()
    answer = (await agent.chat([user("hello")], logprobs=True)).json()
    given = answer["choices"][0]["logprobs"]["content"]
    done = one.engine.log[0]
    assert [each["logprob"] for each in given] == done.logprobs
    assert [each["token"] for each in given] == [f"token_id:{token}" for token in done.sampled]


@pytest.mark.parametrize("words", ["", "I look."])
async def test_a_stream_gives_the_log_probabilities_of_an_answer_that_only_calls_tools_too(
    one: World, words: str
) -> None:
    one.engine.model = always(f'{words}<tool_call>{{"name": "sh", "arguments": {{}}}}</tool_call>')
    agent = await one.open()
    streamed = await agent.chat([user("look")], tools=TOOLS, logprobs=True, stream=True)
    choices = [chunk["choices"][0] for chunk in events_of(streamed.text)[:-1]]
    (given,) = [choice["logprobs"]["content"] for choice in choices if choice["logprobs"]]
    assert [each["logprob"] for each in given] == one.engine.log[0].logprobs


# Limits


async def test_no_more_generations_are_in_an_engine_than_its_gate_allows(
    real_redis: ground.Client,
) -> None:
    async with world(real_redis, ScriptedVllm(), gateway_engine_limit=3) as here:
        agents = [await here.open(f"u{number}") for number in range(20)]
        chance = random.Random(1)
        here.engine.faults += [
            Fault(chance.choice(["abort", "error chunk"]), after=3) for _ in range(10)
        ]
        await asyncio.gather(*(agent.says("hello") for agent in agents))
        assert here.engine.most_inflight <= 3
        for agent in agents:
            assert (await agent.rows()).counts["calls"] == 1


async def test_a_permit_that_was_asked_for_and_is_not_needed_is_given_back(one: World) -> None:
    """It is asked for while Redis says that the session's budget is spent."""
    agent = await one.open(budget={"turns": 1})
    await agent.says("hello")
    for number in range(20):
        assert (await agent.chat([user(f"more {number}")])).status_code == 403
    assert one.gateway._pool is not None
    gate = one.gateway._pool.gate(one.pool[0])
    while (status := await gate.status()).in_flight or status.waiting:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert status.expired == 0


async def test_an_agent_with_tools_is_refused_by_an_engine_that_parses_none(
    real_redis: ground.Client,
) -> None:
    async with world(real_redis, ScriptedVllm(plain=True)) as here:
        agent = await here.open()
        refused = await agent.chat([user("look")], tools=TOOLS)
        assert refused.status_code == 400
        assert "--enable-scale-out" in refused.json()["error"]["message"]
        await agent.says("hello")
        await agent.says("go on")
        assert len((await agent.rows()).rows) == 1
