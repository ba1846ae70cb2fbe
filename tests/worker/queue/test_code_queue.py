"""The trainer's side, with RQ's own workers on the other."""

import asyncio
import base64
import json
import math
import pickle
import threading
import zlib
from typing import Any
from unittest.mock import Mock

import pytest
from rq.job import Job
from rq.serializers import JSONSerializer

import ground
from penstock.in_process import run_queued
from tests.worker.concurrent import stock
from tests.worker.queue.by_shortcut import eventually
from tests.worker.scripted_answers import Answer
from worker import (
    CodeQueue,
    CodeRequest,
    DeadlineExceeded,
    JobCancelled,
    JobFailed,
    NoWorkers,
    QueueError,
    QueueUnavailable,
    RequestRefused,
    ResultExpired,
    ResultUnreadable,
    TrainingPaused,
)
from worker.queue import engine
from worker.queue.client_orders import Orders
from worker.queue.submitting import Submitter


class Interrupted(Exception):
    """What a signal's handler raises."""


@pytest.fixture
def queue(redis) -> CodeQueue:
    return CodeQueue(redis, "code")


@pytest.fixture
def hasty(redis) -> CodeQueue:
    """Looks at its jobs ten times a second. Some worker lives, so no job is refused."""
    redis.hset("rq:worker:busy", "birth", "now")
    redis.sadd("rq:workers:code", "rq:worker:busy")
    return CodeQueue(redis, "code", no_workers_after=0.2)


async def work(redis) -> list[Job]:
    """What a worker does now."""
    return await asyncio.to_thread(run_queued, redis)


async def test_a_program_comes_back_with_its_result(redis, queue, fusion):
    handle = await queue.submit("print(42)", timeout=60)
    assert not handle.done
    await work(redis)
    result = await handle.result()
    assert (result.stdout, result.correlation_id) == ("42\n", handle.id)
    assert await handle.result() == result
    assert fusion.executions[handle.id] == 1


async def test_results_come_in_the_order_of_the_programs(redis, queue, fusion):
    fusion.programs |= {str(n): Answer.ok(f"{n}") for n in range(20)}
    running = asyncio.create_task(queue.run_many([str(n) for n in range(20)], timeout=60))
    while redis.llen("rq:queue:code") < 20:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.001)
    await work(redis)
    assert [result.stdout for result in await running] == [str(n) for n in range(20)]


@pytest.mark.parametrize(("code", "kept"), [("print(1)", "as it is"), ("#" * 1000, "compressed")])
async def test_rq_reads_a_program_however_it_is_kept(redis, queue, code, kept) -> None:
    handle = await queue.submit(code)
    data = redis.hget(f"rq:job:{handle.id}", "data")
    assert data.startswith(b"[") == (kept == "as it is")
    (request,) = Job.fetch(handle.id, connection=redis, serializer=JSONSerializer).args
    assert request["code"] == code


async def test_handles_arrive_as_their_results_do(redis, queue, fusion):
    handles = [await queue.submit(str(n), timeout=60) for n in range(5)]
    await handles[3].cancel()
    arriving = queue.as_completed(handles)
    assert await anext(arriving) is handles[3]
    await work(redis)
    rest = [handle async for handle in arriving]
    assert sorted(handle.id for handle in rest) == sorted(
        handle.id for handle in handles if handle is not handles[3]
    )


def test_the_sync_face_does_the_same(redis, queue, fusion):
    handles = [queue.sync.submit(str(n)) for n in range(3)]
    with pytest.raises(TimeoutError):
        handles[0].result(timeout=0.01)
    run_queued(redis)
    arrived = {handle.id for handle in queue.sync.as_completed(handles)}
    assert arrived == {handle.id for handle in handles}
    assert {handle.result().stdout for handle in handles} == {"42\n"}
    waiting = threading.Thread(target=queue.sync.run_many, args=(["1", "2"],))
    waiting.start()
    while redis.llen("rq:queue:code") < 2:
        pass
    run_queued(redis)
    waiting.join(100)
    assert not waiting.is_alive()
    last = queue.sync.submit("4")
    last.cancel()
    with pytest.raises(JobCancelled):
        last.result()


