"""What a model's call comes back as, through queue, gate, worker and sandbox."""

import asyncio
import pickle
from types import SimpleNamespace
from typing import Any

import pytest

import ground
from ground import EmbeddedServer, SettingError
from limiter import TokenBucket
from penstock.in_process import run_queued
from tests.harness.servers import until
from tests.worker.concurrent.crew import at_work
from tests.worker.scripted_answers import Answer
from tests.worker.tool.conftest import TRACEBACK
from worker.tool import SandboxFusionTool
from worker.tool.call import shortened


async def test_tool_call_basic_case(working) -> None:
    """Two turns of one trajectory, as a host of one instance a trajectory makes them."""
    tool = SandboxFusionTool({})
    instance, response = await tool.create("request-1", ground_truth="149")
    assert (instance, response.is_empty()) == ("request-1", True)
    texts = []
    for code in ("print(1 + 2)", "print(149)"):
        shown, reward, metrics = await tool.execute(instance, {"code": code, "executes": "True"})
        texts.append((shown.text, reward, metrics["error_kind"]))
    assert texts == [("3\n", None, "none"), ("149\n", None, "none")]
    assert await tool.calc_reward(instance) == ["3", "149"]
    await tool.release(instance)
    assert await tool.calc_reward(instance) == []
    assert dict(working.codes) == {"print(1 + 2)": 1, "print(149)": 1}


async def test_a_failing_program_shows_its_traceback(call) -> None:
    text, metrics = await call({"code": "1/0"})
    assert (text, metrics["error_kind"], metrics["traj_masked"]) == (TRACEBACK, "user", 0)


async def test_a_silent_failure_shows_its_exit_code(call) -> None:
    assert (await call({"code": "exit(3)"}))[0] == "\n[exit code 3]"


async def test_a_time_limit_shows_what_was_printed_before_it(call) -> None:
    text, metrics = await call({"code": "while True: pass", "timeout": 5})
    assert text == "begun\n\n[stopped at its time limit of 5 s]"
    assert (metrics["error_kind"], metrics["error_reason"]) == ("limit", "run_timeout")


@pytest.mark.parametrize(
    ("asked", "sent"),
    [(5, 5.0), ("7", 7.0), (1e9, 60.0), (float("inf"), 60.0), (None, 30.0)],
)
async def test_a_model_may_ask_for_time_up_to_a_cap(call, working, asked, sent) -> None:
    await call({"code": "print(1 + 2)", "timeout": asked})
    body = working.bodies[-1]
    assert (body["run_timeout"], body["compile_timeout"]) == (sent, sent)
    assert body["memory_limit_MB"] == 1024


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "`code` is missing"),
        ([1], "must be a JSON object, not list"),
        ("print(1)", "must be a JSON object, not str"),
        ({"code": "1", "language": "cobol"}, "'cobol' is unknown; known are bash"),
        ({"code": "1", "language": ["python"]}, "is unknown"),
        ({"code": "1", "timeout": "soon"}, "`timeout` must be a number"),
        ({"code": "1", "timeout": -1}, "above 0"),
        ({"code": "1", "timeout": True}, "must be a number"),
        ({"code": "1", "timeout": float("nan")}, "must be a number"),
        ({"code": "\ud800"}, "lone surrogate"),
        ({"code": "x" * 2_000_000}, "at most 1,048,576"),
    ],
)
async def test_a_models_mistake_is_told_in_words_and_runs_nothing(arguments, words) -> None:
    response, reward, metrics = await SandboxFusionTool({}).execute("i", arguments)
    assert words in response.text
    assert (reward, metrics["error_kind"], metrics["traj_masked"]) == (None, "user", 0)


