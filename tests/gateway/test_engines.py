"""Engines by their own endpoints, on the wires of vLLM and SGLang: the scripted engine is both."""

import asyncio
import math
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.calls import UNKNOWN_VERSION
from gateway.engines.engine import Engine
from gateway.engines.models import Chat, Part
from gateway.engines.pool import Pool
from gateway.engines.sglang import Sglang
from gateway.engines.vllm import PlainVllm, Vllm
from gateway.errors import EngineFailed, EngineRefused, EngineUnfit
from gateway.packing import spread
from gateway.settings import GatewaySettings
from ground import SettingError
from tests.gateway.scripted.engine import Fault, Refused, ScriptedEngine, Served
from tests.gateway.scripted.model import BOS, END, START, Template, decode, encode, misproved
from tests.gateway.scripted.sglang import ScriptedSglang
from tests.gateway.scripted.vllm import ScriptedVllm

Face = Callable[..., ScriptedEngine]
TOOLS = [{"type": "function", "function": {"name": "sh", "parameters": {"type": "object"}}}]
ASK = {"role": "user", "content": "list the files"}


def incremental(**more: Any) -> ScriptedSglang:
    return ScriptedSglang(incremental=True, **more)


def plain(**more: Any) -> ScriptedVllm:
    return ScriptedVllm(plain=True, **more)


KINDS: dict[Face, type[Engine]] = {
    ScriptedVllm: Vllm, ScriptedSglang: Sglang, incremental: Sglang, plain: PlainVllm,
}  # fmt: skip
every_face = pytest.mark.parametrize("face", [ScriptedVllm, ScriptedSglang, incremental, plain])
streaming = pytest.mark.parametrize("face", [ScriptedVllm, incremental, plain])


@asynccontextmanager
async def probed(face: Face, **more: Any) -> AsyncIterator[tuple[Engine, ScriptedEngine]]:
    """An engine of ours, before a scripted one that was probed."""
    scripted = face(**more)
    with Served(scripted) as server:
        engine = KINDS[face](server.url)
        try:
            await engine.probe()
            yield engine, scripted
        finally:
            await engine.aclose()


async def sampled(engine: Engine, **params: Any) -> tuple[list[int], Part]:
    """One generation behind a question."""
    chat = Chat([ASK])
    prompt = (await engine.render(chat)).ids
    return prompt, await generated(engine, prompt, chat, **params)


async def generated(engine: Engine, prompt: list[int], chat: Chat, **params: Any) -> Part:
    part = await engine.generate(prompt, chat, {"max_tokens": 500, **params}, "r1")
    await part.settled()
    return part


def prove(prompt: list[int], part: Part) -> None:
    """Each token's log-probability is of its own context and version."""
    row = [*prompt, *part.ids]
    zeros = [0] * len(prompt)
    mask = [*zeros, *(0 if math.isnan(lp) else 1 for lp in part.lps)]
    versions = [*zeros, *spread(part.spans)]
    assert misproved(row, mask, [0.0, *zeros[1:], *part.lps], versions) == []


# What an engine can do


@every_face
async def test_what_is_sampled_proves_itself(face: Face) -> None:
    async with probed(face, version=7) as (engine, scripted):
        prompt, part = await sampled(engine)
        assert part.ids == scripted.log[-1].sampled
        assert (part.finish, part.ids[-1]) == ("stop", END)
        assert part.spans == [[len(part.ids), 7]]
        prove(prompt, part)


@every_face
async def test_what_is_sampled_is_parsed_by_the_engine(face: Face) -> None:
    async with probed(face) as (engine, _):
        chat = Chat([ASK], TOOLS if engine.parses_tools else ())
        called = thought = False
        for _ in range(20):
            prompt = (await engine.render(chat)).ids
            part = await generated(engine, prompt, chat)
            answer = await engine.parse(part, prompt, chat)
            called |= bool(answer.calls)
            thought |= bool(answer.reasoning)
            assert "<|im_end|>" not in answer.content
            if engine.parses_tools:
                assert "<" not in answer.content
        assert called == thought == engine.parses_tools


