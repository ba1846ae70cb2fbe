"""What no server, tool or grade should do, and some do: it costs one trajectory at most."""

import asyncio
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.harness.scripted_model import called, said, scripted_model
from tests.worker.rollout.players import QueueTool, code, completed, playing, script, user
from worker.rollout import RolloutRequest, Trajectory, run_batch
from worker.rollout.dump import row_of
from worker.tool import ToolResponse
from worker.tool.schemas import CODE_INTERPRETER


class Saying(QueueTool):
    """A tool whose calls all give the same."""

    def __init__(self, given: Any) -> None:
        super().__init__(None)
        self._given = given

    async def execute(self, *_: Any, **__: Any) -> Any:
        return self._given


OK = (ToolResponse(text="ok"), None, {})


def spoken(content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def calling(**call: Any) -> dict[str, Any]:
    whole = {"id": "c", "type": "function", "function": {"name": "code_interpreter"}} | call
    return spoken(None) | {"tool_calls": [whole]}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((200, "<html>"), "the server's answer is no chat completion"),
        ((200, []), "the server's answer is no chat completion"),
        (completed(None), "the server's answer is no chat completion"),
        (completed(spoken(5)), "the server's answer is no chat completion"),
        (completed(spoken([5])), "the server's answer is no chat completion"),
        (completed(calling(function=None)), "the server's answer is no chat completion"),
        (completed(spoken(""), "content_filter"), "the server broke the answer off (content_f"),
    ],
)
async def test_an_answer_that_is_none_masks_and_the_batch_goes_on(answer, reason) -> None:
    def answers(request: dict[str, Any], _: int) -> Any:
        return answer if request["messages"][0]["content"] == "odd" else said("fine")

    with scripted_model(answers) as model:
        async with playing(model, Saying(OK), score=lambda _: 1.0) as rollout:
            asked = [rollout.request(user(words)) for words in ("odd", "even")]
            batch = await run_batch(rollout, asked)
    odd, even = batch.trajectories
    assert odd.exit_reason.startswith(f"model: {reason}")
    assert (odd.score, even.score, batch.mean_score) == (None, 1.0, 1.0)


@pytest.mark.parametrize(
    ("content", "read"),
    [
        ([{"type": "text", "text": "fi"}, {"type": "text", "text": "ne"}], "fine"),
        ([{"type": "thinking", "thinking": []}, {"type": "text", "text": "fine"}], "fine"),
        (["fine"], "fine"),
        ([], ""),
    ],
)
async def test_an_answer_in_parts_is_their_text(content: Any, read: str) -> None:
    with scripted_model(lambda *_: completed(spoken(content))) as model:
        async with playing(model, Saying(OK), score=lambda _: 1.0) as rollout:
            (trajectory,) = (await run_batch(rollout, [rollout.request(user("odd"))])).trajectories
    assert (trajectory.masked, trajectory.messages[-1]["content"]) == (False, read)


@pytest.mark.parametrize(
    "call",
    [
        {"type": None, "function": {"name": "code_interpreter", "arguments": '{"code": "1"}'}},
        {"function": {"name": "code_interpreter", "arguments": {"code": "1"}}},
        {"id": None, "function": {"name": "code_interpreter", "arguments": '{"code": "1"}'}},
        {"function": {"name": "code_interpreter", "arguments": json.dumps('{"code": "1"}')}},
    ],
)
async def test_a_call_that_a_server_writes_in_its_own_way_is_run(call) -> None:
    with script(completed(calling(**call)), said("done")) as model:
        async with playing(model, Saying(OK)) as rollout:
            trajectory = await rollout.run(rollout.request(user("x")))
    assert [message.get("content") for message in trajectory.messages] == ["x", "", "ok", "done"]
    [sent] = model.requests[1]["messages"][1]["tool_calls"]
    assert json.loads(sent["function"]["arguments"]) == {"code": "1"}


BARE = '{"name": "code_interpreter", "parameters": {"code": "1"}}'
XML = "<function=code_interpreter>\n<parameter=code>\n1\n</parameter>\n</function>"
GLM = "code_interpreter\n<arg_key>code</arg_key>\n<arg_value>1</arg_value>"


