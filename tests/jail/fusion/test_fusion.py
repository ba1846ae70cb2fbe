"""The client of Sandbox Fusion, against real HTTP that fails in every known way."""

import asyncio
import json
import logging
import math
import os
import random
import resource
import threading
import time
from email.utils import formatdate

import pytest

from ground.backoff import retry_after_seconds
from penstock.commands.sandbox import serve
from tests.worker.scripted_answers import Answer
from tests.worker.scripted_fusion import ScriptedFusion
from worker import (
    CodeRequest,
    SandboxBroken,
    SandboxBusy,
    SandboxFailure,
    SandboxFusion,
    SandboxTimeout,
    SandboxUnfit,
    SandboxUnreachable,
)
from worker.run.choice import make_sandbox
from worker.settings import WorkerSettings

PROGRAM = CodeRequest(code="print(1)")


@pytest.fixture
def fusion():
    with ScriptedFusion() as server:
        yield server


@pytest.fixture
async def sandbox(fusion):
    sandbox = SandboxFusion(fusion.url)
    yield sandbox
    await sandbox.close()


async def failure_of(sandbox, request=PROGRAM):
    with pytest.raises(SandboxFailure) as failure:
        await sandbox.run(request)
    return failure.value


async def test_a_request_is_put_as_sandbox_fusion_wants_it(fusion, sandbox):
    await sandbox.run(
        CodeRequest(
            code="print('ü')", language="cpp", stdin="5\n", compile_timeout=7, run_timeout=3.5,
            memory_limit_mb=256, files={"d/f": "aGk="}, fetch_files=["out"],
            labels={"not": "sent"}, correlation_id="job-7",
        )
    )  # fmt: skip
    assert fusion.bodies[0] == {
        "code": "print('ü')", "language": "cpp", "stdin": "5\n", "compile_timeout": 7.0,
        "run_timeout": 3.5, "memory_limit_MB": 256, "files": {"d/f": "aGk="},
        "fetch_files": ["out"],
    }  # fmt: skip
    assert fusion.executions == {"job-7": 1}


async def test_no_memory_limit_is_upstreams_minus_one(fusion, sandbox):
    await sandbox.run(PROGRAM)
    assert (fusion.bodies[0]["memory_limit_MB"], fusion.bodies[0]["stdin"]) == (-1, None)


async def test_a_program_that_ends_well(fusion, sandbox):
    fusion.script.append(Answer.ok("1\n", seconds=0.02))
    result = await sandbox.run(PROGRAM.model_copy(update={"correlation_id": "c-1"}))
    assert (result.status, result.stdout, result.error_kind) == ("Success", "1\n", "none")
    assert (result.correlation_id, result.isolation, result.attempts) == ("c-1", "unknown", 1)
    assert 0.02 <= result.running_seconds < 60


@pytest.mark.parametrize(
    ("answer", "kind", "reason"),
    [
        (Answer.exit(1, "Traceback"), "user", "exit"),
        (Answer.exit(-11), "user", "signal"),
        (Answer.late("so far"), "limit", "run_timeout"),
    ],
)
async def test_a_program_that_ends_badly_is_a_result_too(fusion, sandbox, answer, kind, reason):
    fusion.script.append(answer)
    result = await sandbox.run(PROGRAM)
    assert (result.status, result.error_kind, result.error_reason) == ("Failed", kind, reason)


async def test_what_was_printed_before_the_time_limit_is_kept(fusion, sandbox):
    fusion.script.append(Answer.late("partial"))
    result = await sandbox.run(PROGRAM)
    assert (result.stdout, result.run_result.return_code) == ("partial", None)


async def test_what_a_server_says_beyond_upstream_is_kept(fusion, sandbox):
    more = {"isolation": "ns", "memory_peak_mb": 9, "error_kind": "limit", "error_reason": "memory"}
    fusion.script.append(Answer(body=Answer.exit(-9).body | more))
    result = await sandbox.run(PROGRAM)
    assert (result.isolation, result.error_kind, result.error_reason) == ("ns", "limit", "memory")
    assert result.dump()["memory_peak_mb"] == 9