@pytest.mark.parametrize("face", [ScriptedVllm, ScriptedSglang, incremental])
async def test_thinking_that_the_prompt_opened_is_parsed_as_thinking(face: Face) -> None:
    async with probed(face, template=Template(opens_think=True)) as (engine, _):
        chat = Chat([ASK])
        prompt = (await engine.render(chat)).ids
        part = Part(ids=encode("hm\n</think>\n\nyes<|im_end|>"), finish="stop", stop=END)
        answer = await engine.parse(part, prompt, chat)
        assert (answer.reasoning.strip(), answer.content) == ("hm", "yes")


@every_face
async def test_a_tail_rendered_alone_is_the_end_of_the_whole(face: Face) -> None:
    async with probed(face, template=Template(strips=False)) as (engine, _):
        assert engine.tail.renders == ["user", "tool", "system"]
        called = {
            "role": "assistant",
            "content": "x",
            "tool_calls": [
                {"id": "q", "type": "function", "function": {"name": "sh", "arguments": "{}"}}
            ],
        }
        result = {"role": "tool", "tool_call_id": "q", "content": "a <|im_end|> b"}
        for tail in ([result], [result, result], [ASK], [{"role": "system", "content": "s"}, ASK]):
            before = [ASK, called]
            whole = (await engine.render(Chat([*before, *tail], TOOLS))).ids
            start = (await engine.render(Chat(before, TOOLS), ends=True)).ids
            alone = await engine.tail.render(Chat([*before, *tail], TOOLS), len(before))
            assert start + (alone or []) == whole


@every_face
async def test_a_template_that_looks_back_is_rendered_whole(face: Face) -> None:
    async with probed(face, template=Template(counts_turns=True)) as (engine, _):
        assert engine.tail.renders == []
        assert await engine.tail.render(Chat([ASK, {"role": "assistant"}, ASK]), 2) is None
    async with probed(face, template=Template(names_results=True)) as (engine, _):
        assert engine.tail.renders == ["user", "system"]
    async with probed(face, template=Template(moves_tools=True)) as (engine, _):
        assert engine.tail.renders == ["tool", "system"]


@every_face
async def test_results_are_rendered_whole_if_calls_end_otherwise_than_texts(face: Face) -> None:
    async with probed(face, template=Template(strips=False, ends_calls="<s>")) as (engine, _):
        assert engine.tail.renders == ["user", "system"]
        called = {
            "role": "assistant",
            "content": "x",
            "tool_calls": [
                {"id": "q", "type": "function", "function": {"name": "sh", "arguments": "{}"}}
            ],
        }
        assert await engine.tail.render(Chat([ASK, called, ASK], TOOLS), 2) is None
        assert await engine.tail.render(Chat([ASK, {"role": "assistant"}, ASK], TOOLS), 2)


@every_face
async def test_an_answer_that_was_cut_is_closed(face: Face) -> None:
    async with probed(face) as (engine, _):
        newline = encode("\n")
        assert engine.tail.closing([5, END]) == newline
        assert engine.tail.closing([5, 6]) == [END, *newline]
        assert engine.tail.closing([END, *newline]) == []


@every_face
async def test_an_answer_that_a_client_began_is_gone_on_with(face: Face) -> None:
    async with probed(face) as (engine, _):
        chat = Chat([ASK, {"role": "assistant", "content": "I say: "}], continues=True)
        prompt = (await engine.render(chat)).ids
        assert decode(prompt).endswith("<|im_start|>assistant\nI say: ")
        assert decode(await engine.tail.render(chat, 1) or []) == ""


# What it cannot do, said at the start


async def test_a_vllm_without_its_endpoints_is_refused_with_what_to_do() -> None:
    with Served(plain()) as server:
        engine = Vllm(server.url)
        with pytest.raises(EngineUnfit, match="start it with --enable-scale-out"):
            await engine.probe()
        await engine.aclose()


async def test_a_vllm_without_its_endpoints_is_bound_to_a_schema_too() -> None:
    shape = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}}
    async with probed(plain) as (engine, scripted):
        chat = Chat([ASK], constraints={"response_format": shape})
        await generated(engine, (await engine.render(chat)).ids, chat)
        assert scripted.log[-1].body["response_format"] == shape