@pytest.mark.parametrize(
    "message",
    [
        spoken(BARE),
        spoken(f"<think>so</think>\n[{BARE}]"),
        spoken(f"<|python_tag|>{BARE}"),
        spoken(f"[TOOL_CALLS] [{BARE}]"),
        spoken("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>code_interpreter"),
        spoken("<|tool_calls_section_begin|><|tool_call_begin|>functions.code_interpreter:0"),
        spoken(f"<tool_call>\n{XML}\n</tool_call>"),
        spoken(f"<tool_call>{GLM}\n</tool_call>"),
        spoken(None) | {"function_call": {"name": "code_interpreter", "arguments": "{}"}},
        spoken(None)
        | {"tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "x", "input": "1"}}]},
    ],
    ids=lambda message: str(message)[:60],
)
async def test_a_call_that_the_server_did_not_read_is_no_answer(message: dict[str, Any]) -> None:
    with script(completed(message)) as model:
        async with playing(model, Saying(OK), score=lambda _: 0.0) as rollout:
            trajectory = await rollout.run(rollout.request(user("x")))
    assert trajectory.masked
    assert trajectory.score is None
    assert "the server did not parse its model's calls" in trajectory.exit_reason


@pytest.mark.parametrize("message", [spoken(BARE[:-9]), spoken(f"<|python_tag|>{BARE[:-9]}")])
async def test_a_call_that_was_cut_off_at_max_tokens_is_the_models_own(message: Any) -> None:
    with script(completed(message, "length")) as model:
        async with playing(model, Saying(OK), score=lambda _: 0.0) as rollout:
            trajectory = await rollout.run(rollout.request(user("x")))
    assert (trajectory.stop_reason, trajectory.score) == ("length", 0.0)


@pytest.mark.parametrize(
    "answer", ['{"name": "Ann", "age": 7}', "Write <|python_tag|>? </think> Better not.", "[1]"]
)
async def test_an_answer_that_is_no_call_is_scored(answer: str) -> None:
    with script(said(answer)) as model:
        async with playing(model, Saying(OK), score=lambda _: 1.0) as rollout:
            trajectory = await rollout.run(rollout.request(user("x")))
    assert (trajectory.score, trajectory.answer) == (1.0, answer)


async def test_marks_of_calls_are_text_to_a_model_without_tools() -> None:
    with script(said("<|python_tag|>print(1)")) as model:
        async with playing(model, score=lambda _: 1.0) as rollout:
            trajectory = await rollout.run(rollout.request(user("x")))
    assert trajectory.score == 1.0


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
async def test_thoughts_are_kept_and_sent_back_until_the_user_speaks_again(name: str) -> None:
    call = calling(function={"name": "code_interpreter", "arguments": '{"code": "1"}'})
    before = [*user("w"), spoken("v") | {name: "an older thought"}, *user("x")]

    def answer(request: dict[str, Any], _: int) -> Any:
        ran = request["messages"][-1]["role"] == "tool"
        return said("done") if ran else completed(call | {name: "a thought"})

    with scripted_model(answer) as model:
        async with playing(model, Saying(OK)) as rollout:
            trajectory = await rollout.run(rollout.request(before))
    thought = [message.get(name) for message in model.requests[1]["messages"]]
    assert thought == [None, None, None, "a thought", None]
    assert "<think>\na thought\n</think>" in row_of(trajectory)["output"]


async def test_a_prompt_with_calls_is_sent_as_servers_take_it(tmp_path: Path) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": "é"}}}
    before = [
        {"role": "user", "content": "x", "tool_calls": None},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "2", "tool_call_id": "c", "tool_calls": None},
    ]
    with script(said("done"), said("done")) as model:
        async with playing(model, score=lambda _: 1.0) as rollout:
            batch = await run_batch(rollout, [rollout.request(before)], rollout_data_dir=tmp_path)
    assert batch.mean_score == 1.0
    (first, second, third) = model.requests[0]["messages"]
    assert "tool_calls" not in first | third
    assert second["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": "é"}'}
    assert '"arguments": {"a": "é"}' in json.loads((tmp_path / "0.jsonl").read_bytes())["input"]


@pytest.mark.parametrize(
    ("content", "text"), [([{"type": "text", "text": "2"}], "2"), ("2", "2"), (None, "")]
)
async def test_a_tools_answer_in_a_prompt_is_sent_as_its_text(content: Any, text: str) -> None:
    before = [*user("x"), spoken("y"), {"role": "tool", "content": content}]
    with script(said("done"), said("done")) as model:
        async with playing(model) as rollout:
            await rollout.run(rollout.request(before))
    assert model.requests[0]["messages"][2]["content"] == (
        f"<tool_response>\n{text}\n</tool_response>"
    )


@pytest.mark.parametrize("call", [{"name": "f", "arguments": "{}"}, {"function": None}, "f"])
def test_a_prompt_with_a_call_of_no_function_is_refused(call: Any) -> None:
    with pytest.raises(ValueError, match="message 0 has a call that is none of a function"):
        RolloutRequest(messages=[{"role": "assistant", "tool_calls": [call]}])