async def test_a_sandbox_error_is_no_result_and_its_report_is_kept(fusion, sandbox):
    fusion.script.append(Answer.sandbox_error("exception on running code print(1)"))
    failure = await failure_of(sandbox)
    assert (type(failure), failure.reason) == (SandboxBroken, "sandbox_error")
    assert failure.retryable
    assert failure.result.message == "exception on running code print(1)"
    assert "print(1)" not in str(failure)


async def test_a_sandbox_error_is_one_whatever_the_server_claims(fusion, sandbox):
    claims = Answer.ok().body | {"status": "SandboxError", "error_kind": "none"}
    fusion.script.append(Answer(body=claims))
    assert (await failure_of(sandbox)).reason == "sandbox_error"


async def test_a_contradictory_answer_is_no_result(fusion, sandbox):
    fusion.script.append(Answer(body=Answer.exit(1).body | {"status": "Success"}))
    assert (await failure_of(sandbox)).reason == "contradiction"


STATUSES = [
    (400, SandboxUnfit, False),
    (401, SandboxUnfit, False),
    (403, SandboxUnfit, False),
    (404, SandboxUnfit, False),
    (405, SandboxUnfit, False),
    (408, SandboxBusy, False),
    (413, SandboxUnfit, False),
    (422, SandboxUnfit, False),
    (429, SandboxBusy, False),
    (500, SandboxBroken, False),
    (501, SandboxBroken, False),
    (502, SandboxUnreachable, True),
    (503, SandboxBusy, False),
    (504, SandboxBusy, True),
    (204, SandboxUnfit, False),
    (302, SandboxUnfit, False),
]


@pytest.mark.parametrize(("status", "kind", "may_be_running"), STATUSES)
async def test_each_http_status_has_its_error(fusion, sandbox, status, kind, may_be_running):
    fusion.script.append(Answer.refusal(status))
    failure = await failure_of(sandbox)
    assert (type(failure), failure.reason) == (kind, f"http_{status}")
    assert (failure.may_be_running, failure.retry_after) == (may_be_running, None)
    assert failure.retryable == (kind is not SandboxUnfit)
    assert fusion.requests == 1, "one attempt a call: waiting is the worker's, without the permit"


FASTAPIS = {"type": "missing", "loc": ["body", "x"], "input": {"code": "print(1)"}}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"detail": [{**FASTAPIS, "msg": "one\n thing"}, {**FASTAPIS, "msg": "another"}]},
         ": one thing; another"),
        ({"detail": "no room"}, ": no room"),
        ({"success": False, "message": "a token is needed"}, ": a token is needed"),
        ({"detail": "x" * 10_000}, f": {'x' * 300}"),
        ({"detail": {"code": "print(1)"}}, ""),
        ({"detail": [1, {"input": "print(1)"}]}, ""),
        ([], ""),
        ({}, ""),
    ],
)  # fmt: skip
async def test_a_refusal_says_why_and_does_not_quote_the_program(fusion, sandbox, body, said):
    fusion.script.append(Answer(status=422, body=body))
    failure = await failure_of(sandbox)
    assert str(failure).endswith(f"answered HTTP 422{said}")


@pytest.mark.parametrize(
    ("detail", "reason"),
    [
        ([{"loc": ["body", "language"], "msg": "no cobol"}], "language"),
        ([{"loc": ["body", name], "msg": "no"} for name in ("language", "code")], "http_422"),
        ([{"loc": ["body", "files"], "msg": "no"}], "http_422"),
        ([{"loc": "language"}], "http_422"),
        ([], "http_422"),
        ("no such language", "http_422"),
    ],
)
async def test_a_refusal_of_the_language_alone_has_its_own_reason(fusion, sandbox, detail, reason):
    fusion.script.append(Answer(status=422, body={"detail": detail}))
    assert (await failure_of(sandbox)).reason == reason