async def test_a_language_that_the_model_gives_and_the_sandbox_lacks_buys_no_mask(
    call, working
) -> None:
    wrong = [{"loc": ["body", "language"], "msg": "no lean"}]
    working.default = Answer(status=422, body={"detail": wrong})
    text, metrics = await call({"code": "1", "language": "lean"})
    assert text.startswith("Error: the language 'lean' does not run here: ")
    assert (metrics["error_kind"], metrics["traj_masked"]) == ("user", 0)
    tool = SandboxFusionTool({})
    answer = await asyncio.to_thread(tool.execute_code, "i", "1", language="lean")
    assert str(answer.text).startswith("Error: the language 'lean'")
    _, metrics = await call({"code": "1"}, default_language="lean")
    assert (metrics["error_kind"], metrics["traj_masked"]) == ("infrastructure", 1)


async def test_code_that_is_no_text_is_run_as_its_text(call, working) -> None:
    await call({"code": 3})
    assert working.codes == {"3": 1}


async def test_long_output_keeps_its_ends(call, working) -> None:
    working.programs["long"] = Answer.ok("a" * 5000 + "b" * 5000)
    text, _ = await call({"code": "long"}, max_output=100)
    assert text == "a" * 50 + "\n...(9,900 characters left out)...\n" + "b" * 50


@pytest.mark.parametrize(("limit", "shown"), [(4, "ab{}ef"), (3, "a{}f"), (1, "{}"), (0, "{}")])
def test_a_small_limit_shows_little(limit: int, shown: str) -> None:
    left_out = f"\n...({6 - limit // 2 * 2} characters left out)...\n"
    assert shortened("abcdef", limit) == shown.format(left_out)


async def test_a_sandbox_that_fails_masks_the_trajectory(call) -> None:
    text, metrics = await call({"code": "no sandbox"})
    assert text.startswith("The code could not be run, for no fault of its own: ")
    assert (metrics["error_kind"], metrics["traj_masked"]) == ("infrastructure", 1)
    assert metrics["traj_exit_reason"].startswith("infrastructure: ")


async def test_a_failure_of_ours_is_noted_where_verl_keeps_it(working) -> None:
    tool, agent_data = SandboxFusionTool({}), SimpleNamespace(request_id="r", extra_fields={})
    await tool.execute("i", {"code": "print(1 + 2)"}, agent_data=agent_data)
    await tool.execute("i", {"code": "1/0"}, agent_data=agent_data)
    assert agent_data.extra_fields == {}
    await tool.execute("i", {"code": "no sandbox"}, agent_data=agent_data)
    extras = agent_data.extra_fields["extras"]
    assert extras["traj_masked"] == 1
    assert extras["traj_exit_reason"].startswith("infrastructure: ")
    await tool.execute("i", {"code": "print(1 + 2)"}, agent_data=agent_data)
    assert agent_data.extra_fields["extras"] == extras


async def test_a_masked_call_is_not_among_the_outputs(working) -> None:
    tool = SandboxFusionTool({})
    instance, _ = await tool.create()
    for code in ("print(1 + 2)", "no sandbox", "print(149)"):
        await tool.execute(instance, {"code": code})
    assert await tool.calc_reward(instance) == ["3", "149"]


async def test_releasing_twice_or_what_never_was_is_harmless(working) -> None:
    tool = SandboxFusionTool({})
    instance, _ = await tool.create()
    await tool.release(instance)
    await tool.release(instance)
    await tool.release("never")
    response, _, _ = await tool.execute(instance, {"code": "print(1 + 2)"})
    assert response.text == "3\n"
    assert tool._instance_dict == {}


async def test_a_call_takes_one_permit_and_on_the_workers_side(working, real_redis) -> None:
    tool = SandboxFusionTool({"rate_limit": 10, "num_workers": 4})
    await asyncio.gather(*(tool.execute("i", {"code": f"print({n})"}) for n in range(20)))
    status = TokenBucket(real_redis, "code", limit=10).sync.status
    await asyncio.to_thread(until, lambda: status().in_flight == 0, "all to be given back")
    assert (status().limit, status().granted) == (10, 20)
    assert working.peak <= 10


