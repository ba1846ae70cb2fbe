"""A conversation between a model and its tools, from the request to its end."""

import asyncio
import json
from typing import Any, cast

import pytest
from pydantic import ValidationError

from ground import SettingError
from tests.harness.scripted_model import called, refused, said, scripted_model
from tests.worker.concurrent.crew import at_work
from tests.worker.rollout.players import (
    QueueTool,
    assistant_turns,
    code,
    in_text,
    playing,
    script,
    user,
)
from tests.worker.scripted_answers import Answer
from tests.worker.scripted_fusion import ScriptedFusion
from worker.reward.scoring import CaseResult, Score
from worker.rollout import Rollout, RolloutRequest, StopReason, ToolKwargs, run_batch
from worker.tool import SandboxFusionTool
from worker.tool.schemas import CODE_INTERPRETER, ToolResponse


async def test_rollout_req_creation() -> None:
    with script(said("x")) as model:
        async with playing(model, QueueTool(None)) as rollout:
            request = rollout.request(
                user("2 + 2?"),
                request_id="sample-1",
                max_seq_len=100,
                tools_kwargs={"code_interpreter": {"create_kwargs": {"ground_truth": "4"}}},
            )
            assert rollout.request(user("x"), tools=[]).tool_schemas == []
    assert request.tool_schemas == [CODE_INTERPRETER]
    assert request.messages == user("2 + 2?")
    assert (request.request_id, request.max_seq_len) == ("sample-1", 100)
    assert request.kwargs_of("code_interpreter").create_kwargs == {"ground_truth": "4"}
    assert request.kwargs_of("another") == ToolKwargs()
    assert RolloutRequest.model_validate_json(request.model_dump_json()) == request
    assert (
        RolloutRequest(messages=user("x")).request_id
        != RolloutRequest(messages=user("x")).request_id
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"messages": []},
        {"messages": [{"content": "x"}]},
        {"max_seq_len": 0},
        {"max_turn": 3},
        {"sampling": {"stream": True}},
    ],
)
def test_a_request_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        RolloutRequest(**({"messages": user("x")} | wrong))


@pytest.mark.parametrize("counted_by", ["tokenizer", "guess"])
async def test_over_size_case(counted_by: str) -> None:
    """A prompt that is too long already: the model is not asked, the tools are not called."""
    tool = QueueTool(None)
    count = {"count_tokens": lambda text: len(text.split())} if counted_by == "tokenizer" else {}
    with script(said("never")) as model:
        async with playing(model, tool, **count) as rollout:
            request = rollout.request(user("word " * 200), max_seq_len=150)
            trajectory = await rollout.run(request)
    assert trajectory.stop_reason is StopReason.MAX_SEQ_LEN
    assert trajectory.reward_scores["code_interpreter"] == []
    assert (trajectory.turns, model.requests) == ([], [])
    assert trajectory.messages == request.messages
    assert trajectory.seq_len > 150
    assert tool.released == [request.request_id]


async def test_an_answer_that_fills_the_sequence_ends_it_before_its_calls() -> None:
    with script(called(code("print(1)"), prompt=90, tokens=10)) as model:
        async with playing(model, QueueTool(None)) as rollout:
            trajectory = await rollout.run(rollout.request(user("x"), max_seq_len=100))
    assert (trajectory.stop_reason, trajectory.seq_len) == (StopReason.MAX_SEQ_LEN, 100)
    assert trajectory.turns[0].calls == []


async def test_a_tools_output_that_fills_the_sequence_ends_it(interpreter) -> None:
    with script(called(code("print('x' * 4000)"), prompt=50, tokens=10)) as model:
        async with playing(model, interpreter) as rollout:
            trajectory = await rollout.run(rollout.request(user("x"), max_seq_len=500))
    assert (trajectory.stop_reason, len(model.requests)) == (StopReason.MAX_SEQ_LEN, 1)
    assert trajectory.seq_len == 60 + 4001 // 4
    assert trajectory.messages[-1]["role"] == "tool"