async def test_rq_sees_a_job_like_its_own(redis, queue):
    request = CodeRequest(code="secret = 1", compile_timeout=5, run_timeout=5)
    handle = await queue.submit(request, token="sample-1")
    ours = Job.fetch("sample-1", connection=redis, serializer=JSONSerializer)
    theirs = stock.code_queue(redis).enqueue("worker.jobs.run_code", request.dump())
    fields = redis.hgetall(ours.key)
    said = {field for field, value in redis.hgetall(theirs.key).items() if value}
    assert {b"data", *said} <= set(fields)
    assert ours.args == [call_of(request) | {"correlation_id": "sample-1"}]
    assert (ours.func_name, ours.origin, ours.timeout) == ("worker.jobs.run_code", "code", 610)
    assert (ours.result_ttl, ours.failure_ttl, ours.retries_left) == (3600, 86400, 3)
    assert ours.description == "run_code python 10 bytes sample-1"
    assert ours.get_status() == "queued"
    assert stock.code_queue(redis).job_ids == ["sample-1", theirs.id]
    assert redis.smembers("rq:queues") == {b"rq:queue:code"}
    await handle.cancel()


async def test_a_correlation_id_reaches_the_job_as_it_is(redis, queue):
    request = CodeRequest(code="1", correlation_id='"quoted"\\')
    handle = await queue.submit(request)
    job = Job.fetch(handle.id, connection=redis, serializer=JSONSerializer)
    assert job.args == [call_of(request)]
    await handle.cancel()


def call_of(request: CodeRequest) -> dict[str, Any]:
    """What the job is called with: its cost stands beside that, in its hash."""
    return {name: value for name, value in request.dump().items() if name != "cost"}


async def test_a_token_is_one_job_however_often_it_is_submitted(redis, queue, fusion):
    first = await queue.submit("print(42)", token="sample-1")
    await work(redis)
    assert (await first.result()).ok
    again = await queue.submit("print(42)", token="sample-1", timeout=60)
    assert (await again.result()).ok
    assert fusion.requests == 1


async def test_a_large_result_is_fetched_from_rq(redis, queue, fusion):
    fusion.default = Answer.ok("x" * 200_000)
    handle = await queue.submit("large", timeout=60)
    await work(redis)
    assert len((await handle.result()).stdout) == 200_000


async def test_a_result_is_found_without_any_notice(redis, hasty, fusion):
    handle = await hasty.submit("print(42)", timeout=60)
    redis.hdel(f"rq:job:{handle.id}", "penstock_reply_to")
    await work(redis)
    assert (await handle.result()).ok


async def test_the_first_notice_counts_and_others_are_ignored(redis, queue):
    handle = await queue.submit("print(42)", timeout=60)
    stream = redis.hget(f"rq:job:{handle.id}", "penstock_reply_to")
    for number in range(3):
        result = {"status": "Success", "run_result": {"status": "Finished", "stdout": f"{number}"}}
        notice = {"job": handle.id, "status": "finished", "result": json.dumps(result)}
        redis.xadd(stream, notice)
    assert (await handle.result()).stdout == "0"
    await handle.cancel()
    assert (await handle.result()).stdout == "0"


async def test_what_is_no_notice_or_no_result_harms_nobody_else(redis, queue):
    first, second = [await queue.submit("1", timeout=60) for _ in range(2)]
    stream = redis.hget(f"rq:job:{first.id}", "penstock_reply_to")
    redis.xadd(stream, {"no": "notice"})
    redis.xadd(stream, {"job": b"\xff", "status": "finished"})
    redis.xadd(stream, {"job": first.id, "status": "finished", "result": "{"})
    redis.xadd(stream, {"job": second.id, "status": "finished", "result": '{"status": "Failed"}'})
    with pytest.raises(ResultUnreadable, match="the stored result is not JSON"):
        await first.result()
    assert (await second.result()).status == "Failed"


DEEP = "[" * 100_000 + "]" * 100_000
UNREADABLE_ENDS = {
    "no base64": {"type": 1, "return_value": "x"},
    "no zlib": {"type": 2, "exc_string": "abcd"},
    "no text": {"type": 2, "exc_string": base64.b64encode(zlib.compress(b"\xff")).decode()},
    "nested deeply": {"type": 1, "return_value": base64.b64encode(DEEP.encode()).decode()},
}


@pytest.mark.parametrize("end", UNREADABLE_ENDS.values(), ids=UNREADABLE_ENDS)
async def test_an_end_that_cannot_be_read_is_one_jobs_error(redis, hasty, fusion, end):
    bad, good = [await hasty.submit(code, timeout=60) for code in ("bad", "good")]
    redis.lrem("rq:queue:code", 0, bad.id)
    redis.xadd(f"rq:results:{bad.id}", end)
    redis.hset(f"rq:job:{bad.id}", "status", "failed")
    with pytest.raises(ResultUnreadable):
        await bad.result()
    await work(redis)
    assert (await good.result()).ok
    assert (await hasty.submit("later", timeout=60))._order.client is good._order.client


