"""The cases at the edge that no other file of this folder has, and the page that maps all of them.

The page is docs/inside/gateway-edges.md: a case a row, with its tests by name.
"""

import asyncio
import json
import random
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ground
from gateway.calls import Sent
from tests.gateway.scripted.engine import Fault
from tests.gateway.scripted.model import Model, decode
from tests.gateway.scripted.sglang import ScriptedSglang
from tests.gateway.scripted.vllm import ScriptedVllm
from tests.gateway.serving import TOOLS, events_of, set_within, user, world

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "inside" / "gateway-edges.md"

TWO_CALLS = "".join(
    f'<tool_call>\n{{"name": "sh", "arguments": {{"command": "{word}", "at": "é"}}}}\n</tool_call>'
    for word in ("ls", "pwd")
)


def rows_of_the_page() -> list[tuple[int, list[str]]]:
    found = re.findall(r"^\| (\d+) \| .* \| (.*) \|$", PAGE.read_text(), re.M)
    return [(int(number), re.findall(r"`(test_\w+)`", tests)) for number, tests in found]


def written() -> dict[str, str]:
    """Each test of this folder, and the first words behind its name."""
    text = "\n".join(file.read_text() for file in sorted(HERE.glob("test_*.py")))
    parts = re.split(r"^(?:async )?def (?=test_)", text, flags=re.M)[1:]
    return {part.partition("(")[0]: part[:600] for part in parts}


def test_each_case_of_the_page_has_tests_that_exist() -> None:
    known, rows = written(), rows_of_the_page()
    assert [number for number, _ in rows] == list(range(1, 46))
    assert all(tests for _, tests in rows)
    assert [name for _, tests in rows for name in tests if name not in known] == []


def test_a_test_that_says_its_case_is_in_its_row() -> None:
    rows = dict(rows_of_the_page())
    for name, text in written().items():
        if said := re.search(r'"""Edges? (\d+(?:(?:, | and )\d+)*)\b', text):
            for number in map(int, re.findall(r"\d+", said[1])):
                assert name in rows[number]


def one_by_one(*texts: str) -> Model:
    """A model that answers its n-th turn with the n-th of these."""

    def script(prompt: list[int], chance: random.Random) -> str:
        turn = decode(prompt).count("<|im_start|>assistant\n") - 1
        return texts[min(turn, len(texts) - 1)]

    return Model(script=script)


async def rows_after_an_echo(
    redis: ground.Client, model: Model, change: Callable[[list[dict[str, Any]]], None]
) -> int:
    """How many rows there are when the agent has changed its history before its second turn."""
    async with world(redis, ScriptedVllm(model=model)) as here:
        agent = await here.open()
        await agent.says("look", tools=TOOLS)
        change(agent.history)
        await agent.says("go on", tools=TOOLS)
        rows = await agent.rows()
        assert rows.counts["trained"] == sum(len(each.sampled) for each in here.engine.log)
        return len(rows.rows)


async def test_an_echo_without_its_reasoning_continues_what_was_sampled(
    real_redis: ground.Client,
) -> None:
    """Edge 7."""

    def forget(history: list[dict[str, Any]]) -> None:
        assert history[1].pop("reasoning_content")

    model = one_by_one("<think>\nhm\n</think>\n\nyes", "no")
    assert await rows_after_an_echo(real_redis, model, forget) == 1


async def test_an_echo_with_keys_that_no_engine_reads_continues(
    real_redis: ground.Client,
) -> None:
    """Edge 10: LangGraph gives each turn the name of its agent."""

    def add(history: list[dict[str, Any]]) -> None:
        history[1] |= {"name": "searcher", "reasoning_details": [{"text": "hm"}]}

    assert await rows_after_an_echo(real_redis, one_by_one(TWO_CALLS, "so"), add) == 1


async def test_an_echo_without_blanks_before_a_call_continues(real_redis: ground.Client) -> None:
    """Edge 7: LangChain sends no blank text to Anthropic's API, which refuses it."""

    def forget(history: list[dict[str, Any]]) -> None:
        assert history[1]["content"].isspace()
        history[1]["content"] = None

    model = one_by_one(f"<think>\nhm\n</think>\n\n \n\n{TWO_CALLS}", "so")
    assert await rows_after_an_echo(real_redis, model, forget) == 1


async def test_an_echo_without_one_of_two_calls_forks(real_redis: ground.Client) -> None:
    """Edge 8."""

    def forget(history: list[dict[str, Any]]) -> None:
        del history[1]["tool_calls"][1], history[3]

    assert await rows_after_an_echo(real_redis, one_by_one(TWO_CALLS, "so"), forget) == 2


async def test_an_echo_with_other_ids_and_arguments_written_otherwise_continues(
    real_redis: ground.Client,
) -> None:
    """Edges 9 and 10."""

    def rewrite(history: list[dict[str, Any]]) -> None:
        for number, call in enumerate(history[1]["tool_calls"]):
            said = json.loads(call["function"]["arguments"])
            turned = dict(reversed(said.items()))
            # As an object too, which SGLang takes from agents.
            text = json.dumps(turned, indent=1, ensure_ascii=True)
            call["function"]["arguments"] = turned if number else text
            call["id"] = history[2 + number]["tool_call_id"] = f"mine-{number}"

    assert await rows_after_an_echo(real_redis, one_by_one(TWO_CALLS, "so"), rewrite) == 1