@pytest.mark.parametrize("status", [429, 503, 504])
async def test_retry_after_is_handed_on(fusion, sandbox, status):
    fusion.script.append(Answer.refusal(status, retry_after=3))
    assert (await failure_of(sandbox)).retry_after == 3


def test_retry_after_may_be_a_date():
    assert 0 < retry_after_seconds(formatdate(time.time() + 60, usegmt=True)) <= 60
    assert retry_after_seconds(formatdate(time.time() - 60, usegmt=True)) == 0


@pytest.mark.parametrize("nonsense", ["", "soon", "nan", "inf", "Mon, 99 Foo 2026", "1e400", "é"])
def test_a_retry_after_that_says_nothing_is_ignored(nonsense):
    assert retry_after_seconds(nonsense) is None


async def test_nobody_listens(fusion, sandbox):
    fusion.stop_listening()
    failure = await failure_of(sandbox)
    assert (type(failure), failure.reason) == (SandboxUnreachable, "connect")
    assert failure.may_be_running is False


async def test_no_proxy_is_asked_for_a_sandbox_on_this_machine(fusion, sandbox, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # nobody listens there
    await sandbox.run(PROGRAM)
    fusion.stop_listening()
    failure = await failure_of(sandbox)
    assert failure.may_be_running is False, "its refusal is its own"


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:9", "http://proxy:x", "http://[::1"])
async def test_a_proxy_that_cannot_be_used_is_named_by_its_variable(monkeypatch, proxy):
    monkeypatch.setenv("ALL_PROXY", proxy)
    async with asyncio.timeout(100):
        failure = await failure_of(SandboxFusion("http://192.0.2.1:9"))
    assert (type(failure), failure.reason) == (SandboxUnfit, "proxy")
    assert "ALL_PROXY" in str(failure)


async def test_a_process_without_descriptors_does_not_blame_the_sandbox(fusion, sandbox):
    fusion.default = Answer.ok(seconds=math.inf)
    held = asyncio.create_task(sandbox.run(CodeRequest(code="print(1)")))
    while not fusion.in_flight:  # noqa: ASYNC110 - it is on a thread of its own
        await asyncio.sleep(0.01)
    before, last = resource.getrlimit(resource.RLIMIT_NOFILE), os.dup(0)
    os.close(last)  # the next descriptor has this number
    resource.setrlimit(resource.RLIMIT_NOFILE, (last, before[1]))
    try:
        with pytest.raises(SandboxUnreachable, match="Too many open files"):
            await sandbox.run(CodeRequest(code="print(1)"))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        fusion.finish_held()
    await held


async def test_no_such_host():
    sandbox = SandboxFusion("http://nobody.invalid:1")
    failure = await failure_of(sandbox)
    assert (type(failure), failure.reason) == (SandboxUnreachable, "connect")
    await sandbox.close()


@pytest.mark.parametrize("answer", [Answer.cut(), Answer.half()])
async def test_a_connection_that_is_cut(fusion, sandbox, answer):
    fusion.script.append(answer)
    failure = await failure_of(sandbox)
    assert (type(failure), failure.reason) == (SandboxUnreachable, "cut")
    assert failure.may_be_running is True


@pytest.mark.parametrize(
    "text",
    ["", "<html>", "null", "[]", '"Success"', "{}", '{"status": "Fine"}', "[" * 200_000, "\xff",
     '{"status": "Success", "run_result": {"status": "Paused"}}', '{"v": 99, "status": "Success"}'],
)  # fmt: skip
async def test_an_answer_that_is_no_outcome(fusion, sandbox, text):
    fusion.script.append(Answer(text=text))
    failure = await failure_of(sandbox)
    assert (type(failure), failure.reason) == (SandboxBroken, "unreadable")
    assert len(str(failure)) < 400


async def test_bytes_that_are_not_utf8(fusion, sandbox):
    result = Answer.ok("a\udcffb").body
    fusion.script.append(Answer(body=result))
    assert (await sandbox.run(PROGRAM)).stdout == "a?b"


def impatient(fusion, **more):
    return SandboxFusion(fusion.url, margin=0.1, **more)


SHORT = CodeRequest(code="print(1)", compile_timeout=0.1, run_timeout=0.1)


@pytest.mark.parametrize(
    "answer", [Answer.ok(seconds=math.inf), Answer(body={"a": "b" * 10_000}, drip=0.01)]
)
async def test_no_call_outlasts_its_deadline(fusion, answer):
    fusion.script.append(answer)
    sandbox = impatient(fusion)
    began = time.monotonic()
    failure = await failure_of(sandbox, SHORT)
    assert (type(failure), failure.reason) == (SandboxTimeout, "timeout")
    assert "within 0.3 s" in str(failure)
    assert failure.may_be_running is True
    assert time.monotonic() - began < 90
    await sandbox.close()
    fusion.wait_until(lambda: fusion.open_connections == 0)


async def test_the_margin_is_a_setting(fusion, monkeypatch):
    monkeypatch.setenv("PENSTOCK_SANDBOX_FUSION_URL", fusion.url)
    monkeypatch.setenv("PENSTOCK_SANDBOX_MARGIN", "0.1")
    fusion.script.append(Answer.ok(seconds=math.inf))
    sandbox = make_sandbox(WorkerSettings.load())
    assert "within 0.3 s" in str(await failure_of(sandbox, SHORT))
    await sandbox.close()


def test_time_in_the_line_of_our_own_server_is_not_the_programs():
    """Who waits there for as long as it lets one wait still has time to be answered."""
    (patience,) = [option.default for option in serve.params if option.name == "patience"]
    assert WorkerSettings.load().sandbox_margin >= patience + 10


async def test_a_slow_program_within_its_own_limits_is_waited_for(fusion):
    fusion.script.append(Answer.ok("late\n", seconds=0.3))
    sandbox = SandboxFusion(fusion.url, margin=10)
    assert (await sandbox.run(SHORT)).stdout == "late\n"
    await sandbox.close()


async def test_ten_megabytes_of_output_are_cut_on_our_side(fusion, sandbox):
    fusion.script.append(Answer.ok("y" * (10 << 20)))
    result = await sandbox.run(PROGRAM)
    assert result.run_result.stdout_truncated
    assert len(json.dumps(result.dump())) < (1 << 20) + 2000


async def test_an_answer_beyond_all_measure_is_the_programs_doing(fusion):
    fusion.script.append(Answer.ok("y" * (3 << 20)))
    sandbox = SandboxFusion(fusion.url, max_answer=1 << 20)
    result = await sandbox.run(PROGRAM)
    assert (result.status, result.error_kind) == ("Failed", "limit")
    assert result.error_reason == "output_limit"  # as the embedded sandbox says it
    assert "longer than 1,048,576 bytes" in result.message
    await sandbox.close()


async def test_a_server_that_floods_is_hung_up_on(fusion, sandbox):
    fusion.script.append(Answer(megabytes=200))
    failure = await failure_of(sandbox)
    assert (type(failure), failure.reason) == (SandboxBroken, "unreadable")
    fusion.wait_until(lambda: fusion.open_connections == 0)


async def test_connections_are_kept(fusion, sandbox):
    for _ in range(20):
        await sandbox.run(PROGRAM)
    assert (fusion.requests, fusion.connections) == (20, 1)


async def test_connections_that_idled_too_long_are_closed(fusion, sandbox, monkeypatch):
    fusion.default = Answer.ok(seconds=math.inf)
    runs = [asyncio.create_task(sandbox.run(PROGRAM)) for _ in range(5)]
    await asyncio.to_thread(fusion.wait_until, lambda: fusion.in_flight == 5)
    fusion.finish_held()
    await asyncio.gather(*runs)
    assert fusion.open_connections == 5
    monkeypatch.setattr("jail.fusion.endpoints.KEEPALIVE", -1)
    fusion.default = Answer.ok()
    await sandbox.run(PROGRAM)
    await asyncio.to_thread(fusion.wait_until, lambda: fusion.open_connections < 2)


async def test_a_kept_connection_is_used_again_after_an_error(fusion, sandbox):
    fusion.script.extend([Answer.refusal(503), Answer.refusal(500)])
    for _ in range(2):
        await failure_of(sandbox)
    await sandbox.run(PROGRAM)
    assert fusion.connections == 1


async def test_hundreds_run_at_once(fusion, sandbox, monkeypatch):
    monkeypatch.setattr("jail.fusion.endpoints.CONNECT_TIMEOUT", 100.0)  # on a busy machine
    fusion.default = Answer.ok(seconds=math.inf)
    runs = [asyncio.create_task(sandbox.run(PROGRAM)) for _ in range(300)]
    await asyncio.to_thread(fusion.wait_until, lambda: fusion.in_flight == 300)
    fusion.finish_held()
    assert {result.stdout for result in await asyncio.gather(*runs)} == {""}
    assert fusion.peak == 300


async def test_a_storm_of_failures_and_cancellations_leaks_nothing(fusion, sandbox):
    draw = random.Random(7)
    kinds = [
        Answer.ok("fine"), Answer.ok("slow", seconds=0.05), Answer.exit(1), Answer.cut(),
        Answer.half(), Answer.busy(1), Answer.refusal(500), Answer(text="<html>"),
        Answer.sandbox_error(), Answer.ok("z" * 300_000),
    ]  # fmt: skip
    fusion.script.extend(draw.choice(kinds) for _ in range(600))
    at_once = asyncio.Semaphore(40)

    async def one(i):
        async with at_once:
            run = asyncio.create_task(sandbox.run(CodeRequest(code=f"print({i})")))
            if draw.random() < 0.2:
                for _ in range(draw.randrange(30)):
                    await asyncio.sleep(0)
                run.cancel()
            return await run

    ends = await asyncio.gather(*(one(i) for i in range(600)), return_exceptions=True)
    unforeseen = [
        end for end in ends if isinstance(end, Exception) and not isinstance(end, SandboxFailure)
    ]
    assert unforeseen == []
    assert not any(isinstance(end, SandboxTimeout) for end in ends)
    assert sum(not isinstance(end, BaseException) for end in ends) > 100
    assert sandbox._endpoints.all[0].in_flight == 0
    assert max(fusion.codes.values()) == 1
    assert fusion.open_connections <= 40
    await sandbox.close()
    await asyncio.to_thread(fusion.wait_until, lambda: fusion.open_connections == 0)
    await asyncio.to_thread(fusion.wait_until, lambda: fusion.in_flight == 0)


@pytest.mark.parametrize("ticks", range(12))
async def test_a_run_cancelled_at_any_moment_does_not_hold_up_the_next(fusion, ticks):
    sandbox = impatient(fusion)
    run = asyncio.create_task(sandbox.run(SHORT))
    for _ in range(ticks):
        await asyncio.sleep(0)
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    patient = SHORT.model_copy(update={"run_timeout": 60.0})
    async with asyncio.timeout(100):
        assert (await sandbox.run(patient)).ok
    await sandbox.close()


async def test_a_cancelled_run_hangs_up_and_frees_its_place(fusion, sandbox):
    fusion.default = Answer.ok(seconds=math.inf)
    run = asyncio.create_task(sandbox.run(PROGRAM))
    await asyncio.to_thread(fusion.wait_until, lambda: fusion.in_flight == 1)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    await asyncio.to_thread(fusion.wait_until, lambda: fusion.open_connections == 0)
    [endpoint] = sandbox._endpoints.all
    assert (endpoint.in_flight, endpoint.failures) == (0, 0)


async def test_programs_go_to_all_endpoints_and_not_to_a_dead_one(fusion):
    with ScriptedFusion() as other:
        sandbox = SandboxFusion([fusion.url, other.url])
        await asyncio.gather(*(sandbox.run(PROGRAM) for _ in range(100)))
        assert (fusion.requests, other.requests) == (50, 50)
        other.stop_listening()
        failures = 0
        for _ in range(30):
            try:
                await sandbox.run(PROGRAM)
            except SandboxUnreachable:
                failures += 1
        # One program finds out; trials may repeat if this machine is slow.
        assert 1 <= failures <= 5
        other.listen_again()
        sandbox._endpoints.all[1].aside_until = 0
        await asyncio.gather(*(sandbox.run(PROGRAM) for _ in range(10)))
        assert other.requests > 50
        await sandbox.close()


async def test_one_endpoint_set_up_wrong_does_not_condemn_the_job(fusion):
    with ScriptedFusion(default=Answer.refusal(404)) as wrong:
        sandbox = SandboxFusion([wrong.url, wrong.url + "/"])
        failure = await failure_of(sandbox)
        assert (type(failure), failure.reason, failure.retryable) == (
            SandboxBroken,
            "http_404",
            True,
        )
        await sandbox.close()


async def test_a_language_the_deployment_lacks_is_refused_before_it_is_sent(fusion):
    sandbox = SandboxFusion(fusion.url, languages=["python"])
    failure = await failure_of(sandbox, CodeRequest(code="1", language="lua"))
    assert (type(failure), failure.reason) == (SandboxUnfit, "language")
    assert fusion.requests == 0


async def test_files_of_the_server_itself_are_not_asked_for(fusion, sandbox):
    request = CodeRequest(code="1", fetch_files=["a", "/etc/shadow"])
    failure = await failure_of(sandbox, request)
    assert (type(failure), failure.reason) == (SandboxUnfit, "absolute_fetch")
    assert fusion.requests == 0
    trusting = SandboxFusion(fusion.url, absolute_fetch=True)
    assert (await trusting.run(request)).ok
    await trusting.close()


async def test_secrets_reach_the_server_and_no_log_and_no_message(fusion, caplog):
    caplog.set_level(logging.DEBUG)
    address = fusion.url.removeprefix("http://")
    sandbox = SandboxFusion(
        f"http://me:hunter2@{address}/run_code?key=s3cret", headers={"X-API-Key": "t0ken"}
    )
    await sandbox.run(CodeRequest(code="print('pr0gram')"))
    assert fusion.headers[0]["x-api-key"] == "t0ken"
    assert fusion.headers[0]["authorization"].startswith("Basic ")
    fusion.script.append(Answer.refusal(500))
    said = [str(await failure_of(sandbox))]
    fusion.stop_listening()
    said.append(str(await failure_of(sandbox)))
    ours = [record.getMessage() + str(record.__dict__) for record in caplog.records]
    await sandbox.close()
    for secret in ("hunter2", "s3cret", "t0ken", "pr0gram"):
        assert not any(secret in line for line in said + ours)


async def test_a_token_of_any_text_reaches_the_server(fusion):
    sandbox = SandboxFusion(fusion.url, headers={"Authorization": "Bearer clé"})
    assert (await sandbox.run(CodeRequest(code="print(1)"))).ok
    await sandbox.close()
    assert fusion.headers[0]["authorization"].encode("latin-1") == "Bearer clé".encode()


async def test_another_event_loop_is_told_to_make_its_own(fusion, sandbox):
    await sandbox.run(PROGRAM)
    refusals = []

    def elsewhere():
        try:
            asyncio.run(sandbox.run(PROGRAM))
        except RuntimeError as refusal:
            refusals.append(str(refusal))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert "make one for each loop" in refusals[0]


def test_after_closing_it_may_serve_another_loop(fusion):
    sandbox = SandboxFusion(fusion.url)

    async def once():
        result = await sandbox.run(PROGRAM)
        await sandbox.close()
        await sandbox.close()
        return result.stdout

    assert [asyncio.run(once()) for _ in range(2)] == ["ok\n", "ok\n"]