@every_face
async def test_a_beginning_that_comes_twice_is_refused(face: Face) -> None:
    """Edge 25: the template writes the beginning, and the tokenizer adds one."""
    with pytest.raises(EngineUnfit, match=f"the token {BOS} twice"):
        async with probed(face, template=Template(bos=True), double_bos=True):
            pass


@every_face
async def test_each_probe_has_an_id_of_its_own(face: Face) -> None:
    """SGLang refuses an id that it is serving, and gateways may start together."""
    async with probed(face) as (engine, scripted):
        await engine.probe()
        bodies = [each.body for each in scripted.log]
        assert len({body.get("request_id") or body["rid"] for body in bodies}) == len(bodies)


@every_face
async def test_an_engine_without_ids_or_log_probabilities_is_refused(face: Face) -> None:
    scripted = face()
    scripted.faults.append(Fault("no ids"))
    with Served(scripted) as server:
        engine = KINDS[face](server.url)
        with pytest.raises(EngineUnfit, match="token"):
            await engine.probe()
        await engine.aclose()


@every_face
async def test_an_engine_that_asks_for_a_key_is_refused_and_not_waited_for(
    real_redis: Any, face: Face
) -> None:
    async def closed(*_: Any) -> Any:
        raise Refused(401, "Unauthorized")

    scripted = face()
    scripted.routes = dict.fromkeys(scripted.routes, closed)
    with Served(scripted) as server:
        named = f"{KINDS[face].kind}={server.url}"
        with pytest.raises(EngineUnfit, match="without --api-key"):
            await Pool.started(real_redis, GatewaySettings(gateway_engines=named))


async def test_engines_with_different_templates_are_no_pool(real_redis: Any) -> None:
    with Served(ScriptedVllm()) as one, Served(ScriptedVllm(template=Template(bos=True))) as other:
        named = f"vllm={one.url},vllm={other.url}"
        with pytest.raises(EngineUnfit, match="renders a conversation otherwise"):
            await Pool.started(real_redis, GatewaySettings(gateway_engines=named))


@pytest.mark.parametrize("named", ["", "tgi=http://10.0.0.1", "vllm=10.0.0.1:8000"])
async def test_engines_that_are_named_wrongly_are_refused(real_redis: Any, named: str) -> None:
    with pytest.raises(SettingError, match="PENSTOCK_GATEWAY_ENGINES"):
        await Pool.started(real_redis, GatewaySettings(gateway_engines=named))


async def test_a_pool_waits_for_an_engine_that_is_not_there_yet(real_redis: Any) -> None:
    late = Served(ScriptedVllm())
    settings = GatewaySettings(gateway_engines=f"vllm={late.url}")
    starting = asyncio.create_task(Pool.started(real_redis, settings))
    await asyncio.sleep(0)
    with late:
        pool = await starting
        assert pool.pick("any").model == "m"
        await pool.aclose()


# What goes wrong on the way


@every_face
async def test_an_abort_gives_what_came_and_goes_on_by_ids(face: Face) -> None:
    """Edge 13: an update of the weights from version 7 to 8 in the middle of an answer."""
    async with probed(face, version=7) as (engine, scripted):
        scripted.faults += [Fault("abort", after=5), Fault("bump", value=8)]
        prompt, first = await sampled(engine)
        assert (first.finish, len(first.ids), first.failure) == ("abort", 5, None)
        scripted.faults.popleft()
        scripted.version = 8
        await engine.version(now=True)
        second = await engine.generate(
            [*prompt, *first.ids], Chat([ASK]), {"max_tokens": 500}, "r2"
        )
        await second.settled()
        assert second.spans == [[len(second.ids), 8]]
        prove([*prompt, *first.ids], second)
        assert decode(first.ids + second.ids).count("<|im_end|>") == 1


@every_face
async def test_an_abort_before_the_first_token_brings_none(face: Face) -> None:
    """Edge 14."""
    async with probed(face) as (engine, scripted):
        scripted.faults.append(Fault("abort"))
        _, part = await sampled(engine)
        assert (part.finish, part.ids, part.lps, part.spans) == ("abort", [], [], [])