@pytest.mark.parametrize(
    "refusal",
    [
        refused(400, "too long", "context_length_exceeded"),
        refused(400, "This model's maximum context length is 4096 tokens. However, …"),
        refused(400, "The input (9000 tokens) is longer than the model's context length (4096)."),
    ],
)
async def test_a_server_that_takes_no_more_ends_it(refusal) -> None:
    with script(refusal) as model:
        async with playing(model) as rollout:
            trajectory = await rollout.run(rollout.request(user("x")))
    assert (trajectory.stop_reason, trajectory.masked) == (StopReason.MAX_SEQ_LEN, False)


@pytest.mark.parametrize("sampling", [{}, {"max_tokens": 250}])
async def test_a_guess_of_the_length_that_is_too_low_ends_nothing(sampling: Any) -> None:
    """The server's own limit is `max_seq_len`, and the prompt has more tokens than were guessed."""

    def answer(request: dict[str, Any], _: int) -> Any:
        if 40 + request.get("max_tokens", 0) > 200:
            return refused(400, "This model's maximum context length is 200 tokens. However, …")
        return said("done", prompt=40)

    with scripted_model(answer) as model:
        async with playing(model) as rollout:
            request = rollout.request(user("1" * 80), max_seq_len=200, sampling=sampling)
            trajectory = await rollout.run(request)
    assert (trajectory.stop_reason, trajectory.answer) == (StopReason.STOP, "done")
    assert [asked.get("max_tokens") for asked in model.requests] == [179, None]


async def test_the_model_is_asked_for_no_more_than_there_is_room() -> None:
    sampling = {"temperature": 0.5, "max_tokens": 120}
    with script(called(code("1"), prompt=100, tokens=60), said("done")) as model:
        async with playing(model, Quiet()) as rollout:
            await rollout.run(rollout.request(user("xxxx"), max_seq_len=200, sampling=sampling))
    first, second = model.requests
    assert (first["max_tokens"], first["temperature"], first["model"]) == (120, 0.5, "scripted")
    assert second["max_tokens"] == 40


async def test_the_limit_keeps_the_name_that_the_caller_gives_it() -> None:
    sampling = {"max_completion_tokens": 300}
    with script(said("done")) as model:
        async with playing(model) as rollout:
            await rollout.run(rollout.request(user("xxxx"), max_seq_len=200, sampling=sampling))
    (asked,) = model.requests
    assert 190 < asked["max_completion_tokens"] <= 200
    assert "max_tokens" not in asked


class Quiet:
    """A tool that says nothing, costs nothing, and remembers how it was called."""

    name = "code_interpreter"
    tool_schema = CODE_INTERPRETER

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> str:
        self.calls.append(("create", (instance_id, kwargs)))
        return str(instance_id)

    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> Any:
        self.calls.append(("execute", (instance_id, parameters, kwargs)))
        return ToolResponse(), None, None

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        self.calls.append(("calc_reward", (instance_id, kwargs)))
        return 0.5

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        self.calls.append(("release", (instance_id, kwargs)))


async def test_tool_call_basic_case(interpreter) -> None:
    """Two calls in two turns, and the outputs gathered: "3", "149"."""
    with script(
        called(code("print(1 + 2)"), text="First", prompt=40, tokens=20),
        called(code("print(150 - 1)"), prompt=70, tokens=20),
        said("#### 149", prompt=100, tokens=5),
    ) as model:
        async with playing(model, interpreter) as rollout:
            trajectory = await rollout.run(rollout.request(user("How much?"), request_id="s-1"))
    assert trajectory.reward_scores == {"code_interpreter": ["3", "149"]}
    assert [message["role"] for message in trajectory.messages] == [
        "user", "assistant", "tool", "assistant", "tool", "assistant",
    ]  # fmt: skip
    assert [m["content"] for m in trajectory.messages if m["role"] == "tool"] == ["3\n", "149\n"]
    assert (trajectory.stop_reason, trajectory.answer) == (StopReason.STOP, "#### 149")
    assert (trajectory.masked, trajectory.score, trajectory.seq_len) == (False, None, 105)
    assert [turn.prompt_tokens for turn in trajectory.turns] == [40, 70, 100]
    assert [turn.completion_tokens for turn in trajectory.turns] == [20, 20, 5]
    assert [turn.finish_reason for turn in trajectory.turns] == ["tool_calls", "tool_calls", "stop"]
    assert [[call.tool for call in turn.calls] for turn in trajectory.turns] == [
        ["code_interpreter"], ["code_interpreter"], [],
    ]  # fmt: skip
    assert trajectory.turns[0].tool_seconds >= trajectory.turns[0].calls[0].seconds > 0
    assert model.requests[0]["tools"] == [CODE_INTERPRETER.model_dump(exclude_none=True)]
    assert model.requests[1]["messages"][-1] == {
        "role": "tool", "content": "3\n", "tool_call_id": "call-0",
    }  # fmt: skip
    assert interpreter.released == ["s-1"]