@pytest.mark.parametrize("usage", [{"total_tokens": 3}, {"prompt_tokens": 1}, {}])
async def test_a_server_that_counts_half_counts_nothing(usage) -> None:
    with script(completed(spoken("x" * 40), usage=usage)) as model:
        async with playing(model) as rollout:
            trajectory = await rollout.run(rollout.request(user("x")))
    assert trajectory.turns[0].completion_tokens >= 10


async def test_what_no_server_takes_is_not_sent() -> None:
    half = "\ud800"
    tool = Saying((ToolResponse(text=f"t{half}"), None, {}))
    with script(called(code("x"), text=f"m{half}"), said("done")) as model:
        async with playing(model, tool) as rollout:
            trajectory = await rollout.run(rollout.request(user("x")))
    assert trajectory.answer == "done"
    assert [m["content"] for m in model.requests[1]["messages"]] == ["x", "m?", "t?"]


@pytest.mark.parametrize("grade", [math.nan, math.inf, "good", {"score": 1.0}])
async def test_a_grade_that_is_no_number_masks(grade) -> None:
    with script(said("x")) as model:
        async with playing(model, score=lambda _: grade) as rollout:
            batch = await run_batch(rollout, [rollout.request(user("x"))])
    (trajectory,) = batch.trajectories
    assert (trajectory.exit_reason, batch.mean_score) == (f"score: {grade!r} is no number", None)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (({"text": "x"}, None, {}), "its response is a dict, without a text"),
        ((SimpleNamespace(text=3), None, {}), "its response is a SimpleNamespace, without a text"),
        ((ToolResponse(text="x"), None, 0.5), "its metrics are a float, not a dict"),
        ("abc", "execute returned a str, not (response, reward, metrics)"),
        (asyncio.CancelledError(), "rollout: CancelledError"),
    ],
)
async def test_what_no_tool_should_return_masks(given, reason) -> None:
    class Odd(Saying):
        async def execute(self, *arguments: Any, **_: Any) -> Any:
            if isinstance(given, BaseException):
                raise given  # as a tool does whose own task was cancelled
            return given

    with script(called(code("x")), said("done")) as model:
        async with playing(model, Odd(None)) as rollout:
            batch = await run_batch(rollout, [rollout.request(user("x"))])
    (trajectory,) = batch.trajectories
    assert trajectory.exit_reason.removeprefix("tool code_interpreter: ").startswith(reason)


async def test_a_count_of_tokens_that_fails_masks() -> None:
    def count(text: str) -> int:
        raise KeyError(text)

    with script(said("x")) as model:
        async with playing(model, count_tokens=count) as rollout:
            (trajectory,) = (await run_batch(rollout, [rollout.request(user("x"))])).trajectories
    assert trajectory.exit_reason.startswith("count_tokens: KeyError")


async def test_a_tool_whose_release_never_ends_does_not_hold_the_batch() -> None:
    class Clinging(Saying):
        async def release(self, *arguments: Any, **_: Any) -> None:
            await super().release(*arguments)
            await asyncio.Event().wait()

    tool = Clinging(OK)
    with script(said("done")) as model:
        async with playing(model, tool, tool_timeout=0.05) as rollout:
            batch = await run_batch(rollout, [rollout.request(user("x"), request_id="s")])
    assert ([t.answer for t in batch.trajectories], tool.released) == (["done"], ["s"])


async def test_a_tool_whose_release_is_cancelled_by_itself_does_not_end_the_batch() -> None:
    class Cancelled(Saying):
        async def release(self, *arguments: Any, **_: Any) -> None:
            raise asyncio.CancelledError  # as a tool does whose own task was cancelled

    class Other(Saying):
        name = "other"
        tool_schema = CODE_INTERPRETER.model_copy(
            update={"function": CODE_INTERPRETER.function.model_copy(update={"name": "other"})}
        )

    other = Other(OK)
    with script(said("done")) as model:
        async with playing(model, Cancelled(OK), other, score=lambda _: 1.0) as rollout:
            batch = await run_batch(rollout, [rollout.request(user("x"), request_id="s")])
    assert (batch.mean_score, other.released) == (1.0, ["s"])


async def test_pictures_of_a_prompt_are_sent_and_not_counted_as_text() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
    words = {"type": "text", "text": "What is it?"}

    def graded(trajectory: Trajectory) -> float:
        return float(trajectory.answer == "A cat.")

    with script(said("A cat.")) as model:
        async with playing(model, score=graded) as rollout:
            asked = [{"role": "user", "content": [words, picture]}]
            trajectory = await rollout.run(rollout.request(asked, max_seq_len=1000))
    assert trajectory.score == 1.0
    assert model.requests[0]["messages"] == asked