@pytest.mark.parametrize("face", [ScriptedSglang, incremental])
async def test_a_token_that_an_abort_repeats_is_cut_by_its_count(face: Face) -> None:
    """Edge 15."""
    async with probed(face) as (engine, scripted):
        scripted.faults.append(Fault("duplicate", after=6))
        prompt, part = await sampled(engine)
        assert part.ids == scripted.log[-1].sampled
        assert len(part.ids) == len(part.lps) == 6
        prove(prompt, part)


@streaming
async def test_what_came_before_an_engines_death_is_kept(face: Face) -> None:
    """Edge 17."""
    async with probed(face) as (engine, scripted):
        scripted.faults.append(Fault("death", after=9))
        prompt, part = await sampled(engine)
        assert isinstance(part.failure, EngineFailed)
        assert part.ids == scripted.log[-1].sampled[: len(part.ids)]
        assert len(part.ids) >= 8
        prove(prompt, part)


@every_face
async def test_a_connection_that_an_engine_closes_as_it_is_used_costs_no_answer(face: Face) -> None:
    async with probed(face) as (engine, _):
        before = await engine.render(Chat([ASK]))
        (idle,) = engine._wires._idle.values()
        for wire, _ in idle:
            wire.writer.transport.abort()  # as an engine closes it
            wire.reader.at_eof = bool  # type: ignore[method-assign] # and it is not yet noticed
        assert await engine.render(Chat([ASK])) == before


async def test_a_whole_answer_that_dies_brings_nothing() -> None:
    async with probed(ScriptedSglang) as (engine, scripted):
        scripted.faults.append(Fault("death", after=9))
        _, part = await sampled(engine)
        assert part.failure is not None
        assert part.ids == []


@every_face
async def test_weights_that_move_in_an_answer_are_said_or_unknown(face: Face) -> None:
    """Edge 18: SGLang says where; vLLM only that they moved, and between which versions."""
    async with probed(face, version=3) as (engine, scripted):
        scripted.faults.append(Fault("bump", after=6, value=2))
        prompt, part = await sampled(engine)
        if isinstance(engine, Sglang):
            assert part.spans == [[6, 3], [len(part.ids) - 6, 2]]
            prove(prompt, part)
        else:
            assert part.spans == [[len(part.ids), UNKNOWN_VERSION]]
            assert part.bracket == (3, 2)


async def test_an_sglang_that_says_one_version_is_believed() -> None:
    async with probed(ScriptedSglang, spans=False, version=5) as (engine, _):
        prompt, part = await sampled(engine)
        assert part.spans == [[len(part.ids), 5]]
        prove(prompt, part)


@pytest.mark.parametrize("kind", ["null logprob", "nan logprob", "floor logprob"])
@every_face
async def test_a_log_probability_that_is_none_is_not_made_up(face: Face, kind: Any) -> None:
    """Edge 35, on the wire."""
    async with probed(face) as (engine, scripted):
        scripted.faults.append(Fault(kind, after=2))
        prompt, part = await sampled(engine)
        assert [place for place, lp in enumerate(part.lps) if math.isnan(lp)] == [2]
        prove(prompt, part)


@every_face
async def test_fewer_log_probabilities_than_ids_stay_fewer(face: Face) -> None:
    """Edge 36, on the wire."""
    async with probed(face) as (engine, scripted):
        scripted.faults.append(Fault("short logprobs"))
        _, part = await sampled(engine)
        assert len(part.lps) == len(part.ids) - 1


@pytest.mark.parametrize("face", [ScriptedVllm, plain])
async def test_a_vllm_that_gives_no_reason_for_an_end_has_aborted(face: Face) -> None:
    """Its chunk that says so has no tokens, and is not sent."""
    async with probed(face) as (engine, scripted):
        for fault in (Fault("lost finish"), Fault("abort", after=4), Fault("abort")):
            scripted.faults.append(fault)
            prompt, part = await sampled(engine)
            assert (part.failure, part.finish) == (None, "abort")
            assert part.ids == scripted.log[-1].sampled
            prove(prompt, part)