async def test_tool_call_batch_case(real_redis, monkeypatch) -> None:
    """A hundred conversations at once, each with its own programs, through queue and worker."""

    def answer(request: dict[str, Any], _: int) -> Any:
        number = request["messages"][0]["content"]
        turn = assistant_turns(request)
        return called(code(f"print({number}, {turn})")) if turn < 2 else said(f"#### {number}")

    with ScriptedFusion() as fusion, scripted_model(answer) as model:
        monkeypatch.setenv("PENSTOCK_SANDBOX_FUSION_URL", fusion.url)
        fusion.programs = {
            f"print({number}, {turn})": Answer.ok(f"{number} {turn}\n")
            for number in range(100)
            for turn in range(2)
        }
        tool = SandboxFusionTool({"num_workers": 100, "rate_limit": 8}, redis=real_redis)
        with at_work(real_redis, gate="code", gate_limit=8):
            async with playing(model, tool) as rollout:
                requests = [rollout.request(user(str(number))) for number in range(100)]
                batch = await run_batch(rollout, requests, concurrency=100)
    assert len(batch.trajectories) == 100
    for number, trajectory in enumerate(batch.trajectories):
        assert trajectory.reward_scores == {"code_interpreter": [f"{number} 0", f"{number} 1"]}
        assert (trajectory.answer, trajectory.masked) == (f"#### {number}", False)
    assert (fusion.requests, set(fusion.codes.values())) == (200, {1})
    assert fusion.peak <= 8
    assert tool._instance_dict == {}  # all are released


async def test_calls_of_one_turn_run_side_by_side() -> None:
    met = asyncio.Barrier(3)

    class Meeting(Quiet):
        async def execute(self, instance_id: str, parameters: dict[str, Any], **_: Any) -> Any:
            async with asyncio.timeout(100):
                await met.wait()
            return ToolResponse(text=parameters["code"]), 0.1, {}

    with script(called(code("a"), code("b"), code("c")), said("done")) as model:
        async with playing(model, Meeting()) as rollout:
            trajectory = await rollout.run(rollout.request(user("x")))
    answers = [m for m in trajectory.messages if m["role"] == "tool"]
    assert [(m["content"], m["tool_call_id"]) for m in answers] == [
        ("a", "call-0"), ("b", "call-1"), ("c", "call-2"),
    ]  # fmt: skip
    assert trajectory.tool_rewards == [0.1, 0.1, 0.1]


async def test_of_too_many_calls_the_model_is_told() -> None:
    tool = Quiet()
    with script(called(code("a"), code("b"), code("c")), said("done")) as model:
        async with playing(model, tool, calls_per_turn=2) as rollout:
            trajectory = await rollout.run(rollout.request(user("x")))
    told = [m["content"] for m in trajectory.messages if m["role"] == "tool"]
    assert told == ["", "", "Error: only 2 calls run in one turn; make this one in the next"]
    assert sum(name == "execute" for name, _ in tool.calls) == 2
    assert [call.refused for call in trajectory.turns[0].calls] == [False, False, True]


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("code_interpreter", '{"code": ', "the arguments of code_interpreter are not JSON"),
        ("code_interpreter", "[1]", "must be a JSON object, not a list"),
        ("code_interpreter", "{}", 'code_interpreter needs code; write for example {"code"'),
        ("code_interpreter", "[" * 100_000, "are not JSON"),
        ("browser", '{"code": "1"}', "there is no tool 'browser'; the tools are: code_interpreter"),
    ],
)
async def test_a_call_that_is_wrong_is_answered_with_what_is_wrong(name, arguments, told) -> None:
    tool = Quiet()
    with script(called((name, arguments)), called(code("1")), said("done")) as model:
        async with playing(model, tool) as rollout:
            trajectory = await rollout.run(rollout.request(user("x")))
    assert told in trajectory.messages[2]["content"]
    assert trajectory.messages[2]["content"].startswith("Error: ")
    assert trajectory.messages[1]["tool_calls"][0]["function"]["arguments"] == arguments
    # The server's template reads the arguments of earlier calls: those must be JSON.
    for request in model.requests:
        for message in request["messages"]:
            for call in message.get("tool_calls", []):
                assert isinstance(json.loads(call["function"]["arguments"]), dict)
    assert [turn.calls[0].refused for turn in trajectory.turns[:2]] == [True, False]
    assert trajectory.stop_reason is StopReason.STOP


