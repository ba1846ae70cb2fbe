"""Trajectories that are interrupted, and gone on with elsewhere."""

import json
from typing import Any

import pytest

from tests.harness.scripted_model import called, said
from tests.worker.rollout.players import completed, playing, script, user
from worker.rollout import Gsm8kTool, RolloutRequest, StopReason

CALL = ("calc_gsm8k_reward", json.dumps({"answer": "42"}))
GROUND_TRUTH = {"calc_gsm8k_reward": {"create_kwargs": {"ground_truth": "42"}}}


async def test_an_answer_that_the_engine_aborted_is_gone_on_with_and_its_spans_add_up() -> None:
    answers = [
        called(CALL, prompt=10, tokens=5), said("it is", "abort", prompt=20, tokens=3),
        said(" 42", prompt=23, tokens=4),
    ]  # fmt: skip
    version = 7
    with script(answers[0], answers[1]) as model:
        async with playing(model, Gsm8kTool(), version=lambda: version) as rollout:
            asked = rollout.request(user("6 * 7?"), tools_kwargs=GROUND_TRUTH)
            first = await rollout.run(asked)
    assert (first.stop_reason, first.masked, first.score) == (StopReason.INTERRUPTED, True, None)
    assert first.sample()["traj_exit_reason"] == "interrupted"
    parked, request = json.dumps(first.partial()), asked.model_dump_json()
    version = 8
    with script(answers[0], answers[2]) as model:
        async with playing(
            model, Gsm8kTool(), version=lambda: version, score=lambda _: 1.0
        ) as rollout:
            again = RolloutRequest.model_validate_json(request)
            second = await rollout.run(again, partial=json.loads(parked))
    (sent,) = model.requests
    assert sent["continue_final_message"] is True
    assert sent["messages"][-1] == {"role": "assistant", "content": "it is"}
    assert (second.stop_reason, second.answer, second.score) == (StopReason.STOP, "it is 42", 1.0)
    assert second.versions == [[10, -1], [5, 7], [5, -1], [3, 7], [4, 8]]
    assert sum(tokens for tokens, _ in second.versions) == second.seq_len == 27
    roles = [message["role"] for message in second.messages]
    assert roles == ["user", "assistant", "tool", "assistant"]


@pytest.mark.parametrize(
    ("first", "second", "whole"),
    [
        ({"content": "it is", "reasoning": "So."}, {"content": " 42"}, ("it is 42", "So.")),
        (
            {"content": None, "reasoning": "So"},
            {"content": "42", "reasoning": " it is."},
            ("42", "So it is."),
        ),
    ],
)
async def test_thoughts_before_an_abort_stay(first: Any, second: Any, whole: Any) -> None:
    spoken = {"role": "assistant"}
    with script(completed(spoken | first, "abort")) as model:
        async with playing(model, version=lambda: 7) as rollout:
            request = rollout.request(user("6 * 7?"))
            parked = json.loads(json.dumps((await rollout.run(request)).partial()))
    with script(None, completed(spoken | second)) as model:
        async with playing(model, version=lambda: 8) as rollout:
            last = (await rollout.run(request, partial=parked)).messages[-1]
    assert (last["content"], last["reasoning"]) == whole


async def test_what_is_continued_is_counted_once_also_if_the_server_counts_nothing() -> None:
    with script(completed({"content": "a" * 4000, "reasoning": "b" * 400}, "abort")) as model:
        async with playing(model, version=lambda: 7) as rollout:
            request = rollout.request(user("x" * 40))
            parked = (await rollout.run(request)).partial()
    with script(None, completed({"content": "c" * 40})) as model:
        async with playing(model, version=lambda: 8) as rollout:
            trajectory = await rollout.run(request, partial=parked)
    assert trajectory.versions == [[11, -1], [1100, 7], [10, 8]]


async def test_interrupt_stops_before_the_model_is_asked_again() -> None:
    class Interrupting(Gsm8kTool):
        async def execute(self, *given: object, **more: object) -> object:
            rollout.interrupt()
            return await super().execute(*given, **more)  # type: ignore[arg-type]

    with script(called(CALL), said("done")) as model:
        async with playing(model, Interrupting()) as rollout:
            request = rollout.request(user("6 * 7?"), tools_kwargs=GROUND_TRUTH)
            first = await rollout.run(request)
            assert (first.stop_reason, len(model.requests)) == (StopReason.INTERRUPTED, 1)
            assert first.messages[-1]["role"] == "tool", "its tools came to an end"
            second = await rollout.run(request, partial=first.partial())
    assert (second.stop_reason, second.answer) == (StopReason.STOP, "done")


async def test_interrupt_stops_one_whose_tools_are_being_made() -> None:
    class Interrupting(Gsm8kTool):
        async def create(self, *given: object, **more: object) -> object:
            rollout.interrupt()
            return await super().create(*given, **more)  # type: ignore[arg-type]

    with script(said("done")) as model:
        async with playing(model, Interrupting()) as rollout:
            request = rollout.request(user("6 * 7?"), tools_kwargs=GROUND_TRUTH)
            first = await rollout.run(request)
    assert (first.stop_reason, model.requests) == (StopReason.INTERRUPTED, [])


async def test_turns_before_an_interruption_count() -> None:
    with script(called(CALL)) as model:
        async with playing(model, Gsm8kTool()) as rollout:
            request = rollout.request(user("?"), tools_kwargs=GROUND_TRUTH, max_turns=1)
            first = await rollout.run(request)
            second = await rollout.run(request, partial=first.partial())
    assert second.stop_reason is StopReason.MAX_TURNS
    assert len(model.requests) == 1


async def test_without_a_version_an_aborted_answer_is_masked() -> None:
    with script(said("broken", "abort")) as model:
        async with playing(model) as rollout:
            trajectory = await rollout.run(rollout.request(user("?")))
    assert trajectory.stop_reason is StopReason.FAILURE


async def test_what_is_no_partial_is_refused() -> None:
    with script(said("done")) as model:
        async with playing(model) as rollout:
            with pytest.raises(ValueError, match="partial has no versions, answers"):
                await rollout.run(rollout.request(user("?")), partial={"messages": []})