async def test_the_rate_limit_is_the_gates_where_it_has_none(url, real_redis, fusion) -> None:
    tool = SandboxFusionTool({"rate_limit": 3, "num_workers": 20})
    calls = [asyncio.ensure_future(tool.execute("i", {"code": f"{n}"})) for n in range(12)]
    gate = TokenBucket(real_redis, "code", limit=3)
    await asyncio.to_thread(until, lambda: real_redis.hget("penstock:gate:{code}", "limit"), "it")
    fusion.default = Answer.ok("ok\n", seconds=0.02)
    with at_work(real_redis, gate="code"):  # finds the gate there
        texts = [response.text for response, _, _ in await asyncio.gather(*calls)]
    assert texts == ["ok\n"] * 12
    assert (gate.sync.status().limit, fusion.peak, fusion.finished) == (3, 3, 12)


async def test_without_the_global_limit_programs_go_to_an_ungated_queue(url, fusion, real_redis):
    tool = SandboxFusionTool({"enable_global_rate_limit": False})
    with at_work(real_redis, "code-ungated"):
        response, _, _ = await tool.execute("i", {"code": "print(1 + 2)"})
    assert response.text == "3\n"
    assert real_redis.keys("penstock:gate:*") == []


async def test_calls_belong_to_the_tools_share(url, working, real_redis) -> None:
    tool = SandboxFusionTool({"share": "training"})
    await tool.execute("i", {"code": "print(1 + 2)"})
    (job,) = real_redis.keys("rq:job:*")
    assert real_redis.hget(job, "penstock_share") == b"training"
    with pytest.raises(SettingError, match=r"share.*letters"):
        SandboxFusionTool({"share": "a b"})


async def test_calls_cost_what_their_tool_says(url, working, real_redis) -> None:
    response, _, _ = await SandboxFusionTool({"cost": 3}).execute("i", {"code": "print(1 + 2)"})
    assert response.text == "3\n"
    assert real_redis.hget("penstock:gate:{code}", "weighs") == b"1"


async def test_no_more_than_num_workers_of_a_loop_are_on_their_way(working) -> None:
    working.default = Answer.ok("ok\n", seconds=0.02)
    tool = SandboxFusionTool({"num_workers": 2})
    await asyncio.gather(*(tool.execute("i", {"code": f"{n}"}) for n in range(10)))
    assert working.peak == 2


async def test_a_recipes_subclass_runs_its_code_through_the_execution_pool(working) -> None:
    class Recipe(SandboxFusionTool):
        async def execute(self, instance_id, parameters, **kwargs):
            result = await self.execution_pool.execute.remote(
                self.execute_code, instance_id, parameters["code"], self.default_timeout,
                self.default_language,
            )  # fmt: skip
            return result, None, None

    tool = Recipe({}, None)
    instance, _ = await tool.create(create_kwargs={"ground_truth": "3"})
    assert tool._instance_dict[instance]["ground_truth"] == "3"
    texts = [
        (await tool.execute(instance, {"code": code}))[0].text
        for code in ("print(1 + 2)", "1/0", "no sandbox")
    ]
    assert texts[:2] == ["3\n", TRACEBACK]
    assert texts[2].startswith("The code could not be run")
    assert tool.execute_code(instance, "1", language="cobol").text.startswith("Error: the language")


async def test_a_session_is_the_trajectory_and_refused_by_sandboxes_without(working) -> None:
    tool = SandboxFusionTool({"stateful": True})
    agent_data = SimpleNamespace(request_id="trajectory-1", extra_fields={})
    response, _, metrics = await tool.execute("i", {"code": "print(1 + 2)"}, agent_data=agent_data)
    assert "belongs to a session, and the sandbox 'fusion' keeps none" in response.text
    assert metrics["error_reason"] == "no_sessions"
    assert working.requests == 0