async def test_arguments_that_the_schema_lacks_do_no_harm(interpreter) -> None:
    call = ("code_interpreter", '{"code": "print(2)\n", "executes": "True"}')
    with script(called(call), said("done")) as model:
        async with playing(model, interpreter) as rollout:
            trajectory = await rollout.run(rollout.request(user("x")))
    assert trajectory.reward_scores == {"code_interpreter": ["2"]}


@pytest.mark.parametrize("style", ["native", "hermes"])
async def test_calls_in_text(interpreter, style) -> None:
    with script(said(f"<think>Hm.\n{in_text('print(220000.0)')}"), said("#### 220000.0")) as model:
        async with playing(model, interpreter, call_style=style) as rollout:
            messages = [{"role": "system", "content": "Be exact."}, *user("How much?")]
            trajectory = await rollout.run(rollout.request(messages))
    assert trajectory.reward_scores == {"code_interpreter": ["220000.0"]}
    assert trajectory.messages[3] == {"role": "tool", "content": "220000.0\n"}
    first, second = model.requests
    assert second["messages"][-1] == {
        "role": "user", "content": "<tool_response>\n220000.0\n\n</tool_response>",
    }  # fmt: skip
    if style == "hermes":
        assert "tools" not in first
        system = first["messages"][0]["content"]
        assert system.startswith("Be exact.\n\n# Tools\n\nYou may call")
        assert json.dumps(CODE_INTERPRETER.model_dump()) in system
    else:
        assert first["messages"][0]["content"] == "Be exact."
        assert len(first["tools"]) == 1


async def test_answers_to_calls_in_text_go_in_one_message(interpreter) -> None:
    text = f"{in_text('print(1)')}\n{in_text('print(2)')}\n<tool_call>{{nonsense</tool_call>"
    with script(said(text), said("done")) as model:
        async with playing(model, interpreter, call_style="hermes") as rollout:
            trajectory = await rollout.run(rollout.request(user("x")))
    assert [message["role"] for message in trajectory.messages] == [
        "user", "assistant", "tool", "tool", "tool", "assistant",
    ]  # fmt: skip
    (last,) = model.requests[1]["messages"][3:]
    assert last["role"] == "user"
    assert last["content"].count("<tool_response>") == 3
    assert "this tool call cannot be read" in last["content"]


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ([said("done")], StopReason.STOP),
        ([said(None)], StopReason.STOP),
        ([said("and then", "length")], StopReason.LENGTH),
        ([said(in_text("print(1)"), "length")], StopReason.LENGTH),
        ([called(code("1"))], StopReason.MAX_TURNS),
    ],
)
async def test_why_it_ended(answers, reason) -> None:
    with script(*answers) as model:
        async with playing(model, Quiet()) as rollout:
            trajectory = await rollout.run(rollout.request(user("x"), max_turns=3))
    assert trajectory.stop_reason is reason
    assert len(trajectory.turns) == (3 if reason is StopReason.MAX_TURNS else 1)
    assert not trajectory.masked