@pytest.mark.parametrize("key", ["rq:results", "rq:job"])
async def test_a_key_of_another_type_is_one_jobs_error(redis, hasty, fusion, key):
    bad, good = [await hasty.submit(code, timeout=60) for code in ("bad", "good")]
    redis.lrem("rq:queue:code", 0, bad.id)
    redis.delete(f"{key}:{bad.id}")
    redis.set(f"{key}:{bad.id}", "no hash, and no stream")
    with pytest.raises(ResultUnreadable, match=f"job {bad.id}: what Redis keeps of its end"):
        await bad.result()
    await work(redis)
    assert (await good.result()).ok


async def test_a_token_whose_key_is_no_job_is_one_jobs_error(redis, queue, fusion):
    redis.set("rq:job:taken", "no hash")
    tokens = ["first", "taken", "last"]
    handles = await asyncio.gather(*(queue.submit("1", token=t, timeout=60) for t in tokens))
    with pytest.raises(ResultUnreadable):
        await handles[1].result()
    await handles[1].cancel()
    await work(redis)
    assert [(await handles[n].result()).ok for n in (0, 2)] == [True, True]


async def test_a_refusal_concerns_only_the_jobs_it_was_given_for(redis, queue, fusion):
    redis.set("rq:queue:other", "no list")
    other = CodeQueue(redis, "other")
    refused, good = await asyncio.gather(
        other.submit("1", token="again"), queue.submit("2", timeout=60), return_exceptions=True
    )
    assert isinstance(refused, QueueUnavailable)
    redis.delete("rq:queue:other")
    await work(redis)
    assert (await good.result()).ok
    assert not redis.exists("rq:job:again"), "it would be taken for queued when it is sent again"


async def test_a_refusal_of_redis_is_passed_on_and_the_next_job_is_served(redis, queue, fusion):
    redis.set("rq:queue:code", "no list")
    with pytest.raises(QueueUnavailable, match="WRONGTYPE"):
        await queue.submit("1")
    redis.delete("rq:queue:code")
    handle = await queue.submit("1", timeout=60)
    await work(redis)
    assert (await handle.result()).ok


async def test_a_failed_job_says_what_its_worker_said(redis, queue, monkeypatch):
    monkeypatch.setenv("PENSTOCK_SANDBOX", "moon")
    handle = await queue.submit("print(42)", timeout=60)
    await work(redis)
    with pytest.raises(JobFailed, match="PENSTOCK_SANDBOX: 'moon' is neither of") as failed:
        await handle.result()
    assert "Traceback" in failed.value.trace


async def test_a_cancelled_job_is_taken_off_its_queue(redis, queue, fusion):
    handle = await queue.submit("print(42)")
    await handle.cancel()
    with pytest.raises(JobCancelled, match=f"job {handle.id} was cancelled by its caller"):
        await handle.result()
    assert redis.llen("rq:queue:code") == 0
    assert redis.hget(f"rq:job:{handle.id}", "status") == b"canceled"
    assert redis.ttl(f"rq:job:{handle.id}") > 0
    assert await work(redis) == []


async def test_a_handle_outlives_the_engine_of_its_process(redis, queue):
    handle = await queue.submit("print(42)")
    await asyncio.to_thread(engine.stop_all)
    await asyncio.wait_for(handle.cancel(), 100)
    assert [each async for each in queue.as_completed([handle])] == [handle]
    with pytest.raises(JobCancelled):
        await handle.result()


async def test_a_handle_of_another_process_refuses_in_a_sentence(redis, queue, monkeypatch):
    handle = await queue.submit("print(42)")
    with monkeypatch.context() as forked:
        forked.setattr(handle._order.client.engine, "stopped", True)
        with pytest.raises(QueueError, match=f"job {handle.id} belongs to another process"):
            await asyncio.wait_for(handle.result(), 100)
        with pytest.raises(QueueError, match=f"job {handle.id} belongs to another process"):
            await asyncio.wait_for(handle.cancel(), 100)


@pytest.mark.parametrize(("abandon", "left"), [("cancel", 0), ("keep", 1)])
async def test_a_deadline_ends_the_wait_and_the_job_or_keeps_it(redis, abandon, left):
    queue = CodeQueue(redis, "code", abandon=abandon)
    handle = await queue.submit("print(42)", timeout=0.05)
    said = r"no result within 0\.05 s, and no worker listens on queue 'code'; .*penstock worker"
    with pytest.raises(DeadlineExceeded, match=said):
        await handle.result()
    await (await queue.submit("next")).cancel()
    assert redis.llen("rq:queue:code") == left