class Remembering:
    """A sandbox with sessions, as far as a worker can see."""

    name, languages, keeps_sessions = "remembering", frozenset({"python"}), True

    def __init__(self, settings: object) -> None: ...

    async def run(self, request: Any) -> Any:
        from worker import CodeResult, CommandResult

        ran = CommandResult(status="Finished", return_code=0, stdout=str(request.instance_id))
        return CodeResult(status="Success", run_result=ran)

    async def close(self) -> None: ...


async def test_a_sandbox_with_sessions_is_told_the_trajectory(url, real_redis) -> None:
    today = SimpleNamespace(request_id="trajectory-1", extra_fields={})
    tool = SandboxFusionTool({"stateful": True})
    with at_work(real_redis, sandbox=f"{__name__}.Remembering", gate="code", gate_limit=10):
        asked = [
            await tool.execute("call-1", {"code": "1"}, agent_data=today),
            await tool.execute("request-2", {"code": "1"}),
        ]
        again = await tool.execute("call-2", {"code": "1"}, agent_data=today)
        namesake = SimpleNamespace(request_id="trajectory-1", extra_fields={})
        other = await tool.execute("call-3", {"code": "1"}, agent_data=namesake)
        first, legacy, second, third = (
            str(response.text) for response, _, _ in (*asked, again, other)
        )
        assert first.startswith("trajectory-1-")
        assert (second, legacy) == (first, "request-2")
        assert third.startswith("trajectory-1-")
        assert third != first
        stateless = await SandboxFusionTool({}).execute("call-3", {"code": "1"}, agent_data=today)
        assert stateless[0].text == "None"
        tries = set()
        for _ in range(2):  # of one trajectory, by a host of one instance a trajectory
            await tool.create("request-3")
            turns = [await tool.execute("request-3", {"code": "1"}) for _ in range(2)]
            await tool.release("request-3")
            (session,) = {response.text for response, _, _ in turns}
            tries.add(session)
        assert len(tries) == 2
        assert all(session.startswith("request-3-") for session in tries)


async def test_a_redis_that_is_down_masks_the_trajectory(monkeypatch) -> None:
    tool = SandboxFusionTool({"redis_url": "redis://127.0.0.1:1/0", "max_wait": 0.3})
    response, reward, metrics = await tool.execute("i", {"code": "1"})
    assert response.text.startswith("The code could not be run, for no fault of its own")
    assert (reward, metrics["error_kind"]) == (None, "infrastructure")


async def test_a_call_is_given_up_in_its_time_while_it_waits_for_its_turn() -> None:
    asked = asyncio.Event()

    class Endless:
        async def run(self, request: Any, **_: Any) -> Any:
            asked.set()
            await asyncio.Event().wait()

    tool = SandboxFusionTool({"num_workers": 1, "max_wait": 0.1})
    tool._workers._queue = Endless()
    first = asyncio.ensure_future(tool.execute("i", {"code": "1"}))
    await asked.wait()
    response, reward, metrics = await tool.execute("i", {"code": "2"})
    assert (reward, metrics["error_reason"], metrics["traj_masked"]) == (
        None,
        "DeadlineExceeded",
        1,
    )
    assert "earlier calls of this process took all of num_workers" in response.text
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert not tool._workers._turns[asyncio.get_running_loop()].locked()


async def test_an_outage_of_redis_masks_the_calls_it_meets(private_redis, fusion) -> None:
    server = private_redis(aof=True)
    tool = SandboxFusionTool({"redis_url": server.url})
    impatient = SandboxFusionTool({"redis_url": server.url, "max_wait": 0.5})
    client = ground.connect(server.url)
    with at_work(client, gate="code", gate_limit=10, job_lease=30.0):
        assert (await tool.execute("i", {"code": "print(1 + 2)"}))[0].text == "3\n"
        await impatient.execute("i", {"code": "print(1 + 2)"})
        server.kill()
        _, reward, metrics = await impatient.execute("i", {"code": "print(149)"})
        assert (reward, metrics["traj_masked"]) == (None, 1)
        assert metrics["traj_exit_reason"] == "infrastructure: DeadlineExceeded"
        server.restart()
        assert (await tool.execute("i", {"code": "print(149)"}))[0].text == "149\n"
        _end_engines()
    client.close()