async def test_a_tool_is_used_as_verls_host_did() -> None:
    tool = Quiet()
    names = ("create_kwargs", "execute_kwargs", "calc_reward_kwargs", "release_kwargs")
    given = {name: {name.removesuffix("_kwargs"): 1} for name in names}
    with script(called(code("1")), said("done")) as model:
        async with playing(model, tool) as rollout:
            request = rollout.request(
                user("x"), request_id="s", tools_kwargs={"code_interpreter": given}
            )
            trajectory = await rollout.run(request)
    assert tool.calls == [
        ("create", ("s", {"create": 1})),
        ("execute", ("s", {"code": "1"}, {"execute": 1})),
        ("calc_reward", ("s", {"calc_reward": 1})),
        ("release", ("s", {"release": 1})),
    ]
    assert trajectory.reward_scores == {"code_interpreter": 0.5}


async def test_the_length_is_guessed_where_a_server_counts_nothing() -> None:
    status, body = said("x" * 400)
    del body["usage"]
    with script((status, body)) as model:
        async with playing(model) as rollout:
            trajectory = await rollout.run(rollout.request(user("y" * 400)))
    assert 200 <= trajectory.seq_len <= 205
    assert trajectory.turns[0].completion_tokens >= 100


def graded(value: Any) -> Any:
    async def later(_: Any) -> Any:
        return value

    return later


@pytest.mark.parametrize("grade", [lambda trajectory: 1.0, graded(1.0), graded(Score(1.0, ()))])
async def test_a_trajectory_is_graded_at_its_end(grade) -> None:
    with script(said("done")) as model:
        async with playing(model, score=grade) as rollout:
            trajectory = await rollout.run(rollout.request(user("x")))
    assert trajectory.score == 1.0
    assert trajectory.sample() == {"reward_score": 1.0, "exact": False, "traj_masked": 0}


LOST = Score(None, (CaseResult("masked", "connect"),), "connect")


@pytest.mark.parametrize(
    ("grade", "reason"),
    [
        (graded(LOST), "score: connect"),
        (graded(None), "score: it is not known"),
        (lambda trajectory: 1 / 0, "score: ZeroDivisionError: division by zero"),
    ],
)
async def test_a_grade_that_is_not_known_masks(grade, reason) -> None:
    with script(said("done")) as model:
        async with playing(model, score=grade) as rollout:
            trajectory = await rollout.run(rollout.request(user("x")))
    assert (trajectory.masked, trajectory.score, trajectory.exit_reason) == (True, None, reason)
    assert trajectory.sample() == {
        "reward_score": 0.0, "exact": False, "traj_masked": 1, "traj_exit_reason": reason,
    }  # fmt: skip


@pytest.mark.parametrize("limit", [{"calls_per_turn": 0}, {"tool_timeout": 0.0}])
def test_limits_under_which_no_tool_answers_are_refused(limit: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="calls_per_turn is 1 or more, tool_timeout above 0"):
        Rollout(cast(Any, None), "policy", **limit)


async def test_tools_that_do_not_fit_are_refused() -> None:
    with script(said("x")) as model:
        async with playing(model, Quiet()) as rollout:
            request = rollout.request(user("x"))
        with pytest.raises(ValueError, match="two tools have one name"):
            async with playing(model, Quiet(), Quiet()):
                pass
        async with playing(model) as rollout:
            lacking = r"tools that are not here: \['code_interpreter'\]; here: none"
            with pytest.raises(ValueError, match=lacking):
                await rollout.run(request)
            with pytest.raises(ValueError, match=lacking):
                await run_batch(rollout, [request])
            with pytest.raises(ValueError, match=lacking):
                rollout.request(user("x"), tools=["code_interpreter"])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [({"call_style": "xml"}, "'native', 'hermes'"), ({"score": 1.0}, "a function of a trajectory")],
)
async def test_an_option_that_means_nothing_is_refused(wrong: dict[str, Any], words: str) -> None:
    with script(said("x")) as model, pytest.raises((TypeError, ValueError), match=words):
        async with playing(model, **wrong):
            raise AssertionError("it was taken")


async def test_a_batch_of_none_at_once_is_refused() -> None:
    with script(said("x")) as model:
        async with playing(model) as rollout:
            with pytest.raises(SettingError, match="concurrency: must be a whole number from 1"):
                await run_batch(rollout, [rollout.request(user("x"))], concurrency=0)