async def test_a_cancelled_caller_takes_its_jobs_along(redis, queue):
    running = asyncio.create_task(queue.run_many(["1", "2", "3"]))
    while redis.llen("rq:queue:code") < 3:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.001)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await (await queue.submit("next")).cancel()
    assert redis.llen("rq:queue:code") == 0


@pytest.mark.parametrize("face", ["coroutine", "thread"])
async def test_many_that_are_interrupted_as_they_are_submitted_are_not_run(
    redis, queue, monkeypatch, face
):
    submit, submitted = Submitter.submit, []

    def interrupted(*args, **kwargs):
        if len(submitted) == 2:
            raise Interrupted
        submitted.append(submit(*args, **kwargs))
        return submitted[-1]

    with monkeypatch.context() as once:
        once.setattr(Submitter, "submit", interrupted)
        with pytest.raises(Interrupted):
            if face == "coroutine":
                await queue.run_many(["1", "2", "3"])
            else:
                await asyncio.to_thread(queue.sync.run_many, ["1", "2", "3"])
    await (await queue.submit("next")).cancel()
    assert redis.llen("rq:queue:code") == 0


async def test_a_queue_that_nobody_works_on_is_named(redis):
    alone = CodeQueue(redis, "code", no_workers_after=0.2)
    with pytest.raises(
        NoWorkers,
        match=r"queue 'code': no worker for \d s, and 1 job waits; "
        "start one on the same Redis, with --gate NAME if a gate limits its programs: "
        "penstock worker --sandbox local code, or with Sandbox Fusion "
        "PENSTOCK_SANDBOX_FUSION_URL=http://… penstock worker code",
    ):
        await alone.run("print(42)", timeout=60)
    for _ in range(2):
        await CodeQueue(redis, "code", abandon="keep").submit("print(42)")
    with pytest.raises(NoWorkers, match="and 3 jobs wait") as refused:
        await alone.run("print(42)", timeout=60)
    assert refused.value.waiting == 3


async def test_a_queue_with_a_worker_is_waited_for(hasty):
    with pytest.raises(DeadlineExceeded):
        await hasty.run("print(42)", timeout=0.7)


@pytest.mark.parametrize(("status", "state"), [("queued", "half"), ("started", "open")])
async def test_a_job_that_a_breaker_let_through_is_not_withdrawn(
    redis, hasty, monkeypatch, status, state
):
    looked = Mock(side_effect=Orders._looked_at)
    monkeypatch.setattr(Orders, "_looked_at", lambda *args: looked(*args))
    raises = CodeQueue(redis, "code", no_workers_after=0.2, when_paused="raise")
    handle = await raises.submit("print(42)", timeout=60)
    redis.hset(f"rq:job:{handle.id}", "status", "started")
    paused = {"paused": "half 9999999999999999 1 1 0", "paused_why": "the sandbox was away"}
    redis.hset("penstock:work:{code}", mapping=paused)
    waiting, looks = asyncio.create_task(handle.result()), looked.call_count
    await eventually(lambda: looked.call_count > looks + 2, "three looks")
    assert not waiting.done()
    redis.hset(f"rq:job:{handle.id}", "status", status)
    redis.hset("penstock:work:{code}", "paused", f"{state} 9999999999999999 1 1 0")
    with pytest.raises(TrainingPaused, match="the sandbox was away"):
        await waiting
    redis.hset(f"rq:job:{handle.id}", "status", "queued")
    await eventually(lambda: not redis.llen("rq:queue:code"), "its withdrawal")


async def test_a_job_that_redis_forgot_is_said_to_be_gone(redis, hasty):
    handle = await hasty.submit("print(42)", timeout=60)
    redis.delete(f"rq:job:{handle.id}")
    with pytest.raises(ResultExpired, match="is not in Redis any more"):
        await handle.result()


async def test_a_bad_program_is_refused_before_anything_is_queued(redis, queue):
    with pytest.raises(RequestRefused, match="code has a lone surrogate"):
        await queue.run_many(["print(1)", "\ud800"])
    for setting, value in (
        *(("timeout", wrong) for wrong in (0, "3", True, math.nan, math.inf, 10**400)),
        *(("token", wrong) for wrong in ("a b", "x:y", "", 7, b"x")),
    ):
        with pytest.raises(ground.SettingError, match=f"^{setting}: "):
            await queue.submit("print(1)", **{setting: value})
    assert redis.keys() == []