@pytest.mark.parametrize(("matched", "rows"), [(True, 1), (False, 2)])
async def test_results_in_another_order_continue_if_they_name_their_calls(
    real_redis: ground.Client, matched: bool, rows: int
) -> None:
    """Edge 10: in the turn after the one that sent them."""
    async with world(real_redis, ScriptedVllm(model=one_by_one(TWO_CALLS, "so", "on"))) as here:
        agent = await here.open()
        await agent.says("look", tools=TOOLS)
        for number, result in enumerate(agent.history[2:]):
            result["content"] = f"result {number}"
        await agent.goes_on(tools=TOOLS)
        agent.history[2:4] = agent.history[3:1:-1]
        if not matched:
            for result in agent.history[2:4]:
                result["tool_call_id"] = "nobody's"
        await agent.says("go on", tools=TOOLS)
        assert len((await agent.rows()).rows) == rows


async def test_a_client_that_goes_after_three_chunks_is_noted_and_its_turn_masked_if_not_used(
    real_redis: ground.Client,
) -> None:
    """Edge 16."""
    async with world(real_redis, ScriptedVllm()) as here:
        agent = await here.open()
        body = {"model": "m", "messages": [user("hello")], "stream": True}
        asked = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]
        gone, chunks = asyncio.Event(), 0

        async def receive() -> dict[str, Any]:
            if asked:
                return asked.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            nonlocal chunks
            chunks += message["type"] == "http.response.body"
            if chunks == 3:
                gone.set()

        scope = {
            "type": "http", "method": "POST", "path": "/v1/chat/completions",
            "headers": [(b"authorization", f"Bearer {agent.key}".encode())],
        }  # fmt: skip
        await here.gateway(scope, receive, send)  # type: ignore[arg-type]
        await here.gateway._sessions._notes.flush()
        assert (await agent.calls())[1].sent is Sent.HUNG_UP
        assert (await agent.rows()).counts["trained"] == 0
        again = await agent.chat([user("hello")], stream=True)  # it comes back without a header
        assert len(here.engine.log) == 1
        said = "".join(
            event["choices"][0]["delta"].get("content") or ""
            for event in events_of(again.text)[:-1]
        )
        agent.history = [user("hello"), {"role": "assistant", "content": said}]
        await agent.says("go on")
        sampled = sum(len(each.sampled) for each in here.engine.log)
        assert (await agent.rows()).counts["trained"] == sampled


async def test_two_updates_in_one_answer_are_three_spans_and_the_last_may_go_back(
    real_redis: ground.Client,
) -> None:
    """Edge 18."""
    text = "one two three four five six"
    async with world(real_redis, ScriptedSglang(version=7, model=one_by_one(text))) as here:
        agent, held = await here.open(), threading.Event()
        here.engine.faults += [Fault("wait", after=5, value=held), Fault("bump", 2, 6)]
        asking = asyncio.create_task(agent.chat([user("hello")]))
        await set_within(here.engine.waits)
        here.engine.pause("abort")
        held.set()
        while len(here.engine.log) < 2:  # noqa: ASYNC110 - the rest of the answer waits
            await asyncio.sleep(0.01)
        here.engine.version = 8
        here.engine.resume()
        assert (await asking).json()["choices"][0]["message"]["content"] == text
        call = (await agent.calls())[1]
        first, second = (len(each.sampled) for each in here.engine.log)
        assert call.spans == ((first, 7), (2, 8), (second - 2, 6))
        await agent.rows()


async def test_an_answer_without_ids_trains_no_token(real_redis: ground.Client) -> None:
    """Edge 22."""
    async with world(real_redis, ScriptedVllm(model=one_by_one("", "yes"))) as here:
        agent = await here.open()
        here.engine.faults.append(Fault("no ids"))
        assert (await agent.says("hello"))["content"] == ""
        await agent.says("go on")
        first, second = (await agent.calls()).values()
        assert (len(first.out), first.lacks) == (0, "logprobs")
        assert (await agent.rows()).counts["trained"] == len(second.out)


async def test_other_tools_in_a_session_fork(real_redis: ground.Client) -> None:
    """Edge 27."""
    async with world(real_redis, ScriptedVllm()) as here:
        agent = await here.open()
        await agent.says("hello", tools=TOOLS)
        await agent.says("go on")
        assert len((await agent.rows()).rows) == 2


async def test_an_answer_under_a_schema_is_marked_as_constrained(real_redis: ground.Client) -> None:
    """Edge 27."""
    schema = {"name": "s", "schema": {"type": "object"}}
    async with world(real_redis, ScriptedVllm()) as here:
        agent = await here.open()
        await agent.says("hello", response_format={"type": "json_schema", "json_schema": schema})
        assert (await agent.calls())[1].constrained


async def test_a_mark_of_a_cache_may_move(real_redis: ground.Client) -> None:
    """Edge 32: Anthropic's clients move it each turn."""

    def text(words: str, **mark: Any) -> dict[str, Any]:
        return user([{"type": "text", "text": words, **mark}])  # type: ignore[arg-type]

    mark = {"cache_control": {"type": "ephemeral"}}
    async with world(real_redis, ScriptedVllm()) as here:
        agent = await here.open()
        first = (await agent.messages([text("hello", **mark)])).json()
        said = {"role": "assistant", "content": first["content"]}
        await agent.messages([text("hello"), said, text("go on", **mark)])
        assert len((await agent.rows()).rows) == 1