async def test_a_client_may_be_given_a_fake_one_too(redis, fusion) -> None:
    tool = SandboxFusionTool({}, redis=redis)
    call = asyncio.ensure_future(tool.execute("i", {"code": "print(1 + 2)"}))
    await asyncio.to_thread(until, lambda: redis.llen("rq:queue:code") == 1, "the job")
    await asyncio.to_thread(run_queued, redis)
    response, _, _ = await call
    assert response.text == "3\n"
    assert redis.hget("penstock:gate:{code}", "limit") == b"10"


async def test_without_redis_it_says_what_to_set(monkeypatch, tmp_path, caplog) -> None:
    monkeypatch.delenv("PENSTOCK_REDIS_URL", raising=False)
    monkeypatch.setenv("PENSTOCK_DATA_DIR", str(tmp_path / "none"))
    response, _, metrics = await SandboxFusionTool({}).execute("i", {"code": "1"})
    assert "PENSTOCK_REDIS_URL: is not set" in response.text
    assert "`redis_url` in the tool's config" in caplog.text
    assert metrics["traj_exit_reason"] == "infrastructure: SettingError"


async def test_the_private_server_of_a_command_is_found(monkeypatch, tmp_path, fusion) -> None:
    monkeypatch.delenv("PENSTOCK_REDIS_URL", raising=False)
    monkeypatch.setenv("PENSTOCK_DATA_DIR", str(tmp_path))
    with EmbeddedServer(tmp_path) as server:
        client = ground.connect(server.url)
        with at_work(client, gate="code", gate_limit=1):
            response, _, _ = await SandboxFusionTool({}).execute("i", {"code": "print(1 + 2)"})
        client.close()
        _end_engines()
    assert response.text == "3\n"


def _end_engines() -> None:
    from limiter import engine as engines
    from worker.queue import engine

    engine.stop_all()
    engines.stop_all()


async def test_a_cancelled_call_takes_its_program_off_the_queue(url, real_redis) -> None:
    tool = SandboxFusionTool({})
    call = asyncio.ensure_future(tool.execute("i", {"code": "1"}))
    await asyncio.to_thread(until, lambda: real_redis.llen("rq:queue:code") == 1, "the job")
    call.cancel()
    await asyncio.to_thread(until, lambda: real_redis.llen("rq:queue:code") == 0, "it to be gone")
    assert call.cancelled() or call.cancelling()


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("rate_limit", 0, "greater than or equal to 1"),
        ("num_workers", "many", "valid integer"),
        ("default_timeout", 0, "greater than 0"),
        ("default_language", "cobol", "known are bash"),
        ("queue", "no blanks here", "is named with"),
        ("memory_limit_mb", 0, "greater than or equal to 1"),
        ("redis_url", "10.0.0.5:6379", "must begin with one of redis://"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_at_once_by_its_name(key, value, words) -> None:
    with pytest.raises(SettingError, match=words) as refusal:
        SandboxFusionTool({key: value})
    assert refusal.value.setting == key


def test_an_unknown_setting_is_named_in_the_log(caplog) -> None:
    SandboxFusionTool({"ratelimit": 3, "type": "native"})
    assert "the tool ignores unknown settings: ratelimit (is it rate_limit?)" in caplog.text


def test_a_tool_can_be_sent_to_another_process(working) -> None:
    tool = SandboxFusionTool({"default_timeout": 7})
    tool.execute_code("i", "print(1 + 2)")
    assert pickle.loads(pickle.dumps(tool)).default_timeout == 7


async def test_a_tool_that_was_given_a_client_can_be_sent_too(working, real_redis) -> None:
    tool = pickle.loads(pickle.dumps(SandboxFusionTool({}, redis=real_redis)))
    response, _, _ = await tool.execute("i", {"code": "print(1 + 2)"})
    assert response.text == "3\n"