async def test_a_job_after_one_that_was_cancelled_at_once_has_a_living_client(redis, queue):
    task = asyncio.create_task(queue.run("print(1)"))
    await asyncio.sleep(0)  # it is on its way, and not yet sent
    task.cancel()
    await asyncio.wait([task])
    await eventually(lambda: redis.keys("rq:job:*") != [], "Redis to know that nobody wants it")
    handle = await queue.submit("print(42)")
    wanted_by = redis.hget(f"rq:job:{handle.id}", "penstock_abandon").decode()
    assert redis.exists(f"penstock:client:{{{wanted_by}}}"), "its worker would drop it"
    await handle.cancel()


NO_PROGRAMS = [({"code": "1"}, "dict"), (b"print(1)", "bytes"), (None, "NoneType")]


@pytest.mark.parametrize(("given", "kind"), NO_PROGRAMS)
async def test_what_is_no_program_is_refused_in_a_sentence(redis, queue, given, kind):
    sentence = f"a program is a CodeRequest, or its code as a str, not {kind}"
    with pytest.raises(RequestRefused, match=sentence):
        await queue.run(given)
    with pytest.raises(RequestRefused, match=sentence):
        await queue.submit(given)
    with pytest.raises(RequestRefused, match=sentence):
        queue.sync.run_many(["print(1)", given])
    with pytest.raises(RequestRefused, match="run_many takes a list of programs, not one"):
        await queue.run_many("print(1)")
    assert redis.keys() == []


async def test_a_request_of_another_version_fails_on_its_worker_with_a_sentence(
    redis, queue, fusion
):
    newer = await queue.submit(CodeRequest(code="1", v=9), timeout=60)
    good = await queue.submit("print(42)", timeout=60)
    await work(redis)
    with pytest.raises(JobFailed, match="has schema version 9, and this release reads 1 to 1"):
        await newer.result()
    assert (await good.result()).ok
    assert fusion.requests == 1


def test_without_a_redis_it_says_what_it_takes():
    with pytest.raises(ground.SettingError, match="redis: is a client, a URL or a RedisTarget"):
        CodeQueue(None)  # of an environment variable that is not set


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("name", "a b"),
        ("abandon", "drop"),
        ("result_ttl", 1),
        ("retries", -1),
        ("spare", -1.0),
        ("patience", "9"),
        ("retries", True),
        ("retries", 2.5),
        *((setting, 10**17) for setting in ("result_ttl", "failure_ttl", "retries", "spare")),
        *((setting, 10**400) for setting in ("patience", "no_workers_after")),
    ],
)
def test_a_queue_that_cannot_work_is_refused(redis, setting, value):
    with pytest.raises(ground.SettingError, match=setting):
        CodeQueue(redis, **{setting: value})


async def test_a_wait_beyond_all_measure_is_refused(queue):
    handle = await asyncio.to_thread(queue.sync.submit, "print(1)", timeout=60)
    for wrong in (1e300, math.nan, True):
        with pytest.raises(ground.SettingError, match=r"^timeout: must be 0 or more seconds"):
            handle.result(wrong)
    for most in (0, 10**30):
        with pytest.raises(ground.SettingError, match=r"^most: must be a whole number from 1"):
            await queue.shares(most)


async def test_one_queue_serves_several_loops_and_threads(redis, queue, fusion):
    def trainer(number: int) -> None:
        results.append(asyncio.run(queue.run(f"{number}", timeout=60)).ok)

    results: list[bool] = []
    threads = [threading.Thread(target=trainer, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    while redis.llen("rq:queue:code") < 8:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.001)
    await work(redis)
    await asyncio.to_thread(lambda: [thread.join(100) for thread in threads])
    assert results == [True] * 8


async def test_every_key_of_a_finished_job_has_an_end(redis, queue, fusion):
    handle = await queue.submit("print(42)", timeout=60)
    await work(redis)
    await handle.result()
    lasting = {key for key in redis.keys("*") if redis.ttl(key) < 0}
    assert lasting == {b"rq:queues", b"rq:finished:code"}


def test_a_queue_that_has_judged_pickles_for_other_processes(real_redis):
    queue = CodeQueue(real_redis, "code", share="training")
    queue._submitter.suites()  # as judging many cases makes one: with locks, and a connection
    twin = pickle.loads(pickle.dumps(queue))
    job = twin.sync.submit("print(42)").id
    assert repr(twin) == repr(queue)
    assert real_redis.hget(f"rq:job:{job}", "penstock_share") == b"training"