async def test_an_answer_without_a_reason_for_its_end_is_not_whole() -> None:
    """Edge 38."""
    async with probed(incremental) as (engine, scripted):
        scripted.faults.append(Fault("lost finish"))
        prompt, part = await sampled(engine)
        assert part.failure is not None
        assert "without a reason" in str(part.failure)
        assert part.finish == ""
        prove(prompt, part)


@pytest.mark.parametrize("face", [ScriptedVllm, incremental])
async def test_what_comes_behind_the_end_of_a_stream_does_not_count(face: Face) -> None:
    """Edge 38."""
    async with probed(face) as (engine, scripted):
        scripted.faults.append(Fault("chunk after end"))
        prompt, part = await sampled(engine)
        assert part.ids == scripted.log[-1].sampled
        prove(prompt, part)


@pytest.mark.parametrize("face", [ScriptedVllm, incremental])
async def test_an_error_in_a_stream_keeps_what_came_before_it(face: Face) -> None:
    async with probed(face) as (engine, scripted):
        scripted.faults.append(Fault("error chunk", after=5))
        prompt, part = await sampled(engine)
        assert "the engine failed" in str(part.failure)
        assert part.ids == scripted.log[-1].sampled[: len(part.ids)]
        prove(prompt, part)


@every_face
async def test_an_overloaded_engine_says_so(face: Face) -> None:
    async with probed(face) as (engine, scripted):
        scripted.faults.append(Fault("error", value=503))
        _, part = await sampled(engine)
        assert part.failure is not None
        assert part.failure.overloaded


async def test_a_router_that_answers_for_an_engine_that_is_away_is_its_failure() -> None:
    async with probed(ScriptedVllm) as (engine, scripted):
        scripted.routes = {}  # each path is 404
        pool = Pool([engine], "redis://127.0.0.1:1", GatewaySettings())
        with pytest.raises(EngineFailed) as failed:
            await engine.render(Chat([ASK]))
        pool.rest(engine, failed.value)
        await pool.try_again()
        assert list(pool.failing) == [engine.url]


@every_face
async def test_a_prompt_beyond_the_models_length_is_refused_by_the_engine(face: Face) -> None:
    """Edge 44, on the wire."""
    async with probed(face, max_model_len=200) as (engine, _):
        with pytest.raises(EngineRefused, match=r"context length"):
            chat = Chat([{"role": "user", "content": "x" * 500}])
            prompt = [START] * 500
            part = await generated(engine, prompt, chat, max_tokens=5)
            raise part.failure or AssertionError("it answered")


@every_face
async def test_a_stop_string_stays_in_the_ids(face: Face) -> None:
    """Edges 20 and 21: its characters are split over tokens."""
    async with probed(face) as (engine, scripted):
        prompt, part = await sampled(engine, stop=["e"])
        assert part.finish == "stop"
        assert part.ids == scripted.log[-1].sampled
        assert "e" in decode(part.ids[-1:])
        prove(prompt, part)


async def test_readings_of_a_version_are_shared_and_begin_after_they_are_asked_for() -> None:
    async with probed(ScriptedVllm, version=1) as (engine, scripted):
        before = scripted.calls.count("/weight_info")
        assert set(await asyncio.gather(*(engine.version(now=True) for _ in range(50)))) == {1}
        assert scripted.calls.count("/weight_info") - before <= 2
        scripted.version = 2
        assert await engine.version(now=True) == 2
        assert await engine.version() == 2


async def test_a_client_that_goes_ends_its_generation() -> None:
    async with probed(ScriptedVllm) as (engine, scripted):
        held = threading.Event()
        scripted.faults.append(Fault("wait", after=1, value=held))
        asking = asyncio.create_task(sampled(engine))
        await asyncio.to_thread(scripted.waits.wait, 100)
        asking.cancel()
        await asyncio.wait([asking])
        await asyncio.to_thread(scripted.left.wait, 100)
        held.set()
        assert scripted.disconnects == 1
